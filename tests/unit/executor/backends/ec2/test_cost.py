"""The possible cost of a job: "at most" if that is a bound, "about" if not, and the costs that are not included."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bai_agent.light_dataclass import replace
from executor.backends.ec2.launch.cost import (
    Cost,
    VolumeCost,
    dearest,
    is_bound,
    mean,
    not_included,
    over_budget,
    price,
    volume_cost,
)
from executor.backends.ec2.launch.images import Image
from executor.backends.ec2.session import AwsSession

LINUX = Image(id="ami-1", architecture="x86_64", root_device="/", root_gib=8, operation="RunInstances")


@pytest.mark.parametrize(("other", "dollars"), [(2.0, 7.5), (None, None)])
def test_machines_of_two_types_cost_their_sum(other: float | None, dollars: float | None) -> None:
    client = Cost(instances=1, longest=timedelta(hours=3), hourly=0.5, origin="small: a list", bound=True)
    server = replace(client, hourly=other, origin="large: a list", excluded=("traffic",))

    cost = mean([client, server])

    assert cost.dollars == dollars
    assert (cost.hours, cost.bound, cost.excluded) == (6.0, True, ("traffic",))
    assert cost.origin == "the mean of small: a list and large: a list"


@pytest.mark.parametrize(("bound", "word"), [(True, "at most"), (False, "about")])
def test_a_cost_is_called_at_most_if_it_is_a_bound_and_otherwise_about(bound: bool, word: str) -> None:
    cost = Cost(
        instances=2,
        longest=timedelta(hours=3),
        hourly=0.5,
        origin="a list",
        bound=bound,
        excluded=("volumes", "traffic"),
    )

    assert cost.sentence() == (
        f"at most 6.0 instance hours, {word} 3.00 USD at 0.5000 USD an hour (a list); not in it: volumes, traffic"
    )


def test_the_most_expensive_of_several_instance_types_is_the_maximum_cost() -> None:
    def cost(hourly: float | None, *, bound: bool = True, excluded: tuple[str, ...] = ("volumes",)) -> Cost:
        return Cost(
            instances=1,
            longest=timedelta(hours=2),
            hourly=hourly,
            origin="a list",
            bound=bound,
            excluded=excluded,
        )

    both = dearest([cost(0.5), cost(2.0), cost(1.0, bound=False, excluded=("volumes", "credits"))])

    assert (both.dollars, both.bound, both.excluded) == (4.0, False, ("volumes", "credits"))
    # nobody knows what a job costs at most that may get a machine without a price
    assert dearest([cost(2.0), cost(None)]).dollars is None


@pytest.mark.parametrize(
    ("kind", "request_", "expected"),
    [
        ("c7i.large", {}, {"traffic", "public IPv4 addresses"}),
        ("c7i.large", {"NetworkInterfaces": [{"AssociatePublicIpAddress": False}]}, {"traffic"}),
        (
            "c7i.large",
            {
                "Placement": {"Tenancy": "dedicated"},
                "NetworkInterfaces": [{"AssociatePublicIpAddress": False}],
            },
            {"traffic", "the region's fee for dedicated instances"},
        ),
    ],
)
def test_costs_that_are_not_included_are_named(
    kind: str, request_: dict[str, Any], expected: set[str]
) -> None:
    assert set(not_included(kind, request_)) == expected


@pytest.mark.parametrize(
    ("kind", "bought", "bound"),
    [
        ("t3.small", None, False),
        ("t3.small", "standard", True),
        ("t2.small", None, True),
        ("t2.small", "unlimited", False),
        ("c7i.large", None, True),
    ],
)
def test_unlimited_cpu_credits_leave_the_cost_without_a_bound(
    kind: str, bought: str | None, bound: bool
) -> None:
    request = {"CreditSpecification": {"CpuCredits": bought}} if bought else {}

    assert is_bound(LINUX, not_included(kind, request)) is bound


@pytest.mark.parametrize(
    ("kind", "bought", "vcpus", "said"),
    [
        ("t3.small", None, 2, "(at most 0.05 USD per vCPU-hour, 0.10 USD an hour for 2 vCPUs)"),
        ("t4g.2xlarge", None, 8, "(at most 0.04 USD per vCPU-hour, 0.32 USD an hour for 8 vCPUs)"),
        ("t2.small", "unlimited", None, "(at most 0.05 USD per vCPU-hour)"),
    ],
)
def test_cpu_credits_are_named_with_their_maximum_cost(
    kind: str, bought: str | None, vcpus: int | None, said: str
) -> None:
    request = {"CreditSpecification": {"CpuCredits": bought}} if bought else {}
    excluded = not_included(kind, request, vcpus=vcpus)
    cost = Cost(
        instances=1, longest=timedelta(hours=1), hourly=0.02, origin="a list", excluded=excluded, bound=False
    )

    assert f"CPU credits beyond those earned {said}" in cost.sentence()


def test_an_image_with_an_unknown_licence_leaves_the_cost_without_a_bound() -> None:
    unknown = Image(id="ami-1", architecture="x86_64", root_device="/", root_gib=8)
    sold = Image(**{**vars(LINUX), "marketplace": True})

    assert not is_bound(unknown, ())
    assert not is_bound(sold, ())


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1"])
def test_the_price_list_is_not_requested_in_other_partitions(region: str) -> None:
    hourly, why = price("t3.small", {}, AwsSession(region))

    assert hourly is None
    assert "[prices]" in why


def test_an_instance_on_a_dedicated_host_has_no_known_price() -> None:
    assert price("c7i.large", {}, AwsSession("us-east-1"), tenancy="host")[0] is None


def volumes(*devices: dict[str, Any], monitored: bool = False) -> VolumeCost:
    mappings = [{"DeviceName": f"/dev/sd{number}", "Ebs": each} for number, each in enumerate(devices)]
    return volume_cost({"BlockDeviceMappings": mappings, "Monitoring": {"Enabled": monitored}})


@pytest.mark.parametrize(
    ("ebs", "least", "most"),
    [
        # USD a month in us-east-1 and in sa-east-1, by https://aws.amazon.com/ebs/pricing/
        ({"VolumeType": "gp3", "VolumeSize": 100}, 8.0, 15.2),
        ({"VolumeType": "gp3", "VolumeSize": 100, "Iops": 3000, "Throughput": 125}, 8.0, 15.2),
        ({"VolumeType": "gp3", "VolumeSize": 100, "Iops": 16000, "Throughput": 1000}, 108.0, 205.2),
        ({"VolumeType": "gp2", "VolumeSize": 100}, 10.0, 19.0),
        ({"VolumeSize": 100}, 10.0, 19.0),
        ({"VolumeType": "io1", "VolumeSize": 100, "Iops": 64000}, 4172.5, 5847.8),
        ({"VolumeType": "io2", "VolumeSize": 100, "Iops": 32000}, 2092.5, 2935.8),
        # 32,000 operations each at 0.065 and 0.0455 USD, or 0.091 and 0.0637.
        ({"VolumeType": "io2", "VolumeSize": 100, "Iops": 64000}, 3548.5, 4974.2),
        # and 64,000 at 0.03185 USD, or 0.04459
        ({"VolumeType": "io2", "VolumeSize": 100, "Iops": 128000}, 5586.9, 7827.96),
        ({"VolumeType": "st1", "VolumeSize": 500}, 22.5, 43.0),
        ({"VolumeType": "sc1", "VolumeSize": 500}, 7.5, 24.0),
    ],
)
def test_volumes_cost_at_most_the_stated_amount(ebs: dict[str, Any], least: float, most: float) -> None:
    said = volumes(ebs).hourly * 720

    assert least < most <= said <= 1.3 * most


def test_the_cost_bound_includes_seven_volumes_with_provisioned_iops() -> None:
    # What AWS takes in eu-central-1: 0.149 USD a GiB, and 0.078, 0.0546 and 0.03822 an operation, less from 32,000 and 64,000 on.
    taken = 7 * (285 * 0.149 + 32_000 * (0.078 + 0.0546) + 64_000 * 0.03822) / 720
    seven = volumes(*[{"VolumeType": "io2", "VolumeSize": 285, "Iops": 128_000}] * 7)
    cost = Cost(
        instances=2, longest=timedelta(hours=3), hourly=0.5, volumes=seven.hourly, origin="a list", bound=True
    )

    assert taken < seven.hourly < 1.35 * taken
    assert cost.dollars == pytest.approx(6 * (0.5 + seven.hourly))
    assert f"volumes and monitoring at most {seven.hourly:,.4f}" in cost.sentence()


def test_a_volume_of_unknown_cost_leaves_the_cost_without_a_bound() -> None:
    for ebs in (
        {"VolumeType": "gp3"},
        {"VolumeType": "standard", "VolumeSize": 8},
        {"VolumeSize": "<unknown>"},
    ):
        excluded = not_included(
            "c7i.large", {"BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": ebs}]}
        )

        assert "the volume /dev/sdb" in excluded
        assert not is_bound(LINUX, excluded)


def test_the_cost_bound_includes_detailed_monitoring() -> None:
    # seven metrics of 0.30 USD a month at least
    assert volumes(monitored=True).hourly >= 7 * 0.30 / 720
    assert volumes().hourly == 0


@pytest.mark.parametrize(("most", "refused"), [(None, False), (6.01, False), (6.0, False), (5.99, True)])
def test_a_job_is_refused_if_its_cost_exceeds_the_budget_by_a_cent(most: float | None, refused: bool) -> None:
    cost = Cost(instances=2, longest=timedelta(hours=3), hourly=1.0, origin="a list")

    assert (over_budget(cost, most) is not None) is refused


def test_a_job_with_an_unknown_price_exceeds_every_budget() -> None:
    cost = Cost(instances=1, longest=timedelta(hours=3), hourly=None, origin="not in AWS's price list")

    assert "[prices]" in str(over_budget(cost, 1e6))
    assert over_budget(cost, None) is None


def test_the_cost_bound_includes_and_names_replacements() -> None:
    cost = Cost(
        instances=4, longest=timedelta(hours=26.3), hourly=1.0, origin="a list", bound=True, replacements=10
    )

    # EC2 takes at least a minute of each.
    assert cost.hours == pytest.approx(4 * 26.3 + 10 / 60)
    assert cost.sentence().startswith(
        "at most 4 × 26.3 instance hours and 10 replacements, at most 105.37 USD"
    )
    alone = replace(cost, instances=1, replacements=1)
    assert alone.sentence().startswith("at most 26.3 instance hours and 1 replacement, ")
