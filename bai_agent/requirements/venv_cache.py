"""Cache of virtual environments, so that the next job with the same requirements need not install them again.

```
<cache>/  <key>/        the venv, created in place because its programs contain their own path
          <key>.json    digest of the files of a complete venv; its time is the time of the last use
          <key>.lock    held while the venv is created, taken or deleted
          <key>.users/  the run directories that use it
```

The next benchmark runs programs from the cache, so a cache to which another user could have written is not
used. Examples of an unsafe cache are a cache in another user's home folder (root with `sudo -E`), and a cache
that several users share.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bai_agent.benchmark.orphans import find_remains
from bai_agent.errors import BusyError
from bai_agent.job.run_directory import RunDir, is_locked, locked, now_ms, read_json, write_json
from bai_agent.light_dataclass import dataclass
from bai_agent.runtime.user_cache import make_own, user_cache

_TICK_S = 0.1


def venv_cache(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of this user's cached virtual environments; None if there is no home folder."""
    folder = user_cache(environment)
    return folder / "venvs" if folder is not None else None


@dataclass(frozen=True)
class CachedVenv:
    """A cached environment, which possibly does not exist yet."""

    cache: Path
    key: str

    @property
    def venv(self) -> Path:
        return self.cache / self.key

    @contextmanager
    def lock(self, *, waiting: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Lock the environment. Raises BusyError if another process holds the lock and `waiting()` returns False.

        Raises PermissionError if another user can write in the cache.
        """
        make_own(self.cache)
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
        """Return whether the environment exists and its files are exactly those of the installation,
        unchanged."""
        known = read_json(self._mark)
        return (
            known is not None
            and (self.venv / "bin" / "python").exists()
            and known.get("files") == digest_files(self.venv)
        )

    def complete(self) -> None:
        """Mark the environment as complete, with a digest of its files."""
        write_json(self._mark, {"files": digest_files(self.venv)})

    def use(self, rundir: RunDir) -> None:
        """Record that the run in `rundir` uses the environment."""
        self._users.mkdir(exist_ok=True)
        mark = self._users / _name_of(rundir)
        mark.touch(mode=0o600)
        mark.write_bytes(os.fsencode(rundir.path))
        os.utime(self._mark)

    def in_use(self) -> bool:
        """Return whether an agent or a benchmark that is still running uses the environment."""
        with suppress(FileNotFoundError):
            for user in self._users.iterdir():
                rundir = RunDir(Path(os.fsdecode(user.read_bytes()))).newest_generation()
                if is_locked(rundir.agent_lock) or is_locked(rundir.shim_lock) or find_remains(rundir):
                    return True
        return False

    def last_used(self) -> int:
        """Return the time of the environment's last use (ms UTC). For an environment that was never
        completed, return the time at which its creation began."""
        for path in (self._mark, self.venv):
            with suppress(OSError):
                return path.stat().st_mtime_ns // 1_000_000
        return now_ms()

    def remove(self) -> None:
        """Delete the environment. The caller must hold the environment's lock. Raises OSError."""
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
    """Return the environments in `cache`, including unfinished ones."""
    try:
        return sorted(
            (CachedVenv(cache, each.name) for each in cache.iterdir() if each.is_dir() and not each.suffix),
            key=CachedVenv.last_used,
        )
    except FileNotFoundError:
        return []


def digest_files(venv: Path) -> str:
    """Return a digest of the names, sizes and times of the files in `venv`. The files' contents are not read.

    The time of a file is its ctime, which a program cannot set back. Byte code folders are left out, because
    Python writes to them at any time.
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


def _name_of(rundir: RunDir) -> str:
    return hashlib.sha256(os.fsencode(rundir.path)).hexdigest()[:16]
