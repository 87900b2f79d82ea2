"""The extractor's process, `python -m bai_agent.run.extractor DIR`. The agent restarts the process until all
output has been extracted.

The code that extracts is in `bai_agent/metrics/process.py`. Modules that only the agent or only the extractor
process needs are imported in functions.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import bai_agent
from bai_agent.backoff import Backoff
from bai_agent.errors import BaiError
from bai_agent.job.run_directory import RunDir, locked

if TYPE_CHECKING:
    import subprocess

    from bai_agent.job.redaction import Redactor

log = logging.getLogger("bai_agent.run.extractor")

# The process's command-line options, which precede the run directory, and the signal with which the agent
# controls the process.
_PARENT = "--parent="
"""Option with the pid of the agent that started the process. The kernel kills the extractor process when its
parent ends."""
_NODE = "--node="
"""Option with the number of the node whose output is searched. The default is 0."""
CAREFUL = "--careful"
"""Option with which the process records each search and limits the search's time."""
BLAME = "--blame"
"""Option to switch off one metric: the metric that the previous process searched for when it was killed."""
SECRETS = "--secrets"
"""Option which says that standard input is a JSON list of secrets, which must not be quoted."""
NO_QUOTES = "--no-quotes"
"""Option which says that the benchmark's output must not be quoted."""
LEAVE_REST = signal.SIGUSR1
"""Signal that makes the process skip the remaining output. SIGTERM cannot have this meaning, because a
machine that shuts down sends SIGTERM to all processes while the benchmark can still print.
"""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
STALL_SECONDS = 120.0
"""Time without progress after which the agent stops waiting for the extractor (seconds)."""
_TICK = 0.01
_PROGRESS_LOOK = 0.25

_LIVED = 10.0
"""Running time of a process after which the pause before its restart is the shortest pause again
(seconds)."""
_PR_SET_PDEATHSIG = 1
_LOCK_SECONDS = 5.0
"""Longest wait for the lock that an earlier extractor process holds until it has ended (seconds)."""


def next_flags(returncode: int, flags: Sequence[str]) -> list[str]:
    """Return the options for the next extractor process. flags: the options of the process that has ended.
    returncode: the exit code of that process, as in `subprocess`.

    `watchdog.py` explains the options. If the search timer killed a process without options, the next process
    gets `--careful`. If the search timer killed a process with `--careful`, the next process also gets
    `--blame`. If the process ended for another reason, the next process gets no options.
    """
    # Imported here, because `search_limit` imports all code that reads numbers.
    from bai_agent.metrics.search_limit import ENDS_WITH

    if returncode != -ENDS_WITH:
        return []
    return [CAREFUL, BLAME] if CAREFUL in flags else [CAREFUL]


class ExtractorProcess:
    """Handle of the extractor process of one run directory. Only the main thread may call the methods,
    because the kernel kills the child process when the thread that started the child ends."""

    def __init__(self, rundir: RunDir, *, node: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._rundir = rundir
        self._node = node
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
        """Whether the extractor has written every record to `metrics.jsonl`."""
        return self._rundir.extracted.exists()

    @property
    def pid(self) -> int | None:
        """The pid of the extractor process; None if no process runs."""
        return self._child.pid if self._child else None

    def start(self, *, secrets: Sequence[str] | None = ()) -> None:
        """Start the extractor process, unless it already runs.

        secrets: texts that the process must not quote from the benchmark's output. None means that the
        secrets are unknown, so the process must not quote any output.
        """
        self._wanted = True
        self._secrets = secrets
        if self._child is None:
            self._spawn()

    def poll(self) -> None:
        """Restart the process if it died before its work was done. Cheap enough to be called many times per
        second."""
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
        """Wait until the process has extracted all output. Return whether it has.

        The function also returns when `over()` returns True, or after STALL_SECONDS without progress.
        """
        progress, since = None, self._clock()
        next_look = since + _PROGRESS_LOOK
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
        """Tell the process to skip the rest of the output and to record the size of the rest in
        `extracted.json`. Return whether the process recorded the size.

        The process is killed if it does not end within `within` seconds.
        """
        from subprocess import TimeoutExpired

        self._wanted = False
        if self._child is not None and not self.finished:
            self._child.send_signal(LEAVE_REST)
            with suppress(TimeoutExpired):
                self._child.wait(timeout=within)
        self.stop()
        return self.finished

    def stop(self) -> None:
        """Kill the process. The remaining output can be extracted later."""
        from bai_agent.benchmark.children import kill

        self._wanted = False
        if self._child is not None:
            kill(self._child)
            self._child = None

    def _progress(self) -> object:
        from bai_agent.metrics.checkpoint import logs_done

        sizes = [
            path.stat().st_size if path.exists() else 0
            for path in (self._rundir.metrics, self._rundir.extractor_disabled)
        ]
        return sizes, logs_done(self._rundir.extractor_offset)

    def _spawn(self) -> None:
        import subprocess

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
            f"{_PARENT}{os.getpid()}",
            f"{_NODE}{self._node}",
            secrets,
            *self._flags,
        ]
        try:
            errors = self._rundir.agent_log.open("ab")
        except OSError as error:  # the benchmark may have deleted the run directory
            log.warning("the extractor's messages are not logged: %s", error)
            errors = Path(os.devnull).open("ab")  # noqa: SIM115
        with errors, _anonymous_file(json.dumps(self._secrets).encode()) as secrets_file:
            # The child process inherits the blocked signal LEAVE_REST. The signal stays pending until the
            # child has a handler, so it cannot kill a child that is starting.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {LEAVE_REST})
            try:
                self._child = subprocess.Popen(
                    [*command, str(self._rundir.path.absolute())],
                    stdin=secrets_file,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    # In a session of its own, the child does not get a terminal's Ctrl-C. The output before
                    # the Ctrl-C must still be extracted.
                    start_new_session=True,
                    cwd="/",
                    env=environment,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> int:
    """Extract until the run ends or the process receives LEAVE_REST. Exit code 0 means that `extracted.json`
    is written."""
    import gc

    # Garbage collection would waste time here: imports, and the thousands of short-lived objects of each
    # block, create no reference cycles.
    gc.disable()

    from bai_agent.job.descriptor_file import read_job
    from bai_agent.job.redaction import Redactor
    from bai_agent.metrics.checkpoint import read_checkpoint
    from bai_agent.metrics.process import Extractor
    from bai_agent.metrics.watchdog import blame

    # argparse is not used, because its import takes as long as extracting thousands of lines.
    *options, folder = sys.argv[1:]
    parents = _numbers(options, _PARENT)
    node = max(_numbers(options, _NODE), default=0)
    redactor = Redactor()
    if SECRETS in options:
        redactor.know(json.load(sys.stdin))
    _log_to_stderr(redactor)
    if not all(map(_die_with, parents)):
        return 1
    rundir = RunDir(Path(folder))
    try:
        with locked(rundir.extractor_lock, wait_s=_LOCK_SECONDS):
            if rundir.extracted.exists():
                return 0
            # The agent validated the descriptor before it wrote this file.
            job = read_job(rundir.job, checked=True).of_node(node)
            if BLAME in options:
                known = read_checkpoint(
                    rundir.extractor_offset, metrics=len(job.metrics), metrics_file=rundir.metrics
                )
                places = known.logs if known is not None else {}
                found = blame(rundir.extractor_search, rundir.extractor_disabled, places=places)
                log.warning("switched off: %s", found)
            gc.freeze()
            gc.set_threshold(100_000)
            gc.enable()
            quote = _hide if NO_QUOTES in options else redactor.redact
            work = Extractor(rundir, job, careful=CAREFUL in options, quote=quote)
            signal.signal(LEAVE_REST, lambda number, frame: work.leave_rest())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {LEAVE_REST})
            work.run()
    except BaiError as error:
        log.error("%s", error)  # noqa: TRY400 - foreseen: the sentence says it all
        return 1
    return 0


def _numbers(options: Sequence[str], prefix: str) -> list[int]:
    return [int(each.removeprefix(prefix)) for each in options if each.startswith(prefix)]


def _anonymous_file(content: bytes) -> BinaryIO:
    """Return a file in memory that is positioned at its start. A pipe is not used, because writing to a pipe
    could block. A file on a disk is not used, because the secrets could remain on the disk."""
    file = os.fdopen(os.memfd_create("secrets"), "w+b")
    file.write(content)
    file.seek(0)
    return file


def _die_with(parent: int) -> bool:
    """Tell the kernel to kill this process when `parent` dies. Return False if the parent is already dead."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent


def _hide(_: str) -> str:
    return "(not shown: may contain a secret)"


def _log_to_stderr(redactor: Redactor) -> None:
    handler = logging.StreamHandler()
    redactor.prepare(handler)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    # All output is written by now, so the interpreter's shutdown is skipped.
    os._exit(main())
