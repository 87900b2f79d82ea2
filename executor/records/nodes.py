"""The nodes of a job: which there are, and the records of several as one stream."""

from __future__ import annotations

import json

from bai_agent.errors import DescriptorError
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.store import RecordError
from executor.errors import UsageError


def node_records(record: JobRecord) -> list[NodeRecord]:
    """Return all nodes of a job by rank; the first one alone where its descriptor is broken. Raises StoreError."""
    try:
        count = record.job().strategy.nodes
    except (DescriptorError, RecordError):
        count = 1
    return [record.node(rank) for rank in range(count)]


def arms_of_runs(record: JobRecord) -> list[str]:
    """Return the arm that each run is of, in a job that compares some; else, and where its descriptor is broken, nothing. Raises StoreError."""
    try:
        repeat = record.job().repeat
    except (DescriptorError, RecordError):
        return []
    return repeat.arms_of_runs if repeat is not None else []


def node_of_rank(record: JobRecord, rank: int) -> NodeRecord:
    """Return the node that `--node` names. Raises UsageError where there is no such node, StoreError."""
    count = record.job().strategy.nodes
    if rank >= count:
        there = f"{count} nodes, 0 to {count - 1}" if count > 1 else "one node, 0"
        raise UsageError(f"--node {rank}: {record.job_id} has {there}")
    return record.node(rank)


def with_rank(records: bytes, rank: int) -> bytes:
    """Return whole lines of `metrics.jsonl` with the label `rank`; lines that are not records stay as they are."""
    lines = []
    for line in records.splitlines(keepends=True):
        try:
            record = json.loads(line)
            labelled = {**record, "labels": {**(record.get("labels") or {}), "rank": str(rank)}}
        except (ValueError, RecursionError, TypeError, AttributeError):
            lines.append(line)
            continue
        lines.append(json.dumps(labelled).encode() + b"\n")
    return b"".join(lines)
