"""Writes a report for other programs: all values of the report as JSON or CSV, without downsampling."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from typing import IO, Any

from bai_agent.job.descriptor_file import job_table
from bai_agent.job.record_types import as_table
from executor.documents.text import spreadsheet_cell
from executor.records.generations import change_seconds
from executor.report.contents import MetricPart, Report
from executor.report.lines import Line
from executor.report.words import cost_of, headlines_of

_HEADS = (
    "src",
    "name",
    "labels",
    "rank",
    "process_rank",
    "arm",
    "repeat",
    "timestamp",
    "step",
    "value",
    "units",
    "generation",
)


def write_json(report: Report, stream: IO[str]) -> None:
    """Write the report as one JSON object, with figures and all points in columns."""
    for piece in json.JSONEncoder(ensure_ascii=True).iterencode(_table(report)):
        stream.write(piece)
    stream.write("\n")


def write_csv(report: Report, stream: IO[str]) -> None:
    """Write all values of all metrics and of the machines' samples as CSV, one value per line. Times are ms
    UTC."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_HEADS)
    for part in (*report.metrics, *report.host):
        for line in part.lines:
            writer.writerows(_rows(line))


def _rows(line: Line) -> Iterator[tuple[object, ...]]:
    key, points = line.points.key, line.points
    labels = ",".join(f"{name}={value}" for name, value in key.labels)
    texts = (key.src, key.name, labels, key.rank, key.process_rank, key.arm)
    head = [spreadsheet_cell(text or "") for text in texts]
    units = spreadsheet_cell(points.units)
    for index, (time, value) in enumerate(zip(points.timestamps, points.values, strict=True)):
        step = points.steps[index] if points.steps is not None else math.nan
        yield (*head, key.repeat, time, "" if math.isnan(step) else step, value, units, key.generation)


def _table(report: Report) -> dict[str, Any]:
    result = report.result
    return {
        "version": 1,
        "job_id": report.job.job.id,
        "created": report.created,
        "bai": report.version,
        "job": job_table(report.job),
        "result": as_table(result) if result is not None else None,
        "nodes": [as_table(each) for each in report.outcomes],
        "timeline": [
            {
                "rank": lane.rank,
                "phases": [{"phase": bar.phase, "start": bar.start, "end": bar.end} for bar in lane.bars],
            }
            for lane in report.lanes
        ],
        "generations": [as_table(each) for each in report.generations],
        "seconds_between_generations": change_seconds(report.generations),
        "cost": cost_of(report),
        "warnings": report.warnings,
        "environments": [each.as_table() for each in report.environments],
        "records": {
            "count": report.points.records,
            "late": report.points.late,
            "malformed": report.points.malformed.count,
        },
        "unseen": report.unseen,
        "facts": {
            name: [{"label": label, "value": value, "units": units} for label, value, units in found]
            for name, found in report.facts.items()
        },
        "metrics": [_part(part, report.failed) for part in report.metrics],
        "over_runs": [each.as_table() for each in report.over_runs],
        "comparison": [each.as_table() for each in report.compared],
        "host": [_part(part, frozenset()) for part in report.host],
    }


def _part(part: MetricPart, failed: frozenset[int]) -> dict[str, Any]:
    headlines = headlines_of(part, failed)
    single = headlines[0] if len(headlines) == 1 else None
    return {
        "name": part.name,
        "units": part.units,
        "headline": single.headline.value if single is not None else None,
        "headline_of": single.of if single is not None else None,
        "headlines": [
            {
                "labels": dict(each.headline.labels),
                "arm": each.headline.arm,
                "value": each.headline.value,
                "of": each.of,
            }
            for each in headlines
        ],
        "series": [_series(line, failed) for line in part.lines],
    }


def _series(line: Line, failed: frozenset[int]) -> dict[str, Any]:
    key, points = line.points.key, line.points
    steps = points.steps
    return {
        "src": key.src,
        "labels": dict(key.labels),
        "rank": key.rank,
        "process_rank": key.process_rank,
        "arm": key.arm,
        "repeat": key.repeat,
        "generation": key.generation,
        "superseded": line.superseded,
        "failed": key.repeat in failed,
        "left_out": line.left_out,
        "figures": line.figures.as_table() if line.figures is not None else None,
        "headline": line.headline,
        "unsteady": line.unsteady,
        "timestamps": points.timestamps.tolist(),
        "values": points.values.tolist(),
        "steps": None if steps is None else [None if math.isnan(each) else each for each in steps],
    }
