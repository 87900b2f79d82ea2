"""How a job was asked for, kept in its record as `request.json`, so that the same can be asked for again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir
from bai_agent.job.store.directory import DirectoryStore
from executor.planning.request import JobRequest
from executor.planning.scripts_folder import ScriptsError, ScriptsOrigin

REQUEST = "request.json"
_PIECE = 2**20


def keep_request(
    record: JobRecord,
    job_request: JobRequest,
    scripts: ScriptsOrigin | None,
    *,
    leave_out: Sequence[Path] = (),
) -> None:
    """Write down what was asked for. What came through the service is not: its messages say it; nor what several files say together.

    scripts: what they are taken from; it may be an archive. Raises StoreError, ScriptsError.
    """
    # Whoever only looks at jobs on this machine loads this module, and nothing that reads descriptors.
    from executor.descriptor.overrides import recorded

    if job_request.service is not None or job_request.other_arms is not None:
        return
    content = job_request.content if job_request.content is not None else job_request.file.read_bytes()
    table = {
        "version": 1,
        "file": str(job_request.file.absolute()),
        "descriptor": content.decode(errors="replace"),
        "arguments": list(job_request.arguments),
        "set": recorded(job_request.overrides),
        "on": job_request.on,
        "script": _absolute(job_request.script),
        "data_root": _absolute(job_request.data_root),
        "scripts_sha256": scripts_digest(scripts, leave_out) if scripts is not None else None,
    }
    try:
        line = json.dumps(table, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return  # a path that is not UTF-8: the job runs, and cannot be asked for again by its id
    record.store.put(record.key(REQUEST), line)


def scripts_digest(origin: ScriptsOrigin, leave_out: Sequence[Path] = ()) -> str:
    """Return a sum over names and contents of all that goes along, the same for a folder and the job's copy of it. Raises ScriptsError."""
    total = hashlib.sha256()
    base = origin.path if origin.is_folder else origin.path.parent
    for file in origin.survey(leave_out=leave_out).files:
        name = Path(origin.member or "", file.path) if origin.is_folder else file.path
        total.update(str(name).encode(errors="surrogateescape") + b"\0")
        if file.link is not None:
            total.update(b"l" + file.link.encode(errors="surrogateescape") + b"\0")
            continue
        total.update(_sum_of(base / file.path))
    return total.hexdigest()


def kept_scripts(record: JobRecord, *, nodes: int = 1, arm: str | None = None) -> Path:
    """Return where the copy of a job's scripts is, of a job in a folder.

    That is where the agent of its one node uses them, so that there is one copy. Several nodes take theirs from one that none of
    them uses: what a node puts beside its scripts, its data among it, is not the others'. arm: whose scripts, where arms have their own.
    """
    assert isinstance(record.store, DirectoryStore)
    first = RunDir(record.store.folder / record.node().place, arm)
    return first.scripts if nodes == 1 else RunDir(first.path.parents[1], arm).scripts


def _sum_of(path: Path) -> bytes:
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    except OSError as error:
        raise ScriptsError(
            f"{path}: cannot be read: {error.strerror}; the scripts have to be readable"
        ) from error
    return found.digest()


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
