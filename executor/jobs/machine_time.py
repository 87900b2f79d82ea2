"""Hours of a job's machines, by its record."""

from __future__ import annotations

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.launches import LaunchedMachines, launched_machines, launches_seen
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms


def machine_seconds(record: JobRecord, job: Job, *, seconds: float, ended: int | None) -> float:
    """Return for how many seconds the machines of a job were on, all together. Raises StoreError, RecordError.

    seconds: duration of the job. ended: its end (ms UTC). None if it still runs.
    A machine of an elastic job counts from its launch until its last sign of life, or until it was replaced.
    """
    if not job.is_elastic:
        return job.strategy.nodes * seconds
    until = ended if ended is not None else now_ms()
    began = until - round(1000 * seconds)
    machines = _machines(record, job.job.attempt)
    if not machines:
        return job.desired_nodes * seconds
    ends = {node: sign[0] for node, sign in AttemptRecord(record, job.job.attempt).signs_seen().nodes.items()}
    for launched, each in machines:
        ends.update((node, min(launched, ends.get(node, launched))) for node in each.replaces)
    return sum(
        max(0, min(until, ends.get(node, until)) - max(began, launched)) / 1000
        for launched, each in machines
        for node in each.by_node
    )


def _machines(record: JobRecord, attempt: int) -> list[tuple[int, LaunchedMachines]]:
    """Return the machines of each launch that EC2 accepted, with its time (ms UTC): 0 for the first one, which is the job's own start."""
    found = []
    for seen in launches_seen(record, attempt):
        launched = launched_machines(record, attempt, seen.number) if seen.decided is not None else None
        if launched is not None and launched.instances:
            found.append(((seen.decided or 0) if seen.number else 0, launched))
    return found
