"""Threads that run in parallel with the phases of a run. One thread writes the heartbeat, and another copies
the benchmark's output to the agent's stdout."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bai_agent.job.run_directory import now_ms, write_all, write_json
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.poller import polling

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0
"""Seconds between two heartbeats. An agent counts as dead if its last heartbeat is older than four of these
intervals."""

_CLAIMING_SECONDS = 0.5
_POLL_SECONDS = 0.05
_CHUNK = 2**18


@contextmanager
def heartbeat(ctx: RunContext) -> Iterator[None]:
    """While the context is open, write `heartbeat.json` with the current phase at intervals, into the run
    directory and the job store."""

    waits = True

    def beat() -> None:
        nonlocal waits
        life = {"time": now_ms(), "pid": os.getpid(), "phase": ctx.phase}
        elsewhere = ctx.node_store if ctx.uploader is not None else None
        # A node can write to the store only after it has claimed its part of the store. Until then, the
        # interval is short, so that the store gets the first heartbeat soon after the claim.
        waits = ctx.node_store is not None and elsewhere is None
        write_json(ctx.rundir.heartbeat, life)
        if elsewhere is not None:
            elsewhere.put_json("heartbeat.json", life)

    with polling(
        beat,
        name="heartbeat",
        pause_s=lambda: _CLAIMING_SECONDS if waits else HEARTBEAT_SECONDS,
        failure="the heartbeat could not be written",
        join_s=0.2,
    ):
        yield


@contextmanager
def shown(path: Path, *, enabled: bool) -> Iterator[None]:
    """While the context is open, copy new content of the file `path` to stdout."""
    if not enabled:
        yield
        return
    start = path.stat().st_size if path.exists() else 0
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(path, start, over), name="console", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5)


def _show(path: Path, position: int, over: threading.Event) -> None:
    try:
        while True:
            last_look = over.is_set()
            if path.exists():
                with path.open("rb") as file:
                    file.seek(position)
                    while piece := file.read(_CHUNK):
                        write_all(sys.stdout.fileno(), piece)
                        position += len(piece)
            if last_look:
                return
            over.wait(_POLL_SECONDS)
    except OSError as error:
        log.info("the output is no longer shown: %s", error)
