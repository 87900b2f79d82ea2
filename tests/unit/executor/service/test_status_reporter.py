"""The statuses that are due for a job, from its records."""

from __future__ import annotations

import itertools

import pytest

from bai_agent.job.generation_records import DecisionKind, NextGeneration
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import JobResult
from executor.records.run_state import PHASES
from executor.service.events.messages import AppStatus
from executor.service.status_reporter import statuses_due


def ended(outcome: Outcome) -> JobResult:
    return JobResult(
        outcome=outcome.value,
        status=outcome.status.value,
        exit_code=int(outcome.exit_code),
        sentence="It was so.",
    )


@pytest.mark.parametrize("pulls", [True, False])
@pytest.mark.parametrize("metrics", ["there", None])
def test_later_statuses_extend_earlier_ones(pulls: bool, metrics: str | None) -> None:
    looks = [PHASES[:count] for count in range(len(PHASES) + 1)]
    said = [statuses_due(phases=each, pulls=pulls, result=None, metrics=metrics) for each in looks]
    said += [
        statuses_due(phases=PHASES, pulls=pulls, result=ended(Outcome.SUCCEEDED), metrics=metrics),
    ]

    for earlier, later in itertools.pairwise(said):
        assert later[: len(earlier)] == earlier
    names = [each.name for each in said[-1]]
    assert names == sorted(set(names))


def test_an_elastic_job_reports_each_change_of_its_nodes() -> None:
    changes = {
        0: NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2], why="start"),
        1: NextGeneration(kind=DecisionKind.RUN, members=[0, 2], why="lost", nodes=[1]),
        2: NextGeneration(kind=DecisionKind.PARK, members=[0], why="left", nodes=[2]),
        3: NextGeneration(kind=DecisionKind.END, outcome="peer_lost", sentence="Too few."),
    }
    looks = [dict(list(changes.items())[:count]) for count in range(5)]

    said = [
        statuses_due(phases=PHASES, pulls=False, result=None, metrics=None, changes=each) for each in looks
    ]

    for earlier, later in itertools.pairwise(said):
        assert later[: len(earlier)] == earlier
    assert [(each.status, each.text) for each in said[-1][-2:]] == [
        (AppStatus.RUNNING, "Benchmark running on 2 nodes: node 1 sent no heartbeat"),
        (AppStatus.RUNNING, "Benchmark waiting for nodes: node 2 left"),
    ]
    final = statuses_due(
        phases=PHASES, pulls=False, result=ended(Outcome.PEER_LOST), metrics=None, changes=changes
    )
    assert [each.name for each in final] == sorted({each.name for each in final})
    assert [each.name for each in final][-1] == "90-end"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_one_final_status(outcome: Outcome) -> None:
    due = statuses_due(phases=(), pulls=False, result=ended(outcome), metrics=None)

    assert [each.text for each in due[:-1]] == ["Benchmark starting"]
    expected = {
        Outcome.SUCCEEDED: (AppStatus.SUCCEEDED, "Benchmark finished successfully"),
        Outcome.CANCELLED: (AppStatus.CANCELED, "Benchmark cancelled - watch ended"),
        Outcome.MAX_RUNTIME: (AppStatus.FAILED, "Benchmark failed - Max runtime exceeded"),
    }
    said = (due[-1].status, due[-1].text)
    assert said == expected.get(outcome, (AppStatus.FAILED, "Benchmark failed: It was so."))
