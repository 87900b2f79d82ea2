"""The agent is killed at each of its writes, renames, links and syncs in turn, and started again each time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import ForkedAgent, forked_agent, python_job, records_of, result_of

PROGRAM = """
import json, os, time
with open("starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
with open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w") as fifo:
    for step in range(30):
        print(f"step={step} loss={1 / (step + 1):.4f} accuracy={step / 30:.4f}")
        fifo.write(json.dumps({"emitted": step, "twice": 2 * step}) + "\\n")
        fifo.flush()
        time.sleep(0.01)
print("last=1.5e-05", end="")
"""

METRICS = [
    {"name": "loss", "pattern": r"loss=(\d+\.\d+)"},
    {"name": "accuracy", "pattern": r"accuracy=(\d+\.\d+)", "required": True},
    {"name": "last", "pattern": r"last=(\S+)"},
]


def expected() -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    log, emit = 0, 0
    for step in range(30):
        line = f"step={step} loss={1 / (step + 1):.4f} accuracy={step / 30:.4f}\n"
        found.append(("log", log, 0, 0, "loss", float(f"{1 / (step + 1):.4f}")))
        found.append(("log", log, 1, 0, "accuracy", float(f"{step / 30:.4f}")))
        log += len(line)
        emitted = json.dumps({"emitted": step, "twice": 2 * step}) + "\n"
        found.append(("emit", emit, 0, 0, "emitted", step))
        found.append(("emit", emit, 1, 0, "twice", 2 * step))
        emit += len(emitted)
    found.append(("log", log, 2, 0, "last", 1.5e-05))
    return found


def by_source(records: list[tuple[object, ...]], source: str) -> list[tuple[object, ...]]:
    return [record for record in records if record[0] == source]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedAgent]:
    with forked_agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@pytest.mark.parametrize("call", ["write", "rename", "link", "fsync", "ftruncate", "unlink", "mkdir"])
def test_an_agent_killed_at_any_system_call_loses_and_duplicates_no_record(
    call: str, agent: ForkedAgent, tmp_path: Path
) -> None:
    least = 1 if call in ("ftruncate", "unlink") else 2

    def make_job(_: str) -> Path:
        return python_job(tmp_path, PROGRAM, metrics=METRICS)

    for rundir, where in agent.killed_at_each(call, tmp_path, make_job, least=least):
        records = [
            tuple(record[key] for key in ("src", "off", "i", "k", "name", "value"))
            for record in records_of(rundir)
        ]
        for source in ("log", "emit"):
            assert by_source(records, source) == by_source(expected(), source), where
        assert [record["seq"] for record in records_of(rundir)] == list(range(len(records)))
        assert len((rundir / "work" / "starts").read_text().splitlines()) == 1
        assert result_of(rundir)["outcome"] == "succeeded"
        assert result_of(rundir)["benchmark"]["code"] == 0
