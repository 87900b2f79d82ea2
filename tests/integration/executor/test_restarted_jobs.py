"""What users see of a job whose benchmark was restarted after a failure."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from agent_runs import wait_until
from local_cli import LocalCli

FAILS = """
import os, sys
with open("tries", "a") as file:
    file.write("x")
number = os.path.getsize("tries")
print(f"loss={number}")
sys.exit(3 if number <= int(sys.argv[1]) else 0)
"""
RESTART = """
[restart]
backoff = "100ms"
"""
TWICE = ("--set", "restart.max_restarts=2")


def test_run_metrics_and_report_show_the_restarts_of_a_job_that_succeeded(cli: LocalCli) -> None:
    answer = cli.bai("run", cli.descriptor(FAILS, more=RESTART), "--job-id", "one", *TWICE, "--", "2")

    assert answer.code == 0, answer.stdout + answer.stderr
    assert "[bai] The benchmark failed after" in answer.stdout
    assert "Restart 2 of 2 follows 0.2 s later." in answer.stdout
    assert "(restarted 2 times)" in answer.stdout
    assert "3 generations, and" in answer.stdout
    # Of the last generation alone.
    assert "without 2 values of earlier generations" in answer.stdout
    (row,) = (line.split() for line in answer.stdout.splitlines() if line.split()[:2] == ["loss", "↓"])
    assert row[-1] == "1"
    metrics = cli.bai("metrics", "one", "--name", "loss", "--format", "jsonl").stdout
    told = [json.loads(line) for line in metrics.splitlines()]
    assert [(each["generation"], each["value"]) for each in told] == [(0, 1), (1, 2), (2, 3)]
    assert cli.bai("metrics", "one", "--format", "bmf").stdout.count('"value": 3') == 1
    report = json.loads(cli.bai("report", "one", "--format", "json").stdout)
    (loss,) = report["metrics"]
    assert loss["headline"] == 3
    assert [(each["generation"], each["superseded"]) for each in loss["series"]] == [
        (0, True),
        (1, True),
        (2, False),
    ]
    assert "3 generations, and" in cli.bai("report", "one", "--format", "md").stdout
    page = cli.folder / "report.html"
    assert cli.bai("report", "one", "-o", page).code == 0
    assert page.read_text().count('class="ph-generation"') == 3
    assert page.read_text().count("<title>nothing ran for") == 2

    # And each generation by itself.
    of_second = ("metrics", "one", "--generation", "1")
    assert [each["value"] for each in cli.bai(*of_second, "--name", "loss", "--format", "jsonl").objects] == [
        2
    ]
    assert json.loads(cli.bai(*of_second, "--format", "bmf").stdout)["waits"]["loss"]["value"] == 2
    assert "generation 7: one has no" in cli.bai("metrics", "one", "--generation", "7").stderr
    assert (
        "generation 7: one has no" in cli.bai("metrics", "one", "--generation", "7", "--format", "bmf").stderr
    )
    told = cli.result("one")["generations"]
    assert [(each["members"], each["headlines"]["loss"]["value"]) for each in told] == [
        ([0], n) for n in (1, 2, 3)
    ]
    gaps = [(after["started"] - before["ended"]) / 1000 for before, after in pairwise(told)]
    assert [each["gap_seconds"] for each in told] == [None, *gaps]
    assert min(gaps) > 0
    assert report["seconds_between_generations"] == pytest.approx(sum(gaps))
    assert [each["headlines"]["loss"]["value"] for each in report["generations"]] == [1, 2, 3]


def test_a_job_fails_when_it_needs_more_than_max_restarts(cli: LocalCli) -> None:
    answer = cli.bai("run", cli.descriptor(FAILS, more=RESTART), "--job-id", "one", *TWICE, "--", "3")

    assert answer.code == 1
    assert "it exited with code 3 (restarted 2 times)" in answer.stdout
    status = cli.bai("status", "one").stdout
    assert "3 generations, and" in status
    assert "│ loss=3" in status
    assert "│ loss=2" not in status


def test_a_job_that_waits_for_its_restart_says_why_and_can_be_cancelled(cli: LocalCli) -> None:
    later = '[restart]\nmax_restarts = 3\nbackoff = "1h"\n'
    with cli.start("run", cli.descriptor(FAILS, more=later), "--job-id", "one", "--", "9") as process:
        wait_until(lambda: "restarts" in cli.bai("status", "one").stdout)

        assert (
            "1 of 3 used, the last one because the benchmark failed after" in cli.bai("status", "one").stdout
        )
        assert cli.bai("cancel", "one").code == 0
        assert process.wait(timeout=60) == 4


def test_bai_extract_assigns_values_to_their_generations(cli: LocalCli) -> None:
    cli.bai("run", cli.descriptor(FAILS, more=RESTART), "--job-id", "one", *TWICE, "--", "1")

    assert cli.bai("extract", "one").code == 0

    lines = cli.bai("metrics", "one", "--extract", "last", "--format", "jsonl").stdout.splitlines()
    assert [(each["generation"], each["value"]) for each in map(json.loads, lines)] == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("[restart]\nmax_restarts = 1\n[repeat]\nruns = 2\n", "restart.max_restarts"),
        ("[hardware.distributed]\nnum_instances = 1\nmax_restarts = 1\n[repeat]\nruns = 2\n", "hardware"),
        (
            "[hardware.distributed]\nnum_instances = 2\nmax_restarts = 1\n[restart]\nmax_restarts = 1\n",
            "hardware.distributed.max_restarts",
        ),
    ],
)
def test_a_job_that_cannot_be_restarted_is_refused_before_it_runs(cli: LocalCli, more: str, key: str) -> None:
    descriptor = cli.descriptor(FAILS, strategy="torchrun", more=more)

    answer = cli.bai("validate", descriptor)

    assert answer.code == 2
    assert key in answer.stdout + answer.stderr
    assert cli.bai("run", descriptor, "--", "0").code == 2
