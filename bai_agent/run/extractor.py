"""The extractor's process: the agent starts it, and again whenever it dies before its work is done; `python -m bai_agent.run.extractor DIR`.

Its work is `bai_agent/metrics/process.py`. What only one of the two sides needs is imported there.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import bai_agent
from bai_agent.backoff import Backoff
from bai_agent.benchmark.children import kill
from bai_agent.errors import BaiError
from bai_agent.job.descriptor_file import read_job
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir, locked
from bai_agent.metrics.checkpoint import logs_done, read_checkpoint
from bai_agent.metrics.search_limit import ENDS_WITH

log = logging.getLogger("bai_agent.run.extractor")

# By these the agent controls the process.
CAREFUL = "--careful"
BLAME = "--blame"
SECRETS = "--secrets"
NO_QUOTES = "--no-quotes"
LEAVE_REST = signal.SIGUSR1
"""Not SIGTERM, which a machine that shuts down sends to everybody: the benchmark may still print then."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
STALL_SECONDS = 120.0
"""Without any progress the extractor does not work slowly, it does not work."""
_TICK = 0.01
_PROGRESS_LOOK = 0.25

_LIVED = 10.0
"""Seconds after which a process counts as having worked: the next pause is the first again."""
_PR_SET_PDEATHSIG = 1
_LOCK_SECONDS = 5.0
"""For a predecessor that is just dying."""


def next_flags(returncode: int, flags: Sequence[str]) -> list[str]:
    """Return the flags for the next process, after one with `flags` ended with `returncode` (as subprocess has it).

    `watchdog.py` tells what they are about: the timer's signal leads from none to careful to blame; any other end
    starts afresh.
    """
    if returncode != -ENDS_WITH:
        return []
    return [CAREFUL, BLAME] if CAREFUL in flags else [CAREFUL]


class RunningExtractor(Protocol):
    """What the phases of a run need of an extractor; `ExtractorProcess` tells what each promises."""

    @property
    def finished(self) -> bool: ...

    def start(self, *, secrets: Sequence[str] | None = ()) -> None: ...

    def poll(self) -> None: ...

    def wait(self, over: Callable[[], bool], *, sleep: Callable[[float], None] = time.sleep) -> bool: ...

    def finish_early(self, *, within: float) -> bool: ...


class ExtractorProcess:
    """The extractor of one run directory. Call its methods from the main thread: the child dies with that thread."""

    def __init__(self, rundir: RunDir, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rundir = rundir
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._flags: list[str] = []
        self._wanted = False
        self._secrets: Sequence[str] | None = ()
        self._started = 0.0
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._not_before = 0.0

    @property
    def finished(self) -> bool:
        """Whether every record is in `metrics.jsonl`."""
        return self._rundir.extracted.exists()

    @property
    def pid(self) -> int | None:
        """The process id while one runs."""
        return self._child.pid if self._child else None

    def start(self, *, secrets: Sequence[str] | None = ()) -> None:
        """Start the process unless it runs already.

        `secrets` are what it must not quote of the benchmark's output; None: they are not known, so it quotes nothing.
        """
        self._wanted = True
        self._secrets = secrets
        if self._child is None:
            self._spawn()

    def poll(self) -> None:
        """Start the process again if it has died with its work undone; cheap, to be called many times a second."""
        if not self._wanted:
            return
        if self._child is None:
            if self._clock() >= self._not_before and not self.finished:
                self._spawn()
            return
        returncode = self._child.poll()
        if returncode is None:
            return
        self._child = None
        if self.finished:
            return
        self._flags = next_flags(returncode, self._flags)
        if self._flags:
            self._not_before = self._clock()
        else:
            if self._clock() - self._started >= _LIVED:
                self._backoff.reset()
            self._not_before = self._clock() + self._backoff.next()
        log.warning(
            "the extractor ended with %s before its work was done; it starts again %s",
            returncode,
            " ".join(self._flags) or f"in {self._not_before - self._clock():.1f} s",
        )

    def wait(self, over: Callable[[], bool], *, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Wait until everything is extracted, however long that takes while it makes progress; return whether it is.

        Not longer than until `over()`, and not for an extractor that has made no progress for STALL_SECONDS.
        """
        progress, since = self._progress(), self._clock()
        next_look = since
        while not self.finished:
            if over():
                return False
            self.poll()
            if self._clock() >= next_look:
                next_look = self._clock() + _PROGRESS_LOOK
                if (now := self._progress()) != progress:
                    progress, since = now, self._clock()
                elif self._clock() - since >= STALL_SECONDS:
                    log.error("the extractor has made no progress for %g s", STALL_SECONDS)
                    return False
            sleep(_TICK)
        return True

    def finish_early(self, *, within: float) -> bool:
        """Let the process leave the rest, and say in `extracted.json` how much that is; return whether it has said so.

        After `within` seconds it is killed.
        """
        self._wanted = False
        if self._child is not None and not self.finished:
            self._child.send_signal(LEAVE_REST)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=within)
        self.stop()
        return self.finished

    def stop(self) -> None:
        """End the process; what it has not extracted stays to be extracted."""
        self._wanted = False
        if self._child is not None:
            kill(self._child)
            self._child = None

    def _progress(self) -> object:
        sizes = [
            path.stat().st_size if path.exists() else 0
            for path in (self._rundir.metrics, self._rundir.extractor_disabled)
        ]
        return sizes, logs_done(self._rundir.extractor_offset)

    def _spawn(self) -> None:
        self._started = self._clock()
        path = [entry for entry in sys.path if entry]
        package = str(Path(bai_agent.__file__).resolve().parent.parent)
        if package not in path:
            path.append(package)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
        secrets = NO_QUOTES if self._secrets is None else SECRETS
        command = [
            sys.executable,
            "-X",
            "utf8",
            "-m",
            "bai_agent.run.extractor",
            f"--parent={os.getpid()}",
            secrets,
            *self._flags,
        ]
        try:
            errors = self._rundir.agent_log.open("ab")
        except OSError as error:  # the benchmark may have taken the run directory away
            log.warning("the extractor's errors are not logged: %s", error)
            errors = Path(os.devnull).open("ab")  # noqa: SIM115
        with errors, _anonymous_file(json.dumps(self._secrets).encode()) as secrets_file:
            # Inherited: the signal waits until the process listens to it, and does not end one that is just starting.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {LEAVE_REST})
            try:
                self._child = subprocess.Popen(
                    [*command, str(self._rundir.path.absolute())],
                    stdin=secrets_file,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    # A terminal's Ctrl-C is for the agent: what was printed by then is still to be extracted.
                    start_new_session=True,
                    cwd="/",
                    env=environment,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> int:
    """Be the process: extract until the run's end, or until LEAVE_REST. Exit code 0: `extracted.json` is written."""
    import gc

    # What is loaded stays, and each block makes thousands of short-lived objects, none in a cycle: to look for cycles often
    # is in vain.
    gc.set_threshold(100_000)

    from bai_agent.metrics.process import Extractor
    from bai_agent.metrics.watchdog import blame

    parser = argparse.ArgumentParser(prog="bai_agent.run.extractor", description=main.__doc__)
    parser.add_argument("dir", type=Path, help="the run directory")
    parser.add_argument("--parent", type=int, help="end when this process, our parent, does")
    parser.add_argument(CAREFUL, action="store_true", help="note each search, and time it by itself")
    parser.add_argument(BLAME, action="store_true", help="switch off the search that the last process was at")
    parser.add_argument(
        SECRETS, action="store_true", help="standard input: a JSON list of what is not to be quoted"
    )
    parser.add_argument(NO_QUOTES, action="store_true", help="quote nothing that the benchmark printed")
    arguments = parser.parse_args()
    redactor = Redactor()
    if arguments.secrets:
        redactor.know(json.load(sys.stdin))
    _log_to_stderr(redactor)
    if arguments.parent is not None and not _die_with(arguments.parent):
        return 1
    rundir = RunDir(arguments.dir)
    try:
        with locked(rundir.extractor_lock, wait_s=_LOCK_SECONDS):
            if rundir.extracted.exists():
                return 0
            # The agent put it there after it had read it.
            job = read_job(rundir.job, checked=True)
            if arguments.blame:
                known = read_checkpoint(
                    rundir.extractor_offset, metrics=len(job.metrics), metrics_file=rundir.metrics
                )
                places = known.logs if known is not None else {}
                found = blame(rundir.extractor_search, rundir.extractor_disabled, places=places)
                log.warning("switched off: %s", found)
            gc.freeze()
            quote = _hide if arguments.no_quotes else redactor.redact
            work = Extractor(rundir, job, careful=arguments.careful, quote=quote)
            signal.signal(LEAVE_REST, lambda number, frame: work.leave_rest())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {LEAVE_REST})
            work.run()
    except BaiError as error:
        log.error("%s", error)  # noqa: TRY400 - foreseen: the sentence says it all
        return 1
    return 0


def _anonymous_file(content: bytes) -> BinaryIO:
    """Return a file in memory to be read from its start: a pipe would have to be waited for, and a disk keeps things."""
    file = os.fdopen(os.memfd_create("secrets"), "w+b")
    file.write(content)
    file.seek(0)
    return file


def _die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when `parent` dies; return False where it has died already."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent


def _hide(_: str) -> str:
    return "(not shown: it may hold a secret)"


def _log_to_stderr(redactor: Redactor) -> None:
    handler = logging.StreamHandler()
    redactor.prepare(handler)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    # All is written: Python would only take its modules apart.
    os._exit(main())
