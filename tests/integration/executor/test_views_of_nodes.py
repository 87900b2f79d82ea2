"""Commands for a job with several nodes: logs, metrics and status of each node."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from handmade_job import HandmadeJob
from local_cli import LocalCli
from pseudo_terminal import Terminal
from stand_in_torchrun import put_torchrun

from executor import metrics


@pytest.fixture
def job(cli: LocalCli) -> HandmadeJob:
    """A job of two nodes that has ended well."""
    made = HandmadeJob(cli.store, nodes=2)
    made.prints("zero\nlast")
    made.on(1).prints("one\nend\n")
    made.ends()
    return made


def test_logs_shows_the_first_node_or_the_named_one(cli: LocalCli, job: HandmadeJob) -> None:
    assert cli.bai("logs", "digits-1").stdout == "zero\nlast"
    assert cli.bai("logs", "digits-1", "--node", "0").stdout == "zero\nlast"
    assert cli.bai("logs", "digits-1", "--node", "1", "-f").stdout == "one\nend\n"
    assert cli.bai("logs", "digits-1", "--node", "1", "-n", "1").stdout == "end\n"
    assert [each["line"] for each in cli.bai("logs", "digits-1", "--node", "1", "--json").objects] == [
        "one",
        "end",
    ]


def test_the_log_of_all_nodes_has_ranks_and_whole_lines(cli: LocalCli, job: HandmadeJob) -> None:
    everything = "[0] zero\n[0] last\n[1] one\n[1] end\n"

    assert cli.bai("logs", "digits-1", "--all").stdout == everything
    assert sorted(cli.bai("logs", "digits-1", "--all", "-f").stdout) == sorted(everything)
    assert cli.bai("logs", "digits-1", "--all", "-n", "1").stdout == "[0] last\n[1] end\n"
    assert cli.bai("logs", "digits-1", "--all", "--json").objects[-1] == {"rank": 1, "line": "end"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--node", "2"], "bai: --node 2: digits-1 has 2 nodes, 0 to 1\n"),
        (["--node", "2", "--boot"], "bai: --node 2: digits-1 has 2 nodes, 0 to 1\n"),
        (["--node", "1", "--all"], "bai: --node and --all exclude each other; write one of them\n"),
    ],
)
def test_a_missing_node_is_reported_in_one_sentence(
    cli: LocalCli, job: HandmadeJob, options: list[str], why: str
) -> None:
    answer = cli.bai("logs", "digits-1", *options)

    assert (answer.code, answer.stdout, answer.stderr) == (2, "", why)


def test_logs_at_a_terminal_mention_the_logs_of_other_nodes(cli: LocalCli, job: HandmadeJob) -> None:
    HandmadeJob(cli.store, "alone-1").ends()
    hint = "this is node 0 of 2; --node R shows another one, --all shows all of them"

    assert "node" not in cli.bai("logs", "digits-1").stderr
    for arguments, is_there in ((["digits-1"], True), (["digits-1", "--all"], False), (["alone-1"], False)):
        with Terminal("logs", *arguments, cli=cli) as terminal:
            assert terminal.wait() == 0
            assert (hint in " ".join(terminal.text.split())) == is_there


def test_metrics_of_all_nodes_have_their_ranks(cli: LocalCli, job: HandmadeJob) -> None:
    job.measures("loss", 0.5, 0.75)
    job.on(1).measures("loss", 0.25)
    both = [("loss", 0.75, {"rank": "0"}), ("loss", 0.25, {"rank": "1"})]

    records = cli.bai("metrics", "digits-1", "--json").objects
    assert [(each["name"], each["value"], each["labels"]) for each in records[1:]] == both
    assert metrics("digits-1", store=cli.store) == records
    rows = csv.DictReader(cli.bai("metrics", "digits-1", "--format", "csv").stdout.splitlines())
    assert [(row["rank"], row["labels"]) for row in rows] == [("0", ""), ("0", ""), ("1", "")]
    table = cli.bai("metrics", "digits-1").stdout
    assert re.findall(r"loss\{rank=\d\}", table) == ["loss{rank=0}", "loss{rank=1}"]
    (status,) = cli.bai("status", "digits-1", "--json").objects
    assert [(each["name"], each["value"], each["labels"]) for each in status["metrics"]] == both


def test_status_shows_network_transports_during_the_run_and_afterwards(cli: LocalCli) -> None:
    job = HandmadeJob(cli.store, nodes=3)
    for rank, network in enumerate(("NET/Libfabric", "NET/Libfabric", "NET/Socket")):
        job.on(rank).event("transport", library="NCCL", uses=[network, "P2P"])

    shown = cli.bai("status", "digits-1", "-v").stdout
    assert "transport NCCL: NET/Libfabric, P2P (node 0, 1)\n" in shown
    assert "transport NCCL: NET/Socket, P2P (node 2)\n" in shown
    assert "NCCL" not in cli.bai("status", "digits-1").stdout
    job.ends(transports={"NCCL": ["NET/Libfabric", "P2P", "NET/Socket"]})
    assert "transport NCCL: NET/Libfabric, P2P, NET/Socket\n" in cli.bai("status", "digits-1").stdout


def test_extracted_records_of_all_nodes_have_their_ranks(cli: LocalCli, job: HandmadeJob) -> None:
    job.prints("\nloss=1\n")
    job.on(1).prints("loss=2\n")
    assert cli.bai("extract", "digits-1").code == 0

    records = cli.bai("metrics", "digits-1", "--extract", "last", "--json").objects
    assert [(each["value"], each["labels"]) for each in records] == [
        (1.0, {"rank": "0"}),
        (2.0, {"rank": "1"}),
    ]


def test_malformed_metric_lines_of_a_node_are_counted(cli: LocalCli, job: HandmadeJob) -> None:
    with (job.on(1).node / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")

    answer = cli.bai("metrics", "digits-1")

    assert answer.stderr.startswith("bai: the metrics of the 2 nodes of digits-1: a line is not JSON")
    assert "(1 line skipped)" in answer.stderr


BOTH = """
import os, sys, time
rank = os.environ["BAI_NODE_RANK"]
print("begins on", rank, flush=True)
sys.stdout.write("half of " + rank)
sys.stdout.flush()
deadline = time.monotonic() + 120
while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
    time.sleep(0.02)
print(" is whole")
print(f"loss=0.{rank}5")
"""


def test_running_nodes_are_followed_together_and_seen_to_end(cli: LocalCli, tmp_path: Path) -> None:
    path = f"{put_torchrun(tmp_path)}:{os.environ['PATH']}"
    cli = replace(cli, environment={**cli.environment, "PATH": path})
    hardware = "[hardware.distributed]\nnum_instances = 2\nprocesses_per_instance = 1"
    descriptor = cli.descriptor(BOTH, strategy="torchrun", more=hardware)

    with cli.start("run", descriptor, "--", cli.go_file) as run:
        (job_id,) = cli.await_jobs(1)
        with cli.start("logs", job_id, "--all", "-f") as logs:
            assert logs.stdout is not None
            begun = {logs.stdout.readline() for _ in range(2)}
            (standing,) = cli.bai("status", job_id, "--json").objects
            table = cli.bai("status", job_id).stdout
            cli.go_file.touch()
            rest = logs.stdout.read()
            assert logs.wait(timeout=60) == 0
        assert run.communicate(timeout=60)[1] is not None
        assert run.returncode == 0

    assert begun == {"[0] begins on 0\n", "[1] begins on 1\n"}
    assert sorted(rest.splitlines()) == [
        *("[0] half of 0 is whole", "[0] loss=0.05", "[1] half of 1 is whole", "[1] loss=0.15"),
    ]
    assert [(each["rank"], each["phase"], each["outcome"]) for each in standing["nodes"]] == [
        (0, "run", None),
        (1, "run", None),
    ]
    assert all(each["address"] and each["last_sign"] for each in standing["nodes"])
    assert re.search(r"^0 +here +\S+ +run +.+ ago$", table, re.MULTILINE)
    (ended,) = cli.bai("status", job_id, "--json").objects
    assert [(each["phase"], each["outcome"], each["trouble"]) for each in ended["nodes"]] == [
        (None, "succeeded", None),
        (None, "succeeded", None),
    ]
    values = {each["labels"]["rank"]: each["value"] for each in ended["metrics"] if each["name"] == "loss"}
    assert values == {"0": 0.05, "1": 0.15}


def test_status_json_has_the_same_warnings_as_the_text(cli: LocalCli) -> None:
    HandmadeJob(cli.store).ends(warnings=["The clock is off."])

    assert "The clock is off." in cli.bai("status", "digits-1").stdout
    (status,) = cli.bai("status", "digits-1", "--json").objects
    assert status["warnings"] == ["The clock is off."]
