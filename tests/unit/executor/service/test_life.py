"""What is due to be said of a job, from what it has written."""

from __future__ import annotations

import itertools

import pytest

from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import JobResult
from executor.records.run_state import PHASES
from executor.service.life import statuses_due
from executor.service.messages import AppStatus


def ended(outcome: Outcome) -> JobResult:
    return JobResult(
        outcome=outcome.value,
        status=outcome.status.value,
        exit_code=int(outcome.exit_code),
        sentence="It was so.",
    )


@pytest.mark.parametrize("pulls", [True, False])
@pytest.mark.parametrize("metrics", ["there", None])
def test_what_was_due_earlier_begins_what_is_due_later(pulls: bool, metrics: str | None) -> None:
    looks = [PHASES[:count] for count in range(len(PHASES) + 1)]
    said = [statuses_due(phases=each, pulls=pulls, result=None, metrics=metrics) for each in looks]
    said += [
        statuses_due(phases=PHASES, pulls=pulls, result=ended(Outcome.SUCCEEDED), metrics=metrics),
    ]

    for earlier, later in itertools.pairwise(said):
        assert later[: len(earlier)] == earlier
    names = [each.name for each in said[-1]]
    assert names == sorted(set(names))


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
