"""The jobs in a store: which there are, which one a person means, and how each stands."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from bai_agent.errors import BaiError, DescriptorError, StoreError
from bai_agent.job.descriptor import is_job_id
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore, RecordError
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.local.agent import local_agent
from executor.commands.job_options import AwsOptions, JobOptions
from executor.errors import UsageError
from executor.planning.request import LAST
from executor.records.follower import events_of, tail_position
from executor.records.job_status import DIED, ENDED, JobStatus, created, ended_status, unreadable_status
from executor.records.reading import events_in, records_in, result_of
from executor.records.run_state import RunState
from executor.records.statistics import labelled_name

_AT_ONCE = 16
"""Jobs that are read side by side; in a bucket each takes several requests."""


def store_at(folder: str | Path | None, *, exists: bool = False) -> DirectoryStore:
    """Return the store of this machine's jobs: `folder`, else what BAI_STORE names, else ~/.bai/jobs.

    exists: a `folder` must be there, as somebody looks for jobs in it; else it is made with its first job.
    Raises UsageError, StoreError.
    """
    named = str(folder) if folder is not None else os.environ.get("BAI_STORE") or ""
    if named.startswith("s3://"):
        raise UsageError(
            f"{named} holds jobs on EC2; jobs on this machine need a folder: name one with --store"
        )
    if named.startswith("file://"):
        named = os.fsdecode(unquote_to_bytes(urlsplit(named).path))
    chosen = Path(named) if named else Path.home() / ".bai" / "jobs"
    path = Path(os.path.abspath(chosen.expanduser()))  # noqa: PTH100 - resolve() would follow links
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        if exists and folder is not None:
            raise UsageError(f"the job store {path} does not exist; name another with --store") from None
        is_folder = True
    except OSError as error:
        raise StoreError(
            f"the job store {path} cannot be read: {error.strerror}; name another with --store or BAI_STORE"
        ) from error
    if not is_folder:
        raise UsageError(f"the job store {path} is no folder; name one with --store or BAI_STORE")
    return DirectoryStore(path)


def job_ids(store: JobStore) -> list[str]:
    """Return the ids of all jobs in `store`."""
    # Whatever else lies there: an id is printed, completed in shells and part of paths.
    names = [name for name in store.folders("") if is_job_id(name)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        exist = pool.map(lambda name: JobRecord(store, name).exists(), names)
        return [name for name, exists in zip(names, exist, strict=True) if exists]


def find_job(stores: Iterable[JobStore], name: str) -> JobRecord:
    """Return the job that `name` means: its id, the only id that starts so, or "last". Raises UsageError, StoreError.

    Earlier stores come first; one that cannot be reached matters only where the others do not have the job.
    """
    opened: list[JobStore] = []
    failed: BaiError | None = None
    try:
        for store in stores:
            if is_job_id(name) and JobRecord(store, name).exists():
                return JobRecord(store, name)
            opened.append(store)
    except BaiError as error:
        if not opened:
            raise
        failed = error
    every: list[JobRecord] = []
    for store in opened:
        try:
            every += [JobRecord(store, each) for each in job_ids(store)]
        except StoreError as error:
            failed = failed or error
    meant = [each for each in every if name and each.job_id.startswith(name)]
    if name == LAST and every and failed is None:
        return max(every, key=lambda each: (started_of(each), each.job_id))
    if len(meant) == 1:
        return meant[0]
    if failed is not None:
        raise failed
    where = " and ".join(map(_place, opened))
    if not every:
        raise UsageError(f"there are no jobs in {where}; another place is named with --store or BAI_STORE")
    if meant:
        names = ", ".join(each.job_id for each in meant[:5])
        shown = names + (f" and {len(meant) - 5} more" if len(meant) > 5 else "")
        raise UsageError(f'"{name}" may mean any of {shown}; write more of the id')
    close = difflib.get_close_matches(name, [each.job_id for each in every], n=1, cutoff=0.5)
    hint = f'; did you mean "{close[0]}"?' if close else "; `bai list` shows them all"
    raise UsageError(f'there is no job "{name}" in {where}{hint}')


@dataclass(frozen=True)
class Listing:
    """Jobs with their names, the newest last."""

    jobs: list[tuple[JobStatus, str]]
    places: list[str]
    """The stores that were looked into."""
    troubles: list[str]
    """Why one was not."""


def listed(stores: Iterable[JobStore], count: int | None, options: AwsOptions) -> Listing:
    """Return the newest `count` jobs of all stores; one that cannot be reached is a trouble, no error."""
    found, places, troubles = [], [], []
    try:
        for store in stores:
            found += _listed(store, count, options)
            places.append(_place(store))
    except BaiError as error:
        troubles.append(str(error))
    found.sort(key=lambda each: (each[0].started or 0, each[0].job_id))
    return Listing(found if count is None else found[-count:], places, troubles)


def _place(store: JobStore) -> str:
    return str(store.folder) if isinstance(store, DirectoryStore) else store.url


def _listed(store: JobStore, count: int | None, options: AwsOptions) -> list[tuple[JobStatus, str]]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        records = [JobRecord(store, each) for each in job_ids(store)]
        if count is not None and len(records) > count:
            started = list(pool.map(started_of, records))
            order = sorted(range(len(records)), key=lambda i: started[i])
            records = [records[i] for i in order[-count:]]
        names = list(pool.map(_name, records))
    if isinstance(store, DirectoryStore):
        return list(zip(map(_standing_here, records), names, strict=True))
    from executor.backends.ec2.monitor.job_status import statuses_on_ec2

    return list(zip(statuses_on_ec2(records, options.settings), names, strict=True))


def _standing_here(record: JobRecord) -> JobStatus:
    try:
        return job_status(record)
    except RecordError as error:
        return unreadable_status(record, error, where="local")


def _name(record: JobRecord) -> str:
    try:
        return record.job().job.name
    except (DescriptorError, RecordError):
        # Another version's, or broken: no reason to hide the other jobs.
        return ""


def job_status(record: JobRecord, options: JobOptions | None = None) -> JobStatus:
    """Return how a job stands now. Never says that one runs whose agent is gone.

    given: with which EC2 is asked, and what hints repeat; unset: nothing was.
    """
    agent = local_agent(record)
    if agent is None:
        from executor.backends.ec2.monitor.job_status import status_on_ec2

        return status_on_ec2(record, options or JobOptions())
    # Asked before the result is looked for: an agent writes the result, then goes.
    alive = agent.alive()
    result = result_of(record)
    if result is not None:
        return replace(ended_status(record, result), agent_alive=alive)
    state = RunState()
    for event in events_of(record):
        state.apply(event)
    return JobStatus(
        job_id=record.job_id,
        status=state.status.value if alive else DIED,
        phase=state.phase,
        since=state.since if alive else state.last_event,
        started=state.started if state.started is not None else created(record),
        ended=None,
        outcome=None,
        exit_code=None,
        sentence=None,
        agent_alive=alive,
        last_words=None if alive else agent.last_words() or None,
        benchmark_alive=None if alive else agent.benchmark_alive(),
        benchmark_watched=None if alive else agent.benchmark_watched(),
        cancelling=record.cancelled(),
        warnings=state.cautions,
    )


def started_of(record: JobRecord) -> int:
    """Return when a job was started; 0 where nothing tells."""
    try:
        result = result_of(record)
    except RecordError:
        result = None
    if result is not None and result.get("started") is not None:
        return int(result["started"])
    first, _, _ = record.read("events", 0, limit=4096).partition(b"\n")
    times = [int(each["time"]) for each in events_in(first)]
    return times[0] if times else created(record) or 0


def last_values(record: JobRecord) -> dict[str, dict[str, Any]]:
    """Return the newest record of each metric, by name and labels, among the last 256 KiB of records."""
    position = tail_position(record, "metrics", 2**18)
    found: dict[str, dict[str, Any]] = {}
    content = record.read("metrics", position, limit=2**18)
    for each in records_in(content[: content.rfind(b"\n") + 1]):
        found[labelled_name(each)] = dict(each)
    return found


def is_over(job_status: JobStatus) -> bool:
    return job_status.status in ENDED
