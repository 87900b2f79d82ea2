"""`extractor.offset`: how far the extractor has come, so that a restarted one need not begin at the start."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bai_agent.job.run_directory import read_json, write_all
from bai_agent.metrics.context import State
from bai_agent.metrics.follow import LogPosition
from bai_agent.metrics.records import Key
from bai_agent.metrics.tally import Tally

_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When all logs were done up to these places, `metrics.jsonl` had `size` bytes and `seq` records.

    It may have held records from beyond the places already, when a restart was catching up: `last` tells.
    """

    size: int
    seq: int
    last: dict[str, Key]
    """The last record of each source."""
    logs: dict[str, LogPosition]
    """By source: what was printed."""
    emit: LogPosition
    tally: Tally
    sections: dict[str, list[int]] = field(default_factory=dict)
    """By source of `logs`: the sections that are open there."""
    context: dict[str, State] = field(default_factory=dict)
    """By source of `logs`: what earlier lines said about later ones there."""
    own_usage: dict[str, Any] | None = None
    """What the extraction had taken of the machine by then."""


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace `path` atomically. Not synced: that would cost the benchmark's disk something each second.

    What a power loss leaves of it is either whole or not read as a checkpoint.
    """
    content = json.dumps({"version": _VERSION, **asdict(checkpoint)}).encode()
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)
    temporary.replace(path)


def read_checkpoint(path: Path, *, metrics: int, metrics_file: Path) -> Checkpoint | None:
    """Return the checkpoint in `path` for a job of so many `metrics`; None where it does not fit what is there."""
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
    """Return up to where, by the checkpoint in `path`, all logs are done; to be compared, nothing else."""
    value = read_json(path) or {}
    return value.get("logs"), value.get("emit")


def usage_so_far(path: Path) -> dict[str, Any] | None:
    """Return what the extraction had taken of the machine when the checkpoint in `path` was written; None where that is not known."""
    return (read_json(path) or {}).get("own_usage")


def _read(value: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        size=value["size"],
        seq=value["seq"],
        last={src: Key(*key) for src, key in value["last"].items()},
        logs={src: LogPosition(**place) for src, place in value["logs"].items()},
        emit=LogPosition(**value["emit"]),
        tally=Tally(**value["tally"]),
        sections=value.get("sections", {}),
        context={
            src: {int(number): tuple(said) for number, said in state.items()}
            for src, state in value.get("context", {}).items()
        },
        own_usage=value.get("own_usage"),
    )
