"""`results.jsonl`: the values from the result files. The journal is durable before the first record of its
values is written.

Result files may change or disappear while an extractor is killed and restarted. The restarted extractor
continues with this journal. Each line of the journal is a batch of values of one file: `{"results", "file",
"repeat", "first", "values"}`, each value `[name, value, units, more, time]`. The last line of the journal is the summary
`{"time", "found", "unread", "warnings"}`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bai_agent.job.run_directory import write_all
from bai_agent.light_dataclass import dataclass, field
from bai_agent.metrics.records import Value

Item = tuple[str, str, str, str, int]
"""Name, value as JSON, units, further members of its record, and the time of measurement or reading (ms UTC)."""


class FileBatch(NamedTuple):
    """Consecutive values of one result file, to be written to the journal."""

    table: int
    """Index of the `[[results]]` table to which the file belongs."""
    file: int
    """Number of the result file among those result files that have values."""
    repeat: int | None
    """Run of a `[repeat]` job that wrote the file."""
    first: int
    """Number of the first value in the file."""
    values: list[Item]


@dataclass(frozen=True)
class FileValues:
    """Consecutive values of one result file, as the journal contains them."""

    file: int
    """Number of the result file among those result files that have values."""
    repeat: int | None
    """Run of a `[repeat]` job that wrote the file."""
    values: list[Value]


@dataclass(kw_only=True)
class Total:
    """Summary of the values in all result files."""

    time: int
    """Time at which reading started (ms UTC)."""
    found: list[int]
    """Number of values of each `[[results]]` table, by the table's index."""
    unread: list[int] = field(default_factory=list)
    """Indexes of the `[[results]]` tables whose files were not read in time."""
    warnings: list[str] = field(default_factory=list)


class NoteWriter:
    """Writes the journal under a temporary name. `publish` gives the journal its final name. Each method can
    be called again after an OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.tmp")
        self._descriptor = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = 0

    def add(self, batch: FileBatch) -> None:
        members = batch._asdict()
        self._append({"results": members.pop("table"), **members})

    def publish(self, total: Total) -> None:
        self._append(vars(total))
        os.fsync(self._descriptor)
        self._draft.replace(self._path)

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, line: dict[str, Any]) -> None:
        content = json.dumps(line).encode("ascii") + b"\n"
        try:
            write_all(self._descriptor, content)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, self._size, os.SEEK_SET)
            raise
        self._size += len(content)


def read_note(path: Path) -> Iterator[FileValues | Total]:
    """Yield the batches of a journal, and at the end the summary."""
    with path.open("rb") as file:
        for line in file:
            said = json.loads(line)
            if "values" not in said:
                yield Total(**said)
                return
            yield FileValues(
                said["file"],
                said["repeat"],
                [
                    Value(i, name, value, units, more, time)
                    for i, (name, value, units, more, time) in enumerate(said["values"], said["first"])
                ],
            )
