"""From a benchmark descriptor to the job descriptor of a run on an instance."""

from __future__ import annotations

import os
import tarfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.limit_tables import End, Power
from bai_agent.job.descriptor.sink_tables import Kafka, Store
from bai_agent.job.descriptor.source_tables import SourceKind, Unpack
from executor.backends.ec2.launch.launch_request import deadman
from executor.backends.ec2.staging_bucket import local_files
from executor.backends.ec2.staging_bucket import pack as pack_folder
from executor.configuration.job_tables import JobLimits
from executor.descriptor import Descriptor
from executor.errors import PlanError
from executor.planning.job_sources import Uploaded
from executor.planning.plan import PlanInputs, plan

FOLDER = Path("/home/alice/my benchmark")


def descriptor(**tables: Any) -> Descriptor:
    given: dict[str, Any] = {
        "spec_version": "0.1.0",
        "info": {"description": "d"},
        "hardware": {"instance_type": "t3.small"},
        "ml": {"benchmark_code": "train"},
        **tables,
    }
    return Descriptor.model_validate(given)


def planned(
    defaults: JobLimits = JobLimits(),  # noqa: B008 - frozen
    uploads: dict[Path, Uploaded] | None = None,
    **tables: Any,
) -> Job:
    return plan(
        descriptor(**tables),
        PlanInputs(
            folder=FOLDER,
            job_id="job-1",
            client_id="alice",
            where="ec2",
            store=Store(url="s3://b/jobs", region="eu-west-1"),
            defaults=defaults,
            uploads=uploads or {},
        ),
    )


def test_a_job_on_ec2_has_its_own_environment_a_time_limit_and_powers_off() -> None:
    job = planned(aws={"ec2": {"image": "ami-1", "keep_on_failure": "30m", "keep_after": "10m"}})

    assert not job.benchmark.inherit_env
    assert job.limits.max_runtime == timedelta(hours=24)
    assert job.end == End(
        power=Power.OFF, keep_on_failure=timedelta(minutes=30), keep_after=timedelta(minutes=10)
    )
    assert job.store == Store(url="s3://b/jobs", region="eu-west-1")


def test_limits_come_from_the_descriptor_then_the_configuration_then_the_defaults() -> None:
    defaults = JobLimits(max_runtime=timedelta(hours=2), grace=timedelta(0), drain=timedelta(seconds=5))

    job = planned(defaults, limits={"drain": "60s"})
    limits = job.limits

    assert limits.max_runtime == timedelta(hours=2)
    assert limits.grace == timedelta(0)
    assert limits.drain == timedelta(seconds=60)
    assert limits.pull_timeout == timedelta(hours=1)
    assert limits.extract_timeout == timedelta(minutes=30)
    assert deadman(job) == timedelta(hours=3, minutes=46)


def test_the_deadline_of_several_machines_includes_the_time_to_join() -> None:
    hardware = {
        "instance_type": "p4d.24xlarge",
        "strategy": "torchrun",
        "distributed": {"num_instances": 4, "processes_per_instance": "gpus"},
    }
    limits = {"join": "7m", "store_away": "4m", "peer_silence": "25s"}

    job = planned(hardware=hardware, limits=limits)

    assert (job.strategy.nodes, job.strategy.processes_per_node) == (4, "gpus")
    assert (job.limits.peer_silence, job.limits.store_away) == (timedelta(seconds=25), timedelta(minutes=4))
    assert deadman(job) - deadman(planned(limits=limits)) == timedelta(minutes=7 + 4)


@pytest.mark.parametrize("strategy", ["horovod", "mpi"])
def test_mpi_nodes_on_ec2_are_separate_instances(strategy: str) -> None:
    options = ["--map-by", "socket"]
    distributed = {"num_instances": 4, "processes_per_instance": 2, "mpirun_options": options}
    hardware = {"instance_type": "t", "strategy": strategy, "distributed": distributed}

    table = planned(hardware=hardware).strategy

    assert (table.name, table.nodes, table.processes_per_node) == (strategy, 4, "2")
    assert table.mpirun_options == tuple(options)


@pytest.mark.parametrize(("kind", "efa"), [("efa", True), ("efa-only", True), ("interface", False)])
def test_the_job_descriptor_says_whether_the_machines_have_efa(kind: str, efa: bool) -> None:
    interfaces = [{"DeviceIndex": 0}, {"DeviceIndex": 1, "InterfaceType": kind}]

    job = planned(aws={"ec2": {"run_instances": {"NetworkInterfaces": interfaces}}})

    assert job.strategy.efa is efa
    assert planned(aws={"ec2": {"efa": "all"}}).strategy.efa
    assert not planned().strategy.efa


def test_local_files_are_replaced_by_bucket_objects_and_other_sources_are_unchanged() -> None:
    packed = Uploaded(src="s3://b/scripts/1.tar", sha256="1" * 64, size=10, packed=True, region="eu-west-1")
    single = Uploaded(src="s3://b/data/2/d.csv", sha256="2" * 64, size=3, packed=False, region="eu-west-1")

    scripts, data, remote = planned(
        uploads={FOLDER / "scripts": packed, FOLDER / "d.csv": single},
        ml={"benchmark_code": "train", "script": {"path": "scripts"}},
        data={
            "sources": [
                {"src": "d.csv", "path": "/data/d.csv"},
                {"src": "https://h/x", "path": "~/x"},
            ]
        },
    ).sources

    assert (scripts.kind, scripts.src, scripts.unpack) == (SourceKind.SCRIPTS, packed.src, Unpack.INTO)
    assert not scripts.directory
    assert (data.src, data.path, data.sha256, data.size) == (single.src, "/data/d.csv", single.sha256, 3)
    assert data.region == "eu-west-1"
    assert (remote.src, remote.path) == ("https://h/x", "/root/x")


def test_special_characters_in_file_names_and_keys_are_not_parsed_as_url_parts() -> None:
    single = Uploaded(src="s3://b/data/2/d", sha256="2" * 64, size=3, packed=False)
    sources = [{"src": "file:///data/a?b#c", "path": "d"}, {"src": "s3://b[1/key", "path": "k"}]

    job = planned(uploads={Path("/data/a?b#c"): single}, data={"sources": sources})

    assert [each.src for each in job.sources] == [single.src, "s3://b[1/key"]


def test_tilde_means_the_home_of_the_user_on_the_instance() -> None:
    job = planned(env={"user": "ubuntu"}, data={"sources": [{"src": "s3://b/x", "path": "~/x"}]})

    assert job.sources[0].path == "/home/ubuntu/x"


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"env": {"secrets": {"T": "env:T"}}}, "env.secrets.T"),
        (
            {
                "kafka": {
                    "brokers": ["k:1"],
                    "security_protocol": "SASL_SSL",
                    "sasl_mechanism": "PLAIN",
                    "sasl_username": "u",
                    "sasl_password": "env:P",
                }
            },
            "kafka.sasl_password",
        ),
        (
            {"prometheus": {"pushgateway": "http://gw:9091", "username": "u", "password": "env:P"}},
            "prometheus.password",
        ),
        ({"data": {"sources": [{"src": "https://h/x?X-Amz-Signature=1", "path": "x"}]}}, "signature"),
        ({"data": {"sources": [{"src": "https://u:p@h/x", "path": "x"}]}}, "password"),
        (
            {
                "hardware": {"instance_type": "t", "strategy": "inference"},
                "server": {
                    "hardware": {"instance_type": "t"},
                    "env": {"start_command": "serve", "ports": [80]},
                    "models": [{"src": "https://u:p@h/m", "path": "m"}],
                },
            },
            r"server.models\[0\].src: the address holds a password",
        ),
    ],
)
def test_data_that_an_instance_cannot_reach_is_refused(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        planned(**tables)


def test_the_configurations_kafka_applies_to_descriptors_without_a_table() -> None:
    configured = Kafka(brokers=("k:1",))
    job = plan(
        descriptor(),
        PlanInputs(folder=FOLDER, job_id="j", client_id="c", where="ec2", sinks={"kafka": configured}),
    )

    assert job.kafka == configured


def test_archives_of_equal_folders_have_the_same_bytes(tmp_path: Path) -> None:
    archives = []
    for name, time in (("one", 1_000_000_000), ("two", 1_700_000_000)):
        folder = tmp_path / name
        folder.mkdir()
        for file, mode in (("b.sh", 0o750), ("a.txt", 0o640)):
            (folder / file).write_text(file)
            (folder / file).chmod(mode)
            os.utime(folder / file, (time, time))
        (folder / "link").symlink_to("a.txt")
        (folder / ".gitignore").write_text("*.log\n")
        (folder / "x.log").write_text(name)
        pack_folder(folder, tmp_path / f"{name}.tar")
        archives.append((tmp_path / f"{name}.tar").read_bytes())

    assert archives[0] == archives[1]
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert {each.name: each.mode for each in archive} == {
            ".gitignore": 0o644,
            "a.txt": 0o644,
            "b.sh": 0o755,
            "link": 0o777,
        }


def test_uploaded_files_are_named_by_their_checksum(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("1\n")
    found = descriptor(
        data={"sources": [{"src": "d.csv", "path": "a"}, {"src": (tmp_path / "d.csv").as_uri(), "path": "b"}]}
    )

    with local_files(found, tmp_path, None, bucket="b", region=None) as files:
        [upload] = files.uploads
        known = files.sources[tmp_path / "d.csv"]

    assert upload.key == f"data/{known.sha256}/d.csv"
    assert (known.src, known.size, known.packed) == (f"s3://b/{upload.key}", 2, False)
