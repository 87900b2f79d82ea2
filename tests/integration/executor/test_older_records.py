"""The records of an earlier version, in `tests/recorded/jobs`, and every command that reads a job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_harness import CliHarness, CliResult
from local_cli import LocalCli, local_cli
from moto_aws import open_moto_aws
from recorded_jobs import answers, bring_bucket, bring_store, expected

EXPECTED = expected()
LOCAL: dict[str, Any] = EXPECTED["local"]["jobs"]
NODES = {"nodes": 2, "job": 2}
"""Job → its nodes, if there are several."""


@pytest.fixture
def old(cli: LocalCli) -> LocalCli:
    """A person with the recorded job store."""
    return with_store(cli)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> LocalCli:
    """The same for commands that change nothing: all have one copy."""
    return with_store(local_cli(tmp_path_factory.mktemp("recorded")))


def with_store(cli: LocalCli) -> LocalCli:
    variables = {"BAI_STORE": str(bring_store(cli.folder)), "BAI_CONFIG": os.devnull, "COLUMNS": "160"}
    return replace(cli, environment={**cli.environment, **variables, "HOME": str(cli.folder)})


@contextmanager
def old_bucket(folder: Path) -> Iterator[CliHarness]:
    """Give a person the recorded bucket, two days later: the machines are gone."""
    with open_moto_aws() as aws:
        bring_bucket(aws, age=timedelta(days=2))
        account = {**os.environ, **aws.environment(), "HOME": str(folder), "BAI_CONFIG": os.devnull}
        yield CliHarness(folder, {**account, "BAI_STORE": f"s3://{aws.bucket}/jobs", "COLUMNS": "160"})


def read(cli: CliHarness, *arguments: str | Path, code: int = 0) -> CliResult:
    """Run `bai`, which ends with `code` and without a traceback."""
    done = cli.bai(*arguments)
    assert "Traceback" not in done.stderr
    assert done.code == code, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done


def headlines(table: dict[str, Any]) -> dict[str, float]:
    return {name: each["value"] for name, each in (table["headlines"] or {}).items()}


def printed_values(records: list[dict[str, Any]]) -> list[float]:
    return sorted(each["value"] for each in records if each["name"] in ("loss", "throughput"))


def test_outcomes_and_values_of_jobs_from_an_earlier_version_are_unchanged(shown: LocalCli) -> None:
    assert answers(shown) == EXPECTED["local"]


@pytest.mark.parametrize("job", sorted({*LOCAL} - {"digits-2", "digits-3", "digits-4"}))
def test_every_command_shows_a_job_from_an_earlier_version(shown: LocalCli, job: str) -> None:
    was = LOCAL[job]
    said = was["sentence"] or "gone, without a result"

    status = read(shown, "status", job, "-v").stdout
    table = read(shown, "status", job, "--json").objects[0]
    top = read(shown, "top", job, "--json").objects[0]
    (report,) = read(shown, "report", job, "--format", "json").objects
    logs = read(shown, "logs", job, "--all").stdout

    for text in (said, "kernel    6.1.0", "memory    23.5 GiB"):
        assert text in status
    assert [table[key] for key in ("status", "outcome", "exit_code")] == [
        was[key] for key in ("status", "outcome", "exit_code")
    ]
    assert (top["job_id"], top["result"], len(top["nodes"])) == (job, was["sentence"], NODES.get(job, 1))
    assert was["headlines"] == (headlines(report["result"]["metrics"]) if report["result"] else {})
    outputs = sorted((shown.folder / "store" / job).glob("attempts/0/nodes/*/output.log"))
    for line in "".join(path.read_text() for path in outputs).splitlines():
        assert line in logs


def test_metrics_of_a_job_from_an_earlier_version_are_printed_in_each_format(shown: LocalCli) -> None:
    metrics = ("metrics", "digits-1", "--format")

    table = read(shown, "metrics", "digits-1").stdout.split("\n")
    jsonl = read(shown, *metrics, "jsonl").objects
    csv = read(shown, *metrics, "csv").stdout.splitlines()
    openmetrics = read(shown, *metrics, "openmetrics").stdout
    (gha,) = json.loads(read(shown, *metrics, "gha", "--name", "loss").stdout)

    numbers = {line.split()[0]: line.split()[-9:-7] for line in table if line.startswith(("loss", "latency"))}
    assert numbers == {"loss": ["6,000", "1,200"], "latency": ["102", "101"]}
    assert len(csv) == len(jsonl) + 1 > 17
    assert csv[1].startswith("0,log,0,loss,6000,nats,")
    assert 'BAI_METRICS_throughput{device="b",job_id="digits-1"} 2005.0' in openmetrics
    assert (gha["name"], gha["unit"], gha["value"]) == ("loss", "nats", 1200.0)


def test_reports_of_earlier_jobs_compare_arms_and_name_failed_runs(shown: LocalCli) -> None:
    page = read(shown, "report", "digits-1", "--format", "html", "-o", "-").stdout
    markdown = read(shown, "report", "ab", "--format", "md").stdout
    csv = read(shown, "report", "repeat", "--format", "csv").stdout.splitlines()
    repeat = read(shown, "status", "repeat").stdout
    third = read(shown, "logs", "repeat", "--repeat", "2").stdout.splitlines()

    assert page.startswith("<!doctype html>")
    assert "weights" not in page
    assert "2,005" in page
    assert "| loss | 1,200 nats | 1,440 nats | \\+20.0 % |" in markdown
    assert "left out: ab \\#2 ended as failed" in markdown
    assert {line.split(",")[6] for line in csv if line.startswith("log,loss,")} == {"0", "2"}
    assert "median of 2 runs (last)" in repeat
    assert (len(third), third[-1]) == (15, "device=b throughput=2005")


@pytest.mark.parametrize("job", ["digits-1", "nodes", "job", "repeat"])
def test_extracting_again_finds_the_recorded_values(old: LocalCli, job: str) -> None:
    found = read(old, "extract", job, "--json").objects
    records = read(old, "metrics", job, "--extract", "last", "--format", "jsonl").objects

    # Under mpirun the log of node 0 has the lines of all processes.
    assert len(found) == (1 if job == "job" else NODES.get(job, 1))
    own = read(old, "metrics", job, "--format", "jsonl").objects
    assert printed_values(records) == printed_values(own) != []


def test_extracting_a_multi_node_job_again_reads_the_whole_logs(old: LocalCli) -> None:
    answer = old.bai("extract", "nodes")

    assert (answer.code, "are kept" in answer.stderr) == (0, False), answer.stderr


def test_a_job_from_an_earlier_version_is_fetched_and_exported(old: LocalCli, tmp_path: Path) -> None:
    read(old, "fetch", "nodes", "fetched")
    read(old, "export", "digits-1", "--to", "tensorboard", "--dir", "board")

    artifacts = sorted((tmp_path / "fetched").glob("artifacts/rank-*/out/model.txt"))
    assert [path.read_text() for path in artifacts] == ["weights of 100\n"] * 2
    fetched = (tmp_path / "fetched" / "nodes" / "1" / "metrics.jsonl").read_text()
    assert fetched.count('"name":"throughput"') == 10
    assert [*(tmp_path / "board" / "digits-1").rglob("events.out.tfevents.*")]


def test_like_runs_a_job_from_an_earlier_version_again(old: LocalCli) -> None:
    started, *_, ended = read(old, "run", "--like", "digits-2", "--json").objects

    assert (ended["outcome"], headlines(ended["metrics"])) == ("succeeded", LOCAL["digits-2"]["headlines"])
    (report,) = read(old, "report", started["job_id"], "--format", "json").objects
    assert report["job"]["benchmark"]["env"] == {"SEED": "2"}


@pytest.mark.parametrize(
    ("command", "said", "code", "outcome"),
    [
        ("cancel", "its agent had died and was started again to end the job", 4, "cancelled"),
        ("resume", "the job's agent is running again", 5, "lost"),
    ],
)
def test_a_job_of_an_earlier_version_whose_machine_rebooted_is_ended(
    old: LocalCli, command: str, said: str, code: int, outcome: str
) -> None:
    assert "bai resume running" in read(old, "status", "running").stdout

    assert said in read(old, command, "running").stdout
    read(old, "status", "running", "--wait", code=code)

    (ended,) = read(old, "status", "running", "--json").objects
    assert (ended["outcome"], headlines(ended)) == (outcome, {"loss": 60.0, "throughput{device=a}": 11.0})


def test_jobs_of_an_earlier_version_are_found_by_label_removed_and_pruned(old: LocalCli) -> None:
    labelled = read(old, "list", "--label", "suite=old", "--json").objects
    read(old, "resume", "digits-1")
    assert "has already ended" in read(old, "cancel", "digits-1").stdout
    read(old, "rm", "failed")
    read(old, "prune", "--older-than", "1s", "--keep", "suite=old", "--yes")

    assert [each["job_id"] for each in labelled] == [f"digits-{number}" for number in range(1, 5)]
    left = read(old, "list", "--json").objects
    assert left == labelled


def test_outcomes_and_values_of_earlier_jobs_in_a_bucket_are_unchanged(tmp_path: Path) -> None:
    with old_bucket(tmp_path) as cli:
        assert answers(cli, ()) == EXPECTED["bucket"]


def test_every_command_shows_an_earlier_job_in_a_bucket(tmp_path: Path) -> None:
    with old_bucket(tmp_path) as cli:
        status = read(cli, "status", "submitted", "-v").stdout
        logs = read(cli, "logs", "submitted").stdout
        top = read(cli, "top", "submitted", "--json").objects[0]
        (report,) = read(cli, "report", "submitted", "--format", "json").objects
        (extracted,) = read(cli, "extract", "submitted", "--json").objects
        read(cli, "fetch", "submitted", "fetched")
        compared = read(cli, "compare", "submitted", "served", "--json").objects[0]
        read(cli, "cancel", "serving")
        (gone,) = read(cli, "status", "serving", "--json").objects
        removed = read(cli, "rm", "served", code=2).stderr

    was = EXPECTED["bucket"]["jobs"]["submitted"]["headlines"]
    assert "took 1.5 s" in status
    assert "kernel    6.1.0" in status
    assert (len(logs.splitlines()), top["status"]) == (15, "SUCCEEDED")
    assert headlines(report["result"]["metrics"]) == headlines(extracted) == was
    assert (tmp_path / "fetched" / "artifacts" / "out" / "model.txt").read_text() == "weights of 100\n"
    assert {each["name"]: each["a"]["runs"] for each in compared["metrics"]}["loss"] == [1200.0]
    assert (gone["outcome"], headlines(gone)) == ("cancelled", {"loss": 60.0, "throughput{device=a}": 11.0})
    assert "where a lifecycle rule of the bucket deletes jobs" in removed
