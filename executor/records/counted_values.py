"""Decides which values of a job count in statistical figures. Values of a failed run do not count. A
process's peak memory is only an upper bound if the shim's peak is not lower. The reason is that processes are
forked from the shim, and that the kernel continues the shim's count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import Metric, OfRun
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.record_types import HeadlineValue, JobResult, OwnUsage
from bai_agent.job.repeats import RepeatedRuns
from executor.records.reading import result_of

REPEATS = "repeats.jsonl"
LEAST = 10 * 2**20
"""Assumed minimum of the shim's peak memory (bytes), used until the shim's true peak is recorded."""
_SPREAD = 1.05
"""Tolerance for the comparison with the shim's peak memory. A process starts as a copy of the shim; the
copy's peak may be slightly more or less than the shim's final peak."""
RUN_FACT = "bai_run_peak_memory_bytes"
"""The metric that bai records for each run by default."""


def memory_floor(usage: Sequence[OwnUsage] | None) -> int:
    """Return the smallest peak memory of a job's processes that can be measured (bytes). A measured peak
    below the returned value means only that the true peak is not higher than the returned value."""
    shims = [node.shim.peak_memory_bytes or 0 for node in usage or () if node.shim is not None]
    return max(LEAST, *(round(_SPREAD * each) for each in shims), 0)


def memory_floor_in(record: JobRecord) -> int:
    """Return `memory_floor` from a job's record, even if the job has not ended. Raises StoreError,
    RecordError."""
    result = result_of(record)
    return memory_floor(result.own_usage if result is not None else None)


def headline_floors(
    job: Job, headlines: Mapping[str, HeadlineValue], usage: Sequence[OwnUsage] | None
) -> dict[str, float]:
    """Return the upper bounds of those headlines that are not exact, by metric name with labels. usage: the
    resource usage of bai's own programs in the job."""
    metrics = {metric.name: metric for metric in job.metrics}
    memory = memory_floor(usage)
    floors = {name: floor_of(metrics.get(each.name or name), memory) for name, each in headlines.items()}
    return {name: floor for name, floor in floors.items() if floor is not None}


def floor_of(metric: Metric | None, floor: float) -> float | None:
    """Return `floor` for a metric that is a run's peak memory; None for any other metric, because its numbers
    are exact."""
    return floor if metric is not None and metric.of_run is OfRun.PEAK_MEMORY else None


def failed_runs(record: JobRecord) -> frozenset[int]:
    """Return the numbers of the failed runs of a job that has ended or still runs. Raises StoreError,
    RecordError."""
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
    """Return the numbers of the failed runs of an ended job."""
    return frozenset(each.repeat for each in result.repeats or () if each.outcome != Outcome.SUCCEEDED.value)


def repeats_of(node: NodeRecord) -> RepeatedRuns:
    """Return the recorded starts and ends of a job's runs; empty if the job has no `[repeat]`. Raises
    StoreError."""
    runs = RepeatedRuns()
    runs.add(repeat_lines(node))
    return runs


def repeat_lines(node: NodeRecord) -> bytes:
    """Return the content of the file that records the starts and ends of a job's runs. Raises StoreError."""
    key = node.key(REPEATS)
    there = any(each.key == key for each in node.job.store.find(key))
    return node.job.store.get(key) if there else b""
