"""Copies a job from its store into a folder of this machine. Existing files are not overwritten. If a copy
was interrupted, the next `bai fetch` continues it.

```
DIR/  job.toml  result.json  artifacts/…
      nodes/<rank>/  extracts/<number>/…  output.log  metrics.jsonl  events.jsonl  ready.json  environment.json  result.json
```
If the job has more than one attempt, each `nodes` folder is in `attempts/<n>`. A checkpoint is copied into a
folder with the checkpoint's name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bai_agent.files.new_files import draft_beside, place_new
from bai_agent.generations.checkpoint_marker import CheckpointFile, CheckpointMarker, CheckpointRecord
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import JobRecord, NodeRecord, Stream
from bai_agent.job.store import StoredObject, check_key
from bai_agent.light_dataclass import dataclass
from executor.errors import JobFetchError, UsageError
from executor.jobs.extract import complete_sets, stream_of
from executor.planning.job_toml import shown_job_toml
from executor.planning.scripts_folder import content_digest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PIECE = 8 << 20
_COMPARED = 65536
"""Number of bytes at the end of a copied stream that must equal the stream in the store before more content
is appended."""

_STREAMS: dict[Stream, str] = {"log": "output.log", "metrics": "metrics.jsonl", "events": "events.jsonl"}
_OBJECTS = ("ready.json", "environment.json", "result.json")
_AGENT_LOG = "agent.log"
"""Name of the agent's log, which grows while a job runs on this machine."""


@dataclass(frozen=True)
class Fetched:
    """A file that was copied or extended, and the number of copied bytes."""

    path: Path
    bytes: int


def fetch_job(record: JobRecord, folder: Path) -> Iterator[Fetched]:
    """Copy everything that the store has of a job into `folder`; yield each copied file. Raises StoreError,
    FetchError, UsageError. An existing file with other content causes an error, and is not replaced.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror}; name a folder that can") from error
    try:
        yield from _fetched(record, folder)
    except OSError as error:
        raise JobFetchError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error


def _fetched(record: JobRecord, folder: Path) -> Iterator[Fetched]:
    # The descriptor is copied first, so that it shows which job this folder contains even if the copy is
    # interrupted early.
    _check_owner(record, folder)
    descriptor = record.key("job.toml")
    for each in record.store.find(descriptor):
        if each.key == descriptor and (came := _write_descriptor(record, _place(folder, "job.toml"))):
            yield came
    wanted: list[tuple[str, list[StoredObject]]] = []
    attempts = record.store.folders(record.key("attempts/"))
    for node in record.nodes():
        place = f"{'' if len(attempts) == 1 else f'attempts/{node.attempt}/'}nodes/{node.rank}"
        streams, objects = dict(_STREAMS), list(_OBJECTS)
        for number in complete_sets(node):
            streams[stream_of(number)] = f"extracts/{number}/metrics.jsonl"
            objects += [f"extracts/{number}/job.toml", f"extracts/{number}/extracted.json"]
        for stream, name in streams.items():
            path = _place(folder, f"{place}/{name}")
            if (came := _follow(node, stream, path)) is not None:
                yield came
        for each in record.store.find(node.key(_AGENT_LOG)):
            if came := _grow(
                _place(folder, f"{place}/{_AGENT_LOG}"), each.size, partial(_get, record, each.key)
            ):
                yield came
        wanted += [(f"{place}/{name}", record.store.find(node.key(name))) for name in objects]
    artifacts = record.key("artifacts/")
    wanted += [
        (f"artifacts/{each.key.removeprefix(artifacts)}", [each]) for each in record.store.find(artifacts)
    ]
    # The result is copied last, so that a folder with a result is complete.
    wanted.append(("result.json", record.store.find(record.key("result.json"))))
    for name, found in wanted:
        for each in found[:1]:
            if each.key.endswith(name.rpartition("/")[2]) and (
                came := _copy(record, each, _place(folder, name))
            ):
                yield came


def fetch_checkpoint(record: JobRecord, folder: Path) -> Iterator[Fetched]:
    """Copy the newest complete checkpoint of a job into `folder`, as a folder with the checkpoint's name;
    yield each copied file.

    Raises StoreError, DescriptorError, JobFetchError.
    """
    checkpoints = CheckpointRecord(AttemptRecord(record, record.job().job.attempt))
    marker = checkpoints.newest_whole()
    if marker is None:
        raise JobFetchError(f"{record.job_id}: the job has no checkpoint")
    try:
        for place, file in enumerate(marker.files):
            path = _place(folder, f"{marker.name}/{file.name}")
            if (came := _bring(checkpoints, marker, place, file, path)) is not None:
                yield came
    except OSError as error:
        raise JobFetchError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error


def _bring(
    checkpoints: CheckpointRecord, marker: CheckpointMarker, place: int, file: CheckpointFile, path: Path
) -> Fetched | None:
    if file.link is not None:
        if not path.is_symlink() and not path.exists():
            path.symlink_to(file.link)
        elif not path.is_symlink() or str(path.readlink()) != file.link:
            raise _in_the_way(path)
        return None
    item = StoredObject(checkpoints.file_key(marker, place), file.size)
    came = _copy(checkpoints.attempt.job, item, path)
    with path.open("rb") as content:
        is_intact = content_digest(content).hex() == file.sha256
    if not is_intact:
        if came is None:
            raise _in_the_way(path)
        path.unlink()
        raise JobFetchError(f"{path}: {marker.name} was overwritten while it was fetched; fetch it again")
    return came


def _check_owner(record: JobRecord, folder: Path) -> None:
    """Raise UsageError if `folder` contains another job, FetchError if `folder` contains unknown files."""
    path = folder / "job.toml"
    if not path.exists() and not path.is_symlink():
        return
    try:
        owner = tomllib.loads(path.read_text(encoding="utf-8"))["job"]["id"]
    except (ValueError, KeyError, TypeError) as error:
        raise _in_the_way(path) from error
    if owner != record.job_id:
        raise UsageError(f"{folder}: holds the job {owner}; fetch {record.job_id} into another folder")


def _place(folder: Path, name: str) -> Path:
    """Return the path for `name`, always below `folder`."""
    path = folder.joinpath(*check_key(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise JobFetchError(f"{path}: leads out of {folder} through a link; fetch into another folder")
    return path


def _follow(node: NodeRecord, stream: Stream, path: Path) -> Fetched | None:
    """Append the missing part of a stream to `path`."""

    def read(position: int, limit: int) -> bytes:
        return node.read(stream, position, limit=limit)

    return _grow(path, node.size(stream), read)


def _get(record: JobRecord, key: str, position: int, limit: int) -> bytes:
    return record.store.get(key, start=position, limit=limit)


def _grow(path: Path, there: int, read: Callable[[int, int], bytes]) -> Fetched | None:
    """Append the missing part to `path`. there: size of the whole stream (bytes). read: `read(position,
    limit)` returns a part of the stream."""
    if not there:
        return None
    here = path.stat().st_size if path.exists() else 0
    start = max(0, here - _COMPARED)
    if here > there or (here and _read(path, start) != b"".join(_pieces(read, start, here))):
        raise _in_the_way(path)
    if path.exists() and here == there:
        return None
    with path.open("ab") as file:
        for piece in _pieces(read, here, there):
            file.write(piece)
        return Fetched(path, file.tell() - here)


def _pieces(read: Callable[[int, int], bytes], position: int, end: int) -> Iterator[bytes]:
    """Yield the requested part of a stream from all objects that contain it. Stop early at the end of the
    stream."""
    while position < end and (piece := read(position, min(_PIECE, end - position))):
        yield piece
        position += len(piece)


def _write_descriptor(record: JobRecord, path: Path) -> Fetched | None:
    """Write the job descriptor without secrets. The file gets its final name only when it is complete."""
    content = shown_job_toml(record).encode()
    if path.is_symlink() or path.exists():
        if path.is_file() and path.read_bytes() == content:
            return None
        raise _in_the_way(path)
    part = draft_beside(path, ".part")
    part.write_bytes(content)
    try:
        place_new(part, path)
    except FileExistsError:
        raise _in_the_way(path) from None
    return Fetched(path, len(content))


def _copy(record: JobRecord, item: StoredObject, path: Path) -> Fetched | None:
    """Copy one object. The copied file gets its final name only when the copy is complete."""
    if path.is_symlink() or path.exists():
        if path.is_file() and path.stat().st_size == item.size:
            return None
        raise _in_the_way(path)
    part = draft_beside(path, ".part")
    if part.exists() and part.stat().st_size > item.size:
        part.unlink()
    with part.open("ab") as file:
        begun = position = file.tell()
        while position < item.size:
            piece = record.store.get(item.key, start=position, limit=_PIECE)
            if not piece:
                raise JobFetchError(f"{path}: {item.key} became shorter while it was fetched; fetch it again")
            file.write(piece)
            position += len(piece)
    try:
        place_new(part, path)
    except FileExistsError:
        raise _in_the_way(path) from None
    return Fetched(path, position - begun)


def _in_the_way(path: Path) -> JobFetchError:
    return JobFetchError(
        f"{path}: exists already with other content, and nothing is overwritten; move this file away or fetch into another folder"
    )


def _read(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read()
