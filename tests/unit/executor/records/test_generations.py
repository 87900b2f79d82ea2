"""The generations of a job that goes on, as the events of its nodes tell them."""

from __future__ import annotations

from bai_agent.job.job_result import generations_of_nodes
from bai_agent.job.record_types import (
    BenchmarkExitEvent,
    BenchmarkStartEvent,
    NodeOutcome,
    RestartEvent,
    RunEvent,
)
from executor.records.generations import change_seconds, generations_in


def began(generation: int, second: int) -> RunEvent:
    return BenchmarkStartEvent(pid=1, argv=["true"], generation=generation, time=1000 * second)


def failed(generation: int, second: int) -> list[RunEvent]:
    return [
        BenchmarkExitEvent(code=7, wall_seconds=1.0, time=1000 * second),
        RestartEvent(
            generation=generation + 1,
            max_restarts=9,
            backoff_seconds=0,
            outcome="failed",
            message="It failed.",
            time=1000 * second + 1,
        ),
    ]


def test_events_show_the_duration_of_generations_and_gaps() -> None:
    # Given a node in the generations 0 and 1, and one in 1 and 3, which goes on; its agent was started again meanwhile
    first = [began(0, 10), *failed(0, 20), began(1, 24), *failed(1, 31)]
    second = [began(1, 23), *failed(1, 30), began(3, 40), began(3, 44)]
    nodes = [
        NodeOutcome(rank=rank, outcome="", sentence="", generations=generations_in(events))
        for rank, events in ((0, first), (2, second))
    ]

    found = generations_of_nodes(nodes) or []

    assert [(each.generation, each.members, each.outcome, each.gap_seconds) for each in found] == [
        (0, [0], "failed", None),
        (1, [0, 2], "failed", 3),
        (3, [2], "running", 9),
    ]
    assert (found[0].code, found[0].sentence, found[2].ended) == (7, "It failed.", None)
    assert change_seconds(found) == 12


def test_a_job_that_has_not_begun_has_no_generations() -> None:
    assert generations_in([]) == []
    assert generations_of_nodes([NodeOutcome(outcome="", sentence="", generations=[])]) == []
