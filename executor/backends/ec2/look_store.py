"""Wraps the job store for one check of a job. Each folder is listed only once, however many objects of the
folder the check reads."""

from __future__ import annotations

from pathlib import Path

from bai_agent.job.store import JobStore, StoredObject


class LookStore:
    """A `JobStore` that caches listings until `forget` is called or something is written. Only one thread at
    a time may use a `LookStore`."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._listed: dict[str, tuple[list[StoredObject], list[str]]] = {}

    def forget(self) -> None:
        """End the check, and drop the cached listings."""
        self._listed.clear()

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def folder(self) -> Path | None:
        return self._store.folder

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        self._listed.clear()
        return self._store.put(key, content, if_absent=if_absent)

    def put_file(self, key: str, path: Path) -> None:
        self._listed.clear()
        self._store.put_file(key, path)

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        return self._store.get(key, start=start, limit=limit)

    def around(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        if folder not in self._listed:
            self._listed[folder] = self._store.around(folder)
        return self._listed[folder]

    def find(self, prefix: str) -> list[StoredObject]:
        folder, _, name = prefix.rpartition("/")
        if name:
            objects, below = self.around(folder)
            if not any(each.startswith(name) for each in below):
                return [each for each in objects if each.key.startswith(prefix)]
        elif self._is_empty(folder):
            return []
        return self._store.find(prefix)

    def folders(self, prefix: str) -> list[str]:
        return self.around(prefix.rstrip("/"))[1]

    def delete(self, prefix: str) -> None:
        self._listed.clear()
        self._store.delete(prefix)

    def remove(self, key: str) -> None:
        self._listed.clear()
        self._store.remove(key)

    def _is_empty(self, folder: str) -> bool:
        """Return whether this check has found that no object exists below `folder`."""
        if folder in self._listed:
            return self._listed[folder] == ([], [])
        parent, _, name = folder.rpartition("/")
        return parent in self._listed and name not in self._listed[parent][1]
