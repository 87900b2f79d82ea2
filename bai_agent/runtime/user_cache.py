"""Cache of the answers of programs on this machine, in this user's cache folder. The next run need not query
the same programs again.

<cache>/bai/answers/<digest of the question>.json contains an answer and the time stamps of the files on which
the answer depends. An answer is valid while the files on which the answer depends are unchanged. An answer is
not stored if one of these files is so new that a later change could have the same time stamp. An answer is
not flushed to the disk. After a power loss, an answer can be missing, and the program is queried again.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bai_agent.decode import checked
from bai_agent.errors import RecordError
from bai_agent.files.new_files import draft_beside, name_digest
from bai_agent.job.run_directory import make_folder, read_json
from bai_agent.light_dataclass import asdict, dataclass

_SETTLED_S = 2.0
"""Minimum age of a file (seconds) at which a further change gives the file another time stamp on any file
system."""

_MOST_ANSWERS = 50


def user_cache(environment: Mapping[str, str]) -> Path | None:
    """Return the folder for caches of `bai`; None if there is no home folder."""
    named = environment.get("XDG_CACHE_HOME")
    try:
        folder = Path(named) if named and Path(named).is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # a container's arbitrary uid
        return None
    return folder / "bai"


def require_own(cache: Path) -> None:
    """Raise PermissionError if anybody except this user and root can write to the folder `cache` or replace
    it."""
    own = os.geteuid()
    for folder in (real := Path(os.path.realpath(cache)), *real.parents):
        status = folder.stat()
        # Folders above the cache are accepted if they are writable for this user's own group. Some
        # distributions create home folders that way.
        shared = status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and (folder == real or status.st_gid != os.getegid())
        )
        # In a folder with the sticky bit, such as /tmp, other users cannot remove or rename this user's
        # files.
        if status.st_uid not in (own, 0) or (shared and not status.st_mode & stat.S_ISVTX):
            raise PermissionError(errno.EPERM, f"another user can write in {folder}", str(cache))


def make_own(cache: Path) -> None:
    """Create the folder `cache` with access for this user only. Raises OSError; PermissionError if `cache`
    is, or would be, in another user's folder."""
    above = next(each for each in (cache, *cache.parents) if each.is_dir())
    # Without this check, root would create folders in another user's home folder, to which that user could
    # not write.
    if above.stat().st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"another user can write in {above}", str(cache))
    make_folder(cache, private=cache)
    require_own(cache)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    stamps: dict[str, str]
    """Time of the last change, size and inode of each file, by path. The text is empty if the file does not
    exist."""
    answer: dict[str, Any]


class AnswerCache:
    """Cache of the answers that programs have given to this user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> AnswerCache | None:
        """Return this user's cache; None if there is no home folder."""
        folder = user_cache(environment)
        return cls(folder / "answers") if folder is not None else None

    def find(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the stored answer to a question (JSON values) if the answer is still valid, and None
        otherwise."""
        try:
            found = checked(_Answer, read_json(self._place(question)), where="answer")
            require_own(self._folder)
        except (RecordError, OSError):
            return None
        return found.answer if all(_stamp(path) == stamp for path, stamp in found.stamps.items()) else None

    def keep(
        self,
        question: Mapping[str, Any],
        answer: Mapping[str, Any],
        *,
        sources: Iterable[str],
        asked_at: float,
    ) -> None:
        """Store an answer that depends only on `sources`. asked_at: time of the query (`time.time()`). Failures are
        ignored."""
        try:
            paths = sorted({each for each in sources if each})
            if any(_changed(path) > asked_at - _SETTLED_S for path in paths):
                return
            kept = _Answer(stamps={path: _stamp(path) for path in paths}, answer=dict(answer))
            make_own(self._folder)
            place = self._place(question)
            draft = draft_beside(place, f".{os.getpid()}.tmp")
            draft.write_text(json.dumps(asdict(kept)))
            draft.replace(place)
            self._limit()
        except (OSError, ValueError):
            return  # the question is asked again next time

    def _place(self, question: Mapping[str, Any]) -> Path:
        return self._folder / f"{name_digest(json.dumps(question, sort_keys=True).encode())}.json"

    def _limit(self) -> None:
        """Delete the oldest answers if there are more than `_MOST_ANSWERS`."""
        answers = sorted(self._folder.iterdir(), key=lambda each: each.lstat().st_mtime, reverse=True)
        for each in answers[_MOST_ANSWERS:]:
            each.unlink(missing_ok=True)


def _stamp(path: str) -> str:
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    return f"{status.st_ctime_ns} {status.st_size} {status.st_ino}"


def _changed(path: str) -> float:
    """Return when a file, or a symbolic link to the file, last changed; 0 if the file does not exist."""
    try:
        return max(Path(path).stat().st_ctime, Path(path).lstat().st_ctime)
    except OSError:
        return 0.0
