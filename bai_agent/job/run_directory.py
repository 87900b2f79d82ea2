"""The names in a run's directory, and the few ways in which anything is written there.

A run's directory is the node's place in the job store: `<store>/<job>/attempts/<n>/nodes/<rank>/` for a job that
`bai` runs on this machine, `/var/lib/bai/<job>/` on an instance. `log/<offset>` and `metrics/<offset>.jsonl` are hard
links to the growing files, so that a reader of the store finds them under the names that an upload would have.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bai_agent.errors import BusyError
from bai_agent.job.new_files import draft_beside, place_new

_JSON_LIMIT = 2**28
"""Bytes of a JSON file of ours: beyond what the longest list of pulled files takes."""


@dataclass(frozen=True)
class RunDir:
    """Where each file of a run is; see `docs/run-directory.md` for who writes it and how it survives a kill."""

    path: Path
    arm: str | None = None
    """The arm of `[repeat]` whose work folder, scripts and venv these are; None: those of the run."""

    def of_arm(self, name: str | None) -> RunDir:
        """Return the same run's directory with the folders that the arm `name` has of its own."""
        return replace(self, arm=name)

    @property
    def own(self) -> Path:
        """The folder of an arm; without one, the run's."""
        return self.path if self.arm is None else self.path / "arms" / self.arm

    @property
    def job(self) -> Path:
        """The job descriptor, as the agent was given it."""
        return self.path / "job.toml"

    @property
    def agent_lock(self) -> Path:
        return self.path / "agent.lock"

    @property
    def agent_log(self) -> Path:
        return self.path / "agent.log"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def ready(self) -> Path:
        return self.path / "ready.json"

    @property
    def heartbeat(self) -> Path:
        return self.path / "heartbeat.json"

    @property
    def environment(self) -> Path:
        """What the benchmark runs on, written just before it starts."""
        return self.path / "environment.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def job_result(self) -> Path:
        """How a job of several nodes ended, where this one is their coordinator."""
        return self.path / "job-result.json"

    @property
    def cancel(self) -> Path:
        """Written by whoever wants the job cancelled."""
        return self.path / "cancel.json"

    @property
    def output(self) -> Path:
        """What the benchmark printed, written by itself."""
        return self.path / "output.log"

    @property
    def kept_output(self) -> Path:
        """The same file as `output`, under a name that a benchmark which renames or deletes that one does not know."""
        return self.log_chunks / f"{0:020}"

    @property
    def kept_metrics(self) -> Path:
        """The same file as `metrics`, under the name that a reader of the job store looks for."""
        return self.metric_chunks / f"{0:020}.jsonl"

    @property
    def processes(self) -> Path:
        """Where processes of the benchmark that mpirun started keep what they printed, `<rank>.log`, and how they ended."""
        return self.path / "processes"

    @property
    def emit(self) -> Path:
        """What was written to the FIFO, verbatim, by the shim."""
        return self.path / "emit.log"

    @property
    def fifo(self) -> Path:
        return self.path / "fifo"

    @property
    def peers(self) -> Path:
        """The nodes of the attempt, once they have met."""
        return self.path / "peers.json"

    @property
    def hostfile(self) -> Path:
        """The same for the benchmark: a line "ADDRESS slots=N" for each node."""
        return self.path / "hostfile"

    @property
    def launcher(self) -> Path:
        """A folder in which a strategy's launcher may leave what its processes failed of."""
        return self.path / "launcher"

    @property
    def ssh(self) -> Path:
        """This node's key, and the files that ssh or sshd is told with, where nodes reach each other by SSH; gone with the run."""
        return self.path / "ssh"

    @property
    def shim_lock(self) -> Path:
        return self.path / "shim.lock"

    @property
    def started(self) -> Path:
        """Written by the shim before the benchmark's first instruction."""
        return self.path / "started.json"

    @property
    def repeats(self) -> Path:
        """Written by the shim of a job with `[repeat]`: where each run begins and ends."""
        return self.path / "repeats.jsonl"

    @property
    def turn(self) -> Path:
        """The coordinator's word whether the next run begins, for the shim of a node whose job does its runs together."""
        return self.path / "turn.json"

    @property
    def repeat_word(self) -> Path:
        """Written by the agent: whether the runs so far are enough."""
        return self.path / "repeat.json"

    @property
    def stop(self) -> Path:
        """Written by the agent: the shim shall end the benchmark, with which grace and why."""
        return self.path / "stop.json"

    @property
    def exit(self) -> Path:
        """Written by the shim when nothing of the benchmark is left."""
        return self.path / "exit.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def results(self) -> Path:
        """What was in the files that the benchmark wrote its results to, once all of them have been read."""
        return self.path / "results.jsonl"

    @property
    def extractor_lock(self) -> Path:
        return self.path / "extractor.lock"

    @property
    def extractor_offset(self) -> Path:
        return self.path / "extractor.offset"

    @property
    def extractor_search(self) -> Path:
        """Which search the extractor is at, while it is being careful."""
        return self.path / "extractor.search"

    @property
    def extractor_disabled(self) -> Path:
        """Patterns that took too long, and from which line on they are switched off."""
        return self.path / "extractor.disabled.jsonl"

    @property
    def extracted(self) -> Path:
        """Written by the extractor when the benchmark has exited and every record is in `metrics`: counts, warnings."""
        return self.path / "extracted.json"

    @property
    def kafka_offset(self) -> Path:
        return self.path / "kafka.offset"

    @property
    def cloudwatch_offset(self) -> Path:
        return self.path / "cloudwatch.offset"

    @property
    def log_lines_offset(self) -> Path:
        return self.path / "log-lines.offset"

    @property
    def store_offset(self) -> Path:
        """How far the streams are in the job store; it is there as soon as this node's place in the store is ours."""
        return self.path / "store.offset"

    @property
    def pulled(self) -> Path:
        """The puller's manifest of finished sources."""
        return self.path / "pulled.json"

    @property
    def work(self) -> Path:
        return self.own / "work"

    @property
    def script(self) -> Path:
        """The text that `[benchmark] script` holds, as a file."""
        return self.path / "script"

    @property
    def scripts(self) -> Path:
        return self.own / "scripts"

    @property
    def venv(self) -> Path:
        return self.own / "venv"

    @property
    def requirements_log(self) -> Path:
        """What pip said."""
        return self.own / "requirements.log"

    @property
    def log_chunks(self) -> Path:
        return self.path / "log"

    @property
    def metric_chunks(self) -> Path:
        return self.path / "metrics"


def make_folder(folder: Path, *, private: Path) -> None:
    """Make `folder`, and what is missing above it: from `private` on for this user alone, whatever the umask. Raises OSError.

    What is there already keeps its permissions.
    """
    missing = []
    for each in (folder, *folder.parents):
        if each.is_dir():
            break
        missing.append(each)
    for each in reversed(missing):
        mode = 0o700 if each.is_relative_to(private) else 0o755
        try:
            each.mkdir(mode=mode)
        except FileExistsError:
            if not each.is_dir():
                raise
        else:
            each.chmod(mode)


def now_ms() -> int:
    """Return milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """Return an id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content` so that a reader, or a kill at any moment, sees all of it or none."""
    temporary = draft_beside(path, f".{os.getpid()}.{threading.get_native_id()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    except OSError:
        # On a full disk a half of it would keep others from being written.
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    temporary.replace(path)


def write_new(path: Path, content: bytes) -> bool:
    """Make `path` with `content`, all of it or nothing; return False where it exists, which then stays as it is."""
    draft = draft_beside(path, f".{os.getpid()}.{threading.get_native_id()}.new")
    write_atomic(draft, content)
    try:
        place_new(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` by `value` as JSON, atomically. Half characters (a file's name that is not UTF-8) become "?"."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
    # What a benchmark emits, or names its files, must not end us.
    write_atomic(path, text.encode(errors="replace"))


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`; None where there is no such file or it holds something else.

    Who wrote it may not be known: a FIFO, a device or a file without an end holds something else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _JSON_LIMIT:
                return None
            value = json.loads(file.read(_JSON_LIMIT))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of `content`, however many system calls it takes."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def append_line(descriptor: int, line: bytes) -> None:
    """Append `line`, its newline included: whole, or not at all where the disk takes only a part of it. Raises OSError.

    Nobody else may write to the file.
    """
    size = os.fstat(descriptor).st_size
    try:
        write_all(descriptor, line)
    except OSError:
        # The next line would be glued to what is there, and both would be lost.
        os.ftruncate(descriptor, size)
        raise


def open_append(path: Path) -> int:
    """Return a descriptor for appending lines to `path`, after cutting an unfinished last line."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    size = os.fstat(descriptor).st_size
    end = size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(descriptor, end)
    return descriptor


def is_locked(path: Path) -> bool:
    """Return whether a live process holds the lock file `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return True
        raise
    finally:
        os.close(descriptor)
    return False


@contextmanager
def locked(path: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path`; it goes with the process, however that dies.

    Waits up to `wait_s` seconds for a predecessor that is just dying (or for a reader's look at the lock).
    Raises BusyError where another live process keeps it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                    raise
                if time.monotonic() >= deadline:
                    raise BusyError(f"{path.parent}: another live process holds {path.name}") from error
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
