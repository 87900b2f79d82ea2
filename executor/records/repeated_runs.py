"""The runs of a job with `[repeat]`: their begins and ends, and the failed ones, whose values no headline
includes."""

from __future__ import annotations

from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.record_types import JobResult
from bai_agent.job.repeats import RepeatedRuns
from executor.records.reading import result_of

REPEATS = "repeats.jsonl"


def failed_runs(record: JobRecord) -> frozenset[int]:
    """Return the numbers of the runs that failed, of a job that has ended or still runs. Raises StoreError, RecordError."""
    if record.job().repeat is None:
        return frozenset()
    result = result_of(record)
    if result is not None:
        return failed_of(result)
    return frozenset(
        each.repeat
        for each in repeats_of(record.node()).measured
        if each.repeat is not None and each.ended is not None and not each.succeeded
    )


def failed_of(result: JobResult) -> frozenset[int]:
    """Return the numbers of the runs that failed, of a job that has ended."""
    return frozenset(each.repeat for each in result.repeats or () if each.outcome != Outcome.SUCCEEDED.value)


def repeats_of(node: NodeRecord) -> RepeatedRuns:
    """Return the beginnings and ends of a job's runs; empty without `[repeat]`. Raises StoreError."""
    runs = RepeatedRuns()
    runs.add(repeat_lines(node))
    return runs


def repeat_lines(node: NodeRecord) -> bytes:
    """Return the content of the file with the runs' beginnings and ends. Raises StoreError."""
    key = node.key(REPEATS)
    there = any(each.key == key for each in node.job.store.find(key))
    return node.job.store.get(key) if there else b""
