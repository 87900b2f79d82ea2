"""`bai status` of an elastic job: its first line, and what that replaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_record import ElasticRecord
from handmade_job import START

from bai_agent.job.generation_records import Change, Hints, Ledger
from bai_agent.light_dataclass import replace
from executor.documents.screen import show_blocks
from executor.documents.status import StatusView, status_as_json, status_blocks
from executor.records.job_status import DIED, PARKED, JobStatus
from executor.records.node_status import with_nodes


@pytest.fixture
def view(tmp_path: Path) -> StatusView:
    made = ElasticRecord(tmp_path)
    made.decides(0, 0, 1, 2)
    made.decides(1, 0, 2, why=Change.LOST, nodes=(1,), ledger=Ledger(restarts=1))
    known = JobStatus(
        job_id="e1",
        status="RUNNING",
        phase="run",
        started=START,
        where="local",
        restarts="2 of 0 used, because",
    )
    return StatusView(job=made.job.job, status=with_nodes(known, made.record), values={})


def shown(view: StatusView, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_blocks(list(status_blocks(view)))
    return capsys.readouterr().out.splitlines()


def test_status_shows_the_generation_of_an_elastic_job_on_its_first_line(
    view: StatusView, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = shown(view, capsys)

    assert first.startswith("e1  RUNNING  generation 1 of 2:4 nodes (desired 4): 2 members for ")
    assert first.endswith(", since node 1 sent no heartbeat · 1 of 0 restarts used")
    assert not any(line.startswith("restarts") for line in rest)


def test_status_shows_a_job_that_waits_for_nodes_as_parked(
    view: StatusView, capsys: pytest.CaptureFixture[str]
) -> None:
    parked = replace(view, status=replace(view.status, status=PARKED))

    assert shown(parked, capsys)[0].startswith("e1  PARKED  generation 1 of 2:4 nodes")


def test_status_shows_no_generation_for_a_job_whose_agent_died(
    view: StatusView, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(replace(view, status=replace(view.status, status=DIED)), capsys)[0] == "e1  AGENT DIED"


def test_status_json_has_the_generation_and_the_ranks(view: StatusView) -> None:
    table = status_as_json(view)

    assert (table["generation"]["number"], table["generation"]["members"]) == (1, [0, 2])
    assert table["generation"]["left"] == {"1": "lost in generation 0"}
    nodes = {each["rank"]: (each.get("group_rank"), each.get("left")) for each in table["nodes"]}
    assert nodes == {0: (0, None), 1: (None, "lost in generation 0"), 2: (1, None), 3: (None, None)}


def test_verbose_status_shows_hints_and_truncates_long_ones(
    view: StatusView, capsys: pytest.CaptureFixture[str]
) -> None:
    hints = Hints(node=2, generation=1, time=START, text='{"initBatchSize": 64}')
    verbose = replace(view, verbose=True, hints=hints)
    at = next(i for i, line in enumerate(shown(verbose, capsys)) if line.startswith("hints"))

    lines = shown(verbose, capsys)
    assert lines[at].split(maxsplit=1)[1] == '{"initBatchSize": 64}'
    assert lines[at + 1].strip().startswith("sent by node 2 in generation 1, ")
    assert status_as_json(verbose)["hints"]["text"] == '{"initBatchSize": 64}'
    assert not any(line.startswith("hints") for line in shown(view, capsys))
    long = replace(verbose, hints=replace(hints, text="[" + "1, " * 20_000 + "1]"))
    assert sum(map(len, shown(long, capsys))) < 10_000
