"""Deletes the records of jobs that ended long ago."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bai_agent.store import JobStore, RecordError
from bai_agent.store.record import JobRecord
from executor.jobs import is_over, job_ids, standing
from executor.local import local_agent
from executor.standing import DIED


@dataclass(frozen=True)
class Pruned:
    """A job that was deleted, or would be."""

    job_id: str
    bytes: int


def prune_jobs(
    store: JobStore, *, before: int, dry_run: bool, left: Callable[[str], None] = lambda why: None
) -> Iterator[Pruned]:
    """Delete the jobs that ended, or whose agent died, before `before` (ms UTC). One that runs, or may, is left alone.

    left: hears why a job is left alone of which a record is broken, so that nobody can tell when it ended.
    """
    for job_id in job_ids(store):
        record = JobRecord(store, job_id)
        try:
            now = standing(record)
        except RecordError as error:
            left(f"{error}; {job_id} is left alone")
            continue
        last_sign = now.ended if is_over(now) else now.since or now.started
        if not (is_over(now) or now.status == DIED) or last_sign is None or last_sign >= before:
            continue
        size = sum(each.size for each in store.find(record.key("")))
        agent = local_agent(record)
        if dry_run:
            if agent is None or not (agent.alive() or agent.benchmark_alive()):
                yield Pruned(job_id, size)
        elif agent is None:
            store.delete(record.key(""))
            yield Pruned(job_id, size)
        else:
            with agent.kept_away() as nothing_lives:
                if nothing_lives:
                    store.delete(record.key(""))
                    yield Pruned(job_id, size)
