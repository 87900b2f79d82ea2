"""The generations of a job as a table: members, duration, headlines, reason of the end, and pauses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bai_agent.job.record_types import GenerationOutcome, HeadlineValue
from executor.documents.document import Column, Phrase, Table
from executor.quantities import amount, seconds
from executor.records.generations import RUNNING, change_seconds, headline_names


def generations_table(
    found: Sequence[GenerationOutcome], *, metrics: int, most: int, floors: Mapping[str, float] | None = None
) -> Table:
    """Return a row for each generation of a job that has several, else an empty table.

    metrics: number of metrics that have a column. most: number of rows, the last ones. floors: values up to which headlines are only
    bounds, by name with labels.
    """
    if len(found) < 2:
        return Table([], [])
    named = headline_names(found)[:metrics]
    shares = [name for name in named if any(_per_node(each, name) is not None for each in found)]
    of_nodes = any(len(each.members) > 1 for each in found)
    columns = [Column("generation"), *([Column("nodes", pointed=False, drops=3)] if of_nodes else [])]
    columns += [Column("time", pointed=False, drops=4), Column("before it", pointed=False, drops=5)]
    for name in named:
        columns.append(Column(name, drops=6))
        columns += [Column("per node", drops=7)] if name in shares else []
    columns.append(Column("end", number=False, wraps=True))
    rows = []
    for each in found[-most:]:
        cells = [str(each.generation), *([members_words(each.members)] if of_nodes else [])]
        cells += [_seconds(each.wall_seconds), _seconds(each.gap_seconds)]
        cells += _headline_cells(each, named, shares, floors or {})
        rows.append([Phrase(text or "–") for text in (*cells, _end(each))])
    last = f", the last {most:,}" if len(found) > most else ""
    changes = f"{seconds(change_seconds(found))} between them in which nothing ran"
    return Table(columns, rows, f"{len(found):,} generations{last}, and {changes}")


def members_words(members: Sequence[int]) -> str:
    """Return the number of nodes and their numbers: "4: 0–2, 5"."""
    if not members:
        return ""
    spans: list[list[int]] = []
    for node in sorted(members):
        if spans and node == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], node]
        else:
            spans.append([node])
    listed = ", ".join("–".join(map(str, span)) for span in spans)
    return f"{len(members)}: {listed}"


def _headline_cells(
    each: GenerationOutcome, named: Sequence[str], shares: Sequence[str], floors: Mapping[str, float]
) -> Iterator[str]:
    for name in named:
        headline = each.headlines.get(name)
        yield amount(headline.value, headline.units, floor=floors.get(name)) if headline is not None else ""
        if name in shares:
            share = _per_node(each, name)
            yield amount(share, headline.units) if headline is not None and share is not None else ""


def _per_node(each: GenerationOutcome, name: str) -> float | None:
    headline: HeadlineValue | None = each.headlines.get(name)
    return headline.per_node if headline is not None else None


def _seconds(value: float | None) -> str:
    return seconds(value) if value is not None else ""


def _end(each: GenerationOutcome) -> str:
    return "it runs" if each.outcome == RUNNING else each.sentence
