"""The names of the files in a run's directory, and functions that write these files.

For a job that `bai` runs on this machine, the run's directory is the node's folder in the job store:
`<store>/<job>/attempts/<n>/nodes/<rank>/`. On an instance, the run's directory is `/var/lib/bai/<job>/`.
`log/<offset>` and `metrics/<offset>.jsonl` are hard links to the growing files. Readers of the store thus find the
files of a local job under the same names as uploaded files.
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
from functools import cache
from pathlib import Path
from typing import Any

from bai_agent.decode import parse_json
from bai_agent.errors import BusyError, RecordError
from bai_agent.files.new_files import draft_beside, place_new
from bai_agent.light_dataclass import dataclass, replace

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of writes that fail because the disk or the user's quota is full."""

_RECORDS_BYTES = 2**20
_RESULT_BYTES = 2**18
_GENERATIONS = "generations"
_JSON_LIMIT = 2**28
"""Largest JSON file that is read (bytes). Even the longest manifest of pulled files is smaller."""


class _Place:
    """Path of a file or folder of a run's directory, as an attribute of `RunDir`.

    of_arm: whether each arm of `[repeat]` has its own file. of_generation: whether each generation has its
    own file.
    """

    def __init__(self, name: str, *, of_arm: bool = False, of_generation: bool = False) -> None:
        self._name = name
        self._of_arm = of_arm
        self._of_generation = of_generation

    def __set_name__(self, owner: type[RunDir], attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, rundir: RunDir, owner: type[RunDir]) -> Path:
        folder = rundir.own if self._of_arm else rundir.path
        path = (rundir.shim_folder if self._of_generation else folder) / self._name
        # The instance has the path from now on, because loops need it many times a second.
        vars(rundir)[self._attribute] = path
        return path


@dataclass(frozen=True)
class RunDir:
    """Paths of a run's files. `docs/run-directory.md` says which program writes each file, and how the file
    survives a kill."""

    path: Path
    arm: str | None = None
    """Name of the arm of `[repeat]` whose work folder, scripts and venv the paths name. None for the folders that
    belong to no arm."""
    generation: int = 0
    """Number of the generation whose shim's files the paths name."""

    def of_arm(self, name: str | None) -> RunDir:
        """Return the paths of the run's directory, with the folders of the arm `name`."""
        return replace(self, arm=name)

    def of_generation(self, number: int) -> RunDir:
        """Return the paths of the run's directory, with the shim's files of the generation `number`."""
        return replace(self, generation=number)

    def newest_generation(self) -> RunDir:
        """Return the paths of the run's directory, with the files of the newest shim. The newest shim may not have
        started yet."""
        return self.of_generation(max(self.generations(), default=0))

    def generations(self) -> Iterator[int]:
        """Yield the numbers of all generations after the first whose decision file exists, in any order."""
        try:
            names = [each.name for each in (self.path / _GENERATIONS).iterdir()]
        except OSError:
            return
        for name in names:
            if name.isascii() and name.isdecimal() and self.of_generation(int(name)).decision.exists():
                yield int(name)

    @property
    def shim_folder(self) -> Path:
        """Folder of a generation's shim. The folder of the first generation is the run's directory itself."""
        return self.path if self.generation == 0 else self.path / _GENERATIONS / str(self.generation)

    @property
    def own(self) -> Path:
        """The arm's folder; the run's directory if `arm` is None."""
        return self.path if self.arm is None else self.path / "arms" / self.arm

    job = _Place("job.toml")
    """The job descriptor, as the agent received it."""
    agent_lock = _Place("agent.lock")
    agent_log = _Place("agent.log")
    events = _Place("events.jsonl")
    ready = _Place("ready.json")
    heartbeat = _Place("heartbeat.json")
    environment = _Place("environment.json")
    """Facts of the machine, written just before the benchmark starts."""
    result = _Place("result.json")
    job_result = _Place("job-result.json")
    """Result of a job of several nodes, on its coordinator."""
    cancel = _Place("cancel.json")
    """Request to cancel the job."""
    output = _Place("output.log")
    """Output of the benchmark, written by the benchmark itself."""

    @property
    def kept_output(self) -> Path:
        """Second name of the file `output`, in case the benchmark renames or deletes the first name."""
        return self.log_chunks / f"{0:020}"

    @property
    def kept_metrics(self) -> Path:
        """Second name of the file `metrics`, for readers of the job store."""
        return self.metric_chunks / f"{0:020}.jsonl"

    processes = _Place("processes")
    """Folder with the output (`<rank>.log`) and the exit status (`<rank>.json`) of each process that mpirun started."""
    emit = _Place("emit.log")
    """The bytes that the benchmark wrote into the FIFO. The shim copies the bytes unchanged."""
    fifo = _Place("fifo")
    peers = _Place("peers.json", of_generation=True)
    """Addresses of the attempt's nodes, written after all nodes have joined. After a restart, the file has
    the ports of the new generation."""
    hostfile = _Place("hostfile")
    """Hostfile for the benchmark, with a line "ADDRESS slots=N" for each node."""
    decision = _Place("decision.json", of_generation=True)
    """Decision to begin the generation, with the reason. The first generation has no such file."""
    end = _Place("generations/end.json")
    """Record that no further generation begins, in a job with restarts."""

    @property
    def launcher(self) -> Path:
        """Folder for error reports of a strategy's launcher, in this generation."""
        # The launcher's folder is separate from the shim's files, because the benchmark's user writes there.
        return self.path / ("launcher" if self.generation == 0 else f"launcher-{self.generation}")

    mounts = _Place("mounts")
    """Targets of `[[mounts]]`, one per line. A target is written to the file before the file system is mounted. The
    file is deleted after the run."""
    ssh = _Place("ssh")
    """Key and configuration of ssh or sshd, if nodes use SSH. The folder is deleted after the run."""
    shim_lock = _Place("shim.lock", of_generation=True)
    started = _Place("started.json", of_generation=True)
    """Start of the benchmark, written by the shim before the benchmark's first instruction."""
    repeats = _Place("repeats.jsonl")
    """Beginning and end of each run of a `[repeat]` job, written by the shim."""
    turn = _Place("turn.json")
    """Coordinator's decision whether the next run begins, if nodes begin runs together. The shim reads this
    file."""
    repeat_word = _Place("repeat.json")
    """The agent's decision whether enough runs were made."""
    stop = _Place("stop.json", of_generation=True)
    """The agent's order to the shim to end the benchmark, with grace period and reason."""
    exit = _Place("exit.json", of_generation=True)
    """End of the benchmark, written by the shim after all processes of the benchmark have ended."""
    metrics = _Place("metrics.jsonl")
    results = _Place("results.jsonl")
    """Values of the benchmark's result files, written after all files have been read."""
    extractor_lock = _Place("extractor.lock")
    extractor_offset = _Place("extractor.offset")
    extractor_search = _Place("extractor.search")
    """The search that the extractor is doing at the moment, if the extractor runs with `--careful`."""
    extractor_disabled = _Place("extractor.disabled.jsonl")
    """Patterns whose search took too long. Each pattern has the offset of the first line that is not searched (bytes)."""
    extracted = _Place("extracted.json")
    """Counts, headlines and warnings. The extractor writes this file when the benchmark has exited and every
    record is in `metrics`."""
    kafka_offset = _Place("kafka.offset")
    cloudwatch_offset = _Place("cloudwatch.offset")
    log_lines_offset = _Place("log-lines.offset")
    store_offset = _Place("store.offset")
    """Progress of the streams' upload. The file exists as soon as this node has claimed its folder in the job
    store."""
    image = _Place("image.id")
    """Id of the image of the benchmark's container. The image is found again by its id, because a tag may move
    to another image."""
    registry_login = _Place("registry-login.json")
    """Login for the registry of the container's image. The file exists only during the pull."""
    image_pull_log = _Place("image-pull.log")
    """Output of podman during the pull of the image."""
    pulled = _Place("pulled.json")
    """The puller's manifest of finished sources."""
    checkpoint_pulled = _Place("checkpoint-pulled.json")
    """Manifest of the checkpoint that is being restored."""
    checkpoint_held = _Place("checkpoint-held")
    """Folder with hard links to a checkpoint's files during its upload."""
    supervisor = _Place("supervisor.json")
    """Port and token of the supervisor that the agent runs for AdaptDL's replicas."""
    checkpoint_folder = _Place("checkpoint-folder.json")
    """Absolute path of the `[checkpoint]` folder. The folder was empty when this file was written, so all of
    the folder's content belongs to the job."""
    work = _Place("work", of_arm=True)
    script = _Place("script")
    """The text of `[benchmark] script` as a file."""
    scripts = _Place("scripts", of_arm=True)
    venv = _Place("venv", of_arm=True)
    requirements_log = _Place("requirements.log", of_arm=True)
    """Output of pip."""
    reserved = _Place("reserved")
    """File that reserves disk space for the last records and events, until the benchmark has ended."""
    reserved_result = _Place("reserved.result")
    """File that reserves disk space for the result."""
    log_chunks = _Place("log")
    metric_chunks = _Place("metrics")


def reserve_space(rundir: RunDir) -> None:
    """Reserve disk space, so that a run that fills the disk can still report that the disk is full. Raises
    OSError if there is not enough space."""
    for path, size in ((rundir.reserved, _RECORDS_BYTES), (rundir.reserved_result, _RESULT_BYTES)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)


def make_room(rundir: RunDir) -> None:
    """Free the disk space that is reserved for the last records and events."""
    rundir.reserved.unlink(missing_ok=True)


def make_room_for_result(rundir: RunDir) -> None:
    """Free all reserved space."""
    make_room(rundir)
    rundir.reserved_result.unlink(missing_ok=True)


def make_folder(folder: Path, *, private: Path) -> None:
    """Make `folder` and its missing parents. With any umask, only this user can access new folders at or below
    `private`. Raises OSError.

    Existing folders keep their permissions.
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
    """Return the current time in milliseconds since the epoch (UTC)."""
    return time.time_ns() // 1_000_000


@cache
def boot_id() -> str:
    """Return an id of this boot of the machine. Cached, because the loops of the agent and the extractor ask many times a second."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_atomic(path: Path, content: bytes) -> None:
    """Replace the content of `path` atomically. Even after a kill, a reader sees either the old or the new
    content."""
    temporary = draft_beside(path, f".{os.getpid()}.{threading.get_native_id()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    except OSError:
        # The incomplete file is deleted, because on a full disk other files need its space.
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    temporary.replace(path)


def write_new(path: Path, content: bytes) -> bool:
    """Create `path` with all of `content`. If `path` exists, change nothing and return False."""
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
    """Atomically replace the content of `path` with `value` as JSON. Lone surrogates (from a file's name that
    is not UTF-8) become "?"."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
    # Odd characters in a benchmark's emitted values and file names must not make the agent fail.
    write_atomic(path, text.encode(errors="replace"))


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`. None if `path` does not exist or its content is not a JSON object.

    Another user may have created the file, so the result is also None for a FIFO, a device or a huge file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _JSON_LIMIT:
                return None
            value = parse_json(file.read(_JSON_LIMIT), where=str(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, RecordError):
        return None
    return value if isinstance(value, dict) else None


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of `content`, with as many system calls as necessary."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def append_line(descriptor: int, line: bytes) -> None:
    """Append all of `line`, including the newline. If the disk is full, append nothing. Raises OSError.

    No other process may write to the file.
    """
    size = os.fstat(descriptor).st_size
    try:
        write_all(descriptor, line)
    except OSError:
        # The partial line is removed. If it stayed, the next line would be joined to it, and both lines would
        # be lost.
        os.ftruncate(descriptor, size)
        raise


def open_append(path: Path) -> int:
    """Return a file descriptor for appending lines to `path`. If the file ends with an unfinished line, remove it."""
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
    """Hold a lock on the lock file `path`. The kernel releases the lock when the process ends, for any
    reason.

    Waits up to `wait_s` seconds for a previous process that is just ending, or for a process that checks the
    lock. Raises BusyError if another live process holds the lock.
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


def read_job_result(rundir: RunDir, *, is_first: bool) -> bytes | None:
    """Return the result of the whole job from this node's files; None if another node writes the job's result.
    is_first: whether this node is the first node of a fixed job."""
    if rundir.job_result.exists():
        return rundir.job_result.read_bytes()
    return rundir.result.read_bytes() if is_first else None
