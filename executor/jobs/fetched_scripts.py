"""The scripts that a job on other machines ran, brought back to this one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from bai_agent.errors import PullError, StoreError
from bai_agent.job.descriptor import Source, SourceKind
from bai_agent.job.store import JobStore
from bai_agent.pull.journal import file_journal, folder_journal
from bai_agent.pull.sources import pull

_SECONDS = 600.0
"""For the whole of it."""
_PIECE = 8 << 20


def fetch_scripts(source: Source, folder: Path, *, open_store: Callable[[str], JobStore]) -> Path:
    """Bring the scripts of `source`, an object in a bucket, into the empty `folder`; return where they are.

    They are pulled as an agent does it: checked against their SHA-256, and nothing leaves the folder.
    open_store: opens the store at an address of the bucket. Raises StoreError, PullError.
    """
    if source.sha256 is None or source.size is None:
        raise PullError(f"{source.src}: the job's record lacks its checksum or its size")
    if PurePosixPath(source.path).is_absolute():
        raise PullError(f'{source.src}: its path "{source.path}" leads out of the scripts\' folder')
    deadline = time.monotonic() + _SECONDS
    archive, scripts = folder / "archive", folder / "scripts"
    try:
        _download(source, archive, open_store=open_store, deadline=deadline)
        pull(
            [replace(source, src=archive.as_uri(), region=None, arm=None)],
            folders={SourceKind.SCRIPTS: scripts},
            manifest=folder / "pulled.json",
            deadline=deadline,
            report=lambda progress: None,
            stopping=lambda: False,
        )
        archive.unlink()
        # What a pull leaves beside what it has brought is none of the scripts.
        for record in (folder_journal, file_journal):
            with suppress(FileNotFoundError, NotADirectoryError):
                record(scripts / source.path).unlink()
    except OSError as error:
        raise PullError(f"{error.filename or folder}: {error.strerror}") from error
    return scripts


def _download(
    source: Source, archive: Path, *, open_store: Callable[[str], JobStore], deadline: float
) -> None:
    place, _, key = source.src.rpartition("/")
    store = open_store(place)
    most, written = source.size or 0, 0
    with archive.open("xb") as file:
        os.fchmod(file.fileno(), 0o600)
        while True:
            if time.monotonic() > deadline:
                raise StoreError(f"{source.src}: did not arrive within {_SECONDS:g} s")
            piece = store.get(key, start=written, limit=_PIECE)
            file.write(piece)
            written += len(piece)
            # Whoever may write to the bucket could make it as large as they like.
            if written > most:
                raise PullError(f"{source.src}: is larger than the {most:,} bytes that the job used")
            if len(piece) < _PIECE:
                return
