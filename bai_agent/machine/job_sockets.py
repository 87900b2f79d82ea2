"""Finds the jobs that run on this machine at the same time, by the jobs' sockets.

A running job listens on an abstract Unix socket whose name identifies the job: unix(7). The kernel lists the
names of sockets to every user in /proc/net/unix. When a process ends, the kernel removes the names of its
sockets. Therefore a killed job leaves no stale name. With abstract names, no folder has to be writable for
all users. Names belong to a network namespace, so jobs in containers with their own networks do not see each
other.

Any user can listen at a name that looks like a job's. A name is therefore only accepted if the kernel reports
(SO_PEERCRED) that a process of this user or of root listens at this name. All other names together count as
"another user's job", and are not passed on. The name of each job's socket has a random part, so that other
users cannot occupy the name in advance.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path

from bai_agent.files.new_files import name_digest
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import dataclass, field

log = logging.getLogger(__name__)

MACHINE = "BAI_MACHINE"
"""Environment variable. Jobs with different values of this variable are treated as if they ran on different
machines."""

_NAMES = Path("/proc/net/unix")
_LISTENS = " 00010000 0001 "
"""Flags and type of a listening stream socket, in a line of /proc/net/unix."""
_ID_CHARACTERS = 60
"""Longest job id in a socket's name (characters), because the name has at most 107 bytes."""
_NAME = re.compile(
    r"@(bai-([0-9a-f]{8})/([0-9a-f]{8})/(runs|next)/([0-9a-f]{1,11})/[0-9a-f]{6}/([A-Za-z0-9][A-Za-z0-9._-]*))$",
    re.ASCII,
)
_BACKLOG = 128
_NO_DESCRIPTOR_S = 0.1
"""Pause after a connection could not be accepted (seconds). Without the pause, pending connections would keep
a CPU busy."""
_CREDENTIALS = struct.Struct("3i")
"""`struct ucred` of unix(7): process id, user id, group id."""
_ROOT = 0


class Use(Enum):
    """How a job uses the machine."""

    RUNS = "runs"
    NEXT = "next"
    """The job has not begun, because the job waits until no other job runs on this machine."""


@dataclass(frozen=True, kw_only=True)
class ColocatedJob:
    """Another job on this machine."""

    job_id: str | None
    """Id of the job, shortened if the id is long. None if the job belongs to another user."""
    key: str
    """Digest that identifies the job. Jobs of other users count as one job, with the digest of one of these
    jobs."""
    since: int
    """Start of the job (ms UTC). For jobs of other users, the time at which the jobs were detected."""
    use: Use

    @property
    def name(self) -> str:
        """Name of the job that is shown to users."""
        return self.job_id or "another user's job"


class Announcement:
    """A socket that shows this job to other jobs while the socket is open."""

    def __init__(self, name: str) -> None:
        """Listen on the abstract socket `name`. Raises OSError."""
        self._over = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(f"\0{name}")
            self._socket.listen(_BACKLOG)
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._take, name="announcement", daemon=True)
        self._thread.start()

    def __enter__(self) -> Announcement:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)
        self._socket.close()

    def _take(self) -> None:
        # Connections that are not accepted would fill the queue, so later jobs could not query the socket's
        # owner.
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                self._over.wait(_NO_DESCRIPTOR_S)
            else:
                connection.close()


@dataclass(frozen=True, kw_only=True)
class ThisJob:
    """This job's announcement to other jobs, and its view of the other jobs."""

    job_id: str
    key: str
    machine: str = ""
    _known: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)
    """Line of a socket in the kernel's list → whether a trusted user listens on the socket."""

    @classmethod
    def of(cls, job_id: str, *, place: str, environment: Mapping[str, str] = os.environ) -> ThisJob:
        """Return this job. place: location of the job's record, which distinguishes jobs with the same id in
        two stores."""
        key = _digest(f"{place}\0{job_id}")
        return cls(job_id=job_id, key=key, machine=environment.get(MACHINE, ""))

    def announce(self, use: Use) -> Announcement | None:
        """Announce this job until the returned announcement is closed. Return None if the job cannot be
        announced."""
        begin = f"bai-{_digest(self.machine)}/{self.key}/{use.value}/{now_ms():x}"
        try:
            return Announcement(f"{begin}/{os.urandom(3).hex()}/{self.job_id[:_ID_CHARACTERS]}")
        except OSError as error:
            log.warning("this job cannot be seen by others on this machine: %s", error)
            return None

    def others(self, names: Path = _NAMES) -> list[ColocatedJob]:
        """Return the other jobs on this machine, oldest first. Raises OSError.

        All jobs of other users with the same `Use` of the machine count as one job.
        """
        found: dict[tuple[str | None, Use], ColocatedJob] = {}
        machine, now = _digest(self.machine), now_ms()
        known: dict[str, bool] = {}
        with names.open(encoding="ascii", errors="replace") as file:
            for line in file:
                match = _NAME.search(line.rstrip("\n")) if "@bai-" in line and _LISTENS in line else None
                if match is None or match[2] != machine or match[3] == self.key:
                    continue
                try:
                    # If the socket's queue is full, the owner is queried again at the next look.
                    with suppress(BlockingIOError):
                        known[line] = self._known[line] if line in self._known else _is_trusted(match[1])
                except ConnectionRefusedError:
                    continue  # The job has ended since the kernel listed it.
                use, believed = Use(match[4]), known.get(line, False)
                job_id, since = (match[6], int(match[5], 16)) if believed else (None, now)
                each = ColocatedJob(job_id=job_id, key=match[3], use=use, since=since)
                # A job with several nodes on this machine has one socket per node.
                name = each.key if believed else None, use
                if name not in found or (each.since, each.key) < (found[name].since, found[name].key):
                    found[name] = each
        self._known.clear()
        self._known.update(known)
        return sorted(found.values(), key=lambda each: (each.since, each.name))


def _is_trusted(name: str) -> bool:
    """Return whether this user or root listens on an abstract socket. Return False if connections to the name
    are forbidden. Raises OSError.

    Raises ConnectionRefusedError if the socket is no longer listening, and BlockingIOError if its queue is
    full.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asks:
        asks.setblocking(False)
        try:
            asks.connect(f"\0{name}")
        except (ConnectionRefusedError, BlockingIOError):
            raise
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                return False
            raise
        credentials = asks.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1] in (_ROOT, os.geteuid())


def _digest(text: str) -> str:
    return name_digest(text.encode(errors="surrogateescape"))[:8]
