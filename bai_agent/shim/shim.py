"""The benchmark's parent process. The shim starts the benchmark once, waits for it, ends the processes that
are left, and records how the benchmark ended.

If the job has several runs, `run_series.py` chooses the next command. Each command is started, watched and
ended in the same way.

The shim runs as a plain file, `python -I -S shim.py DIR` (DIR is for readers of `ps`). The shim reads its
order as JSON from stdin, so that no secret in the benchmark's environment is written to the disk.
`bai_agent.benchmark.start.Order` writes the order, and `docs/run-directory.md` describes the files. All
imported modules stay in memory as long as the benchmark runs, so the shim imports only a small part of the
standard library.

Errors before the benchmark runs are printed to stderr, and the exit code is 1. The exit code is 2 if the
order was incomplete, because the agent that wrote the order was killed. It is 3 if another shim holds the run
directory's lock, and 4 if the benchmark was started before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from bai_agent.shim.durable import ReservedFile, now_ms, take_lock, write_durably
from bai_agent.shim.loop import Fifo, Loop
from bai_agent.shim.memory_group import MemoryGroup, OomWatch, make_memory_group
from bai_agent.shim.proc import (
    Process,
    all_processes,
    boot_id,
    child_pids,
    descendants,
    own_usage,
    read_process,
    send_signal,
)
from bai_agent.shim.run_series import RepeatRunner
from bai_agent.shim.spawn import SHORT_SLICE_NS, Spawned, adopt_orphans, set_time_slice
from bai_agent.shim.stacks import dump_stacks

TYPE_CHECKING = False  # importing typing would be a tenth of the shim's memory
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from typing import Any

DONE, FAILED, NO_ORDER, BUSY, STARTED_BEFORE = 0, 1, 2, 3, 4

_TICK_S = 0.2
"""Seconds between two checks for stop.json."""
_WORD_TICK_S = 0.005
"""Between two runs, seconds between two checks for the agent's decision."""
_SETTLE_S = 0.5
"""Time after the benchmark's end in which its remaining processes can end by themselves (seconds)."""
_FILTER_GRACE_S = 5.0
"""Time after the benchmark's end in which a filter such as `tee` can write the rest of the benchmark's output
(seconds)."""
_LEFT_BEHIND_GRACE_S = 5.0
_SHUTDOWN_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL if the shim itself gets a signal to end, which means that the machine shuts
down."""
_SAME_SIGNAL_S = 0.5
"""Longest time between a SIGTERM to the benchmark and a SIGTERM to the shim if both belong to the same
shutdown (seconds)."""
_KILL_LIMIT_S = 10.0
"""Longest wait for processes in uninterruptible sleep, which survive SIGKILL (seconds)."""
_DISK_FULL_LIMIT_S = 5.0


_QUEUE = 128
"""Largest number of waiting connections. If more connections are waiting, the kernel does not answer new
connections."""
_MOST_NAMES = 10
_HIDDEN = "(hidden)"
"""Text in place of the name of a process that the mount option hidepid hides."""


class Stop:
    """An order to end the benchmark, from stop.json or by a signal."""

    def __init__(self, *, reason: str | None, grace_s: float, stacks: bool) -> None:
        self.reason = reason
        self.grace_s = grace_s
        self.stacks = stacks


class Shim:
    """Runs one benchmark, from the first fork until exit.json is written."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._files: dict[str, str] = order["files"]
        self._grace = float(order["grace_seconds"])
        self._stop: Stop | None = None
        self._memory: MemoryGroup | None = None
        self._oom: OomWatch | None = None
        self._left_behind: dict[tuple[int, int], str] = {}
        """Names of the processes that still ran after the benchmark's end and that the shim ended, by pid and
        start time."""
        self._looked = 0.0
        self._started = False
        self._port = 0
        self._warnings: list[str] = []

    def run(self) -> None:
        """Run the benchmark, and write exit.json after all of its processes have ended. Raises OSError if the
        benchmark cannot be started."""
        adopt_orphans()
        # The recorded end of the benchmark is the time at which the shim sees it. With a short time slice,
        # the shim also sees the end without a delay of milliseconds on a busy machine.
        set_time_slice(SHORT_SLICE_NS)
        self._exit_file = ReservedFile(self._files["exit"])
        self._output = os.open(
            self._files["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        user = self._order["user"]
        owner = (user["uid"], user["gid"]) if user else None
        if owner:
            with self._optional("the benchmark cannot open the file /dev/stdout"):
                os.fchown(self._output, *owner)
        with self._optional("other nodes will detect the end of this node later"):
            self._listener, self._port = _listen(self._order.get("listens_at"))
        self._fifo = Fifo(self._files["fifo"], self._files["emit"], owner=owner)
        self._loop = Loop(self._fifo, output=self._output)
        self._memory = make_memory_group()
        try:
            ended = self._run_commands()
            ended["tree_peak_memory_bytes"] = self._memory.peak() if self._memory and self._started else None
        finally:
            if self._memory is not None:
                self._memory.remove()
        self.drain()
        ended["emit_lost_bytes"] = self._fifo.close()
        ended["own_usage"] = own_usage()
        ended["time"] = now_ms()
        self._exit_file.write(ended)

    def _run_commands(self) -> dict[str, Any]:
        if self.asked_to_stop():
            return self._ended(wall=0.0)
        if self._order.get("repeat") is None:
            return self.run_command(self._order["argv"], self._order["env"])
        return RepeatRunner(self, self._order, none=self._ended(wall=0.0)).run()

    def run_command(
        self,
        argv: list[str],
        env: dict[str, str],
        *,
        cwd: str | None = None,
        begin: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """Run a command until all of its processes have ended. Return the result, with the keys of exit.json.

        cwd: working folder of the command; None for the order's working folder. begin: function that is
        called right before the command begins, with the command's pid and start time. Raises OSError if the
        command did not run.
        """
        self._left_behind = {}
        self._oom = None
        with self._optional("out-of-memory kills are not detected"):
            self._oom = OomWatch(self._memory.kills_file if self._memory is not None else None)
        started = self._start(argv, env, cwd or self._order["cwd"], begin)
        while self._loop.status is None and self._stop is None:
            self._loop.pump(_TICK_S)
            asked = self._asked_to_stop()
            if asked is not None and self._loop.status is None:
                self._end(asked)
        self._heed_shutdown()
        self._end_what_is_left()
        if self._loop.before is not None:
            # The command's time is measured from its first instruction, if one ran.
            started = max(started, self._loop.before[-1])
        return self._ended(wall=self._loop.ended - started)

    def asked_to_stop(self) -> bool:
        """Return whether the agent or a signal has ordered the benchmark to end. If so, the shim must not
        start another command."""
        self._looked = 0.0
        self._stop = self._stop or self._asked_to_stop()
        return self._stop is not None

    @property
    def stop_reason(self) -> str | None:
        """Reason in the agent's order to end the benchmark. None if the agent gave no such order."""
        return self._stop.reason if self._stop else None

    @property
    def stop_signal(self) -> int | None:
        """The signal because of which the shim ended the benchmark. None if the shim did not end the
        benchmark because of a signal."""
        return self._loop.signal if self._stop and self._stop.reason is None else None

    @property
    def is_clear(self) -> bool:
        """Whether all processes that the shim started have ended."""
        return self._loop.childless

    def wait(self) -> None:
        """Wait for some milliseconds between two runs. A longer wait would delay the next run."""
        self._loop.pump(_WORD_TICK_S)

    def sizes(self) -> tuple[int, int]:
        """Return the current size of the output and the number of bytes emitted so far."""
        return os.fstat(self._output).st_size, self._fifo.emitted

    def _start(
        self, argv: list[str], env: dict[str, str], cwd: str, begin: Callable[[int, int], None] | None
    ) -> float:
        """Fork a process for a command, record the process, and start the command in the process. Return the
        command's start time (monotonic clock)."""
        order = self._order
        child = Spawned(
            argv,
            env,
            cwd=cwd,
            user=order["user"],
            umask=order["umask"],
            output=self._output,
            discard_stdout=order["discard_stdout"],
            members=self._memory.members if self._memory is not None else -1,
            contained=order["contained"],
        )
        self._pid = child.pid
        self._loop.watch(child)
        with self._optional("if memory runs out, the kernel may kill the shim before the benchmark"):
            child.raise_oom_score(order["oom_score_adj"])
        first, self._started = not self._started, True
        if first:
            self._write_started(child.pid)
        if begin is not None:
            begin(child.pid, _start_of(child.pid))
        started = time.monotonic()
        child.go()
        if first:
            # The agent waits until this process closes its stdout and stderr. From here on, the shim's
            # messages go into the benchmark's log.
            os.dup2(self._output, 1)
            os.dup2(self._output, 2)
        return started

    def _write_started(self, pid: int) -> None:
        output, emitted = self.sizes()
        write_durably(
            self._files["started"],
            {
                "shim_pid": os.getpid(),
                "shim_start": _start_of(os.getpid()),
                "pid": pid,
                "start": _start_of(pid),
                "boot_id": boot_id(),
                "time": now_ms(),
                "output_bytes": output,
                "emit_bytes": emitted,
                "port": self._port,
                "warnings": self._warnings,
            },
        )

    @contextlib.contextmanager
    def _optional(self, without: str) -> Iterator[None]:
        """Turn an error of the `with` block into a warning, because the block's work is optional. without:
        the consequence for the user, as the beginning of the warning."""
        try:
            yield
        except Exception as error:  # not only OSError: /proc may contain anything
            self._warnings.append(f"{without}: {error}")

    def _asked_to_stop(self) -> Stop | None:
        if self._loop.signal is not None:
            return Stop(reason=None, grace_s=min(self._grace, _SHUTDOWN_GRACE_S), stacks=False)
        now = time.monotonic()
        if now - self._looked < _TICK_S * 0.9:
            return None
        self._looked = now
        try:
            with open(self._files["stop"], "rb") as file:
                asked = json.load(file)
            return Stop(
                reason=str(asked["reason"]),
                grace_s=float(asked["grace_seconds"]),
                stacks=bool(asked.get("stacks")),
            )
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            # The file usually does not exist. The agent writes it atomically, but a user could write it by
            # hand.
            return None

    def _end(self, stop: Stop) -> None:
        """Send SIGTERM to the benchmark's process group, and wait until the benchmark ends or the grace
        period is over."""
        if stop.stacks:
            dump_stacks(self._loop, py_spy=self._order["py_spy"], user=self._order["user"], say=self.say)
        self._loop.reap()
        if self._loop.status is not None:
            return
        self._stop = stop
        self._deadline = time.monotonic() + stop.grace_s
        try:
            os.killpg(self._pid, signal.SIGTERM)
            os.killpg(self._pid, signal.SIGCONT)  # a stopped process would not react
        except PermissionError:
            # The benchmark is a set-user-id program. The shim cannot send it SIGKILL either.
            self.say("the shim cannot send SIGTERM to the benchmark, which runs as another user")
        self._loop.pump_until(lambda: self._loop.status is not None, self._limit, tick=_TICK_S)

    def _heed_shutdown(self) -> None:
        """Record an order to end if the shim and the benchmark got signals at the same time, as in a shutdown
        of the machine.

        The benchmark then counts as stopped, not as failed.
        """
        if self._stop is not None or not self._loop.status:
            return
        if os.WIFSIGNALED(self._loop.status) and os.WTERMSIG(self._loop.status) == signal.SIGTERM:
            limit = time.monotonic() + _SAME_SIGNAL_S
            self._loop.pump_until(lambda: self._loop.signal is not None, lambda: limit, tick=0.05)
        if self._loop.signal is not None:
            self._stop = Stop(reason=None, grace_s=min(self._grace, _SHUTDOWN_GRACE_S), stacks=False)
            self._deadline = time.monotonic() + self._stop.grace_s

    def _limit(self) -> float:
        """Return the time at which the grace period ends. The grace period ends earlier if the shim itself
        gets a signal to end."""
        if self._loop.signal is not None:
            return min(self._deadline, self._loop.signalled + _SHUTDOWN_GRACE_S)
        return self._deadline

    def _end_what_is_left(self) -> None:
        settled = time.monotonic() + _SETTLE_S
        if self._stop is not None:
            settled = min(settled, self._limit())
        # A filter that has just been forked possibly does not have its pipe as stdin yet.
        while not (filters := self._filters()) and not self._loop.childless and time.monotonic() < settled:
            self._loop.pump(0.02)
        if filters:
            self._wait_for(filters)
            settled = time.monotonic() + _SETTLE_S
        if self._stop is None:
            self._deadline = settled + min(self._grace, _LEFT_BEHIND_GRACE_S)
        settled = min(settled, self._limit())
        self._loop.pump_until(lambda: self._loop.childless, lambda: settled, tick=0.02)
        if self._loop.childless:
            # If no process was left behind, all output until now belongs to the benchmark.
            self._loop.note_sizes()
        for process in self._living():
            # If the benchmark was ordered to end, its process group has already received SIGTERM.
            if self._stop is None or (process.group != self._pid and process.pid != self._pid):
                self._left_behind[process.identity] = process.name
                send_signal(process, signal.SIGTERM)
                send_signal(process, signal.SIGCONT)
        for pid in self._hidden_children():
            self._left_behind[pid, 0] = _HIDDEN
            _kill(pid, signal.SIGTERM)
            _kill(pid, signal.SIGCONT)
        self._loop.pump_until(lambda: self._loop.childless, self._limit, tick=0.05)
        given_up = time.monotonic() + _KILL_LIMIT_S
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

    def _filters(self) -> list[Process]:
        return [process for process in self._living() if _reads_pipe(process.pid)]

    def _wait_for(self, filters: list[Process]) -> None:
        """Wait until filters such as `| tee` or `> >(tee log)` have passed on what the benchmark printed
        before its end."""
        if self._stop is None:
            limit = self._deadline = time.monotonic() + min(self._grace, _FILTER_GRACE_S)
        else:
            limit = time.monotonic() + _SETTLE_S
        self._loop.pump_until(lambda: not _any_lives(filters), lambda: min(limit, self._limit()), tick=0.02)
        self._loop.note_sizes()

    def _living(self) -> list[Process]:
        return [] if self._loop.childless else descendants({os.getpid()}, all_processes())

    def _hidden_children(self) -> list[int]:
        """Return the pids of the shim's children that the mount option hidepid hides. When a hidden child
        ends, its children become children of the shim.

        The kernel cannot reuse a hidden child's pid before the shim has reaped the child.
        """
        return [] if self._loop.childless else [pid for pid in child_pids() if read_process(pid) is None]

    def say(self, text: str) -> None:
        """Write a line into the benchmark's log. A write error is ignored."""
        try:
            os.write(self._output, os.fsencode(f"\n[bai] {text}\n"))
        except OSError:
            pass

    def drain(self) -> bool:
        """Copy the rest of the FIFO to its file, after no process writes to it any more. Return False if the
        disk is full."""
        given_up = time.monotonic() + _DISK_FULL_LIMIT_S
        while self._fifo.copy() or (self._fifo.stuck and time.monotonic() < given_up):
            if self._fifo.stuck:
                time.sleep(_TICK_S)
        return not self._fifo.stuck

    def _ended(self, *, wall: float) -> dict[str, Any]:
        """Return the result of the last command, with the keys of exit.json."""
        code = killer = None
        if self._loop.status is not None and self._loop.exec_error is None:
            if os.WIFSIGNALED(self._loop.status):
                killer = os.WTERMSIG(self._loop.status)
            else:
                code = os.WEXITSTATUS(self._loop.status)
        usage = self._loop.usage
        user, system, waited, preempted, _ = self._loop.before or (0.0,) * 5
        return {
            "code": code,
            "signal": killer,
            "exec_error": self._loop.exec_error,
            "stop": self.stop_reason,
            "stop_signal": self.stop_signal,
            "oom": self._oom is not None and self._oom.struck(code=code, signal=killer),
            "left_behind": len(self._left_behind),
            "left_behind_names": self._names_left_behind(),
            "output_bytes": self._loop.output_bytes,
            "emit_bytes": self._loop.emit_bytes,
            "wall_seconds": round(wall, 6),
            "user_seconds": round(max(0.0, usage.ru_utime - user), 6) if usage else 0.0,
            "system_seconds": round(max(0.0, usage.ru_stime - system), 6) if usage else 0.0,
            "peak_memory_bytes": usage.ru_maxrss * 1024 if usage else 0,
            "context_switches_voluntary": max(0, usage.ru_nvcsw - int(waited)) if usage else 0,
            "context_switches_involuntary": max(0, usage.ru_nivcsw - int(preempted)) if usage else 0,
            "emit_lost_bytes": 0,
            "time": now_ms(),
            "lost": False,
        }

    def _names_left_behind(self) -> dict[str, int]:
        names = sorted(self._left_behind.values())
        return {name: names.count(name) for name in list(dict.fromkeys(names))[:_MOST_NAMES]}


def main() -> int:
    """Run the benchmark that the order on stdin describes. Return one of this module's exit codes, such as
    `NO_ORDER`."""
    try:
        order = json.loads(sys.stdin.buffer.read())
    except ValueError:
        sys.stderr.write("the order is incomplete\n")
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


def _listen(address: str | None) -> tuple[socket.socket | None, int]:
    """Return a listening socket that never accepts connections, and the socket's port. Raises OSError.

    When this process has ended, the kernel refuses connections to the port, so that other nodes detect the
    end. address: the address on which to listen; None to open no socket.
    """
    if address is None:
        return None, 0
    import socket

    held = socket.socket()
    held.bind((address, 0))
    held.listen(_QUEUE)
    return held, held.getsockname()[1]


def _start_of(pid: int) -> int:
    process = read_process(pid)
    if process is None:
        raise OSError(f"/proc/{pid}/stat cannot be read: is /proc mounted?")
    return process.start


def _reads_pipe(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/0").startswith("pipe:")
    except OSError:  # the process has ended, or belongs to another user
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


if __name__ == "__main__":
    sys.exit(main())
