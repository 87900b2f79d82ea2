"""Exports a job as event files of TensorBoard: a folder for the job, with a subfolder for each repeat, node
and process."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bai_agent.job.run_directory import read_json
from executor.errors import ExportError
from executor.export.facts import JobFacts, RunFacts, headline_key, place_of, steps_of, unique
from executor.records.points import OF_BENCHMARK, PointSeries, SeriesKey

_MARK = "bai-export.json"
"""File that marks a folder as made by an export, so that another export may replace the folder."""
_NOT_IN_A_TAG = re.compile(r"[^-/\w.]")
"""Characters that are replaced in tags. If TensorBoard's writer replaced these characters, two series might
get the same tag."""


def export_to_tensorboard(facts: JobFacts, folder: Path) -> Path:
    """Write a job's event files below `folder`; return the job's folder in `folder`. An earlier export of the
    job is replaced. Raises ExportError.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ExportError(
            f"the writer of event files is not installed ({error}); install it: pip install 'bai-agent[tensorboard]'"
        ) from error
    place = folder / facts.job.job.id
    try:
        if place.exists() and (read_json(place / _MARK) or {}).get("job_id") != facts.job.job.id:
            raise ExportError(
                f"{place} exists, but was not made by an export; name another folder, or move this folder away"
            )
        folder.mkdir(parents=True, exist_ok=True)
        # The new export is written elsewhere and then moved, so that a reader of the folder never sees an
        # incomplete export.
        with tempfile.TemporaryDirectory(
            prefix=f".{facts.job.job.id}.", dir=folder, ignore_cleanup_errors=True
        ) as draft:
            fresh = Path(draft) / "new"
            fresh.mkdir()
            _write(facts, fresh, SummaryWriter)
            (fresh / _MARK).write_text(json.dumps({"job_id": facts.job.job.id}) + "\n")
            if place.exists():
                place.rename(Path(draft) / "old")
            fresh.rename(place)
    except OSError as error:
        raise ExportError(f"{place} cannot be written: {error.strerror or error}") from error
    return place


def _write(facts: JobFacts, fresh: Path, writer_of: Any) -> None:
    for run in facts.runs:
        by_folder: dict[Path, list[PointSeries]] = {}
        headlines: dict[Path, list[PointSeries]] = {}
        for series in run.series:
            by_folder.setdefault(_folder(fresh, run, series.key), []).append(series)
            if series.key in run.headlines:
                headlines.setdefault(_folder(fresh, run, headline_key(series.key)), []).append(series)
        for folder in dict.fromkeys((*by_folder, *headlines)):
            writer = writer_of(logdir=str(folder))
            try:
                _write_run(writer, facts, run, by_folder.get(folder, []), headlines.get(folder, []))
            finally:
                writer.close()


def _write_run(
    writer: Any,
    facts: JobFacts,
    run: RunFacts,
    of_folder: Sequence[PointSeries],
    headlines: Sequence[PointSeries],
) -> None:
    moment = (run.started or 0) / 1000
    rows = {**run.parameters, **facts.tags, "outcome": run.outcome or "running"}
    if run.arm is not None:
        rows["arm"] = run.arm
    table = "".join(f"| {_cell(name)} | {_cell(value)} |\n" for name, value in rows.items())
    writer.add_text("job", f"{_cell(run.sentence)}\n\n| | |\n|---|---|\n{table}", walltime=moment)
    taken: set[str] = set()
    for series in headlines:
        tag = unique(f"headline/{_tag(series.key)}", taken)
        at = series.timestamps[-1] / 1000
        writer.add_scalar(tag, run.headlines[series.key], 0, walltime=at, summary_description=series.units)
    for series in of_folder:
        tag = unique(_tag(series.key), taken)
        points = zip(series.values, steps_of(series), series.timestamps, strict=True)
        for value, step, timestamp in points:
            writer.add_scalar(tag, value, step, walltime=timestamp / 1000, summary_description=series.units)


def _folder(fresh: Path, run: RunFacts, key: SeriesKey) -> Path:
    parts = [("arm", run.arm)] if run.arm is not None else []
    parts += [("repeat", str(run.repeat))] if run.repeat is not None else []
    folder = fresh
    for name, value in (*parts, *place_of(key)):
        folder /= re.sub(r"[^A-Za-z0-9_-]", "_", f"{name}-{value}")
    return folder


def _tag(key: SeriesKey) -> str:
    """Return the tag of a series; TensorBoard groups tags by the text before the first slash."""
    front = "" if key.src in OF_BENCHMARK else f"{key.src}/"
    behind = [re.sub(r"[^\w.-]", "_", f"{name}-{value}") for name, value in key.labels]
    return _NOT_IN_A_TAG.sub("_", front + "/".join([key.name or "_", *behind])).strip("/") or "_"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
