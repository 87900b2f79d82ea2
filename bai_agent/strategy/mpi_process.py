"""Wrapper between mpirun and one process of the benchmark: `python -I -S mpi_process.py COMMAND …`.

The process writes its output directly into `processes/<rank>.log` of its node's run directory, which
BAI_RUN_DIR names. The wrapper copies the log to mpirun in whole lines, so that users see the process's
output. When the process has ended, the wrapper records the process's exit status in `processes/<rank>.json`
and ends with the same exit code or signal. In a job with `[repeat]`, each run has its own file,
`<rank>-<run>.log`. The run's number is written to the node's FIFO before the process starts, because only the
wrapper knows the number on nodes other than mpirun's.

mpirun sends signals to process groups. The process is in the wrapper's group, so the process and the wrapper
get each signal at the same time, including SIGKILL. The wrapper passes on signals that were sent only to the
wrapper. If the wrapper dies, the kernel kills the process.

Each node runs this file as a program. The wrapper stays in memory as long as the benchmark's process runs, so
it imports only a few modules of the standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import select
import signal
import stat
import sys
import time

RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
"""Environment variables with the rank of a process in Open MPI 4 and 5. Open MPI 5 sets both variables."""
RUN_DIR = "BAI_RUN_DIR"
RUN = "BAI_REPEAT"
GENERATION = "BAI_GENERATION"
"""BAI_REPEAT is the variable with the number of the run in a job with `[repeat]`. Its value is the run's
number from 0, or `warmup-` and the number of a warm-up run."""
FIFO = "BENCHMARK_AI_FIFO_FILEPATH"
NOT_STARTED = 127

_PR_SET_PDEATHSIG = 1
_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ, from Python 3.10 on only where it was built with it
_PIECE = 4096
"""Number of bytes of a process's output that mpirun reads and passes on at once (ORTE_IOF_BASE_MSG_MAX,
PRTE_IOF_BASE_MSG_MAX)."""
_READ = 65536
_SHORTEST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.2
_FIFO_SECONDS = 10.0
"""Longest wait until a full FIFO has room again (seconds)."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

TYPE_CHECKING = False  # importing it would load the module typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn


class LineCopy:
    """Copies whole lines of a growing file to `target`, whose reader can be slow. A last line without a line
    end is copied only after the process has ended."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self.target = source, target
        self._offset = 0
        self._held = b""
        """Content that was read but not written yet."""
        self._whole = 0
        """Number of bytes of `_held` that can be written now. The bytes are whole lines, or the beginning of
        a very long line whose end has not been read."""
        self.end: int | None = None
        """Offset at which copying stops. None means the file's end."""
        self.broken = False
        """Whether `target` has no reader."""

    def copy(self, *, to_the_end: bool = False) -> bool:
        """Copy as much as possible without waiting. Return whether the call read or wrote at least one
        byte."""
        if self.broken:
            return False
        read = self._read(to_the_end=to_the_end) if not self._whole else False
        return self._write() or read

    @property
    def blocked(self) -> bool:
        """Whether content cannot be written at the moment because the reader is slow."""
        return self._whole > 0 and not self.broken

    def _read(self, *, to_the_end: bool) -> bool:
        size = os.fstat(self._source).st_size
        if size < self._offset:
            # The process truncated the file, so its content is new.
            self._offset, self._held = 0, b""
        most = _READ if self.end is None else max(0, min(_READ, self.end - self._offset))
        data = os.pread(self._source, most, self._offset)
        self._offset += len(data)
        self._held += data
        if to_the_end and not data and self._held:
            # A newline is added, because otherwise a line of another process would be joined to this line.
            self._held += b"\n"
            data = self._held
        end = max(self._held.rfind(b"\n"), self._held.rfind(b"\r")) + 1
        self._whole = end or (len(self._held) if len(self._held) >= _READ else 0)
        return bool(data)

    def _write(self) -> bool:
        written = 0
        while self._whole and not self.broken:
            piece = self._held[: self._length_of_piece()]
            try:
                count = os.write(self.target, piece)
            except BlockingIOError:
                break
            except OSError:
                self.broken = True
                break
            self._held = self._held[count:]
            self._whole -= count
            written += count
        return written > 0

    def _length_of_piece(self) -> int:
        """Return how many bytes to write at once: as many whole lines as mpirun reads at once, or a part of a
        longer line."""
        if self._whole <= _PIECE:
            return self._whole
        head = self._held[:_PIECE]
        return max(head.rfind(b"\n"), head.rfind(b"\r")) + 1 or _PIECE


class RankProcess:
    """One process of the benchmark, from its fork to its end."""

    def __init__(self, argv: list[str], place: str) -> None:
        self._place = place
        """Common prefix of the paths of the process's log and end file."""
        output = os.open(f"{place}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._log = os.open(f"{place}.log", os.O_RDONLY | os.O_CLOEXEC)
        self._copy = LineCopy(self._log, _stream_to_mpirun())
        self._signals = signal.valid_signals()
        self._parent = os.getppid()
        self._asked: int | None = None
        """The signal with which mpirun asked the process to end; None if mpirun sent no signal."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        us = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            _become(argv, output, us, before)
        os.close(output)

    def run(self) -> int:
        """Copy the output of the process until the process ends. Return the process's wait status."""
        pause = _SHORTEST_PAUSE_S
        while not self._ended():
            copied = self._copy.copy()
            pause = _SHORTEST_PAUSE_S if copied else min(pause * 1.5, _LONGEST_PAUSE_S)
            self._wait(0.0 if copied else pause)
        size = os.fstat(self._log).st_size
        while self._wait(0.0):
            continue
        _, status = os.waitpid(self._pid, 0)
        self._write_end(status, size)
        # Processes that this process left behind can print forever, faster than the output can be copied.
        self._copy.end = size
        while self._copy.copy(to_the_end=True) or self._copy.blocked:
            # From here on, a signal to end terminates the wrapper itself, because mpirun does not need the
            # remaining output.
            if self._wait(0.0, over=True):
                break
        return status

    def _ended(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _wait(self, pause: float, *, over: bool = False) -> bool:
        """Wait for a signal, or until the reader of the copied output can take more output. Return whether a
        signal arrived.

        over: whether the process has ended. If it has, the method waits only for signals that terminate the
        wrapper.
        """
        if self._copy.blocked:
            poll = select.poll()
            poll.register(self._copy.target, select.POLLOUT)
            poll.poll(_SHORTEST_PAUSE_S * 1000)
            pause = 0.0
        info = signal.sigtimedwait(self._signals, pause)
        if info is None:
            return False
        if over:
            return info.si_signo in _ENDING
        if info.si_signo != signal.SIGCHLD:
            self._pass_on(info)
        return True

    def _pass_on(self, info: signal.struct_siginfo) -> None:
        number, sender = info.si_signo, info.si_pid
        own, theirs = os.getpgid(0), os.getpgid(self._pid)
        to_all = info.si_code > 0 or sender == self._parent or _is_in_group(sender, own)
        if to_all and number in _ENDING and self._asked is None:
            self._asked = number
        if theirs != own:
            # The process has left the wrapper's process group, so the wrapper sends the signal to the
            # process's own group, as mpirun would.
            _quietly(os.killpg, theirs, number)
        elif not to_all:
            _quietly(os.kill, self._pid, number)

    def _write_end(self, status: int, size: int) -> None:
        """Record the exit status of the process. The exit status is not recorded if the disk is full."""
        killed = os.WIFSIGNALED(status)
        ended = {
            "code": None if killed else os.WEXITSTATUS(status),
            "signal": os.WTERMSIG(status) if killed else None,
            "asked": self._asked,
            "output_bytes": size,
            "time": time.time_ns() // 1_000_000,
        }
        members = (f'"{name}": {"null" if value is None else value}' for name, value in ended.items())
        draft = f"{self._place}.json.new"
        try:
            with open(draft, "w", encoding="ascii") as file:
                file.write(f"{{{', '.join(members)}}}\n")
            os.replace(draft, f"{self._place}.json")
        except OSError:
            pass


def main() -> int:
    """Run the command in the arguments. The function does not return if a signal terminated the command."""
    rank = next((os.environ[name] for name in RANKS if os.environ.get(name, "").isdecimal()), None)
    rundir = os.environ.get(RUN_DIR)
    if rank is None or not rundir:
        missing = RUN_DIR if rank is not None else " or ".join(RANKS)
        return _refuse(f"{missing} is not set on this node, so the output of the process cannot be written")
    run = os.environ.get(RUN)
    generation = os.environ.get(GENERATION, "")
    name = str(int(rank))
    if run:
        name += f"-{run}"
    elif generation.isdecimal() and int(generation):
        name += f"-g{int(generation)}"
    try:
        if run:
            _tell_fifo(run)
        process = RankProcess(sys.argv[1:], os.path.join(rundir, "processes", name))
    except OSError as error:
        return _refuse(
            f"{error.filename or rundir}: {error.strerror}; the process cannot write its output there"
        )
    status = process.run()
    if os.WIFSIGNALED(status):
        _die_of(os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def _tell_fifo(run: str) -> None:
    """Write a line to the node's FIFO which says that a run begins. Raises OSError."""
    path = os.environ.get(FIFO)
    if not path:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    until = time.monotonic() + _FIFO_SECONDS
    try:
        while True:
            try:
                os.write(descriptor, f'\n{{"{RUN}": "{run}"}}\n'.encode())
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(_LONGEST_PAUSE_S)
    finally:
        os.close(descriptor)


def _become(argv: list[str], output: int, parent: int, mask: Iterable[int]) -> NoReturn:
    """Replace this process by the command, with the signal handlers and mask that mpirun set."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(NOT_STARTED)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            # Reset the signal handlers that Python has changed. Python does not change SIGINT if it was
            # ignored before.
            if number != signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(argv[0], argv)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        os.write(2, f'[bai] the command "{argv[0]}" cannot be started: {why}\n'.encode(errors="replace"))
    finally:
        os._exit(NOT_STARTED)


def _stream_to_mpirun() -> int:
    """Return a stream to mpirun in which lines stay whole. The stream is a pipe with the capacity of one read
    of mpirun.

    A write of at most the pipe's capacity stays whole, because mpirun empties the pipe before the next write.
    If standard output is a terminal, where writes can be split, the stream is standard error. mpirun passes
    both streams on to the same place.
    """
    for stream in (1, 2):
        if stat.S_ISFIFO(os.fstat(stream).st_mode):
            try:
                fcntl.fcntl(stream, _F_SETPIPE_SZ, _PIECE)
            except OSError:
                pass  # the pipe still works, but lines may be split if much is printed
            break
    else:
        stream = 1
    os.set_blocking(stream, False)
    return stream


def _is_in_group(pid: int, group: int) -> bool:
    try:
        return pid > 0 and os.getpgid(pid) == group
    except ProcessLookupError:
        return False


def _quietly(send: Callable[[int, int], None], target: int, number: int) -> None:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        pass


def _die_of(number: int) -> None:
    """Die from the signal that ended the process, without writing a core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"[bai] {sentence}\n")
    return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main())
