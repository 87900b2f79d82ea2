"""Lists the nodes of a job, and the arms of its runs. The nodes of an elastic job may change, so they are
listed again at each call.
"""

from __future__ import annotations

from bai_agent.errors import DescriptorError, RecordError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.record import JobRecord, NodeRecord
from executor.errors import UsageError


def node_records(record: JobRecord) -> list[NodeRecord]:
    """Return all nodes of a job by rank, including nodes that left an elastic job. If the job's descriptor is
    broken, only the first node is returned. Raises StoreError.
    """
    job = _readable_job(record)
    numbers = node_numbers(record, job) if job is not None else [0]
    return [record.node(number) for number in numbers]


class NodeListing:
    """Lists the nodes of a job repeatedly. If the number of nodes is fixed, the nodes are read only once."""

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._found = node_records(record)
        job = _readable_job(record)
        self.is_elastic = job is not None and job.is_elastic

    def look(self) -> list[NodeRecord]:
        """Return all nodes that the job has or had. Raises StoreError."""
        if self.is_elastic:
            self._found = node_records(self._record)
        return self._found


def node_numbers(record: JobRecord, job: Job) -> list[int]:
    """Return the numbers of all nodes that the job has or had. Raises StoreError."""
    if not job.is_elastic:
        return list(range(job.strategy.nodes))
    # EC2 may have launched fewer machines than the job's desired number.
    launched = AttemptRecord(record, job.job.attempt).launched_machines() or job.desired_nodes
    return sorted({*range(min(launched, job.desired_nodes)), *(node.rank for node in record.nodes())})


def has_ranks(record: JobRecord) -> bool:
    """Return whether records of the job have the label `rank`. Records have the label `rank` if the job may
    have several nodes, even while the job has only one node. Raises StoreError."""
    job = _readable_job(record)
    return job is not None and job.strategy.nodes > 1


def arms_of_runs(record: JobRecord) -> list[str]:
    """Return the arm of each run of a job with several arms; empty for a job without several arms, or if the
    descriptor is broken. Raises StoreError."""
    job = _readable_job(record)
    return job.repeat.arms_of_runs if job is not None and job.repeat is not None else []


def node_of_rank(record: JobRecord, rank: int) -> NodeRecord:
    """Return the node that `--node` names. Raises StoreError, and UsageError if the job has no node of this
    rank."""
    numbers = node_numbers(record, record.job())
    if rank not in numbers:
        count, last = len(numbers), numbers[-1]
        there = f"{count} nodes, 0 to {last}" if count > 1 else "one node, 0"
        raise UsageError(f"--node {rank}: {record.job_id} has {there}")
    return record.node(rank)


def _readable_job(record: JobRecord) -> Job | None:
    """Return the job's descriptor; None if the descriptor is broken, or of another version. Raises
    StoreError."""
    try:
        return record.job()
    except (DescriptorError, RecordError):
        return None
