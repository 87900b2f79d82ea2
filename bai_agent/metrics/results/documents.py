"""Reads files that are one JSON document."""

from __future__ import annotations

import io
import json
from typing import Any

from bai_agent.job.descriptor import ResultFormat, Results
from bai_agent.job.star_path import differing_keys, read_star_path
from bai_agent.metrics.results import lines, tools
from bai_agent.metrics.results.measured import Found, Measured, Problem, WrongFormatError

DOCUMENT_LIMIT = 16 * 2**20
"""Bytes of a JSON document: all of it is in memory at once, several times as large."""
LINES_LIMIT = 256 * 2**20
"""Bytes of a file that is read line by line."""

_TOOLS = {
    ResultFormat.HYPERFINE: tools.hyperfine,
    ResultFormat.GOOGLE_BENCHMARK: tools.google_benchmark,
    ResultFormat.PYTEST_BENCHMARK: tools.pytest_benchmark,
    ResultFormat.BMF: tools.bmf,
    ResultFormat.JMH: tools.jmh,
}


def size_limit(table: Results) -> int:
    """Return how large a file of this kind may be."""
    return LINES_LIMIT if table.format in (ResultFormat.CSV, ResultFormat.MLLOG) else DOCUMENT_LIMIT


def values_in(file: io.BufferedReader, table: Results) -> Found:
    """Yield what the file holds, in its order. Raises WrongFormatError, OSError."""
    if table.format is ResultFormat.CSV:
        yield from lines.csv_rows(file, table)
    elif table.format is ResultFormat.MLLOG:
        yield from lines.mllog(file)
    elif table.format is ResultFormat.JSON:
        yield from _by_path(_document(file), table)
    else:
        yield from _TOOLS[table.format](_document(file))


def _document(file: io.BufferedReader) -> Any:
    try:
        return json.loads(file.read(DOCUMENT_LIMIT))
    except (ValueError, RecursionError) as error:
        said = f": {error}" if isinstance(error, json.JSONDecodeError) else ""
        raise WrongFormatError(f"it is not a whole JSON document{said}") from error


def _by_path(document: Any, table: Results) -> Found:
    paths = [read_star_path(text) for text in table.values]
    # Names from the document tell by themselves what a value is.
    differing = differing_keys(paths) if table.name_from is None else [""] * len(paths)
    for text, path, keys in zip(table.values, paths, differing, strict=True):
        found = False
        for picks, value in path.find(document):
            found = True
            members = [key for key in picks if isinstance(key, str)] if table.name_from is None else []
            members += [keys] if keys else []
            labels = {"member": ".".join(members)} if members else {}
            labels |= {
                name: read_star_path(place).pick(document, picks) for name, place in table.labels.items()
            }
            name, units, step = (
                read_star_path(place).pick(document, picks) if place is not None else None
                for place in (table.name_from, table.units_from, table.step)
            )
            yield Measured(
                (table.name or path.name) if table.name_from is None else name,
                value,
                table.units if table.units_from is None else units,
                labels,
                step,
            )
        if not found:
            yield Problem(f'has nothing at "{text}"')
