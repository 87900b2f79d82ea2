"""Records in the bucket which jobs of all users must be checked, and which processes check these jobs.

`bai` writes the mark `.watched/<job-id>` before it launches the job. The mark `.watched/<job-id>` contains the
token of the job's `launch.json`. After the job has ended and its machines are gone, `.watched/<job-id>` is
overwritten with an empty object. Users' IAM policies do not allow deleting objects. Each check of all jobs writes
`.looks/<kind>`.

Only objects with exactly these names are read. A `*` in an IAM policy also matches slashes, so instances may
be able to write other objects below `.watched/` and `.looks/`.
"""

from __future__ import annotations

import json
from datetime import timedelta
from enum import Enum

from bai_agent.decode import decode
from bai_agent.errors import MissingObjectError, RecordError
from bai_agent.job.record_types import Count
from bai_agent.job.schema.field_types import is_job_id
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.clock import elapsed

_WATCHED, _LOOKS = ".watched/", ".looks/"
_MISSED = 3
"""Number of missed checks after which a process no longer counts as checking the jobs."""
_LEAST = timedelta(minutes=3)
_UNKNOWN_PAUSE = timedelta(minutes=20)
"""Time within which the next check is expected if the pause between checks is unknown, for example from
cron."""


class Looker(str, Enum):
    """Kinds of processes that check all jobs of a bucket. The kind of process that does the most for a job
    comes first."""

    WATCHER = "watcher"
    REAP = "reap"
    SERVICE = "service"


@dataclass(frozen=True, kw_only=True)
class Look:
    """The last check of all jobs by a kind of process."""

    kind: Looker
    age: timedelta
    every: timedelta | None
    """Time between two checks; None if unknown."""

    @property
    def goes_on(self) -> bool:
        """Whether another check by this kind of process can be expected."""
        return self.age <= (_UNKNOWN_PAUSE if self.every is None else max(_MISSED * self.every, _LEAST))


@dataclass(frozen=True, kw_only=True)
class _LookFile:
    every: Count | None
    """Time between two checks (seconds); None if unknown."""


def watch_job(store: JobStore, job_id: str, *, token: str) -> None:
    """Mark a job to be checked. token: the token in the job's `launch.json`. Raises StoreError."""
    store.put(f"{_WATCHED}{job_id}", token.encode() + b"\n")


def unwatch_job(store: JobStore, job_id: str) -> None:
    """Mark a job not to be checked any more. Raises StoreError."""
    store.put(f"{_WATCHED}{job_id}", b"")


def watched_jobs(store: JobStore) -> dict[str, int | None]:
    """Return the jobs that must be checked, with the time at which they were marked (ms UTC by the store's
    clock). Raises StoreError."""
    named = {each.key.removeprefix(_WATCHED): each for each in store.find(_WATCHED)}
    return {name: each.modified for name, each in named.items() if each.size and is_job_id(name)}


def watched_token(store: JobStore, job_id: str) -> str | None:
    """Return the token of the launch of a watched job; None if the job is not watched. Raises StoreError."""
    try:
        return store.get(f"{_WATCHED}{job_id}").decode(errors="replace").strip() or None
    except MissingObjectError:
        return None


def note_look(store: JobStore, kind: Looker, *, every: timedelta | None) -> None:
    """Record that all jobs are being checked now. Raises StoreError."""
    seconds = None if every is None else round(every.total_seconds())
    store.put(f"{_LOOKS}{kind.value}", json.dumps({"every": seconds}).encode() + b"\n")


def last_looks(store: JobStore, now_ms: int) -> list[Look]:
    """Return the last check of each kind. now_ms: by the store's clock. Raises StoreError."""
    found = {each.key: each.modified for each in store.find(_LOOKS)}
    looks = []
    for kind in Looker:
        key = f"{_LOOKS}{kind.value}"
        if (modified := found.get(key)) is None:
            continue
        try:
            every = decode(_LookFile, store.get(key), where=f"{store.url}/{key}").every
        except RecordError:
            every = None  # A later version of `bai` wrote this object.
        looks.append(
            Look(
                kind=kind,
                age=elapsed(modified, now_ms),
                every=None if every is None else timedelta(seconds=every),
            )
        )
    return looks
