"""Virtual environments that are kept, so that the next job with the same requirements need not install them.

```
<cache>/  <key>/        the venv: it is made where it stays, as its programs know their own path
          <key>.json    it is complete, and a digest of its files then; when it was used last is when this was written
          <key>.lock    held by whoever makes, takes or deletes it
          <key>.users/  the run directories that use it
```

Whoever can write there decides what the next benchmark runs, so a cache that another user could have written is not used: a home folder
that root was left with (`sudo -E`), or a cache that several users share.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bai_agent.benchmark.orphans import find_remains
from bai_agent.errors import BusyError
from bai_agent.job.run_directory import RunDir, is_locked, locked, make_folder, now_ms, read_json, write_json

_TICK_S = 0.1


def venv_cache(environment: Mapping[str, str]) -> Path | None:
    """Return where this user's virtual environments are kept; None where there is no home folder."""
    named = environment.get("XDG_CACHE_HOME")
    try:
        folder = Path(named) if named and Path(named).is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # a container's arbitrary uid
        return None
    return folder / "bai" / "venvs"


@dataclass(frozen=True)
class CachedVenv:
    """One of them, which need not exist."""

    cache: Path
    key: str

    @property
    def venv(self) -> Path:
        return self.cache / self.key

    @contextmanager
    def lock(self, *, waiting: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Lock the environment. Raises BusyError where another process holds the lock and `waiting()` returns False.

        Raises PermissionError if another user can write in the cache.
        """
        make_folder(self.cache, private=self.cache)
        require_own(self.cache)
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(locked(self.cache / f"{self.key}.lock"))
                    break
                except BusyError:
                    if not waiting():
                        raise
                    time.sleep(_TICK_S)
            yield

    def is_complete(self) -> bool:
        """Return whether it is there, with the files that were installed in it at first, unchanged, and no others."""
        known = read_json(self._mark)
        return (
            known is not None
            and (self.venv / "bin" / "python").exists()
            and known.get("files") == digest_files(self.venv)
        )

    def complete(self) -> None:
        """Mark it as complete."""
        write_json(self._mark, {"files": digest_files(self.venv)})

    def use(self, rundir: RunDir) -> None:
        """Mark it as used by a run from now on."""
        self._users.mkdir(exist_ok=True)
        mark = self._users / _name_of(rundir)
        mark.touch(mode=0o600)
        mark.write_bytes(os.fsencode(rundir.path))
        os.utime(self._mark)

    def in_use(self) -> bool:
        """Return whether an agent or a benchmark lives that uses it."""
        with suppress(FileNotFoundError):
            for user in self._users.iterdir():
                rundir = RunDir(Path(os.fsdecode(user.read_bytes())))
                if is_locked(rundir.agent_lock) or is_locked(rundir.shim_lock) or find_remains(rundir):
                    return True
        return False

    def last_used(self) -> int:
        """Return when it was used last, ms UTC; for one that was never completed, when it was begun."""
        for path in (self._mark, self.venv):
            with suppress(OSError):
                return path.stat().st_mtime_ns // 1_000_000
        return now_ms()

    def remove(self) -> None:
        """Delete it; its lock must be held. Raises OSError."""
        self._mark.unlink(missing_ok=True)
        if self.venv.exists():
            shutil.rmtree(self.venv)
        shutil.rmtree(self._users, ignore_errors=True)

    @property
    def _mark(self) -> Path:
        return self.cache / f"{self.key}.json"

    @property
    def _users(self) -> Path:
        return self.cache / f"{self.key}.users"


def cached_venvs(cache: Path) -> list[CachedVenv]:
    """Return those in `cache`, also the unfinished ones."""
    try:
        return sorted(
            (CachedVenv(cache, each.name) for each in cache.iterdir() if each.is_dir() and not each.suffix),
            key=CachedVenv.last_used,
        )
    except FileNotFoundError:
        return []


def digest_files(venv: Path) -> str:
    """Return a digest of the names, sizes and times of the files in `venv`; contents are not read.

    The time is the inode's, which no program can set back. Left out are the folders that Python keeps byte code in: it writes there by itself.
    """
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(venv):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        for name in sorted((*files, *folders)):
            path = f"{folder}/{name}"
            status = os.lstat(path)
            facts = [stat.S_IFMT(status.st_mode)]
            if not stat.S_ISDIR(status.st_mode):
                facts += [status.st_size, status.st_ctime_ns]
            digest.update(os.fsencode(path) + b"\0" + repr(facts).encode() + b"\0")
    return digest.hexdigest()


def require_own(cache: Path) -> None:
    """Raise PermissionError if another user than this one and root can write in `cache`, or exchange it."""
    own = os.geteuid()
    for folder in (real := Path(os.path.realpath(cache)), *real.parents):
        status = folder.stat()
        # A group of this user alone may write above the cache: some distributions' homes are made so.
        shared = status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and (folder == real or status.st_gid != os.getegid())
        )
        # In a folder like /tmp nobody else can take a name away.
        if status.st_uid not in (own, 0) or (shared and not status.st_mode & stat.S_ISVTX):
            raise PermissionError(errno.EPERM, f"another user can write in {folder}", str(cache))


def _name_of(rundir: RunDir) -> str:
    return hashlib.sha256(os.fsencode(rundir.path)).hexdigest()[:16]
