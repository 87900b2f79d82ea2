"""`extractor.offset`: the position at which a restarted extractor continues."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bai_agent.decode import checked
from bai_agent.errors import RecordError
from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.record_types import ProcessUsage
from bai_agent.job.run_directory import read_json, write_all
from bai_agent.light_dataclass import asdict, dataclass, field
from bai_agent.metrics.context import State
from bai_agent.metrics.follow import LogPosition
from bai_agent.metrics.records import Key
from bai_agent.metrics.tally import Tally

_VERSION = 2
_TRUNCATIONS = "generation"
"""Key under which older versions of bai saved a position's `truncations`."""


@dataclass(frozen=True, kw_only=True)
class ExtractionCheckpoint:
    """State of the extraction: positions in the logs, and the size (bytes) and number of records of `metrics.jsonl` when the logs
    had been searched up to these positions.

    metrics.jsonl can already contain records of later lines, because a restarted extractor extracts some lines again. `last`
    shows whether metrics.jsonl contains records of later lines.
    """

    size: int
    seq: int
    last: dict[str, Key]
    """The last record of each source in `metrics.jsonl`."""
    logs: dict[str, LogPosition]
    """Position in each log, by source."""
    emit: LogPosition
    tally: Tally
    sections: dict[str, list[int]] = field(default_factory=dict)
    """Open sections at the positions of `logs`, by source."""
    context: dict[str, State] = field(default_factory=dict)
    """Context from earlier lines at the positions of `logs`, by source."""
    own_usage: dict[str, Any] | None = None
    """Resources that the extraction had used by the time of the checkpoint."""


def write_checkpoint(path: Path, checkpoint: ExtractionCheckpoint) -> None:
    """Replace the file `path` atomically, but without fsync, because an fsync every second would slow down
    the benchmark's disk.

    After a power loss, an incomplete file is not accepted as a checkpoint.
    """
    table = asdict(checkpoint)
    for place in (*table["logs"].values(), table["emit"]):
        place[_TRUNCATIONS] = place.pop("truncations")
    content = json.dumps({"version": _VERSION, **table}).encode()
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)
    temporary.replace(path)


def read_checkpoint(path: Path, *, metrics: int, metrics_file: Path) -> ExtractionCheckpoint | None:
    """Return the checkpoint in `path` for a job with `metrics` metrics. Return None if the checkpoint does
    not match the existing files."""
    value = read_json(path)
    if value is None or value.get("version") != _VERSION:
        return None
    try:
        checkpoint = _read(value)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    try:
        size = metrics_file.stat().st_size
    except FileNotFoundError:
        size = 0
    return checkpoint if checkpoint.size <= size and len(checkpoint.tally.found) == metrics else None


def logs_done(path: Path) -> tuple[object, object]:
    """Return the positions in the logs from the checkpoint in `path`. The caller only compares the positions,
    and does not continue an extraction there."""
    value = read_json(path) or {}
    return value.get("logs"), value.get("emit")


def required_seen(path: Path, metrics: Sequence[Metric]) -> list[str]:
    """Return the names of the required metrics that had a value by the checkpoint in `path`."""
    tally = (read_json(path) or {}).get("tally")
    found = tally.get("found") if isinstance(tally, dict) else None
    if not isinstance(found, list) or len(found) != len(metrics):
        return []
    return [metric.name for metric, count in zip(metrics, found, strict=True) if metric.required and count]


def usage_so_far(path: Path) -> ProcessUsage | None:
    """Return the resources that the extraction had used at the checkpoint in `path`; None if the resources
    are not known."""
    try:
        return checked(ProcessUsage, (read_json(path) or {}).get("own_usage"), where=str(path))
    except RecordError:
        return None


def _read(value: dict[str, Any]) -> ExtractionCheckpoint:
    return ExtractionCheckpoint(
        size=value["size"],
        seq=value["seq"],
        last={src: Key(*key) for src, key in value["last"].items()},
        logs={src: _place(place) for src, place in value["logs"].items()},
        emit=_place(value["emit"]),
        tally=Tally(**value["tally"]),
        sections=value.get("sections", {}),
        context={
            src: {int(number): tuple(said) for number, said in state.items()}
            for src, state in value.get("context", {}).items()
        },
        own_usage=value.get("own_usage"),
    )


def _place(table: dict[str, Any]) -> LogPosition:
    known = {name: value for name, value in table.items() if name != _TRUNCATIONS}
    return LogPosition(truncations=table[_TRUNCATIONS], **known)
