"""Finds the status of each node of a job, from the nodes' messages to each other and from their events."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from bai_agent.errors import BaiError, DescriptorError, RecordError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.record_types import NodeOutcome
from executor.records.generation_status import GenerationStatus, generation_status
from executor.records.job_status import NODES_END, JobStatus, NodeStatus, is_over
from executor.records.nodes import node_records
from executor.records.reading import events_of, read_each, stop_order
from executor.records.run_state import RunState

T = TypeVar("T")


def with_nodes(job_status: JobStatus, record: JobRecord) -> JobStatus:
    """Return the status of a job with the status of each node. If the coordinator ends the nodes, a warning
    has the reason. Raises StoreError."""
    generation, warnings = None, list(job_status.warnings)
    try:
        generation = generation_status(record, record.job())
    except (RecordError, DescriptorError) as error:
        warnings.append(str(error))
    nodes = tuple(node_statuses(record, generation))
    why = _why_ending(record) if nodes and not is_over(job_status) else None
    if why is not None:
        warnings.append(NODES_END.format(why))
    return dataclasses.replace(job_status, nodes=nodes, generation=generation, warnings=tuple(warnings))


def node_statuses(record: JobRecord, generation: GenerationStatus | None = None) -> list[NodeStatus]:
    """Return the status of each node, by rank. Empty for a job that can have only one node. Raises
    StoreError."""
    nodes = node_records(record)
    if len(nodes) == 1 and generation is None:
        return []
    attempt = AttemptRecord(record)
    signed = {rank: time_ms or None for rank, (time_ms, _) in attempt.signs_of_all().items()}
    read = partial(
        _node_status,
        attempt,
        joined=set(attempt.joined()),
        ended=set(attempt.ended()),
        signed=signed,
        is_elastic=generation is not None,
    )
    found = read_each(read, nodes, folder=attempt.job.store.folder)
    if generation is None:
        return found
    return [
        dataclasses.replace(each, group_rank=generation.rank(each.rank), left=generation.left.get(each.rank))
        for each in found
    ]


def node_outcomes(record: JobRecord, *, attempt: int = 0) -> list[NodeOutcome]:
    """Return the recorded outcomes of the nodes whose records can be read. Raises StoreError."""
    found = []
    for rank in sorted(AttemptRecord(record, attempt).ended()):
        with suppress(RecordError):
            found.append(AttemptRecord(record, attempt).node_outcome(rank))
    return found


def _why_ending(record: JobRecord) -> str | None:
    """Return the coordinator's reason to end the nodes; None if the coordinator did not end the nodes."""
    try:
        order = stop_order(AttemptRecord(record))
    except RecordError as error:
        return str(error)
    return None if order is None or order.finished else order.sentence


def _node_status(
    attempt: AttemptRecord,
    node: NodeRecord,
    *,
    joined: set[int],
    ended: set[int],
    signed: dict[int, int | None],
    is_elastic: bool,
) -> NodeStatus:
    troubles: list[str] = []

    def known(read: Callable[[], T]) -> T | None:
        """Return the content of a record. If the record is broken, add the problem to the list and return
        None."""
        try:
            return read()
        except BaiError as error:
            troubles.append(str(error))
            return None

    rank, state = node.rank, RunState()
    problem = known(lambda: attempt.last_sign(rank).problem) if is_elastic and rank in signed else None
    troubles.extend(filter(None, [problem]))
    peer = known(lambda: attempt.peer(rank)) if rank in joined else None
    outcome = known(lambda: attempt.node_outcome(rank)) if rank in ended else None
    known(lambda: state.apply_all(events_of(node)))
    where: dict[str, Any] = (
        {"instance_id": peer.instance_id, "address": peer.address} if peer is not None else {}
    )
    now: dict[str, Any] = {"phase": state.phase, "since": state.since}
    if outcome is not None:
        now = {"ended": outcome.ended, "outcome": outcome.outcome, "sentence": outcome.sentence}
    return NodeStatus(
        rank=rank,
        last_sign=signed.get(rank),
        transports=state.transports or None,
        trouble="; ".join(troubles) or None,
        **where,
        **now,
    )
