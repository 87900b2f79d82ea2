"""Tables of metrics, with figures, headlines and last values, and notes on metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import Better, Headline
from bai_agent.job.figures import LIMIT
from bai_agent.job.job_result import never_a_number
from bai_agent.job.record_types import JobResult
from bai_agent.job.run_directory import now_ms
from executor.analysis.steady import unsteady
from executor.documents.document import Column, Notes, Phrase, Table, Tone
from executor.quantities import amount, counted, listed, quantity, seconds
from executor.records.over_ranks import Spread, last_over_ranks, spreads
from executor.records.series import Series
from executor.records.statistics import Measurements

if TYPE_CHECKING:
    from executor.analysis.measured_runs import OverRuns

_NAMED = 6
"""Maximum number of metrics that a note names."""
_NEVER_SEEN = 10

_FIELDS = {"min": "minimum", "max": "maximum"}
"""Column → name of the figure in `Series`, for columns with another name."""
_OF_RANKS = ("last", "mean")
"""Figures that are shown for metrics of many ranks."""
_ORDER = (
    "units", "trend", "headline", "first", "last", "median", "stdev", "p95", "min", "max", "mean", "count",
)  # fmt: skip
_LIVE = ("last", "min", "max", "mean", "count", "units", "trend")
"""Columns of the table while a job runs. On a narrow screen, the first columns are dropped last."""
_FINAL = (
    "headline",
    "last",
    "units",
    "median",
    "stdev",
    "p95",
    "min",
    "max",
    "mean",
    "count",
    "first",
    "trend",
)
"""Columns of the table after the job has ended."""
_BEST = {Better.LOWER: "min", Better.HIGHER: "max"}


def metric_table(every: Sequence[Series], *, final: bool = False, columns: Sequence[str] = ()) -> Table:
    """Return a table with the figures of each series. final: whether the job has ended, after which further
    figures are shown. columns: if set, the table has exactly these columns, in this order."""
    wanted = list(columns or (_FINAL if final else _LIVE))
    # If all headlines are the last values, the column `last` already shows them.
    if "headline" in wanted and not any(map(_has_headline, every)):
        wanted.remove("headline")
    names = columns or sorted(wanted, key=_ORDER.index)
    return Table(
        [Column("metric"), *(_column(name, wanted.index(name)) for name in names)],
        [[Phrase(each.name, better=each.better), *_figure_cells(names, each)] for each in every],
    )


def _figure_cells(names: Sequence[str], series: Series) -> list[Phrase]:
    return [_figure_cell(name, series) for name in names]


def _column(name: str, drops: int) -> Column:
    match name:
        case "units":
            return Column(name, number=False, drops=drops)
        case "trend":
            return Column("", number=False, drops=drops, cut_to=6, most=48)
        case "headline" | "count":
            return Column(name, drops=drops)
        case _:
            return Column(name, drops=drops if name != "last" else 0, least=6)


def _figure_cell(name: str, series: Series) -> Phrase:
    match name:
        case "units":
            # The units are empty if the values already contain them.
            return Phrase(quantity(series.last, series.units)[1], "soft")
        case "trend":
            return Phrase("", trend=series.trend.points)
        case "count":
            return Phrase(f"{series.count:,}", "soft")
        case "headline":
            return Phrase(_headline(series))
        case "last" if not series.count and series.left_out:
            # During the warm-up, values of the warm-up are shown, because users who watch the job want to see
            # a value.
            return Phrase(quantity(series.newest, series.units, floor=series.floor)[0], "strong")
    # The deviation is not shown if values are only bounds, because it would have no meaning.
    known = series.count and not (name == "stdev" and series.is_bound)
    value = getattr(series, _FIELDS.get(name, name)) if known else None
    # The floor is not applied to a deviation: it is a difference, so a small deviation is exact and not a
    # bound.
    floor = series.floor if name != "stdev" else None
    text = quantity(value, series.units, floor=floor)[0] if value is not None else "-"
    return Phrase(text, _figure_tone(name, series))


def _figure_tone(name: str, series: Series) -> Tone:
    if series.count and series.better is not None and name == _BEST[series.better]:
        return "good"
    return "strong" if name == "last" else ""


def _has_headline(series: Series) -> bool:
    return bool(series.count) and (series.runs > 1 or series.headline_is not in (None, Headline.LAST))


def _headline(series: Series) -> str:
    """Return the headline of a series as text, with the way in which it was computed, unless it is the last
    value."""
    if not series.count or series.headline_is is None:
        return "-"
    number = quantity(series.headline, series.units, floor=series.floor)[0]
    return number if series.headline_is is Headline.LAST else f"{series.headline_is.value} {number}"


def spread_table(every: Sequence[Spread]) -> Table:
    """Return a table with a row for each metric that many ranks report. Each row shows minimum and maximum
    over the ranks."""
    heads = ("ranks", *(f"{name} of ranks" for name in _OF_RANKS), "mean headline", "count")
    rows = []
    for spread in every:
        units = spread.ranks[0].units
        cells = [f"{len(spread.ranks):,}"]
        ends = (spread.between(attrgetter(name)) for name in _OF_RANKS)
        cells += (_between(each, units, floor=spread.floor) for each in ends)
        cells += [amount(spread.headline, units, floor=spread.floor), f"{spread.count:,}"]
        rows.append([Phrase(spread.name, better=spread.ranks[0].better), *map(Phrase, cells)])
    return Table([Column("metric"), *(Column(head, pointed=False) for head in heads)], rows)


def over_runs_table(metrics: Sequence[OverRuns]) -> Table:
    """Return a table with a row per metric: the number of runs, the mean over the runs, and its 95 %
    confidence interval."""
    rows = []
    for each in metrics:
        reach = "–" if math.isinf(each.half_width) else f"±{amount(each.half_width, each.units)}"
        if each.mean and not math.isinf(each.half_width):
            reach += f" ({each.half_width / abs(each.mean):.1%})"
        mean = amount(each.mean, each.units, floor=each.below)
        rows.append([Phrase(text) for text in (each.name, f"{len(each.values):,}", mean, reach)])
    return Table([*map(Column, ("over runs", "runs", "mean", "± 95 %"))], rows)


def headline_rows(measured: Measurements | None) -> list[Series]:
    """Return the series that have a headline, as the summary and `bai metrics` show them. There is one series
    per rank, or one for all ranks if the metric combines them."""
    if measured is None:
        return []
    return [each for each in measured.rows if each.count and each.headline_is is not None]


def headline_as_json(series: Series) -> dict[str, Any]:
    """Return the headline of a series as JSON values."""
    how = series.headline_is or Headline.LAST
    return {
        "value": series.headline,
        "units": series.units,
        "headline_is": how.value,
        "count": series.count,
        "runs": series.runs,
        **({"below": series.floor} if series.is_bound else {}),
    }


def headline_words(how: Headline | None, count: int, runs: int = 1, *, ranks: str = "") -> str:
    """Return how a headline was computed, for example "last of 40" or "median of 5 runs (last)". The text is
    empty if the headline is a single value. ranks: text that says how the ranks were combined."""
    kind = (how or Headline.LAST).value
    if runs > 1:
        return f"median of {runs:,} runs ({kind}{ranks})"
    return f"{kind} of {count:,}" if count > 1 else ""


def headlines_table(measured: Measurements) -> Table:
    """Return a table with a row for each headline."""
    rows, apart = spreads(headline_rows(measured))
    kinds = [headline_words(each.headline_is, each.count, each.runs) for each in rows]
    found = [
        (each.name, each.headline, each.units, kind, each.floor)
        for each, kind in zip(rows, kinds, strict=True)
    ]
    for each in apart:
        name = f"{each.name} (mean of {len(each.ranks)} ranks)"
        found.append((name, each.headline, each.ranks[0].units, "", each.floor))
    return _values_table(
        _value_row(name, (value, value), units, what, floor) for name, value, units, what, floor in found
    )


def last_values_table(job: Job, values: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with the last value of each series and its age, in the order of the descriptor."""
    described = {metric.name: metric for metric in job.named_metrics()}
    rows: dict[str, list[Mapping[str, Any]]] = {name: [] for name in described}
    for value in values.values():
        if value["name"] in rows or value["src"] in ("emit", "file"):
            rows.setdefault(value["name"], []).append(value)
    how = {name: metric.over_ranks for name, metric in described.items()}
    shown = [row for metric in rows.values() for row in last_over_ranks(metric, how)]
    return _values_table(
        _value_row(row.name, row.between, row.units, time_since(row.timestamp)) for row in shown
    )


def _values_table(rows: Iterable[Sequence[Phrase]]) -> Table:
    units, what = (Column("", number=False, drops=drops) for drops in (1, 2))
    return Table([Column(""), Column("", least=8), units, what], list(rows))


def _value_row(
    name: str, ends: tuple[float, float], units: str, what: str, floor: float | None = None
) -> list[Phrase]:
    text, rest = _ends(ends, units, floor)
    return [Phrase(name), Phrase(text), Phrase(rest, "soft"), Phrase(what, "soft")]


def _ends(ends: tuple[float, float], units: str, floor: float | None) -> tuple[str, str]:
    """Return minimum and maximum as text, and the units. The units are empty if the text already contains
    them."""
    texts = [quantity(end, units, floor=floor) for end in ends]
    return (texts[0][0] if texts[0] == texts[1] else " – ".join(text for text, _ in texts)), texts[0][1]


def _between(ends: tuple[float, float], units: str, *, floor: float | None) -> str:
    return " ".join(_ends(ends, units, floor)).strip()


def time_since(time_ms: int) -> str:
    """Return how long ago a time (ms UTC) was as text, for example "5.0 s ago"."""
    return f"{span_since(time_ms)} ago"


def span_since(time_ms: int) -> str:
    """Return the time since a moment (ms UTC) as text, for example "5.0 s"."""
    return seconds(max(0, now_ms() - time_ms) / 1000)


def metric_notes(every: Sequence[Series]) -> Notes:
    """Return notes on the figures of these series, for example on values that were left out."""
    return Notes(list(_notes(every)))


def _notes(every: Sequence[Series]) -> Iterator[Phrase]:
    if warm := _counts({series.name: series.left_out for series in every}):
        yield Phrase(f"without the first values, as warm-up: {warm}", "soft")
    if beyond := _counts({series.name: series.beyond for series in every}):
        text = f"without recorded values beyond {LIMIT:g}, which no figure counts: {beyond}"
        yield Phrase(text, "caution")
    if failed := sum(series.of_failed for series in every):
        yield Phrase(f"without {counted(failed, 'value')} of runs that failed", "soft")
    if before := sum(series.of_earlier for series in every):
        text = f"without {counted(before, 'value')} of earlier generations"
        yield Phrase(text, "soft")
    runs = max((series.runs for series in every), default=0)
    if runs > 1 and any(series.headline_is is not None for series in every):
        yield Phrase(f"headline: the median of {runs} runs", "soft")
    yield from _unsteady_notes(every)


def _unsteady_notes(every: Sequence[Series]) -> Iterator[Phrase]:
    marked = [(series.name, mark) for series in every if (mark := _unsteady(series)) is not None]
    yield from (Phrase(f"{name}: {mark}", "caution") for name, mark in marked[:_NAMED])
    if len(marked) > _NAMED:
        yield Phrase(f"and {len(marked) - _NAMED} more are not steady", "caution")


def _counts(counts: Mapping[str, int]) -> str:
    """Return the names whose count is greater than 0, each with its count, as text. Empty if all counts are
    0."""
    named = [f"{name} ({count:,})" for name, count in counts.items() if count]
    return listed(named, _NAMED)


def _unsteady(series: Series) -> str | None:
    """Return a sentence that says why a series of one run is not steady; None if it is steady. A series of
    several runs is not judged, because each run would have to be judged separately."""
    if series.runs > 1 or not series.count:
        return None
    found = unsteady(series.trend.points, tolerance=series.tolerance)
    return found.sentence if found is not None else None


def unseen_notes(names: Sequence[str], result: JobResult | None, *, most: int = _NEVER_SEEN) -> Notes:
    """Return notes on metrics without a value: metrics whose patterns never matched, or matched a text that
    is not a number."""
    extracted = result.metrics if result is not None else None
    matched = (extracted.never_numbers if extracted is not None else None) or {}
    found = {name: matched[name] for name in names if name in matched}
    notes = [f"{name}: {never_a_number(each.count, each.first)}" for name, each in found.items()][:most]
    if never := [name for name in names if name not in found]:
        notes.append(f"never seen: {listed(never, most)}")
    return Notes([Phrase(each, "caution") for each in notes])
