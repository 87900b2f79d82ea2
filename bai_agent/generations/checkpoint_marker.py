"""Checkpoints in a job's record: `signs/checkpoint-<g>-<k>.json` says that the k-th checkpoint of generation
g is complete.

The files of a checkpoint are `nodes/<n>/checkpoint/<slot>/<place>`, where `place` is a file's place in the
marker's list. A node overwrites the oldest of its three slots, so the node needs no more space than its three
largest checkpoints together. The marker is written after the files, and only once. A checkpoint without a
marker is ignored. If a checkpoint's files were overwritten later, their checksums differ from those in the
marker.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Annotated, TypeAlias

from bai_agent.decode import Rule, checked
from bai_agent.errors import RecordError, StoreError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record_types import Count, Moment, Seconds, Text
from bai_agent.light_dataclass import asdict, dataclass

SLOTS = 3
"""Number of checkpoints of a node whose files are stored. With three slots, a node's newest two checkpoints
are complete while the next checkpoint is written."""
MOST_FILES = 50_000
"""Maximum number of files in a checkpoint, because the marker that names them is read as one object."""
_LOOKED_AT = 64
"""How many of the newest markers are read, to find a node's last checkpoint or the checkpoint for a new
generation."""
_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]{0,5})-(0|[1-9][0-9]{0,5})", re.ASCII)
_SUM = re.compile(r"[0-9a-f]{64}")

CheckpointNumber: TypeAlias = tuple[int, int]
"""Generation, and number of the checkpoint in that generation, from 0. Numbers of later checkpoints are
greater."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """A file of a checkpoint, or a symbolic link to another file."""

    name: Text
    """Path below the checkpoint's folder. Bytes of the path that are not UTF-8 are represented by lone
    surrogates."""
    size: Count = 0
    sha256: Text | None = None
    """SHA-256 of the file's content. None for a symbolic link."""
    link: Text | None = None
    """Target of a symbolic link, relative and within the folder."""


@dataclass(frozen=True, kw_only=True)
class CheckpointMarker:
    """Marker of a complete checkpoint."""

    generation: Count
    number: Count
    """The checkpoint's number among the checkpoints of the generation, from 0."""
    node: Count
    """Number of the node that wrote the checkpoint."""
    slot: Annotated[int, Rule("a slot", 0, SLOTS)]
    files: Annotated[list[CheckpointFile], Rule("a list of files")]
    time: Moment
    """Time at which the checkpoint's files were captured (ms UTC)."""
    seconds: Seconds = 0.0
    """Duration of the checkpoint's upload."""

    @property
    def at(self) -> CheckpointNumber:
        return self.generation, self.number

    @property
    def name(self) -> str:
        """The checkpoint's name in `BAI_RESUMED` and in messages, such as "checkpoint-1-3"."""
        return checkpoint_name(self.at)

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.files)


def checkpoint_name(at: CheckpointNumber) -> str:
    return f"checkpoint-{at[0]}-{at[1]}"


def checkpoint_number(name: str) -> CheckpointNumber | None:
    """Return the generation and number in a name that `checkpoint_name` made; None for other names."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True)
class CheckpointRecord:
    """The checkpoints of one attempt of a job. Each call queries the store (without a cache). Raises
    StoreError."""

    attempt: AttemptRecord

    def numbers(self) -> list[CheckpointNumber]:
        """Return the numbers of all complete checkpoints, newest first."""
        found = self.attempt.job.store.find(self.attempt.key("signs/checkpoint-"))
        names = (each.key.rpartition("/")[2] for each in found)
        numbers = (checkpoint_number(name.removesuffix(".json")) for name in names if name.endswith(".json"))
        return sorted((at for at in numbers if at is not None), reverse=True)

    def marker(self, at: CheckpointNumber) -> CheckpointMarker:
        """Return the marker of a checkpoint that `numbers` listed. Raises RecordError if the marker is
        malformed."""
        key = self._key(at)
        where = f"{self.attempt.job.store.url}/{key}"
        found = self.attempt.job.read_listed(key)
        if found is None:
            raise RecordError(f"{where} is gone")
        return read_marker(found, at, where=where)

    def markers(self, *, before: CheckpointNumber | None = None) -> Iterator[CheckpointMarker]:
        """Yield the markers of the checkpoints before the checkpoint `before`, or of all checkpoints, newest
        first. Malformed markers are left out."""
        for at in self.numbers():
            if before is None or at < before:
                try:
                    yield self.marker(at)
                except RecordError:
                    continue

    def newest(
        self, *, before: int, since: int = 0, base: CheckpointNumber | None = None
    ) -> CheckpointMarker | None:
        """Return the checkpoint from which the generation `before` continues.

        The result is the newest checkpoint of the generation `since` and later generations. If there is none,
        the result is `base`, the checkpoint with which the generation `since` began. A lost node may still
        write checkpoints of a generation before `since`. Such checkpoints are ignored.
        """
        for each in self.markers(before=(before, 0)):
            if each.generation >= since or each.at == base:
                return each
        return None

    def newest_whole(self) -> CheckpointMarker | None:
        """Return the newest checkpoint whose files are all in the store; None if no checkpoint is
        complete."""
        return next((each for each in self.markers() if self.has_files(each)), None)

    def next_number(self, generation: int) -> CheckpointNumber:
        """Return the number of the generation's next checkpoint."""
        return generation, max((number for of, number in self.numbers() if of == generation), default=-1) + 1

    def next_slot(self, node: int) -> int:
        """Return the slot that a node's next checkpoint overwrites. The slot is the one after the slot of the
        node's newest checkpoint; after the last slot comes the first."""
        for each in islice(self.markers(), _LOOKED_AT):
            if each.node == node:
                return (each.slot + 1) % SLOTS
        return 0

    def folder(self, marker: CheckpointMarker) -> str:
        """Return the key prefix of a checkpoint's files, which ends with a slash."""
        return self.attempt.key(f"nodes/{marker.node}/checkpoint/{marker.slot}/")

    def file_key(self, marker: CheckpointMarker, place: int) -> str:
        return f"{self.folder(marker)}{place:06}"

    def has_files(self, marker: CheckpointMarker) -> bool:
        """Return whether the checkpoint's files are in the store and have the right sizes. Checksums are not
        compared."""
        sizes = {each.key: each.size for each in self.attempt.job.store.find(self.folder(marker))}
        return all(
            sizes.get(self.file_key(marker, place)) == each.size
            for place, each in enumerate(marker.files)
            if each.link is None
        )

    def write(self, marker: CheckpointMarker) -> bool:
        """Publish a checkpoint whose files are complete. Return False if another checkpoint already has the
        same number."""
        job, key, content = self.attempt.job, self._key(marker.at), marker_bytes(marker)
        if job.store.put(key, content, if_absent=True):
            return True
        # The existing object is possibly this marker, written by an earlier try whose answer was lost. If
        # there is no object, the store's answer was wrong, and the caller tries again.
        found = job.read_object(key)
        if found is None:
            raise StoreError(f"{job.store.url}/{key} was not stored")
        return bool(found == json.loads(content))

    def _key(self, at: CheckpointNumber) -> str:
        return self.attempt.key(f"signs/{checkpoint_name(at)}.json")


def marker_bytes(marker: CheckpointMarker) -> bytes:
    """Return the content of a marker's object."""
    # The JSON is ASCII, because a file name that is not UTF-8 has lone surrogates.
    return json.dumps(asdict(marker)).encode("ascii") + b"\n"


def marker_digest(marker: CheckpointMarker) -> str:
    """Return the checksum of a marker, which contains the checkpoint's number and the names and checksums of
    the checkpoint's files."""
    return hashlib.sha256(marker_bytes(marker)).hexdigest()


def read_marker(table: object, at: CheckpointNumber, *, where: str) -> CheckpointMarker:
    """Return the marker of the checkpoint `at`. table: the parsed content of the marker's object. Raises
    RecordError."""
    marker = checked(CheckpointMarker, table, where=where)
    if marker.at != at:
        raise RecordError(f"{where}: it is of {marker.name}, another checkpoint; the marker is not used")
    names = {each.name for each in marker.files}
    if len(names) < len(marker.files):
        raise RecordError(f"{where}: it lists the same name twice; the marker is not used")
    for each in marker.files:
        if (problem := _problem(each, names)) is not None:
            raise RecordError(f"{where}: {each.name!r} {problem}; the marker is not used")
    return marker


def _problem(file: CheckpointFile, names: Collection[str]) -> str | None:
    """Return what is wrong with a file that a marker lists; None if nothing is wrong. names: the names of all
    files in the marker."""
    if not is_below(file.name):
        return "is not a file name"
    if any(folder in names for folder in _parents(file.name)):
        return "is in a file"
    if file.link is not None:
        return None if leads_inside(file.name, file.link) else "leads out of the folder"
    return None if file.sha256 is not None and _SUM.fullmatch(file.sha256) else "has no checksum"


def is_below(name: str) -> bool:
    """Return whether a name is a relative path without empty, "." and ".." parts."""
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def leads_inside(name: str, target: str) -> bool:
    """Return whether the symbolic link `name` to `target` leads to a name in the checkpoint's folder."""
    up = 0
    parts = target.split("/")
    while up < len(parts) and parts[up] == "..":
        up += 1
    # Only leading ".." are accepted, because a ".." after the name of a symbolic link would lead to the
    # parent of the link's target.
    return up <= name.count("/") and is_below("/".join(parts[up:]))


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
