"""The times of commands in the forms that hyperfine writes, so that what reads those reads these."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor.analysis.timing import CommandTimes


@dataclass(frozen=True, kw_only=True)
class ExportedTimes:
    """One command, what it was made of, and its times."""

    command: str
    parameters: Mapping[str, str]
    times: CommandTimes


def as_json(every: Sequence[ExportedTimes], *, job_id: str) -> str:
    """Return hyperfine's `--export-json`, with the job's id beside its results. Times are in seconds, memory in bytes."""
    return json.dumps({"results": [_table(each) for each in every], "job_id": job_id}, indent=2) + "\n"


def as_csv(every: Sequence[ExportedTimes]) -> str:
    """Return hyperfine's `--export-csv`: one line for each command, times in seconds."""
    names = list(every[0].parameters) if every else []
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    figures = ["mean", "stddev", "median", "user", "system", "min", "max"]
    writer.writerow(["command", *figures, *(f"parameter_{name}" for name in names)])
    for each in every:
        table = _table(each)
        values = [table[name] if table[name] is not None else 0.0 for name in figures]
        writer.writerow([each.command, *values, *(each.parameters[name] for name in names)])
    return stream.getvalue()


def as_markdown(every: Sequence[ExportedTimes]) -> str:
    """Return a table like hyperfine's `--export-markdown`, in milliseconds or seconds, relative to the first command."""
    in_seconds = any(each.times.mean >= 1 for each in every)
    factor, unit = (1.0, "s") if in_seconds else (1e3, "ms")
    lines = [
        f"| Command | Mean [{unit}] | Min [{unit}] | Max [{unit}] | Relative |",
        "|:---|---:|---:|---:|---:|",
    ]
    for each in every:
        times, first = each.times, every[0].times
        # ± is the standard deviation, as in hyperfine's own table.
        mean = f"{times.mean * factor:.3f}" + (
            f" ± {times.deviation * factor:.3f}" if times.deviation is not None else ""
        )
        lines.append(
            f"| `{_escaped(each.command)}` | {mean} | {min(times.walls) * factor:.3f} | {max(times.walls) * factor:.3f} "
            f"| {times.mean / first.mean:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _table(each: ExportedTimes) -> dict[str, Any]:
    times = each.times
    return {
        "command": each.command,
        "mean": times.mean,
        "stddev": times.deviation,
        "median": times.median,
        "user": times.user,
        "system": times.system,
        "min": min(times.walls),
        "max": max(times.walls),
        "times": list(times.walls),
        "memory_usage_byte": list(times.memory),
        "exit_codes": list(times.exit_codes),
        **({"parameters": dict(each.parameters)} if each.parameters else {}),
    }
