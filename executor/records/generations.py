"""Finds the generations of a job: in the job's result or, until the job has ended, in the events of its
nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from bai_agent.job.attempt import AttemptRecord, Control
from bai_agent.job.job_result import generations_of_nodes
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import (
    BenchmarkExitEvent,
    BenchmarkStartEvent,
    GenerationOutcome,
    JobResult,
    NodeOutcome,
    RestartEvent,
    RunEvent,
)
from bai_agent.light_dataclass import replace
from executor.records.nodes import node_records
from executor.records.reading import events_of

RUNNING = "running"
"""Outcome of a generation that still runs."""


def generations_of(record: JobRecord, result: JobResult | None) -> Sequence[GenerationOutcome]:
    """Return the generations of an elastic job or of a job with restarts, in order. Empty for any other job.
    Raises StoreError, DescriptorError.

    Until the job has ended, the generations have no headlines. Until that time, the members of a generation
    in a job with a fixed number of nodes are the nodes that have started the generation.
    """
    if result is not None:
        return result.generations or []
    job = record.job()
    if not job.has_generations:
        return []
    nodes = [
        NodeOutcome(rank=node.rank, outcome="", sentence="", generations=generations_in(events_of(node)))
        for node in node_records(record)
    ]
    found = generations_of_nodes(nodes) or []
    if not job.is_elastic:
        return found
    attempt = AttemptRecord(record)
    control = attempt.control()
    return [_as_decided(attempt, control, each) for each in found]


def _as_decided(attempt: AttemptRecord, control: Control, each: GenerationOutcome) -> GenerationOutcome:
    """Return a generation with the end and the members that the leader has decided. A lost node reports
    neither end nor members."""
    number = each.generation
    members = attempt.decision(number, control).members if number in control.generations else each.members
    if each.sentence or number + 1 not in control.generations:
        return replace(each, members=members)
    following = attempt.decision(number + 1, control)
    return replace(each, members=members, outcome=following.outcome, sentence=following.sentence)


def generations_in(events: Iterable[RunEvent]) -> list[GenerationOutcome]:
    """Return the generations in the events of a node."""
    found: dict[int, GenerationOutcome] = {}
    for event in events:
        match event:
            case BenchmarkStartEvent(generation=number) if number not in found:
                found[number] = GenerationOutcome(
                    generation=number,
                    outcome=RUNNING,
                    started=event.time,
                    output_begin=event.output_bytes or 0,
                )
            case BenchmarkExitEvent() if found:
                newest = max(found)
                found[newest] = replace(
                    found[newest],
                    outcome="",
                    code=event.code,
                    signal=event.signal,
                    ended=event.time,
                    wall_seconds=event.wall_seconds,
                )
            case RestartEvent(generation=following) if following - 1 in found:
                before = found[following - 1]
                found[following - 1] = replace(before, outcome=event.outcome, sentence=event.message)
    return list(found.values())


def change_seconds(generations: Iterable[GenerationOutcome]) -> float:
    """Return the total time between generations in which no benchmark ran (seconds)."""
    return sum(each.gap_seconds or 0.0 for each in generations)


def headline_names(generations: Iterable[GenerationOutcome]) -> list[str]:
    """Return the names of all headlines of these generations, with labels."""
    return list(dict.fromkeys(chain.from_iterable(each.headlines for each in generations)))
