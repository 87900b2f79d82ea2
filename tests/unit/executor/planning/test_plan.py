"""From a benchmark descriptor to the job descriptor of a run on this machine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Buffering, Git
from bai_agent.job.descriptor.metric_tables import Better, Headline
from bai_agent.job.descriptor.restart_tables import Checkpoint
from bai_agent.job.descriptor.sink_tables import Kafka, Store
from bai_agent.job.descriptor.source_tables import SourceKind, Unpack
from bai_agent.job.descriptor.strategy_tables import MpiLaunch, ReadinessProbe, Server, StrategyTable
from bai_agent.job.descriptor_file import parse_job
from bai_agent.job.schema.tables import read_table
from bai_agent.light_dataclass import replace
from executor.backends.ec2.launch.ec2_plan import mount_notes
from executor.configuration.job_tables import JobLimits
from executor.descriptor import Descriptor
from executor.errors import PlanError, UsageError
from executor.planning.job_sources import script_folder
from executor.planning.job_strategy import one_node_note
from executor.planning.job_toml import job_toml
from executor.planning.plan import PlanInputs, plan
from executor.planning.requested_job import check_start
from executor.planning.scripts_folder import ScriptsOrigin

FOLDER = Path("/home/alice/my benchmark")


def descriptor(**tables: Any) -> Descriptor:
    given: dict[str, Any] = {
        "spec_version": "0.1.0",
        "info": {"description": "d"},
        "hardware": {"instance_type": "local"},
        "ml": {"benchmark_code": "train"},
        **tables,
    }
    return Descriptor.model_validate(given)


def planned(arguments: tuple[str, ...] = (), data_root: Path | None = None, **tables: Any) -> Job:
    return plan(
        descriptor(**tables),
        PlanInputs(
            folder=FOLDER,
            job_id="job-1",
            client_id="alice",
            arguments=arguments,
            data_root=data_root,
            home=Path("/home/alice"),
        ),
    )


def test_the_same_input_gives_the_same_job() -> None:
    assert planned() == planned()


@pytest.mark.parametrize(
    ("ml", "argv"),
    [
        (
            {"benchmark_code": "python3 train.py", "args": "--epochs 8"},
            ("python3", "train.py", "--epochs", "8"),
        ),
        ({"benchmark_code": "echo 'a b' \"c d\" e\\ f"}, ("echo", "a b", "c d", "e f")),
        ({"benchmark_code": "$(BAI_SCRIPTS_PATH)/src/run.sh"}, ("$(BAI_SCRIPTS_PATH)/src/run.sh",)),
        ({"benchmark_code": "\n  train --fast  \n"}, ("train", "--fast")),
        ({"benchmark_code": "train", "args": ""}, ("train",)),
    ],
)
def test_a_line_is_split_into_arguments(ml: dict[str, str], argv: tuple[str, ...]) -> None:
    benchmark = planned(ml=ml).benchmark

    assert benchmark.argv == argv
    assert benchmark.script is None


@pytest.mark.parametrize("code", ["\n#!/usr/bin/env python3\nprint(1)\n", "set -e\ntrain"])
def test_benchmark_code_of_several_lines_is_a_script_with_args_as_arguments(code: str) -> None:
    benchmark = planned(ml={"benchmark_code": code, "args": "'a b' c"}).benchmark

    assert benchmark.script == code.strip() + "\n"
    assert benchmark.argv == ("a b", "c")


def test_command_line_arguments_are_appended_unchanged() -> None:
    benchmark = planned(
        arguments=("--name", "a 'b'", "$(X)"), ml={"benchmark_code": "train", "args": "1"}
    ).benchmark

    assert benchmark.argv == ("train", "1", "--name", "a 'b'", "$(X)")


def test_a_local_job_inherits_the_callers_environment_and_has_no_time_limit() -> None:
    job = planned(
        env={"vars": {"THREADS": 4}, "secrets": {"TOKEN": "env:TOKEN"}, "python": "/opt/py/bin/python"}
    )

    assert job.benchmark.inherit_env
    assert job.benchmark.env == {"THREADS": "4"}
    assert job.benchmark.secrets == {"TOKEN": "env:TOKEN"}
    assert job.benchmark.python == "/opt/py/bin/python"
    assert job.limits.max_runtime is None


def test_limits_output_and_metrics_are_carried_over() -> None:
    job = planned(
        limits={"max_runtime": "2h", "grace": "5s", "no_output": "1m"},
        output={
            "buffering": "timed",
            "artifacts": ["runs/**"],
            "metrics": [
                {"name": "a", "units": "s", "pattern": r"a=(\d+)", "better": "lower", "required": True}
            ],
        },
        host_metrics={"enabled": False},
    )

    assert (job.limits.max_runtime, job.limits.grace) == (timedelta(hours=2), timedelta(seconds=5))
    assert job.limits.no_output == timedelta(minutes=1)
    assert job.benchmark.buffering is Buffering.TIMED
    assert job.output.artifacts == ("runs/**",)
    assert (job.metrics[0].pattern, job.metrics[0].better, job.metrics[0].required) == (
        r"a=(\d+)",
        Better.LOWER,
        True,
    )
    assert not job.host_metrics.enabled


@pytest.mark.parametrize(
    ("output", "metric", "warmup", "values"),
    [
        (None, None, None, 0),
        ("30s", None, timedelta(seconds=30), 0),
        (100, None, None, 100),
        ("30s", 100, None, 100),
        (100, "1m30s", timedelta(seconds=90), 0),
        ("30s", 0, None, 0),
        ("30s", "0s", None, 0),
        (None, "250", None, 250),
    ],
)
def test_warmup_of_a_metric_wins_over_that_of_the_output(
    output: str | int | None, metric: str | int | None, warmup: timedelta | None, values: int
) -> None:
    written = {"name": "a", "units": "s", "pattern": r"a=(\d+)", "warmup": metric}
    table = {"metrics": [{key: value for key, value in written.items() if value is not None}]}

    (planned_metric,) = planned(output=table if output is None else {**table, "warmup": output}).metrics

    assert (planned_metric.warmup, planned_metric.warmup_values) == (warmup, values)


def test_a_json_metric_is_in_the_job_and_its_file() -> None:
    metric = {"name": "a", "units": "", "json": "train.loss", "json_step": "step", "json_labels": ["split"]}

    job = planned(output={"metrics": [metric]})

    assert (job.metrics[0].pattern, job.metrics[0].json) == ("", "train.loss")
    assert (job.metrics[0].json_step, job.metrics[0].json_labels) == ("step", ("split",))
    assert parse_job(job_toml(job).encode(), where="job.toml").metrics == job.metrics


def test_headline_and_tolerance_are_in_the_job_and_its_file() -> None:
    metric = {
        "name": "a",
        "units": "GB/s",
        "pattern": r"a=(\d+)",
        "headline": "max",
        "tolerance": "7.5%",
        "warmup": "90s",
    }

    job = planned(output={"metrics": [metric, {**metric, "name": "b", "warmup": 7}]})

    assert (job.metrics[0].headline, job.metrics[0].tolerance) == (Headline.MAX, 0.075)
    assert parse_job(job_toml(job).encode(), where="job.toml").metrics == job.metrics


def test_labels_are_merged_from_all_places() -> None:
    job = planned(
        info={"description": "d", "task_name": "My task", "labels": {"team": "a"}},
        custom_params={"dashboard": "board", "region": "us-east-1"},
    )

    assert job.job.labels == {
        "team": "a",
        "task_name": "My_task",
        "dashboard-name": "board",
        "region": "us-east-1",
    }
    assert job.job.name == "My task"
    assert job.job.client_id == "alice"


def test_an_explicit_label_overrides_the_one_from_task_name() -> None:
    job = planned(info={"description": "d", "task_name": "other", "labels": {"task_name": "mine"}})

    assert job.job.labels == {"task_name": "mine"}


@pytest.mark.parametrize(
    ("src", "expected"),
    [
        ("s3://bucket/a b,c:d", "s3://bucket/a b,c:d"),
        ("https://host/x?y=%20", "https://host/x?y=%20"),
        ("file:///data/a%20b", "file:///data/a%20b"),
        ("train.npz", "file:///home/alice/my%20benchmark/train.npz"),
        ("../shared/./100%/x?#", "file:///home/alice/shared/100%25/x%3F%23"),
        ("folder/", "file:///home/alice/my%20benchmark/folder/"),
        ("/data/größe", "file:///data/gr%C3%B6%C3%9Fe"),
    ],
)
def test_source_paths_are_made_absolute_addresses(src: str, expected: str) -> None:
    (source,) = planned(data={"sources": [{"src": src, "path": "x"}]}).sources

    assert source.src == expected
    assert source.directory == src.endswith("/")
    assert source.kind is SourceKind.DATA


@pytest.mark.parametrize(
    ("path", "data_root", "expected"),
    [
        ("/data/x", None, "/data/x"),
        ("/data/x", "/tmp/root", "/tmp/root/data/x"),
        ("/data/", "/tmp/root", "/tmp/root/data/"),
        ("//data/x", "/tmp/root", "/tmp/root/data/x"),
        ("data/x", "/tmp/root", "data/x"),
        ("~/data/x", None, "/home/alice/data/x"),
        ("~/data/x", "/tmp/root", "/tmp/root/home/alice/data/x"),
    ],
)
def test_absolute_data_paths_are_placed_below_the_data_root(
    path: str, data_root: str | None, expected: str
) -> None:
    job = planned(
        data={"sources": [{"src": "s3://b/k", "path": path}]},
        data_root=Path(data_root) if data_root else None,
    )

    assert job.sources[0].path == expected


@pytest.mark.parametrize(
    ("unpack", "expected"),
    [(False, Unpack.NO), (True, Unpack.INTO), ("into", Unpack.INTO), ("in_place", Unpack.IN_PLACE)],
)
def test_unpack_of_the_descriptor_is_planned(unpack: bool | str, expected: Unpack) -> None:
    assert (
        planned(data={"sources": [{"src": "s3://b/k", "path": "x", "unpack": unpack}]}).sources[0].unpack
        is expected
    )


def test_scripts_are_taken_from_the_folder_or_from_its_copy() -> None:
    given = descriptor(ml={"benchmark_code": "t", "script": {"path": "src/..", "requirements": "r.txt"}})
    copy = Path("/store/job-1/scripts")

    original = plan(given, PlanInputs(folder=FOLDER, job_id="j", client_id="c"))
    copied = plan(
        given, PlanInputs(folder=FOLDER, job_id="j", client_id="c", scripts=ScriptsOrigin(path=copy))
    )

    assert script_folder(given.ml.script, folder=FOLDER) == ScriptsOrigin(path=FOLDER)
    assert original.sources[0].src == "file:///home/alice/my%20benchmark/"
    assert (copied.sources[0].src, copied.sources[0].path) == ("file:///store/job-1/scripts/", ".")
    assert copied.sources[0].kind is SourceKind.SCRIPTS
    assert copied.sources[0].directory
    assert copied.benchmark.requirements == "r.txt"


def test_scripts_in_an_archive_are_unpacked() -> None:
    (source,) = planned(ml={"benchmark_code": "t", "script": {"script": "scripts.tar"}}).sources

    assert (source.kind, source.path, source.unpack) == (SourceKind.SCRIPTS, ".", Unpack.INTO)
    assert source.src.endswith("/my%20benchmark/scripts.tar")


def test_the_descriptors_kafka_wins_over_the_configurations() -> None:
    configured = Kafka(brokers=("configured:9092",))
    silent, speaking = descriptor(), descriptor(kafka={"brokers": ["written:9092"], "host_metrics": True})

    assert (
        plan(silent, PlanInputs(folder=FOLDER, job_id="j", client_id="c", sinks={"kafka": configured})).kafka
        == configured
    )
    assert plan(
        speaking, PlanInputs(folder=FOLDER, job_id="j", client_id="c", sinks={"kafka": configured})
    ).kafka == Kafka(brokers=("written:9092",), host_metrics=True)
    assert plan(silent, PlanInputs(folder=FOLDER, job_id="j", client_id="c")).kafka is None


def test_a_gateways_password_must_be_set_before_the_run() -> None:
    prometheus = {"pushgateway": "http://gw:9091", "username": "u", "password": "env:PUSH_PASSWORD"}
    job = plan(descriptor(prometheus=prometheus), PlanInputs(folder=FOLDER, job_id="j", client_id="c"))

    with pytest.raises(UsageError, match=r"prometheus\.password: .* PUSH_PASSWORD is not set"):
        check_start(job, {})
    check_start(job, {"PUSH_PASSWORD": "x"})


def test_git_commit_and_store_are_recorded_in_the_job() -> None:
    git = Git(commit="abc", branch="main", dirty=True)

    job = plan(
        descriptor(),
        PlanInputs(folder=FOLDER, job_id="j", client_id="c", git=git, store=Store(url="file:///store")),
    )

    assert job.git == git
    assert job.store
    assert job.store.url == "file:///store"


SERVER: dict[str, Any] = {
    "hardware": {"instance_type": "local"},
    "env": {
        "start_command": "serve --all",
        "start_command_args": "'a b'",
        "ports": [80, 81],
        "vars": {"M": 1},
        "readiness_probe": {"path": "/ping", "scheme": "HTTP"},
    },
    "models": [{"src": "m.bin", "path": "models/m.bin", "md5": "0" * 32}],
    "output": {"metrics": [{"name": "s", "units": "u", "pattern": "s=(1)"}]},
}


def test_a_server_is_planned_with_its_models_and_metrics() -> None:
    job = planned(hardware={"instance_type": "local", "strategy": "inference"}, server=SERVER)

    assert (job.strategy.name, job.strategy.nodes, job.strategy.min_nodes) == ("inference", 2, None)
    assert job.server == Server(
        ports=(80, 81),
        argv=("serve", "--all", "a b"),
        env={"M": "1"},
        readiness_probe=ReadinessProbe(path="/ping", scheme="HTTP"),
    )
    assert [(each.src, each.path, each.server) for each in job.sources] == [
        ((FOLDER / "m.bin").as_uri(), "models/m.bin", True)
    ]
    assert [(each.name, each.server) for each in job.metrics][-1] == ("s", True)


def test_a_servers_start_command_may_be_a_script() -> None:
    env = {**SERVER["env"], "start_command": "#!/bin/sh\nserve"}

    job = planned(hardware={"instance_type": "local", "strategy": "inference"}, server={**SERVER, "env": env})

    assert job.server
    assert (job.server.script, job.server.argv) == ("#!/bin/sh\nserve\n", ("a b",))


def test_a_server_table_is_ignored_by_other_strategies() -> None:
    job = planned(server=SERVER)

    assert (job.server, job.strategy.nodes, job.sources) == (None, 1, ())
    assert not any(each.server for each in job.metrics)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (None, r"\[server\] is missing"),
        ({**SERVER, "env": {"start_command": " ", "ports": [80]}}, "server.env.start_command is empty"),
        ({**SERVER, "env": {"start_command": "a '", "ports": [80]}}, "cannot be split"),
    ],
)
def test_a_server_that_cannot_be_started_is_refused(server: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        planned(hardware={"instance_type": "local", "strategy": "inference"}, server=server)


@pytest.mark.parametrize(("processes", "together"), [(2, "6"), ("gpus", "gpus")])
@pytest.mark.parametrize("strategy", ["horovod", "mpi"])
def test_local_mpi_nodes_become_one_node_with_all_processes(
    strategy: str, processes: str | int, together: str
) -> None:
    distributed = {"num_instances": 3, "processes_per_instance": processes, "launch": "user"}
    hardware = {"instance_type": "local", "strategy": strategy, "distributed": distributed}

    table = planned(hardware=hardware).strategy

    assert table == StrategyTable(name=strategy, nodes=1, processes_per_node=together, launch=MpiLaunch.USER)
    note = one_node_note(descriptor(hardware=hardware))
    assert note is not None
    assert "replaces 3 nodes" in note


def test_settings_of_torchrun_reach_the_job() -> None:
    distributed = {"num_instances": 3, "max_restarts": 2, "cpus_per_process": 4}
    hardware = {"instance_type": "local", "strategy": "torchrun", "distributed": distributed}

    job = planned(hardware=hardware)

    assert job.strategy == StrategyTable(name="torchrun", nodes=3, cpus_per_process=4)
    assert job.restart.max_restarts == 2


def test_local_nodes_of_each_node_stay_separate_nodes() -> None:
    hardware = {"instance_type": "local", "strategy": "each_node", "distributed": {"num_instances": "2:3"}}

    job = planned(hardware=hardware)

    assert job.strategy == StrategyTable(name="each_node", nodes=3, min_nodes=2)
    assert one_node_note(descriptor(hardware=hardware)) is None


RANGE = {
    "instance_type": "local",
    "strategy": "torchrun",
    "distributed": {"num_instances": "2:4", "processes_per_instance": 2},
}


def test_a_range_of_machines_makes_an_elastic_job() -> None:
    checkpoint = {"path": "out", "every": "off"}

    job = planned(
        hardware=RANGE, elastic={"nodes": 3, "wait": "1h"}, checkpoint=checkpoint, restart={"max_restarts": 1}
    )

    assert job.strategy == StrategyTable(name="torchrun", nodes=4, min_nodes=2, processes_per_node="2")
    assert (job.desired_nodes, job.elastic.wait) == (3, timedelta(hours=1))
    assert job.checkpoint == Checkpoint(path="out", every=None)
    assert job.limits.peer_silence == timedelta(seconds=20)
    assert parse_job(job_toml(job).encode(), where="job.toml") == job


RAY = {"instance_type": "local", "strategy": "ray", "distributed": {"num_instances": 3}}
ADAPTDL = {"instance_type": "local", "strategy": "adaptdl", "distributed": {"num_instances": "1:4"}}


def test_an_adaptdl_job_has_its_own_default_times_and_checkpoint_folder() -> None:
    job = planned(hardware=ADAPTDL)

    assert job.strategy == StrategyTable(name="adaptdl", nodes=4, min_nodes=1)
    assert (job.limits.grace, job.elastic.pause) == (timedelta(minutes=2), timedelta(minutes=5))
    assert job.checkpoint == Checkpoint(path="checkpoints")
    assert parse_job(job_toml(job).encode(), where="job.toml") == job


def test_an_adaptdl_job_starts_with_the_fewest_nodes_unless_its_policy_is_fixed() -> None:
    grows, fixed = planned(hardware=ADAPTDL), planned(hardware=ADAPTDL, elastic={"policy": "fixed"})

    assert (grows.takes_proposals, grows.desired_nodes) == (True, 1)
    assert (fixed.takes_proposals, fixed.desired_nodes) == (False, 4)
    assert parse_job(job_toml(fixed).encode(), where="job.toml") == fixed
    assert not planned(hardware=RANGE).takes_proposals


def test_settings_in_an_adaptdl_descriptor_override_the_defaults() -> None:
    job = planned(
        hardware=ADAPTDL,
        limits={"grace": "30s"},
        elastic={"pause": "1m", "nodes": 2},
        checkpoint={"path": "out", "every": "1m"},
    )

    assert (job.limits.grace, job.elastic.pause) == (timedelta(seconds=30), timedelta(minutes=1))
    assert (job.desired_nodes, job.checkpoint) == (2, Checkpoint(path="out", every=timedelta(minutes=1)))


def test_local_ray_nodes_share_this_machine() -> None:
    note = one_node_note(descriptor(hardware=RAY))

    assert (
        note
        == "ray: each of the 3 nodes has 1/3 of this machine's CPUs and memory, and the first one its GPUs"
    )
    assert planned(hardware=RAY).strategy == StrategyTable(name="ray", nodes=3)
    alone = {**RAY, "distributed": {"num_instances": 1}}
    assert one_node_note(descriptor(hardware=alone)) is None
    assert planned(hardware=alone, repeat={"runs": 2}).repeat is not None


def test_a_fixed_number_of_machines_is_refused_for_adaptdl() -> None:
    with pytest.raises(PlanError, match=r'num_instances: adaptdl runs on a range .* "1:4"'):
        planned(hardware={**ADAPTDL, "distributed": {"num_instances": 2}})


def test_a_range_of_one_machine_is_an_elastic_job() -> None:
    job = planned(hardware={"instance_type": "local", "distributed": {"num_instances": "1:1"}})

    assert job.strategy == StrategyTable(min_nodes=1)


def test_one_machine_with_replacements_is_an_elastic_job() -> None:
    job = planned(elastic={"replacements": 2})

    assert job.strategy == StrategyTable(min_nodes=1)
    assert (job.elastic.replacements, job.desired_nodes) == (2, 1)
    assert parse_job(job_toml(job).encode(), where="job.toml") == job


@pytest.mark.parametrize("machines", [4, "4"])
def test_a_single_number_of_machines_is_a_fixed_job(machines: int | str) -> None:
    job = planned(
        hardware={**RANGE, "distributed": {"num_instances": machines}},
    )

    assert job.strategy == StrategyTable(name="torchrun", nodes=4)
    assert job.limits.peer_silence == timedelta(minutes=1)


@pytest.mark.parametrize("where", ["descriptor", "configuration"])
def test_an_explicit_peer_silence_applies_to_elastic_jobs(where: str) -> None:
    limits = {"limits": {"peer_silence": "1m"}}
    inputs = PlanInputs(folder=FOLDER, job_id="job-1", client_id="alice")
    if where == "configuration":
        defaults = read_table(JobLimits, limits["limits"], where="[limits]")
        inputs, limits = replace(inputs, defaults=defaults), {}

    job = plan(descriptor(hardware=RANGE, **limits), inputs)

    assert job.limits.peer_silence == timedelta(minutes=1)


def test_a_local_mpi_job_is_not_elastic_and_a_note_says_so() -> None:
    hardware = {**RANGE, "strategy": "mpi"}

    job = planned(hardware=hardware, elastic={"nodes": 3})

    assert job.strategy == StrategyTable(name="mpi", nodes=1, processes_per_node="8")
    note = one_node_note(descriptor(hardware=hardware))
    assert note is not None
    assert note.endswith(
        "replaces 4 nodes, as one node with 8 processes, and the job is not elastic on one machine"
    )


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"hardware": RANGE}, "a range is not for a benchmark that is run several times"),
        ({"checkpoint": {"path": "out"}}, r"\[checkpoint\] is not for a benchmark that is run several times"),
        ({"restart": {"max_restarts": 1}}, "max_restarts is not for a benchmark that is run several times"),
        ({"hardware": RAY}, "ray on several machines runs the command once"),
    ],
)
def test_repeat_is_refused_with_settings_that_make_runs_unequal(tables: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        planned(repeat={"runs": 3}, **tables)


def test_mpirun_on_one_node_causes_no_note() -> None:
    distributed = {"num_instances": 1, "processes_per_instance": 2}
    hardware = {"instance_type": "local", "strategy": "mpi", "distributed": distributed}

    assert planned(hardware=hardware).strategy.processes_per_node == "2"
    assert one_node_note(descriptor(hardware=hardware)) is None


@pytest.mark.parametrize("ml", [{}, {"benchmark_code": "  "}, {"args": "8"}])
def test_planning_a_descriptor_without_a_command_is_refused(ml: dict[str, str]) -> None:
    with pytest.raises(PlanError, match="benchmark_code"):
        planned(ml=ml)


def test_an_unknown_home_folder_is_refused() -> None:
    given = descriptor(data={"sources": [{"src": "s3://b/k", "path": "~/x"}]})

    with pytest.raises(PlanError, match="~/x"):
        plan(given, PlanInputs(folder=FOLDER, job_id="j", client_id="c"))


def test_mounts_are_planned_as_written_and_their_needs_are_noted() -> None:
    efs = {"type": "efs", "src": "fs-0123456789abcdef0:/", "target": "/efs", "iam": True}
    nfs = {"type": "nfs", "src": "10.0.0.5:/x", "target": "/data"}

    job = planned(mounts=[efs, nfs], data_root=Path("/elsewhere"))

    assert [(each.src, each.target, each.iam) for each in job.mounts] == [
        ("fs-0123456789abcdef0:/", "/efs", True),
        ("10.0.0.5:/x", "/data", False),
    ]
    first, second = mount_notes(job)
    assert first == (
        "mounts: fs-0123456789abcdef0:/ at /efs; the image needs amazon-efs-utils, and the file system's security group must "
        "allow TCP port 2049 from the machines"
    )
    assert "the image needs nfs-common (Debian, Ubuntu) or nfs-utils (Amazon Linux)" in second
