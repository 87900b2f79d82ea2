"""How each node of a job stands, as the nodes have told each other and as their events say."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from bai_agent.errors import BaiError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.peers import Peer
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.store import RecordError
from executor.records.follower import events_of
from executor.records.job_status import NODES_END, JobStatus, NodeStatus, is_over
from executor.records.nodes import node_records
from executor.records.reading import stop_order
from executor.records.run_state import RunState

_AT_ONCE = 16
"""Nodes that are read side by side; in a bucket each takes several requests."""


def with_nodes(job_status: JobStatus, record: JobRecord) -> JobStatus:
    """Return how a job stands, and each of its nodes where there are several, with what ends them, once something does. Raises StoreError."""
    nodes = tuple(node_statuses(record))
    why = _why_ending(record) if nodes and not is_over(job_status) else None
    warnings = (NODES_END.format(why),) if why is not None else ()
    return dataclasses.replace(job_status, nodes=nodes, warnings=(*job_status.warnings, *warnings))


def node_statuses(record: JobRecord) -> list[NodeStatus]:
    """Return how each of several nodes stands, by rank; nothing for a job of one. Raises StoreError."""
    nodes = node_records(record)
    if len(nodes) == 1:
        return []
    attempt = AttemptRecord(record)
    signed = {rank: time_ms or None for rank, (time_ms, _) in attempt.signs_of_all().items()}
    read = partial(_node_status, attempt, joined=attempt.joined(), ended=set(attempt.ended()), signed=signed)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(read, nodes))


def node_outcomes(record: JobRecord, *, attempt: int = 0) -> list[NodeOutcome]:
    """Return how the parts of those nodes ended that have said so, as far as that can be read. Raises StoreError."""
    found = []
    for rank in sorted(AttemptRecord(record, attempt).ended()):
        with suppress(RecordError):
            found.append(AttemptRecord(record, attempt).node_outcome(rank))
    return found


def _why_ending(record: JobRecord) -> str | None:
    """Return why the coordinator has told the nodes to end; None where it has not."""
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
) -> NodeStatus:
    peer: Peer | None = None
    outcome: NodeOutcome | None = None
    state = RunState()
    troubles = []
    try:
        peer = attempt.peer(node.rank) if node.rank in joined else None
    except BaiError as error:
        troubles.append(str(error))
    try:
        outcome = attempt.node_outcome(node.rank) if node.rank in ended else None
    except BaiError as error:
        troubles.append(str(error))
    try:
        for event in events_of(node):
            state.apply(event)
    except BaiError as error:
        troubles.append(str(error))
    return NodeStatus(
        rank=node.rank,
        instance_id=peer.instance_id if peer is not None else None,
        address=peer.address if peer is not None else None,
        phase=state.phase if outcome is None else None,
        since=state.since if outcome is None else None,
        last_sign=signed.get(node.rank),
        ended=outcome.ended if outcome is not None else None,
        outcome=outcome.outcome if outcome is not None else None,
        sentence=outcome.sentence if outcome is not None else None,
        transports=state.transports or None,
        trouble="; ".join(troubles) or None,
    )
