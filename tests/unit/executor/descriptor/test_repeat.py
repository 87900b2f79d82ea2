"""`[repeat]`: its mistakes, and the job that it becomes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor.benchmark_tables import Repeat
from bai_agent.job.descriptor.metric_tables import OfRun
from bai_agent.job.descriptor_file import parse_job
from executor.descriptor import Severity, load
from executor.planning.plan import PlanInputs, plan

HEAD = """
spec_version = "0.1.0"
[info]
description = "d"
[hardware]
instance_type = "local"
strategy = "{strategy}"
[ml]
benchmark_code = "train"
"""
METRIC = "[[output.metrics]]\nname = '{name}'\nunits = 's'\npattern = '(.)'\n{more}\n"
RANKED = METRIC.format(name="speed", more="better = 'higher'")


def repeat_of(folder: Path, text: str) -> Repeat | None:
    file = folder / "benchmark.toml"
    file.write_text(HEAD.format(strategy="single_node") + text)
    descriptor, _ = load(file)
    assert descriptor is not None
    return plan(descriptor, PlanInputs(folder=folder, job_id="job-1", client_id="alice")).repeat


def test_the_repeat_table_of_a_descriptor_is_in_the_job(tmp_path: Path) -> None:
    text = "[repeat]\nruns = 7\nwarmup_runs = 2\nmax_time = '2h'\nprepare = 'sync --data \"a b\"'\ncleanup = '''\nrm -f x\ntrue\n'''\nkeep_going = true"

    assert repeat_of(tmp_path, text) == Repeat(
        runs=7,
        warmup_runs=2,
        max_time=timedelta(hours=2),
        prepare=("sync", "--data", "a b"),
        cleanup=("/bin/sh", "-c", "rm -f x\ntrue"),
        keep_going=True,
    )
    assert repeat_of(tmp_path, "") is None


def test_until_applies_to_the_only_metric_with_a_direction_by_default(tmp_path: Path) -> None:
    metrics = METRIC.format(name="loss", more="") + RANKED

    assert repeat_of(tmp_path, f"{metrics}[repeat]\nuntil = '1.5%'") == Repeat(
        runs=50, until=0.015, metric="speed"
    )


@pytest.mark.parametrize(
    ("table", "metrics", "strategy", "key", "said"),
    [
        ("warmup_runs = 1", "", "single_node", "repeat.runs", "the number of runs is unknown"),
        ("runs = 0", "", "single_node", "repeat.runs", "1"),
        (
            "runs = 3\nkeep_going = true\n[hardware.distributed]\nnum_instances = 2",
            "",
            "torchrun",
            "repeat.keep_going",
            "torchrun on several nodes",
        ),
        (
            "runs = 3\nkeep_going = true\n[hardware.distributed]\nnum_instances = 2",
            "",
            "each_node",
            "repeat.keep_going",
            "each_node on several nodes",
        ),
        ("until = '2%'", "", "single_node", "repeat.metric", "no metric has the key better"),
        (
            "until = '2%'",
            RANKED + RANKED.replace("speed", "other"),
            "single_node",
            "repeat.metric",
            "2 metrics",
        ),
        ("until = '2%'\nmetric = 'sped'", RANKED, "single_node", "repeat.metric", "write one of: speed"),
        ("until = '0%'", RANKED, "single_node", "repeat.until", "more than 0%"),
        ("until = 2", RANKED, "single_node", "repeat.until", "percentage"),
        ('runs = 3\nprepare = "echo \'a"', "", "single_node", "repeat.prepare", "never closed"),
        ("runs = 3\ncleanup = ''", "", "single_node", "repeat.cleanup", "empty"),
        ("runs = 3\nprepare = '''\n#!/bin/bash\ntrue\n'''", "", "single_node", "repeat.prepare", "#!"),
    ],
)
def test_each_mistake_in_repeat_is_named(
    tmp_path: Path, table: str, metrics: str, strategy: str, key: str, said: str
) -> None:
    file = tmp_path / "benchmark.toml"
    file.write_text(f"{HEAD.format(strategy=strategy)}{metrics}[repeat]\n{table}\n")

    findings = [each for each in load(file)[1] if each.severity is Severity.ERROR]

    assert [each.key for each in findings] == [key]
    assert said in f"{findings[0].problem}; {findings[0].fix}"


@pytest.mark.parametrize("strategy", ["each_node", "torchrun", "mpi", "horovod"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_every_strategy_can_repeat(tmp_path: Path, strategy: str, nodes: int) -> None:
    file = tmp_path / "benchmark.toml"
    together = nodes == 2 and strategy in ("each_node", "torchrun")
    keep_going = "" if together else "keep_going = true"
    text = f"{HEAD.format(strategy=strategy)}[hardware.distributed]\nnum_instances = {nodes}\n[repeat]\nruns = 3\n{keep_going}\n"
    file.write_text(text)

    descriptor, findings = load(file)

    assert descriptor is not None
    assert [each for each in findings if each.severity is Severity.ERROR] == []
    repeat = plan(descriptor, PlanInputs(folder=tmp_path, job_id="job-1", client_id="alice")).repeat
    assert repeat is not None
    assert repeat.runs == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[repeat]\nruns = 0", "runs: must be at least 1"),
        ("[repeat]\nruns = 3\nuntil = 0.02", "until and metric must be set together"),
        ("[repeat]\nruns = 3\nuntil = 0.02\nmetric = 'x'", 'metric "x" is not defined in [[metrics]]'),
        (
            "[strategy]\nname = 'torchrun'\nnodes = 2\n[repeat]\nruns = 3\nkeep_going = true",
            "keep_going cannot be used with torchrun on several nodes",
        ),
        (
            "[strategy]\nname = 'each_node'\nnodes = 2\n[repeat]\nruns = 3\nkeep_going = true",
            "keep_going cannot be used with each_node on several nodes",
        ),
        (
            "[strategy]\nname = 'mpi'\nnodes = 2\n[[sources]]\nsrc = 'file:///d'\npath = '/d'\narm = 'a'\n"
            "[repeat]\nruns = 2\n[[repeat.arms]]\nname = 'a'\nargv = ['true']\n[[repeat.arms]]\nname = 'b'\nargv = ['true']",
            "with the strategy mpi on several nodes, arms cannot have files of their own",
        ),
    ],
)
def test_mistakes_in_repeat_of_a_job_descriptor_are_refused(text: str, said: str) -> None:
    content = f'version = 1\n[job]\nid = "j"\n[benchmark]\nargv = ["true"]\n{text}\n'

    with pytest.raises(DescriptorError) as error:
        parse_job(content.encode(), where="job.toml")

    assert said in str(error.value)


ARMS = "[[repeat.arms]]\nname = 'old'\n[[repeat.arms]]\nname = 'new'\nargs = '--fused'\nvars = {N = '2'}\n"


def test_arms_take_turns_in_an_order_that_the_seed_decides(tmp_path: Path) -> None:
    repeat = repeat_of(tmp_path, f"[repeat]\nruns = 40\nwarmup_runs = 2\nseed = 3\n{ARMS}")

    assert repeat is not None
    assert [(each.name, each.argv, each.env) for each in repeat.arms] == [
        ("old", ("train",), {}),
        ("new", ("train", "--fused"), {"N": "2"}),
    ]
    order = repeat.sequence
    assert len(order) == 42
    assert all(set(order[i : i + 2]) == {0, 1} for i in range(0, 42, 2))
    assert order[::2].count(0) not in (0, 21)
    assert order == repeat.sequence != replace(repeat, seed=4).sequence


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (f"runs = 3\n{ARMS}", "repeat.runs"),
        (f"runs = 4\nwarmup_runs = 1\n{ARMS}", "repeat.warmup_runs"),
        (f"runs = 4\n{ARMS.replace('new', 'old')}", "repeat.arms"),
        (f"runs = 4\n{ARMS[: ARMS.index('[[', 2)]}", "repeat.arms"),
        (
            f"runs = 4\n{ARMS.replace('N =', 'HF_TOKEN =').replace('2', 'hf_abcdefghij0123456789')}",
            "repeat.arms[1].vars.HF_TOKEN",
        ),
    ],
)
def test_each_mistake_in_arms_is_named(tmp_path: Path, table: str, key: str) -> None:
    file = tmp_path / "benchmark.toml"
    file.write_text(f"{HEAD.format(strategy='single_node')}[repeat]\n{table}")

    assert [each.key for each in load(file)[1] if each.severity is Severity.ERROR] == [key]


def test_the_name_of_an_arm_has_a_rule(tmp_path: Path) -> None:
    file = tmp_path / "benchmark.toml"
    table = f"runs = 4\n{ARMS.replace('new', 'my new one')}"
    file.write_text(f"{HEAD.format(strategy='single_node')}[repeat]\n{table}")

    (mistake,) = load(file)[1]

    assert (mistake.key, mistake.problem) == (
        "repeat.arms[1].name",
        '"my new one" must be 1 to 128 of A-Z a-z 0-9 . _ - and start with a letter or digit',
    )


def test_until_may_use_the_wall_time_without_a_table(tmp_path: Path) -> None:
    file = tmp_path / "benchmark.toml"
    file.write_text(HEAD.format(strategy="single_node") + "[repeat]\nuntil = '2%'\nmetric = 'wall_time'\n")

    descriptor, findings = load(file)

    assert descriptor is not None, findings
    job = plan(descriptor, PlanInputs(folder=tmp_path, job_id="job-1", client_id="alice"))
    assert job.repeat is not None
    assert job.repeat.metric == "wall_time"
    assert [(each.name, each.of_run, each.units) for each in job.metrics] == [
        ("wall_time", OfRun.WALL_TIME, "s")
    ]
