"""Which of an account's vCPU quotas an instance type counts against."""

from __future__ import annotations

import pytest

from executor.backends.ec2.doctor.node_checks import quota_name

STANDARD = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
NAMES = [
    "EC2-VPC Elastic IPs",
    STANDARD,
    "Running On-Demand DL instances",
    "Running On-Demand F instances",
    "Running On-Demand G and VT instances",
    "Running On-Demand High Memory instances",
    "Running On-Demand HPC instances",
    "Running On-Demand Inf instances",
    "Running On-Demand P instances",
    "Running On-Demand Trn instances",
    "Running On-Demand X instances",
    "All G and VT Spot Instance Requests",
    "All P4, P3 and P2 Spot Instance Requests",
    "All P5 Spot Instance Requests",
    "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
]
"""As https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html has them."""


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("t3.small", STANDARD),
        ("m7i-flex.large", STANDARD),
        ("c7gn.16xlarge", STANDARD),
        ("im4gn.large", STANDARD),
        ("is4gen.large", STANDARD),
        ("i3en.24xlarge", STANDARD),
        ("z1d.large", STANDARD),
        ("d3.xlarge", STANDARD),
        ("dl1.24xlarge", "Running On-Demand DL instances"),
        ("g5.xlarge", "Running On-Demand G and VT instances"),
        ("gr6.4xlarge", "Running On-Demand G and VT instances"),
        ("vt1.3xlarge", "Running On-Demand G and VT instances"),
        ("u-6tb1.112xlarge", "Running On-Demand High Memory instances"),
        ("u7i-12tb.224xlarge", "Running On-Demand High Memory instances"),
        ("h1.2xlarge", STANDARD),
        ("hpc6a.48xlarge", "Running On-Demand HPC instances"),
        ("inf2.xlarge", "Running On-Demand Inf instances"),
        ("p5en.48xlarge", "Running On-Demand P instances"),
        ("trn1n.32xlarge", "Running On-Demand Trn instances"),
        ("x2gd.medium", "Running On-Demand X instances"),
        ("mac2.metal", None),
        ("", None),
    ],
)
def test_a_type_counts_against_the_quota_of_its_family(kind: str, name: str | None) -> None:
    assert quota_name(kind, NAMES) == name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("p4d.24xlarge", "All P4, P3 and P2 Spot Instance Requests"),
        ("p5.48xlarge", "All P5 Spot Instance Requests"),
        ("p6-b200.48xlarge", None),
        ("c7i.large", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
        ("trn1.2xlarge", None),
    ],
)
def test_a_spot_quota_for_one_instance_generation_is_found(kind: str, name: str | None) -> None:
    assert quota_name(kind, NAMES, spot=True) == name


def test_a_spot_quota_for_all_generations_is_found() -> None:
    assert quota_name("p6-b200.48xlarge", ["All P Spot Instance Requests"], spot=True) is not None
