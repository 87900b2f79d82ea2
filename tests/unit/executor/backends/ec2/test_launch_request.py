"""The RunInstances request: its content, and its validity in EC2's own model."""

from __future__ import annotations

import base64
import dataclasses
import json
from datetime import datetime, timezone
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.model import Shape
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.restart_tables import Elastic
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor.source_tables import Source, Unpack
from bai_agent.job.descriptor.strategy_tables import Server, StrategyTable
from executor.backends.ec2.launch.images import Image, InstanceType, NetworkCard, check_processes
from executor.backends.ec2.launch.launch_request import (
    candidate_token,
    for_candidate,
    launch_request,
    machines_in_words,
    merge,
    server_request,
)
from executor.backends.ec2.launch.resolve import Candidate, Resolved
from executor.backends.ec2.tags import job_tags
from executor.descriptor.ec2_table import Ec2
from executor.descriptor.model import Hardware
from executor.errors import UsageError

EXPIRES = "2026-11-21T22:15:00Z"
HERE = Candidate(subnet="subnet-1", zone="us-east-1a")
JOB = Job(
    job=Identity(id="digits-1", name="digits", client_id="alice", labels={"task_name": "digits"}),
    benchmark=Benchmark(argv=("train",)),
    store=Store(url="s3://bucket/jobs"),
)
RESOLVED = Resolved(
    region="us-east-1",
    image=Image(
        id="ami-1", architecture="x86_64", root_device="/dev/sda1", root_gib=35, other_devices=("/dev/sdb",)
    ),
    kind=InstanceType(name="p4d.24xlarge", architectures=("x86_64",), ebs_mib_per_second=400),
    candidates=(HERE,),
    security_groups=("sg-1",),
    instance_profile="bai-instance",
    public_ip=None,
)


def request(ec2: dict[str, Any] | None = None, *, job: Job = JOB, **changes: Any) -> dict[str, Any]:
    resolved = dataclasses.replace(RESOLVED, **changes)
    table = Ec2.model_validate(ec2 or {})
    return launch_request(job, resolved, table, user_data=b"\x1f\x8b data", expires=EXPIRES)


@cache
def input_shape() -> Shape:
    """Return what RunInstances takes: a model of a megabyte, read once for all tests."""
    model = botocore.session.get_session().get_service_model("ec2")
    shape = model.operation_model("RunInstances").input_shape
    assert shape is not None
    return shape


def sent(ec2: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the parameters of the call, after EC2's service model has accepted them."""
    complete = for_candidate(request(ec2, **changes), HERE, "token")
    checked = {**complete, "UserData": base64.b64encode(complete["UserData"]).decode()}
    shape = input_shape()
    report = ParamValidator().validate(checked, shape)
    assert not report.has_errors(), report.generate_report()
    return complete


def test_every_launch_has_the_required_parameters() -> None:
    complete = sent()

    assert (complete["MinCount"], complete["MaxCount"]) == (1, 1)
    assert complete["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert complete["MetadataOptions"]["HttpTokens"] == "required"
    assert complete["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    assert complete["Monitoring"] == {"Enabled": True}
    assert complete["MaintenanceOptions"] == {"AutoRecovery": "disabled"}
    assert complete["IamInstanceProfile"] == {"Name": "bai-instance"}
    assert complete["SecurityGroupIds"] == ["sg-1"]
    assert complete["SubnetId"] == "subnet-1"
    assert complete["UserData"] == b"\x1f\x8b data"


def test_all_nodes_are_launched_by_one_call() -> None:
    job = dataclasses.replace(JOB, strategy=StrategyTable(name="torchrun", nodes=8))

    assert (sent(job=job)["MinCount"], sent(job=job)["MaxCount"]) == (8, 8)


def test_a_server_is_requested_by_a_call_of_its_own() -> None:
    job = dataclasses.replace(
        JOB, strategy=StrategyTable(name="inference", nodes=2), server=Server(ports=(80,), argv=("serve",))
    )
    kind = InstanceType(name="g5.xlarge", architectures=("x86_64",), ebs_mib_per_second=400)
    client = request(job=job)

    own = server_request(client, kind, user_data=b"of the server")

    whole = for_candidate({**client, **own}, dataclasses.replace(HERE, type=kind.name), "token")
    assert (client["MinCount"], client["MaxCount"]) == (whole["MinCount"], whole["MaxCount"]) == (1, 1)
    assert (whole["InstanceType"], whole["UserData"]) == ("g5.xlarge", b"of the server")
    theirs, ours = (
        {tag["Key"]: tag["Value"] for tag in each["TagSpecifications"][0]["Tags"]} for each in (client, whole)
    )
    assert ours == {**theirs, "bai:first-node": "1"}


@pytest.mark.parametrize(("desired", "most", "words"), [(None, 8, "2 to 8"), (5, 5, "2 to 5"), (2, 2, "2")])
def test_an_elastic_job_takes_as_many_machines_as_there_is_room_for(
    desired: int | None, most: int, words: str
) -> None:
    strategy = StrategyTable(name="torchrun", nodes=8, min_nodes=2)
    job = dataclasses.replace(JOB, strategy=strategy, elastic=Elastic(nodes=desired))

    assert (sent(job=job)["MinCount"], sent(job=job)["MaxCount"]) == (2, most)
    assert machines_in_words(job) == words


def test_every_volume_is_deleted_and_the_root_keeps_its_name() -> None:
    root, other = sent()["BlockDeviceMappings"]

    assert root["DeviceName"] == "/dev/sda1"
    assert root["Ebs"] == {"DeleteOnTermination": True, "VolumeType": "gp3", "VolumeSize": 45}
    assert other == {"DeviceName": "/dev/sdb", "Ebs": {"DeleteOnTermination": True}}


def test_the_volume_has_room_for_unpacked_data() -> None:
    archive = Source(src="s3://b/a.tar", path="/data", size=10 * 2**30, unpack=Unpack.INTO)

    root = sent(job=dataclasses.replace(JOB, sources=(archive,)))["BlockDeviceMappings"][0]

    assert root["Ebs"]["VolumeSize"] == 35 + 50 + 10


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"size": 20}, {"VolumeSize": 35}),
        ({"size": 200}, {"VolumeSize": 200}),
        ({"throughput": 250}, {"Throughput": 250, "Iops": 3000}),
        ({"throughput": 1000}, {"Throughput": 400, "Iops": 3000}),
        ({"throughput": 400, "iops": 16000}, {"Throughput": 400, "Iops": 16000}),
        ({"iops": 5000}, {"Iops": 5000}),
        ({"initialization_rate": 300}, {"VolumeInitializationRate": 300}),
    ],
)
def test_the_root_volume_is_no_faster_than_the_instance_type_can_use(
    volume: dict[str, int], expected: dict[str, int]
) -> None:
    root = sent({"volume": volume})["BlockDeviceMappings"][0]["Ebs"]

    assert expected.items() <= root.items()


def test_volume_iops_are_four_for_each_mib_of_throughput() -> None:
    kind = InstanceType(name="x", architectures=(), ebs_mib_per_second=None)

    root = sent({"volume": {"throughput": 1000}}, kind=kind)["BlockDeviceMappings"][0]["Ebs"]

    assert (root["Throughput"], root["Iops"]) == (1000, 4000)


def test_a_profile_may_be_given_by_its_arn() -> None:
    arn = "arn:aws:iam::1:instance-profile/x"
    assert sent(instance_profile=arn)["IamInstanceProfile"] == {"Arn": arn}


def test_with_a_public_address_subnet_and_groups_are_in_the_network_interface() -> None:
    complete = sent(public_ip=True)

    assert "SubnetId" not in complete
    assert "SecurityGroupIds" not in complete
    assert complete["NetworkInterfaces"] == [
        {
            "DeviceIndex": 0,
            "Groups": ["sg-1"],
            "DeleteOnTermination": True,
            "AssociatePublicIpAddress": True,
            "SubnetId": "subnet-1",
        }
    ]


def test_interfaces_of_the_user_get_missing_parameters() -> None:
    interfaces = [
        {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "efa", "Groups": ["sg-efa"]},
        {"DeviceIndex": 1, "NetworkCardIndex": 1, "InterfaceType": "efa-only"},
    ]

    first, second = sent({"run_instances": {"NetworkInterfaces": interfaces}}, public_ip=True)[
        "NetworkInterfaces"
    ]

    assert (first["Groups"], second["Groups"]) == (["sg-efa"], ["sg-1"])
    assert first["SubnetId"] == second["SubnetId"] == "subnet-1"
    assert "AssociatePublicIpAddress" not in first


def type_with_cards(
    name: str, cards: int, *, efas: int, most: int = 4, first_takes_efa: bool = True
) -> InstanceType:
    return InstanceType(
        name=name,
        architectures=("x86_64",),
        ebs_mib_per_second=None,
        efa_interfaces=efas,
        network_cards=tuple(
            NetworkCard(index=card, most_interfaces=most, takes_efa=card > 0 or first_takes_efa)
            for card in range(cards)
        ),
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (type_with_cards("c5n.18xlarge", 1, efas=1), [(0, 0, "efa")]),
        (type_with_cards("i7ie.48xlarge", 2, efas=1), [(0, 0, "efa")]),
        (type_with_cards("hpc6id.32xlarge", 2, efas=2, most=1), [(0, 0, "efa"), (1, 0, "efa-only")]),
        (
            type_with_cards("p5.48xlarge", 32, efas=32, most=2),
            [(0, 0, "interface"), (0, 1, "efa-only"), *((card, 0, "efa-only") for card in range(1, 32))],
        ),
        (
            type_with_cards("p6-b300.48xlarge", 17, efas=16, first_takes_efa=False),
            [(0, 0, "interface"), *((card, 0, "efa-only") for card in range(1, 17))],
        ),
    ],
    ids=lambda value: value.name if isinstance(value, InstanceType) else "",
)
def test_all_efas_are_one_interface_for_each_card(
    kind: InstanceType, expected: list[tuple[int, int, str]]
) -> None:
    complete = sent({"efa": "all"}, kind=kind)

    interfaces = complete["NetworkInterfaces"]
    assert [
        (each["NetworkCardIndex"], each["DeviceIndex"], each["InterfaceType"]) for each in interfaces
    ] == expected
    assert {each["SubnetId"] for each in interfaces} == {"subnet-1"}
    assert all(each["Groups"] == ["sg-1"] and each["DeleteOnTermination"] for each in interfaces)
    assert not {"SubnetId", "SecurityGroupIds"} & complete.keys()


def test_only_a_single_efa_may_have_a_public_address() -> None:
    [one] = sent({"efa": "all"}, kind=type_with_cards("g5.48xlarge", 1, efas=1), public_ip=True)[
        "NetworkInterfaces"
    ]
    several = sent({"efa": "all"}, kind=type_with_cards("p4d.24xlarge", 4, efas=4), public_ip=True)

    assert one["AssociatePublicIpAddress"] is True
    assert not any("AssociatePublicIpAddress" in each for each in several["NetworkInterfaces"])


def test_a_type_without_efa_and_types_of_different_cards_are_refused() -> None:
    with pytest.raises(UsageError, match=r"aws\.ec2\.efa: t3\.small has no Elastic Fabric Adapter"):
        request({"efa": "all"}, kind=type_with_cards("t3.small", 1, efas=0))
    with pytest.raises(UsageError, match=r"g5\.48xlarge and p4d\.24xlarge have different network cards"):
        request(
            {"efa": "all"},
            kind=type_with_cards("p4d.24xlarge", 4, efas=4),
            other_kinds=(type_with_cards("g5.48xlarge", 1, efas=1),),
        )


def test_the_users_parameters_are_merged_recursively() -> None:
    complete = sent(
        {
            "run_instances": {
                "KeyName": "k",
                "MetadataOptions": {"InstanceMetadataTags": "enabled"},
                "InstanceMarketOptions": {"MarketType": "spot"},
                "BlockDeviceMappings": [
                    {"DeviceName": "/dev/sda1", "Ebs": {"Encrypted": True}},
                    {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 100}},
                ],
                "TagSpecifications": [
                    {
                        "ResourceType": "instance",
                        "Tags": [{"Key": "team", "Value": "x"}, {"Key": "bai:expires", "Value": "never"}],
                    }
                ],
            }
        }
    )

    assert complete["KeyName"] == "k"
    assert complete["MetadataOptions"]["HttpTokens"] == "required"
    assert complete["MetadataOptions"]["InstanceMetadataTags"] == "enabled"
    root, _, added = complete["BlockDeviceMappings"]
    assert (root["Ebs"]["Encrypted"], root["Ebs"]["VolumeType"]) == (True, "gp3")
    assert added["Ebs"] == {"VolumeSize": 100, "DeleteOnTermination": True}
    instance = {tag["Key"]: tag["Value"] for tag in complete["TagSpecifications"][0]["Tags"]}
    assert instance["team"] == "x"
    assert instance["bai:expires"] == EXPIRES


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"KeyNam": "k"}, 'Unknown parameter in input: "KeyNam"; did you mean "KeyName"?'),
        (
            {"Placement": {"Tenanc": "host"}},
            'Unknown parameter in Placement: "Tenanc"; did you mean "Tenancy"?',
        ),
        ({"EbsOptimized": "yes"}, "Invalid type for parameter EbsOptimized, value: yes"),
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/sdf", "Ebs": "x"}]}, "BlockDeviceMappings[0].Ebs"),
        (
            {"TagSpecifications": [{"ResourceType": "instance", "Tags": ["a"]}]},
            "TagSpecifications[0].Tags[0]",
        ),
    ],
)
def test_parameters_that_ec2_would_refuse_are_reported_before_a_request(
    extra: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        request({"run_instances": extra})

    assert str(raised.value).startswith("[aws.ec2.run_instances]: ")
    assert said in str(raised.value)


def test_a_toml_date_in_run_instances_becomes_an_iso_string() -> None:
    until = datetime(2026, 11, 22, tzinfo=timezone.utc)
    market = {"MarketType": "spot", "SpotOptions": {"ValidUntil": until}}

    sent({"run_instances": {"InstanceMarketOptions": market}})
    kept = json.loads(json.dumps(request({"run_instances": {"InstanceMarketOptions": market}})))

    assert kept["InstanceMarketOptions"]["SpotOptions"] == {"ValidUntil": "2026-11-22T00:00:00+00:00"}


def test_a_launch_request_is_built_without_a_usable_aws_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")

    assert request({"run_instances": {"KeyName": "my-key"}})["KeyName"] == "my-key"


def test_instances_and_volumes_have_the_tags() -> None:
    by_kind = {
        each["ResourceType"]: {tag["Key"]: tag["Value"] for tag in each["Tags"]}
        for each in sent()["TagSpecifications"]
    }

    assert by_kind["instance"] == by_kind["volume"]
    assert by_kind["instance"] == {
        "Name": "bai digits",
        "bai:job-id": "digits-1",
        "bai:attempt": "0",
        "bai:client-id": "alice",
        "bai:expires": EXPIRES,
        "bai:store": "s3://bucket/jobs",
        "bai:label:task_name": "digits",
    }


@given(name=st.text(max_size=400), client=st.text(max_size=400))
def test_tags_are_valid_for_any_names(name: str, client: str) -> None:
    tags = job_tags(
        dataclasses.replace(JOB, job=Identity(id="j", name=name, client_id=client)), expires=EXPIRES
    )

    assert tags["bai:job-id"] == "j"
    for key, value in tags.items():
        assert 1 <= len(key) <= 128
        assert len(value) <= 256
        assert all(each.isalnum() or each in "_ -+=.:/@" for each in key + value)


json_values = st.recursive(
    st.integers() | st.text(max_size=5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(st.text("ab", max_size=2), json_values, max_size=4)


@given(ours=tables, theirs=tables)
def test_merging_keeps_every_key_and_their_values(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    merged = merge(ours, theirs)

    assert merged.keys() == ours.keys() | theirs.keys()
    for key, value in theirs.items():
        if not (isinstance(value, dict) and isinstance(ours.get(key), dict)):
            assert merged[key] == value
    assert merge(merged, theirs) == merged
    assert merge(ours, {}) == ours


def test_a_candidate_has_its_own_type_and_market() -> None:
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    asked = request({"run_instances": spot})
    others = (
        dataclasses.replace(HERE, type="g6.xlarge", market="spot"),
        dataclasses.replace(HERE, type="g6.xlarge", market="on-demand"),
    )

    one, other = (for_candidate(asked, each, "token") for each in others)
    here = sent({"run_instances": spot})

    assert (one["InstanceType"], one["InstanceMarketOptions"]) == (
        "g6.xlarge",
        spot["InstanceMarketOptions"],
    )
    # and nothing else differs, the user data least of all
    assert {key for key in one if one[key] != other.get(key)} == {"InstanceMarketOptions", "ClientToken"}
    assert {key for key in one if one[key] != here[key]} == {
        "InstanceType",
        "ClientToken",
    }


def test_the_volume_is_as_fast_as_the_fastest_type_can_use() -> None:
    slow = InstanceType(name="x", architectures=(), ebs_mib_per_second=200)
    ec2 = {"volume": {"throughput": 1000}}

    assert request(ec2, other_kinds=(slow,))["BlockDeviceMappings"] == request(ec2)["BlockDeviceMappings"]


@pytest.mark.parametrize(("gpus", "fits"), [(8, True), (4, False), (0, False), (None, True)])
def test_one_process_for_each_gpu_requires_types_with_as_many(gpus: int | None, fits: bool) -> None:
    hardware = Hardware.model_validate(
        {
            "instance_type": "p4d.24xlarge",
            "strategy": "torchrun",
            "distributed": {"processes_per_instance": "gpus"},
        }
    )
    first = InstanceType(name="p4d.24xlarge", architectures=(), ebs_mib_per_second=None, gpus=8)
    other = dataclasses.replace(first, name="g6.xlarge", gpus=gpus)

    if fits:
        check_processes(hardware, [first, other])
        return
    with pytest.raises(
        UsageError, match=r"g6\.xlarge has .*types|g6\.xlarge has none; .* aws.ec2.instance_types"
    ):
        check_processes(hardware, [first, other])


def test_a_token_differs_between_candidates_and_not_between_repeats() -> None:
    other = Candidate(subnet="subnet-2", zone="us-east-1a")

    assert candidate_token("t", HERE) == candidate_token("t", HERE)
    assert candidate_token("t", HERE) != candidate_token("t", other)
    assert candidate_token("t", HERE) != candidate_token("t", dataclasses.replace(HERE, type="x"))
    assert candidate_token("t", HERE) != candidate_token("t", dataclasses.replace(HERE, market="spot"))
    assert len(candidate_token("t" * 500, HERE)) <= 64


def test_the_same_job_gives_the_same_request() -> None:
    assert request() == request()


def test_a_launch_template_is_refused() -> None:
    with pytest.raises(ValueError, match="sets LaunchTemplate"):
        Ec2.model_validate({"run_instances": {"LaunchTemplate": {"LaunchTemplateName": "ours"}}})
