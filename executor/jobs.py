"""The jobs in a store: which there are, which one a person means, and how each stands."""

from __future__ import annotations

import difflib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bai_agent.errors import BaiError
from bai_agent.outcome import Status
from bai_agent.rundir import now_ms
from bai_agent.store import JobStore
from bai_agent.store.directory import DirectoryStore
from bai_agent.store.record import JobRecord
from executor.follow import events_of, result_of, tail_position
from executor.local import created, local_agent
from executor.state import RunState

LAST = "last"
"""The name of the job that was started last."""


class UsageError(BaiError):
    """What was asked for makes no sense as it was asked; the message says what would."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a job stands. Times are ms UTC."""

    job_id: str
    status: str
    """A `Status`, or "DIED": its agent is gone, and there is no result."""
    phase: str | None
    since: int | None
    """When the phase, or what came after the last one, began."""
    started: int | None
    ended: int | None
    outcome: str | None
    exit_code: int | None
    sentence: str | None
    agent_alive: bool | None
    """None where that cannot be seen from here."""
    cancelling: bool = False

    @property
    def seconds(self) -> float | None:
        """How long it took, or has taken so far."""
        if self.started is None:
            return None
        return max(0, (self.ended or now_ms()) - self.started) / 1000

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {**self.__dict__, "seconds": self.seconds}


DIED = "DIED"


def store_at(folder: Path | None) -> DirectoryStore:
    """Return the store in `folder`, else the one that BAI_STORE names, else ~/.bai/jobs."""
    if folder is None:
        named = os.environ.get("BAI_STORE")
        folder = Path(named) if named else Path.home() / ".bai" / "jobs"
    folder = Path(os.path.abspath(folder.expanduser()))  # noqa: PTH100 - resolve() would follow links
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the job store {folder} is no folder; name one with --store or BAI_STORE")
    return DirectoryStore(folder)


def job_ids(store: JobStore) -> list[str]:
    """Return the ids of all jobs in `store`."""
    return [name for name in store.folders("") if JobRecord(store, name).exists()]


def find_job(store: JobStore, name: str) -> JobRecord:
    """Return the job that `name` means: its id, the only id that starts so, or "last". Raises UsageError."""
    if name and "/" not in name and name not in (".", "..") and JobRecord(store, name).exists():
        return JobRecord(store, name)
    every = job_ids(store)
    if not every:
        raise UsageError(
            f"there are no jobs in {store.url}; another place is named with --store or BAI_STORE"
        )
    if name == LAST:
        return JobRecord(store, max(every, key=lambda each: (started_of(JobRecord(store, each)), each)))
    meant = [each for each in every if name and each.startswith(name)]
    if len(meant) == 1:
        return JobRecord(store, meant[0])
    if meant:
        shown = ", ".join(meant[:5]) + (f" and {len(meant) - 5} more" if len(meant) > 5 else "")
        raise UsageError(f'"{name}" may mean any of {shown}; write more of the id')
    close = difflib.get_close_matches(name, every, n=1, cutoff=0.5)
    hint = f'; did you mean "{close[0]}"?' if close else "; `bai list` shows them all"
    raise UsageError(f'there is no job "{name}" in {store.url}{hint}')


def standing(record: JobRecord) -> Standing:
    """Return how a job stands now. Never says that one runs whose agent is gone."""
    agent = local_agent(record)
    # Asked before the result is looked for: an agent writes the result, then goes.
    alive = agent.alive() if agent is not None else None
    result = result_of(record)
    if result is not None:
        return Standing(
            job_id=record.job_id,
            status=str(result.get("status")),
            phase=None,
            since=result.get("ended"),
            started=result.get("started"),
            ended=result.get("ended"),
            outcome=result.get("outcome"),
            exit_code=result.get("exit_code"),
            sentence=result.get("sentence"),
            agent_alive=alive,
        )
    state = RunState()
    for event in events_of(record):
        state.apply(event)
    return Standing(
        job_id=record.job_id,
        status=DIED if alive is False else state.status.value,
        phase=state.phase,
        since=state.last_event if alive is False else state.since,
        started=state.started if state.started is not None else created(record),
        ended=None,
        outcome=None,
        exit_code=None,
        sentence=None,
        agent_alive=alive,
        cancelling=record.cancelled(),
    )


def started_of(record: JobRecord) -> int:
    """Return when a job was started; 0 where nothing tells."""
    result = result_of(record)
    if result is not None and isinstance(result.get("started"), int):
        return int(result["started"])
    first, _, _ = record.read("events", 0, limit=4096).partition(b"\n")
    try:
        return int(json.loads(first)["time"])
    except (ValueError, KeyError, TypeError):
        return created(record) or 0


def last_values(record: JobRecord) -> dict[str, dict[str, Any]]:
    """Return the newest record of each metric among the last 256 KiB of records."""
    position = tail_position(record, "metrics", 2**18)
    found: dict[str, dict[str, Any]] = {}
    content = record.read("metrics", position, limit=2**18)
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            value = json.loads(line)
            found[value["name"]] = value
        except (ValueError, KeyError, TypeError):
            continue
    return found


def is_over(standing: Standing) -> bool:
    return standing.status in (Status.SUCCEEDED, Status.FAILED, Status.ERROR, Status.CANCELED)
