"""From events to jobs: whose they are, which settings they may not use, and which data is pulled."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_events import DATASET, JSON, encoded, fetcher_event

from bai_agent.job.descriptor.source_tables import Source, SourceKind, Unpack
from bai_agent.job.schema.field_types import is_job_id
from executor.configuration.job_tables import JobLimits
from executor.configuration.service_config import Bounds
from executor.errors import RefusedError, UnreadableEventError
from executor.service.events.event import Event, read_event
from executor.service.events.policy import bounded_limits
from executor.service.events.requests import ServiceJob, action_job_id, is_ours, read_request

RUN = "aws.ec2.run_instances"
RESERVATION = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"

SERVER: dict[str, Any] = {
    "hardware": {"instance_type": "g5.xlarge"},
    "env": {"start_command": "serve", "ports": [8080]},
}


def in_reservation(name: str) -> dict[str, Any]:
    """Return what asks for machines of a capacity block."""
    return {
        f"{RUN}.InstanceMarketOptions": {"MarketType": "capacity-block"},
        f"{RUN}.CapacityReservationSpecification": {
            "CapacityReservationTarget": {"CapacityReservationId": name}
        },
    }


def event(changes: dict[str, Any] | None = None, **options: Any) -> Event:
    return read_event(encoded(fetcher_event(changes or {}, **options)))


def accepted(
    changes: dict[str, Any] | None = None, bounds: Bounds | None = None, **options: Any
) -> ServiceJob:
    return read_request(event(changes, **options), bounds or Bounds(), region="eu-central-1")


def refusal(changes: dict[str, Any] | None = None, bounds: Bounds | None = None, **options: Any) -> str:
    with pytest.raises(RefusedError) as refused:
        accepted(changes, bounds, **options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({}, True),
        ({"info.scheduling": "single_run"}, True),
        ({"info.scheduling": "*/5 * * * *"}, False),
        ({"info.execution_engine": "default"}, False),
        ({"info.execution_engine": "aws.sagemaker"}, False),
        ({"info.execution_engine": ["aws.ec2"]}, False),
        ({"info.execution_engine": None}, False),
    ],
)
def test_events_for_other_engines_and_schedules_are_ignored(changes: dict[str, Any], ours: bool) -> None:
    assert is_ours(event(changes), ("aws.ec2",)) is ours


def test_accepted_engine_ids_come_from_the_configuration() -> None:
    other = event({"info.execution_engine": "aws.sagemaker"})

    assert is_ours(other, ("default", "aws.sagemaker"))
    assert read_request(other, Bounds(), region=None).descriptor.info.execution_engine == "aws.ec2"


@pytest.mark.parametrize("toml", [None, {}, {"contents": None}, {"contents": "x"}, {"contents": {"info": 3}}])
def test_an_event_without_a_descriptor_is_refused_as_unreadable(toml: Any) -> None:
    with pytest.raises(UnreadableEventError):
        is_ours(event(payload={"toml": toml}), ("aws.ec2",))


def test_a_request_names_its_sender() -> None:
    job = accepted(parent="cron-7")

    service = job.job_request.service
    assert service is not None
    assert (service.action_id, service.parent_action_id) == (event().action_id, "cron-7")
    assert (service.client_id, service.username, service.created_by) == (
        event().client_id,
        "bellgav",
        "ec2-executor",
    )


def test_an_artifact_of_another_job_is_refused() -> None:
    sources = [{"src": "job:last/model.pt", "path": "/d"}]

    assert "data.sources[0].src: names an artifact of another job" in refusal({"data": {"sources": sources}})


def test_the_checkpoint_of_another_job_is_refused() -> None:
    checkpoint = {"path": "checkpoints", "from": "job:last"}

    assert "checkpoint.from: names the checkpoint of another job" in refusal({"checkpoint": checkpoint})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"ml.script": {"path": "/"}}, "ml.script.path"),
        ({"ml.script": {"git": "https://host/r"}}, "ml.script.git"),
        ({"ml.script": {"path": "."}}, "ml.script.path"),
        ({"env.user": "root"}, "env.user"),
        ({"env.container": "evil.example/miner:1"}, "env.container"),
        ({"env.secrets": {"TOKEN": "env:AWS_SECRET_ACCESS_KEY"}}, "env.secrets.TOKEN"),
        ({"aws.ec2.instance_profile": "admin"}, "aws.ec2.instance_profile"),
        ({"aws.ec2.subnets": ["subnet-1"]}, "aws.ec2.subnets"),
        ({"aws.ec2.security_groups": ["sg-1"]}, "aws.ec2.security_groups"),
        ({"aws.ec2.public_ip": True}, "aws.ec2.public_ip"),
        ({"aws.ec2.keep_on_failure": "1h"}, "aws.ec2.keep_on_failure"),
        ({"aws.ec2.keep_after": "1h"}, "aws.ec2.keep_after"),
        ({"mounts": [{"type": "nfs", "src": "10.0.0.5:/others", "target": "/x"}]}, "mounts"),
        ({"kafka": {"brokers": ["evil:9092"]}}, "kafka"),
        ({"log_lines": {"path": "/etc/cron.d/x"}}, "log_lines"),
        ({"prometheus": {"pushgateway": "http://evil:9091"}}, "prometheus"),
        ({"cloudwatch": {"log_group": "theirs"}}, "cloudwatch"),
        ({"store": {"url": "s3://evil/jobs"}}, "store"),
        ({"end": {"power": "stay"}}, "end"),
        ({"data": {"sources": [{"src": "file:///etc/shadow", "path": "/d"}]}}, "data.sources[0].src"),
        ({"data": {"sources": [{"src": "secrets.txt", "path": "/d"}]}}, "data.sources[0].src"),
        ({"data": {"sources": [{"src": "../../x", "path": "/d"}]}}, "data.sources[0].src"),
        ({"data": {"sources": [{"src": "FILE:///etc/shadow", "path": "/d"}]}}, "data.sources[0].src"),
        ({f"{RUN}.KeyName": "mine"}, f"{RUN}.KeyName"),
        ({f"{RUN}.IamInstanceProfile": {"Name": "admin"}}, f"{RUN}.IamInstanceProfile"),
        ({f"{RUN}.SecurityGroupIds": ["sg-1"]}, f"{RUN}.SecurityGroupIds"),
        ({f"{RUN}.TagSpecifications": []}, f"{RUN}.TagSpecifications"),
        ({f"{RUN}.UserData": "x"}, f"{RUN}.UserData"),
        ({f"{RUN}.MetadataOptions": {"HttpTokens": "optional"}}, f"{RUN}.MetadataOptions"),
        (in_reservation("cr-theirs"), f"{RUN}.{RESERVATION}"),
        (
            {f"{RUN}.CapacityReservationSpecification": {"CapacityReservationPreference": "open"}},
            f"{RUN}.CapacityReservationSpecification.CapacityReservationPreference",
        ),
        (
            {
                f"{RUN}.CapacityReservationSpecification": {
                    "CapacityReservationTarget": {"CapacityReservationResourceGroupArn": "arn:aws:x"}
                }
            },
            f"{RUN}.{RESERVATION.replace('Id', 'ResourceGroupArn')}",
        ),
        ({f"{RUN}.Placement": {"HostId": "h-1"}}, f"{RUN}.Placement.HostId"),
        ({f"{RUN}.Placement": {"Tenancy": "host"}}, f"{RUN}.Placement.Tenancy"),
        (
            {f"{RUN}.InstanceMarketOptions": {"SpotOptions": {"SpotInstanceType": "persistent"}}},
            f"{RUN}.InstanceMarketOptions.SpotOptions.SpotInstanceType",
        ),
        ({f"{RUN}.NetworkInterfaces": [{"SubnetId": "subnet-1"}]}, f"{RUN}.NetworkInterfaces[0].SubnetId"),
        ({f"{RUN}.NetworkInterfaces": [{"Groups": ["sg-1"]}]}, f"{RUN}.NetworkInterfaces[0].Groups"),
        ({f"{RUN}.NetworkInterfaces": {"Groups": ["sg-1"]}}, f"{RUN}.NetworkInterfaces"),
        (
            {f"{RUN}.BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": {"SnapshotId": "snap-1"}}]},
            f"{RUN}.BlockDeviceMappings[0].Ebs.SnapshotId",
        ),
        (
            {f"{RUN}.BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 2001}}]},
            f"{RUN}.BlockDeviceMappings[0].Ebs.VolumeSize",
        ),
        ({"aws.ec2.volume": {"size": 16384}}, "aws.ec2.volume.size"),
        ({f"{RUN}.Placement": "here"}, f"{RUN}.Placement"),
        ({f"{RUN}.EbsOptimized": {"x": 1}}, f"{RUN}.EbsOptimized"),
    ],
)
def test_a_key_that_only_the_service_may_set_is_refused(changes: dict[str, Any], key: str) -> None:
    assert f"{key}: " in refusal(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {f"{RUN}.InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.5"}}},
        {f"{RUN}.Placement": {"GroupName": "g", "Tenancy": "default"}},
        {f"{RUN}.CpuOptions": {"CoreCount": 1, "ThreadsPerCore": 1}},
        {f"{RUN}.NetworkInterfaces": [{"DeviceIndex": 0, "InterfaceType": "efa"}]},
        {f"{RUN}.BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 100}}]},
        {"aws.ec2.volume": {"size": 500, "throughput": 500}},
        {"env.secrets": {"TOKEN": "ssm:/bai/token"}},
        {"data": {"sources": [{"src": "s3://bucket/x", "path": "/d"}]}},
    ],
)
def test_parameters_that_describe_the_machine_are_accepted(changes: dict[str, Any]) -> None:
    accepted(changes)


def volumes(count: int, **ebs: Any) -> dict[str, Any]:
    """Return what asks for so many volumes of one kind."""
    devices = [{"DeviceName": f"/dev/sd{letter}", "Ebs": ebs} for letter in "bcdefgh"[:count]]
    return {f"{RUN}.BlockDeviceMappings": devices}


def test_only_capacity_reservations_in_the_configuration_are_allowed() -> None:
    named = Bounds(capacity_reservations=("cr-1", "cr-2"))

    accepted(in_reservation("cr-2"), named)
    said = refusal(in_reservation("cr-theirs"), named)

    assert '"cr-theirs" is not allowed here; name cr-1 or cr-2' in said


def test_provisioned_volumes_are_allowed_if_configured() -> None:
    accepted(
        volumes(7, VolumeType="io2", Iops=64000, VolumeSize=200),
        Bounds(volume_types=("io2",), volume_iops=7 * 64000),
    )


@pytest.mark.parametrize(
    ("changes", "bounds", "said"),
    [
        ({}, Bounds(instance_types=("g5.*", "p4d.24xlarge")), "hardware.instance_type: "),
        (
            {"hardware.strategy": "inference", "server": SERVER},
            Bounds(instance_types=("t3.*",)),
            'server.hardware.instance_type: "g5.xlarge" is not allowed here',
        ),
        (
            {"hardware.strategy": "inference", "server": SERVER},
            Bounds(nodes=1),
            "hardware.strategy: 2 machines are more than are allowed here",
        ),
        (
            {"hardware.strategy": "inference", "server": {**SERVER, "models": [{"src": "m", "path": "/m"}]}},
            Bounds(),
            "server.models[0].src: names a file of the machine on which the service runs",
        ),
        (
            {"aws.ec2.instance_types": ["t3.large", "g5.xlarge"]},
            Bounds(instance_types=("t3.*",)),
            'aws.ec2.instance_types[1]: "g5.xlarge" is not allowed here',
        ),
        ({"aws.ec2.region": "us-east-1"}, Bounds(regions=("eu-central-1",)), "aws.ec2.region: "),
        ({}, Bounds(regions=("us-east-1",)), "aws.ec2.region: "),
        (
            {"hardware.strategy": "torchrun", "hardware.distributed": {"num_instances": 9}},
            Bounds(nodes=8),
            "hardware.distributed.num_instances: ",
        ),
        (
            {"hardware.strategy": "torchrun", "hardware.distributed": {"num_instances": "2:9"}},
            Bounds(nodes=8),
            "hardware.distributed.num_instances: 9 machines are more",
        ),
        ({"limits": {"max_runtime": "25h"}}, Bounds(duration=timedelta(hours=24)), "limits.max_runtime: "),
        ({"limits": {"pull_timeout": "9d"}}, Bounds(duration=timedelta(hours=24)), "limits.pull_timeout: "),
        (volumes(1, VolumeType="io2", Iops=100), Bounds(), 'Ebs.VolumeType: "io2" is not allowed here'),
        (volumes(2, VolumeType="gp3", Iops=9000), Bounds(), "[1].Ebs.Iops: makes 18000 IOPS"),
        (volumes(3, VolumeType="gp3", Throughput=400), Bounds(), "[2].Ebs.Throughput: makes 1200 MiB/s"),
        ({"aws.ec2.volume": {"iops": 20000}}, Bounds(), "aws.ec2.volume.iops: makes 20000 IOPS"),
        (
            {"aws.ec2.volume": {"throughput": 600}},
            Bounds(volume_throughput=500),
            "aws.ec2.volume.throughput: ",
        ),
        (volumes(3, VolumeSize=900), Bounds(), "[2].Ebs.VolumeSize: makes 2700 GiB"),
    ],
)
def test_a_request_beyond_the_configured_bounds_is_refused(
    changes: dict[str, Any], bounds: Bounds, said: str
) -> None:
    assert said in refusal(changes, bounds)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ml": None}, "ml.benchmark_code: is missing"),
        ({"ml.benchmark_code": "echo 'x"}, "a quote is never closed"),
        ({"hardware.instance_typ": "t3.small"}, "hardware.instance_typ"),
        ({"spec_version": "9"}, "spec_version"),
        ({"output.metrics": [{"name": "a", "units": "u", "pattern": "a=("}]}, "output.metrics[0].pattern"),
        ({"output.metrics": "x"}, "output.metrics"),
        ({"ml.benchmark_code": "$(BAI_SCRIPTS_PATH)/src/x.sh"}, "no scripts came with the request"),
        ({"ml.script": {"script": "scripts.tar"}}, "ml.script.script: no scripts came"),
    ],
)
def test_every_mistake_in_the_descriptor_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(changes)


def test_several_mistakes_are_reported_at_once() -> None:
    said = refusal({"env.user": "root", "ml.benchmark_code": "", "aws.ec2.public_ip": True})

    assert all(f"{key}: " in said for key in ("env.user", "ml.benchmark_code", "aws.ec2.public_ip"))


def test_the_environment_of_the_service_is_not_read() -> None:
    asked = accepted({"ml.args": "'${HOME}'", "env.vars": {"A": "${HOME:-x}"}})

    assert (asked.descriptor.ml.args, asked.descriptor.env.vars) == ("'${HOME}'", {"A": "${HOME:-x}"})


def test_null_values_in_the_descriptor_are_ignored() -> None:
    accepted({"env.user": None, "ml.args": None, "custom_params": None})


def test_fetched_data_is_pulled_from_its_copy() -> None:
    datasets = [
        {**DATASET, "md5": "0" * 32},
        {
            **DATASET,
            "src": "s3://them/train/",
            "dst": "s3://other-bucket/train",
            "type": "DIRECTORY",
            "path": "/t",
        },
    ]
    models = [{**DATASET, "src": "http://h/m", "dst": "s3://third/m", "path": "/m", "size_info": None}]
    written = {"data": {"sources": [{"src": "http://h/x.gz", "path": "/data/x.gz", "unpack": "into"}]}}

    job = accepted(written, payload={"datasets": datasets, "models": models})

    found = [(each.src, each.path, each.md5, each.unpack) for each in job.descriptor.data.sources]
    assert found == [
        ("s3://data-pull-ab12/data_sets/0f/x.gz", "/data/x.gz", "0" * 32, Unpack.INTO),
        ("s3://other-bucket/train/", "/t", None, Unpack.NO),
        ("s3://third/m", "/m", None, Unpack.NO),
    ]
    service = job.job_request.service
    assert service is not None
    assert service.sizes == {"s3://data-pull-ab12/data_sets/0f/x.gz": 10, "s3://other-bucket/train/": 10}


def test_fetched_models_are_sources_only_of_the_server() -> None:
    models = [{**DATASET, "src": "http://h/m", "dst": "s3://third/m", "path": "/m"}]
    written = [{"src": "http://h/m", "path": "/m", "unpack": "into"}, {"src": "s3://b/other", "path": "/o"}]
    changes = {"hardware.strategy": "inference", "server": {**SERVER, "models": written}}

    job = accepted(changes, payload={"datasets": [DATASET], "models": models})

    assert [each.src for each in job.descriptor.data.sources] == [DATASET["dst"]]
    server = job.descriptor.server
    assert server is not None
    assert [(each.src, each.unpack) for each in server.models] == [
        ("s3://third/m", Unpack.INTO),
        ("s3://b/other", Unpack.NO),
    ]


def test_an_unfetched_source_is_pulled_from_its_own_address() -> None:
    written = {
        "data": {"sources": [{"src": "http://h/x.gz", "path": "/x"}, {"src": "s3://b/k", "path": "/k"}]}
    }

    job = accepted(written, payload={"datasets": [{**DATASET, "path": "/x"}]})

    assert [each.src for each in job.descriptor.data.sources] == [DATASET["dst"], "s3://b/k"]


def test_fetched_scripts_are_unpacked_into_the_scripts_folder() -> None:
    dst = "s3://scripts-exchange-ab12/anubis0/2cf5f8ef.tar"

    job = accepted(
        {"ml.benchmark_code": "$(BAI_SCRIPTS_PATH)/src/x.sh", "ml.script": {"script": "src"}},
        payload={"scripts": [{"dst": dst}]},
    )

    service = job.job_request.service
    assert service is not None
    assert service.scripts == (Source(src=dst, path=".", kind=SourceKind.SCRIPTS, unpack=Unpack.INTO),)


@pytest.mark.parametrize(
    ("configured", "longest", "found"),
    [(None, None, None), (None, 2, 2), (None, 48, 24), (1, 2, 1), (3, 2, 2), (3, None, 3)],
)
def test_the_default_max_runtime_never_exceeds_the_configured_duration(
    configured: int | None, longest: int | None, found: int | None
) -> None:
    limits, bound, wanted = (
        None if hours is None else timedelta(hours=hours) for hours in (configured, longest, found)
    )

    bounded = bounded_limits(JobLimits(max_runtime=limits), Bounds(duration=bound))

    assert bounded == JobLimits(max_runtime=wanted)


def test_an_error_names_a_source_address_without_its_password() -> None:
    failed = {**DATASET, "src": "https://me:hunter2@h/x?X-Amz-Signature=5ec3e7", "dst": None}

    said = refusal(payload={"datasets": [failed]})

    assert "https://h/x" in said
    assert "hunter2" not in said
    assert "5ec3e7" not in said


@pytest.mark.parametrize("name", ["datasets", "models"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dst": None, "status": "FAILED", "message": "404"}, 'http://h/x.gz") was not fetched: 404'),
        ({"status": "FAILED"}, 'http://h/x.gz") was not fetched'),
        ({"dst": "file:///etc/shadow"}, "dst must be an address"),
        ({"dst": 3}, "dst must be an address"),
        ({"dst": "s3://bucket"}, "names a bucket but nothing in it"),
        ({"dst": "https://h/x?X-Amz-Signature=abc"}, "a signature"),
        ({"type": "PIPE"}, "type must be FILE or DIRECTORY"),
        ({"md5": "zz"}, "md5 must be 32"),
        ({"path": "/a/../../etc/cron.d/x"}, "leads out of its folder"),
        ({"path": None}, "path"),
        ({"size_info": {"total_size": 10**13}}, "are allowed here"),
    ],
)
def test_data_that_cannot_be_pulled_is_named(name: str, changes: dict[str, Any], said: str) -> None:
    assert said in refusal(payload={name: [{**DATASET, **changes}]})


@pytest.mark.parametrize(
    "payload", [{"datasets": 3}, {"datasets": [3]}, {"scripts": [{"dst": None}]}, {"scripts": "x"}]
)
def test_payloads_of_wrong_types_are_refused(payload: dict[str, Any]) -> None:
    assert "payload." in refusal(payload=payload)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"hardware.distributed": {"num_instances": 10**400}},
            "hardware.distributed.num_instances: an integer must",
        ),
        ({"aws.ec2.run_instances.X": [{"Y": -(2**63) - 1}]}, "aws.ec2.run_instances.X[0].Y: an integer must"),
        (
            {"output.metrics": [{"name": f"m{n}", "units": "u", "pattern": "x"} for n in range(1001)]},
            "output.metrics: holds 1,001 metrics; keep at most 1,000",
        ),
    ],
)
def test_a_descriptor_with_huge_integers_or_too_many_metrics_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(changes)


@pytest.mark.parametrize("name", ["action_id", "parent", "client_id", "client_username"])
def test_names_that_no_job_descriptor_can_hold_are_refused(name: str) -> None:
    options: dict[str, Any] = {name: "a\0b"}

    assert "holds a NUL character" in refusal(**options)


@pytest.mark.parametrize("action_id", ["ffea52eb-c24b-4dd0-b32e-61230db34ad5", "ACTION-ID-12345678", "a.b_c"])
def test_a_valid_action_id_is_the_job_id(action_id: str) -> None:
    assert action_job_id(action_id) == action_id


@given(st.text(min_size=1).filter(lambda text: text.isprintable()), st.text(min_size=1))
def test_any_action_id_gives_a_distinct_job_id(one: str, other: str) -> None:
    try:
        ids = [action_job_id(each) for each in (one, other)]
    except UnicodeEncodeError:
        return
    assert all(map(is_job_id, ids))
    assert "last" not in ids
    assert (ids[0] == ids[1]) == (one == other)


def test_derived_job_ids_are_readable() -> None:
    assert re.fullmatch(r"my-job-[0-9a-f]{12}", action_job_id("my job!"))
    assert re.fullmatch(r"last-[0-9a-f]{12}", action_job_id("last"))
    assert re.fullmatch(r"action-[0-9a-f]{12}", action_job_id("../.."))


@given(
    st.dictionaries(st.sampled_from(["info", "ml", "env", "data", "aws", "output", "hardware", "x"]), JSON),
    JSON,
)
def test_any_descriptor_is_a_job_or_a_sentence(tables: dict[str, Any], data: Any) -> None:
    raw = fetcher_event(payload={"datasets": data, "scripts": data})
    raw["payload"]["toml"]["contents"].update(tables)
    said = ""
    try:
        source = read_event(encoded(raw))
        is_ours(source, ("aws.ec2",))
        said = str(read_request(source, Bounds(), region=None))
    except (UnreadableEventError, RefusedError) as error:
        said = str(error)
    assert said.encode()


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"env.vars": {"A": "\ud800"}}, "payload.toml.contents.env.vars.A holds half a character"),
        ({"env.vars": {"\udfff": "a"}}, "payload.toml.contents.env.vars: a key holds half a character"),
        ({"ml.benchmark_code": "python \ud800"}, "payload.toml.contents.ml.benchmark_code holds"),
        ({"info.labels": {"task_name": "a\ud800"}}, "payload.toml.contents.info.labels.task_name holds"),
    ],
)
def test_a_lone_surrogate_is_refused_by_its_key(changes: dict[str, Any], place: str) -> None:
    assert place in refusal(changes)
