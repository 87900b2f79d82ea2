"""Starts the extractor's process, and starts it again whenever it dies before its work is done."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import bai_agent
from bai_agent.children import kill
from bai_agent.rundir import RunDir

log = logging.getLogger(__name__)

CAREFUL = "--careful"
BLAME = "--blame"

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_LIVED = 10.0
"""Seconds after which a process counts as having worked: the next pause is the first again."""


def next_flags(returncode: int, flags: Sequence[str]) -> list[str]:
    """Return the flags for the next process, after one with `flags` ended with `returncode` (as subprocess has it).

    `watchdog.py` tells what they are about: the timer's signal leads from none to careful to blame; any other end
    starts afresh.
    """
    if returncode != -signal.SIGVTALRM:
        return []
    return [CAREFUL, BLAME] if CAREFUL in flags else [CAREFUL]


class Extractor:
    """The extractor of one run directory. Call its methods from the main thread: the child dies with that thread."""

    def __init__(self, rundir: RunDir, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rundir = rundir
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._flags: list[str] = []
        self._wanted = False
        self._started = 0.0
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0

    @property
    def finished(self) -> bool:
        """Whether every record is in `metrics.jsonl`."""
        return self._rundir.extracted.exists()

    @property
    def pid(self) -> int | None:
        """The process id while one runs."""
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Start the process unless it runs already."""
        self._wanted = True
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
                self._pause = _FIRST_PAUSE
            self._not_before = self._clock() + self._pause
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        log.warning(
            "the extractor ended with %s before its work was done; it starts again %s",
            returncode,
            " ".join(self._flags) or f"in {self._not_before - self._clock():.1f} s",
        )

    def stop(self) -> None:
        """End the process; what it has not extracted stays to be extracted."""
        self._wanted = False
        if self._child is not None:
            kill(self._child)
            self._child = None

    def _spawn(self) -> None:
        self._started = self._clock()
        path = [entry for entry in sys.path if entry]
        package = str(Path(bai_agent.__file__).resolve().parent.parent)
        if package not in path:
            path.append(package)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-m", "bai_agent.metrics", f"--parent={os.getpid()}", *self._flags]
        try:
            errors = self._rundir.agent_log.open("ab")
        except OSError as error:  # the benchmark may have taken the run directory away
            log.warning("the extractor's errors are not logged: %s", error)
            errors = Path(os.devnull).open("ab")  # noqa: SIM115
        with errors:
            self._child = subprocess.Popen(
                [*command, str(self._rundir.path.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # A terminal's Ctrl-C is for the agent: what was printed by then is still to be extracted.
                start_new_session=True,
                cwd="/",
                env=environment,
            )
