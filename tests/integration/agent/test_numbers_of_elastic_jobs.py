"""The numbers of an elastic job, from real agents: one for each metric in all views, and those of each generation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_runs import environment, wait_until
from cli_harness import CliHarness
from node_agents import Nodes

from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from executor.analysis.measured_runs import runs_of
from executor.documents.metrics import headline_rows
from executor.export.facts import job_facts
from executor.jobs.compared import job_runs
from executor.jobs.job_list import measurements_of
from executor.records.follower import benchmark_starts
from executor.records.generations import generations_of
from executor.records.points import read_points
from executor.records.reading import result_of
from executor.report.contents import report_of
from executor.report.words import headlines_of

PROGRAM = """
import os, time
from pathlib import Path
node, generation = int(os.environ["BAI_NODE"]), int(os.environ["BAI_GENERATION"])
print(f"begun {{generation}}")
for step in range(3):
    print(f"step={{10 * generation + step}} speed={{100 * (generation + 1) + node + step / 4}}")
if generation == 0:
    print(f"setup={{node + 1}}")
if node == 1:
    print("checked=1")
print("printed", flush=True)
while not Path({flag!r}).exists():
    time.sleep(0.05)
"""
METRICS = [
    {
        "name": "speed",
        "units": "img/s",
        "pattern": r"step=(?P<step>\d+) speed=(?P<value>\S+)",
        "over_ranks": "sum",
        "headline": "max",
        "warmup_values": 1,
    },
    {"name": "setup", "units": "s", "pattern": r"setup=(\S+)", "over_ranks": "max"},
    {"name": "checked", "pattern": r"checked=(\S+)", "required": True},
]
SPEED = {0: 100.5 + 101.5 + 102.5, 1: 200.5 + 202.5, 2: 300.5}
PATIENCE_S = 120


def seen(nodes: Nodes, node: int) -> list[str]:
    try:
        found: list[str] = json.loads((nodes.store / f"job/attempts/0/signs/{node}").read_bytes())["seen"]
    except (OSError, ValueError):
        return []
    return found


def test_all_commands_show_the_same_metric_values_for_an_elastic_job_of_three_generations(
    tmp_path: Path, make: Callable[..., Nodes]
) -> None:
    # Given a job on three nodes, of which node 1 alone prints a required metric, and is lost; then one is wanted
    flag = tmp_path / "go"
    strategy = {"min_nodes": 1}
    nodes = make(
        PROGRAM.format(flag=str(flag)), nodes=3, strategy=strategy, metrics=METRICS, elastic={"pause": "1s"}
    )
    nodes.start_all(0, 1, 2)
    for node in range(3):
        wait_until(nodes.printed(node, "printed"), seconds=PATIENCE_S)
    wait_until(lambda: seen(nodes, 1) == ["checked"], seconds=PATIENCE_S)
    nodes.lose(1)
    for node in (0, 2):
        wait_until(nodes.printed(node, "begun 1"), seconds=PATIENCE_S)
    record = JobRecord(DirectoryStore(nodes.store), "job")
    while_it_runs = generations_of(record, None)
    (nodes.store / "job/attempts/0/requests").mkdir(exist_ok=True)
    (nodes.store / "job/attempts/0/requests/0.json").write_text(json.dumps({"desired": 1}))
    wait_until(nodes.printed(0, "begun 2"), seconds=PATIENCE_S)
    flag.touch()

    assert [nodes.wait(node) for node in (0, 2)] == [0, 0]

    # Then a lost node's value satisfies what is required
    result = result_of(record)
    assert result is not None
    assert (result.outcome, result.lost) == ("succeeded", [1])

    # And each view has the same numbers, of the last generation that gave them
    job, points, starts = record.job(), read_points(record), benchmark_starts(record.node())
    expected = {"speed": SPEED[2], "setup": 3.0, "checked": 1.0}
    assert result.metrics is not None
    listed = result.metrics.headlines or {}
    assert {name: each.value for name, each in listed.items()} == expected
    shown = {each.metric or each.name: each.headline for each in headline_rows(measurements_of(record))}
    contents = report_of(record, now=0, prices={})
    reported = {
        part.name: found.headline.value for part in contents.metrics for found in headlines_of(part, ())
    }
    (run,) = runs_of("job", job, result, points, starts=starts).runs
    measured = {name: each.value for name, each in run.values.items() if name != "wall time"}
    exported: dict[str, list[float]] = {}
    for key, value in job_facts(record).runs[0].headlines.items():
        exported.setdefault(key.name, []).append(value)
    assert shown == reported == measured == expected
    assert {name: max(values) for name, values in exported.items()} == expected

    # And the result tells the generations apart
    told = result.generations or []
    assert [(each.generation, each.members) for each in told] == [(0, [0, 1, 2]), (1, [0, 2]), (2, [0])]
    assert {each.generation: each.headlines["speed"].value for each in told} == SPEED
    assert [each.headlines["speed"].per_node for each in told] == [101.5, SPEED[1] / 2, SPEED[2]]
    assert told[0].sentence == "Node 1 sent no heartbeat."
    assert all(each.gap_seconds for each in told[1:])
    assert [(each.generation, each.members, each.outcome) for each in while_it_runs][-1] == (
        1,
        [0, 2],
        "running",
    )
    # A comparison takes generations of one size
    compared = job_runs(record)
    assert (compared.nodes, compared.runs[0].values["speed"].value) == (1, SPEED[2])
    assert "left out: 0 on 3 nodes, 1 on 2 nodes" in compared.left_out[0]

    # And for a stranger, nodes without a part in the last generation have no row of zeros, and no row that is empty
    cli = CliHarness(tmp_path, environment(BAI_STORE=str(nodes.store)))
    metrics = cli.bai("metrics", "job").stdout
    rows = [each.split()[0] for each in metrics.splitlines() if re.match(r"\S+{rank=", each)]
    assert {each for each in rows if not each.endswith("{rank=0}")} == {"checked{rank=1}"}
    assert "bai_run_wall_seconds{rank=0}" in rows
    glanced = cli.bai("top", "job", "--json").objects[-1]
    stages = {each["rank"]: each["left"] for each in glanced["nodes"]}
    assert stages == {0: None, 1: "lost in generation 0", 2: "no longer wanted in generation 1"}
    assert "1     lost in generation 0" in cli.bai("top", "job").stdout
    status = cli.bai("status", "job").stdout
    assert "in generation 2." in status
    assert "benchmark generation 2 · wall " in status
    whole = sum(each.wall_seconds or 0.0 for each in told) / sum(contents.phases.values())
    report = cli.bai("report", "job", "--format", "md").stdout
    (share,) = re.findall(r"([0-9.]+) % of the time was the benchmark itself", report)
    assert float(share) == pytest.approx(100 * whole, abs=0.1)

    # And records that are extracted again have their generations, those of the lost node too, which has told nothing
    assert cli.bai("extract", "job").code == 0
    assert generations_in_metrics(cli, "--extract", "1") == generations_in_metrics(cli)


def generations_in_metrics(cli: CliHarness, *options: str) -> list[tuple[str, int, float]]:
    """Return node, generation and value of each record of one metric, as `bai metrics` has them."""
    found = cli.bai("metrics", "job", "--name", "speed", "--format", "jsonl", *options)
    return [(each["labels"]["rank"], each.get("generation"), each["value"]) for each in found.objects]
