"""What goes on beside the phases: the heartbeat, and the benchmark's output on the agent's own."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bai_agent.errors import StoreError
from bai_agent.job.run_directory import now_ms, write_all, write_json
from bai_agent.run.context import RunContext

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0
"""Between two heartbeats; one that is older than four of them tells of a dead agent."""

_CLAIMING_SECONDS = 0.5
_POLL_SECONDS = 0.05
_CHUNK = 2**18


@contextmanager
def heartbeat(ctx: RunContext) -> Iterator[None]:
    """Write `heartbeat.json` now and then, with the phase in it, here and into the job store."""

    def beat(over: threading.Event) -> None:
        while True:
            life = {"time": now_ms(), "pid": os.getpid(), "phase": ctx.phase}
            elsewhere = ctx.node_store if ctx.uploader is not None else None
            try:
                write_json(ctx.rundir.heartbeat, life)
                if elsewhere is not None:
                    elsewhere.put_json("heartbeat.json", life)
            except (OSError, StoreError) as error:
                log.warning("the heartbeat could not be written: %s", error)
            except BaseException:
                # The thread's outermost frame, and a panic of obstore's is not an Exception: without a heartbeat the job looks dead.
                log.exception("the heartbeat could not be written")
            # Until the place in the store is ours there is nowhere to beat; then somebody waits for the first one.
            waits = ctx.node_store is not None and elsewhere is None
            if over.wait(_CLAIMING_SECONDS if waits else HEARTBEAT_SECONDS):
                return

    with beside(beat, name="heartbeat", join_s=0.2):
        yield


@contextmanager
def shown(path: Path, *, enabled: bool) -> Iterator[None]:
    """Copy what is appended to `path` from now on to stdout, as it comes."""
    if not enabled:
        yield
        return
    start = path.stat().st_size if path.exists() else 0
    with beside(partial(_show, path, start), name="console", join_s=5):
        yield


@contextmanager
def beside(work: Callable[[threading.Event], None], *, name: str, join_s: float | None) -> Iterator[None]:
    """Do `work` on a thread of its own; it ends when its event is set, for which `join_s` seconds are waited, or however long."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(join_s)


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
