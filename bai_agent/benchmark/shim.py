"""The benchmark's parent: starts it once, waits for it, ends what is left of it, and writes how it ended.

It runs as a plain file, `python -I -S shim.py DIR` (DIR is there for who reads `ps`), with the whole order as JSON on
its stdin, so that no secret in the benchmark's environment touches the disk. `bai_agent.benchmark.process.Order` is
the order's other side, `docs/run-directory.md` describes the files. Everything that it imports stays in memory for as
long as the benchmark runs: standard library only, and little of it.

What goes wrong before the benchmark runs is said on stderr, with exit code 1. 2: the order did not arrive whole (its
writer was killed). 3: another shim holds this directory. 4: the benchmark was started before.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from bai_agent.benchmark.durable import ReservedFile, take_lock, write_durably
from bai_agent.benchmark.fifo import Fifo
from bai_agent.benchmark.loop import Loop
from bai_agent.benchmark.oom import OomWatch
from bai_agent.benchmark.proc import (
    Process,
    all_processes,
    boot_id,
    child_pids,
    descendants,
    read_process,
    send_signal,
)
from bai_agent.benchmark.spawn import Spawned
from bai_agent.benchmark.stacks import python_processes, start_dump

TYPE_CHECKING = False  # typing's own would bring typing, a tenth of the shim's memory
if TYPE_CHECKING:
    from typing import Any

DONE, FAILED, NO_ORDER, BUSY, STARTED_BEFORE = 0, 1, 2, 3, 4

_PR_SET_CHILD_SUBREAPER = 36
_TICK = 0.2
"""Seconds between two looks for stop.json."""
_SETTLE = 0.5
"""Seconds for processes that are on their way out anyway, when the benchmark has ended."""
_FILTER_GRACE = 5.0
"""Seconds in which a filter passes on what the benchmark printed, when the benchmark has ended by itself."""
_LEFT_BEHIND_GRACE = 5.0
_SHUTDOWN_GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL where we are told to end ourselves: the machine is going down."""
_TOGETHER = 0.5
"""Seconds within which a SIGTERM to us and one to the benchmark count as one and the same."""
_KILL_LIMIT = 10.0
"""Seconds after which processes that survive SIGKILL (in uninterruptible sleep) are given up."""
_STACKS_LIMIT = 5.0
_DISK_FULL_LIMIT = 5.0


_MOST_NAMES = 10
_HIDDEN = "(hidden)"
"""Stands for the name of a process that hidepid hides."""


class Stop:
    """An order to end the benchmark, from stop.json or by a signal."""

    def __init__(self, *, reason: str | None, grace: float, stacks: bool) -> None:
        self.reason = reason
        self.grace = grace
        self.stacks = stacks


class Shim:
    """One benchmark, from its fork to its exit.json."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._files: dict[str, str] = order["files"]
        self._grace = float(order["grace_seconds"])
        self._stop: Stop | None = None
        self._left_behind: dict[tuple[int, int], str] = {}
        """Their names, by what tells one process from every other."""
        self._looked = 0.0
        self._lost = 0
        self._warnings: list[str] = []

    def run(self) -> None:
        """Run the benchmark to its end, and write exit.json when nothing of it is left. Raises OSError before it runs."""
        _prctl_subreaper()
        self._exit_file = ReservedFile(self._files["exit"])
        self._output = os.open(
            self._files["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        user = self._order["user"]
        owner = (user["uid"], user["gid"]) if user else None
        if owner:
            with self._optional("the benchmark cannot open /dev/stdout by its name"):
                os.fchown(self._output, *owner)
        self._fifo = Fifo(self._files["fifo"], self._files["emit"], owner=owner)
        self._loop = Loop(self._fifo, output=self._output)
        self._oom: OomWatch | None = None
        with self._optional("whether memory runs out is not seen"):
            self._oom = OomWatch()
        self._stop = self._asked_to_stop()
        if self._stop is not None:
            self._write_exit(wall=0.0)
            return
        started = self._start()
        while self._loop.status is None and self._stop is None:
            self._loop.pump(_TICK)
            asked = self._asked_to_stop()
            if asked is not None and self._loop.status is None:
                self._end(asked)
        self._heed_shutdown()
        self._end_what_is_left()
        self._finish_copying()
        self._write_exit(wall=self._loop.ended - started)

    def _start(self) -> float:
        """Fork the benchmark, make that known, and let it run; return when, on the monotonic clock."""
        order = self._order
        child = Spawned(
            order["argv"],
            order["env"],
            cwd=order["cwd"],
            user=order["user"],
            umask=order["umask"],
            output=self._output,
        )
        self._pid = child.pid
        self._loop.watch(child)
        with self._optional("where memory runs out, the kernel may end the shim before the benchmark"):
            child.raise_oom_score(order["oom_score_adj"])
        write_durably(
            self._files["started"],
            {
                "shim_pid": os.getpid(),
                "shim_start": _start_of(os.getpid()),
                "pid": child.pid,
                "start": _start_of(child.pid),
                "boot_id": boot_id(),
                "time": _now_ms(),
                "warnings": self._warnings,
            },
        )
        started = time.monotonic()
        child.go()
        # The agent waits for this end of its pipe; from here on what we have to say belongs into the log.
        os.dup2(self._output, 1)
        os.dup2(self._output, 2)
        return started

    def _optional(self, without: str) -> _Optional:
        """Return a context for what the benchmark can do without: its failure is a warning, which says what follows."""
        return _Optional(self._warnings, without)

    def _asked_to_stop(self) -> Stop | None:
        if self._loop.signal is not None:
            return Stop(reason=None, grace=min(self._grace, _SHUTDOWN_GRACE), stacks=False)
        now = time.monotonic()
        if now - self._looked < _TICK * 0.9:
            return None
        self._looked = now
        try:
            with open(self._files["stop"], "rb") as file:
                job_request = json.load(file)
            return Stop(
                reason=str(job_request["reason"]),
                grace=float(job_request["grace_seconds"]),
                stacks=bool(job_request.get("stacks")),
            )
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            # Not there, as a rule. We write it whole; what a person writes may take a moment to be.
            return None

    def _end(self, stop: Stop) -> None:
        """SIGTERM to the benchmark's group, and the grace for it."""
        if stop.stacks:
            self._dump_stacks()
        self._loop.reap()
        if self._loop.status is not None:
            return
        self._stop = stop
        self._deadline = time.monotonic() + stop.grace
        try:
            os.killpg(self._pid, signal.SIGTERM)
            os.killpg(self._pid, signal.SIGCONT)  # a stopped process would not see it
        except PermissionError:
            # A set-user-id program: SIGKILL will not reach it either.
            self._say("the benchmark cannot be sent SIGTERM: it runs as another user than we do")
        self._loop.pump_until(lambda: self._loop.status is not None, self._limit, tick=_TICK)

    def _heed_shutdown(self) -> None:
        """A machine that goes down sends SIGTERM to all at once: whoever is hit first, it was no failure of the benchmark."""
        if self._stop is not None or not self._loop.status:
            return
        if os.WIFSIGNALED(self._loop.status) and os.WTERMSIG(self._loop.status) == signal.SIGTERM:
            limit = time.monotonic() + _TOGETHER
            self._loop.pump_until(lambda: self._loop.signal is not None, lambda: limit, tick=0.05)
        if self._loop.signal is not None:
            self._stop = Stop(reason=None, grace=min(self._grace, _SHUTDOWN_GRACE), stacks=False)
            self._deadline = time.monotonic() + self._stop.grace

    def _limit(self) -> float:
        """When the grace is over: sooner where we are told meanwhile to end ourselves."""
        if self._loop.signal is not None:
            return min(self._deadline, self._loop.signalled + _SHUTDOWN_GRACE)
        return self._deadline

    def _end_what_is_left(self) -> None:
        self._wait_for_filters()
        if self._stop is None:
            self._deadline = time.monotonic() + _SETTLE + min(self._grace, _LEFT_BEHIND_GRACE)
        settled = min(time.monotonic() + _SETTLE, self._limit())
        self._loop.pump_until(lambda: self._loop.childless, lambda: settled, tick=0.02)
        for process in self._living():
            # The group has had its SIGTERM where the benchmark was stopped.
            if self._stop is None or (process.group != self._pid and process.pid != self._pid):
                self._left_behind[process.identity] = process.name
                send_signal(process, signal.SIGTERM)
                send_signal(process, signal.SIGCONT)
        for pid in self._hidden_children():
            self._left_behind[pid, 0] = _HIDDEN
            _kill(pid, signal.SIGTERM)
            _kill(pid, signal.SIGCONT)
        self._loop.pump_until(lambda: self._loop.childless, self._limit, tick=0.05)
        given_up = time.monotonic() + _KILL_LIMIT
        while not self._loop.childless and time.monotonic() < given_up:
            for process in self._living():
                if process.pid != self._pid:
                    self._left_behind[process.identity] = process.name
                send_signal(process, signal.SIGKILL)
            for pid in self._hidden_children():
                if pid != self._pid:
                    self._left_behind[pid, 0] = _HIDDEN
                _kill(pid, signal.SIGKILL)
            self._loop.pump(0.02)
        if self._loop.status is None:
            self._loop.ended = time.monotonic()

    def _wait_for_filters(self) -> None:
        """Let `| tee` or `> >(tee log)` pass on what was printed before the benchmark's end."""
        filters = [process for process in self._living() if _reads_pipe(process.pid)]
        if not filters:
            return
        if self._stop is None:
            limit = self._deadline = time.monotonic() + min(self._grace, _FILTER_GRACE)
        else:
            limit = time.monotonic() + _SETTLE
        self._loop.pump_until(lambda: not _any_lives(filters), lambda: min(limit, self._limit()), tick=0.02)
        self._loop.note_sizes()

    def _living(self) -> list[Process]:
        return [] if self._loop.childless else descendants({os.getpid()}, all_processes())

    def _hidden_children(self) -> list[int]:
        """Return our children that hidepid hides from us. Their descendants become our children as soon as they end.

        A pid of them is exact: only we can reap it.
        """
        return [] if self._loop.childless else [pid for pid in child_pids() if read_process(pid) is None]

    def _dump_stacks(self) -> None:
        py_spy = self._order["py_spy"]
        pids = python_processes(os.getpid())
        if not pids:
            return
        if py_spy is None:
            self._say(
                "no Python stacks: py-spy is not installed beside the agent or on PATH (pip install py-spy)"
            )
            return
        limit = time.monotonic() + _STACKS_LIMIT
        for pid in pids:
            if time.monotonic() >= limit or self._loop.status is not None:
                return
            self._say(f"the Python stacks of process {pid} before it is ended:")
            try:
                helper = self._loop.helper = start_dump(py_spy, pid)
            except OSError as error:
                self._say(f"no Python stacks: {py_spy}: {error.strerror}")
                return
            self._loop.pump_until(lambda: not self._loop.helper, lambda: limit, tick=0.02)
            if self._loop.helper:
                os.kill(helper, signal.SIGKILL)  # ours and not reaped: the pid is its own
                self._loop.pump_until(lambda: not self._loop.helper, lambda: limit + 1, tick=0.02)
                self._say(f"no more Python stacks: py-spy took longer than {_STACKS_LIMIT:g} s")

    def _say(self, text: str) -> None:
        """Put a line of ours into the benchmark's log; a full disk takes none, and that is no reason to fail."""
        try:
            os.write(self._output, os.fsencode(f"\n[bai] {text}\n"))
        except OSError:
            pass

    def _finish_copying(self) -> None:
        """Empty the FIFO: nobody is left who writes."""
        given_up = time.monotonic() + _DISK_FULL_LIMIT
        while self._fifo.copy() or (self._fifo.stuck and time.monotonic() < given_up):
            if self._fifo.stuck:
                time.sleep(_TICK)
        self._lost = self._fifo.close()

    def _write_exit(self, *, wall: float) -> None:
        code = killer = None
        if self._loop.status is not None and self._loop.exec_error is None:
            if os.WIFSIGNALED(self._loop.status):
                killer = os.WTERMSIG(self._loop.status)
            else:
                code = os.WEXITSTATUS(self._loop.status)
        usage = self._loop.usage
        value = {
            "code": code,
            "signal": killer,
            "exec_error": self._loop.exec_error,
            "stop": self._stop.reason if self._stop else None,
            "stop_signal": self._loop.signal if self._stop and self._stop.reason is None else None,
            "oom": self._oom is not None and self._oom.struck(code=code, signal=killer),
            "left_behind": len(self._left_behind),
            "left_behind_names": self._names_left_behind(),
            "output_bytes": self._loop.output_bytes,
            "emit_bytes": self._loop.emit_bytes,
            "wall_seconds": round(wall, 6),
            "user_seconds": usage.ru_utime if usage else 0.0,
            "system_seconds": usage.ru_stime if usage else 0.0,
            "peak_memory_bytes": usage.ru_maxrss * 1024 if usage else 0,
            "context_switches_voluntary": usage.ru_nvcsw if usage else 0,
            "context_switches_involuntary": usage.ru_nivcsw if usage else 0,
            "emit_lost_bytes": self._lost,
            "time": _now_ms(),
            "lost": False,
        }
        self._exit_file.write(value)

    def _names_left_behind(self) -> dict[str, int]:
        names = sorted(self._left_behind.values())
        return {name: names.count(name) for name in list(dict.fromkeys(names))[:_MOST_NAMES]}


class _Optional:
    """A context whose error is added to `warnings`."""

    def __init__(self, warnings: list[str], without: str) -> None:
        self._warnings = warnings
        self._without = without

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        # Not only OSError: what another program, or the administrator, put into /proc may be anything.
        if not isinstance(error, Exception):
            return False
        self._warnings.append(f"{self._without}: {error}")
        return True


def main() -> int:
    """Run the benchmark of the order on stdin; the exit codes are those above."""
    try:
        order = json.loads(sys.stdin.buffer.read())
    except ValueError:
        sys.stderr.write("the order did not arrive whole\n")
        return NO_ORDER
    try:
        lock = take_lock(order["files"]["lock"])
        if lock is None:
            return BUSY
        if os.path.exists(order["files"]["started"]) or os.path.exists(order["files"]["exit"]):
            return STARTED_BEFORE
        Shim(order).run()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    return DONE


def _prctl_subreaper() -> None:
    """Become the parent of every orphan below us, so that no double fork leaves our sight."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def _start_of(pid: int) -> int:
    process = read_process(pid)
    if process is None:
        raise OSError(f"/proc/{pid}/stat cannot be read: is /proc mounted?")
    return process.start


def _reads_pipe(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/0").startswith("pipe:")
    except OSError:  # gone, or not ours to look at
        return False


def _any_lives(processes: list[Process]) -> bool:
    return any(
        now.start == process.start and now.state not in "ZX"
        for process in processes
        if (now := read_process(process.pid)) is not None
    )


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
