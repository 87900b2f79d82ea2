"""A job store in a folder of this machine."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bai_agent.errors import MissingObjectError, StoreError
from bai_agent.files.new_files import draft_beside
from bai_agent.job.run_directory import make_folder, write_atomic, write_new
from bai_agent.job.store import StoredObject, check_key
from bai_agent.light_dataclass import dataclass

_DRAFT = re.compile(r"\..+\.\d+\.\d+\.(new|tmp)")
"""Temporary file names that `_draft`, `write_new` and `write_atomic` use."""


@dataclass(frozen=True)
class DirectoryStore:
    """A store in which each object is a file. The object's key is the path of the file. Temporary files of
    unfinished or interrupted writes are not objects."""

    folder: Path

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        path = self._path(key)
        with _plain_errors(key):
            make_folder(path.parent, private=self.folder)
            if not if_absent:
                write_atomic(path, content)
                return True
            return write_new(path, content)

    def put_file(self, key: str, path: Path) -> None:
        from shutil import copyfile  # imported here, because shutil loads all compression libraries

        target = self._path(key)
        draft = _draft(target)
        with _plain_errors(key):
            make_folder(target.parent, private=self.folder)
            try:
                copyfile(path, draft)
                draft.replace(target)
            finally:
                draft.unlink(missing_ok=True)

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        path = self._path(key)
        with _plain_errors(key):
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read(-1 if limit is None else limit)
            except (FileNotFoundError, IsADirectoryError):
                raise MissingObjectError(f"{self.folder}: there is no {key}") from None

    def find(self, prefix: str) -> list[StoredObject]:
        parent, _, start = prefix.rpartition("/")
        folder = self._path(parent) if parent else self.folder
        with _plain_errors(prefix):
            found = [
                self._described(path)
                for entry in _entries(folder)
                if entry.name.startswith(start)
                for path in _files(entry)
            ]
        return sorted((each for each in found if each is not None), key=lambda each: each.key)

    def around(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        with _plain_errors(folder):
            entries = list(_entries(self._path(folder) if folder else self.folder))
            objects = [self._described(each) for each in entries if each.is_file()]
            found = sorted((each for each in objects if each is not None), key=lambda each: each.key)
            return found, sorted(each.name for each in entries if each.is_dir())

    def folders(self, prefix: str) -> list[str]:
        folder = self._path(prefix.rstrip("/")) if prefix else self.folder
        with (
            _plain_errors(prefix),
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(folder) as found,
        ):
            return sorted(each.name for each in found if each.is_dir() and not _DRAFT.fullmatch(each.name))
        return []

    def delete(self, prefix: str) -> None:
        if not prefix.endswith("/"):
            raise StoreError(f'cannot delete "{prefix}": the prefix of a folder must end in a slash')
        from shutil import rmtree

        path = self._path(prefix.rstrip("/"))
        with _plain_errors(prefix):
            if path.is_dir():
                rmtree(path)

    def remove(self, key: str) -> None:
        path = self._path(key)
        with _plain_errors(key):
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder.joinpath(*check_key(key))

    def _described(self, path: Path) -> StoredObject | None:
        """Return the description of an object; None if the object was removed after it was listed."""
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        key = path.relative_to(self.folder).as_posix()
        return StoredObject(key, stat.st_size, stat.st_mtime_ns // 1_000_000)


def _draft(path: Path) -> Path:
    return draft_beside(path, f".{os.getpid()}.{threading.get_native_id()}.new")


def _entries(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if not _DRAFT.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files(entry: Path) -> Iterator[Path]:
    if entry.is_dir() and not entry.is_symlink():
        for below in _entries(entry):
            yield from _files(below)
    elif entry.is_file():
        yield entry


@contextmanager
def _plain_errors(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the job store failed at {error.filename or key}: {error.strerror or error}"
        ) from error
