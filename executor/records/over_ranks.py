"""Combines metrics that several nodes or processes print: as one row per rank, one row over all ranks, or the
range of the ranks' values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from bai_agent.job.descriptor.metric_tables import OverRanks
from bai_agent.job.job_headlines import over_ranks_of, over_runs
from bai_agent.light_dataclass import dataclass
from executor.records.series import Series, Trend, labelled_name, without_rank_labels
from executor.records.series_lines import RANK_LABELS

T = TypeVar("T")

EACH_AT_MOST = 8
"""Maximum number of ranks that a summary shows one by one."""


@dataclass(frozen=True)
class Spread:
    """One metric that is printed by so many ranks that the ranks are not shown one by one."""

    name: str
    ranks: Sequence[Series]
    """The rows of the ranks that have values; at least one."""

    @property
    def count(self) -> int:
        return sum(each.count for each in self.ranks)

    @property
    def floor(self) -> float | None:
        """Smallest value that can be measured on a rank; a lower value of a rank is only an upper bound. None
        if all values are exact."""
        return self.ranks[0].floor

    @property
    def headline(self) -> float:
        """Headline of the job: the mean over the ranks."""
        return _headline(self.ranks, OverRanks.MEAN)

    def between(self, figure: Callable[[Series], float]) -> tuple[float, float]:
        """Return the minimum and the maximum of a figure over the ranks."""
        found = [figure(each) for each in self.ranks]
        return min(found), max(found)


@dataclass(frozen=True)
class LastValue:
    """One row of the table of last values."""

    name: str
    between: tuple[float, float]
    """Smallest and largest value; equal if the row is for one rank."""
    units: str
    timestamp: int
    """Time of the newest record (ms UTC)."""


def over_ranks(every: Iterable[Series], how: Mapping[str, OverRanks]) -> list[Series]:
    """Return the rows in the same order. If the descriptor combines the ranks of a metric, its rows are
    replaced by one row over all ranks. how: metric name → how the metric's ranks are combined."""
    rows: list[Series] = []
    for group in _grouped(every, key=attrgetter("without_ranks")):
        kind = how.get(group[0].metric or group[0].name, OverRanks.EACH)
        is_over = kind is not OverRanks.EACH and any(each.has_rank for each in group)
        rows += [_over(group, kind)] if is_over else group
    return rows


def current_rows(every: Iterable[Series]) -> list[Series]:
    """Return the rows without those of nodes that were not members of the last generation."""
    return [each for each in every if not each.is_past]


def seen_first(every: Iterable[Series]) -> list[Series]:
    """Return the rows with values first, because there may be a thousand rows without values."""
    return sorted(every, key=lambda each: not each.count)


def spreads(every: Iterable[Series], *, at_most: int = EACH_AT_MOST) -> tuple[list[Series], list[Spread]]:
    """Return the rows that are shown one by one, and the metrics that more than `at_most` ranks print."""
    rows: list[Series] = []
    found: list[Spread] = []
    for group in _grouped(every, key=attrgetter("without_ranks")):
        if len(group) > at_most and any(each.has_rank for each in group):
            found.append(Spread(group[0].without_ranks, [each for each in group if each.count]))
        else:
            rows += group
    return rows, found


def last_over_ranks(records: Iterable[Mapping[str, Any]], how: Mapping[str, OverRanks]) -> list[LastValue]:
    """Return the last values to show, from the last record of each row: one value for each rank, one value
    over all ranks, or the range of the ranks' values."""
    rows: list[LastValue] = []
    for group in _grouped(records, key=lambda record: labelled_name(_without_rank_labels(record))):
        kind: OverRanks | None = how.get(group[0]["name"], OverRanks.EACH)
        if not any(_without_rank_labels(each) is not each for each in group):
            kind = OverRanks.EACH
        elif kind is OverRanks.EACH and len(group) > EACH_AT_MOST:
            kind = None
        if kind is OverRanks.EACH:
            rows += [_last(labelled_name(each), [each["value"]], [each]) for each in group]
            continue
        name = labelled_name(_without_rank_labels(group[0]))
        values = [each["value"] for each in group]
        if kind is None:
            rows.append(_last(f"{name} ({len(group)} ranks)", [min(values), max(values)], group))
        else:
            rows.append(_last(_name_over(name, kind, len(group)), [over_ranks_of(values, kind)], group))
    return rows


def _grouped(every: Iterable[T], *, key: Callable[[T], str]) -> list[list[T]]:
    """Return the items grouped by key. Groups are in the order of their first items."""
    groups: dict[str, list[T]] = {}
    for each in every:
        groups.setdefault(key(each), []).append(each)
    return list(groups.values())


def _last(name: str, values: Sequence[float], records: Sequence[Mapping[str, Any]]) -> LastValue:
    newest = max(each["timestamp"] for each in records)
    return LastValue(name, (values[0], values[-1]), records[0].get("units") or "", newest)


def _over(group: Sequence[Series], how: OverRanks) -> Series:
    """Return one row over all ranks. Each figure of this row combines the ranks' figures."""
    first = group[0]
    seen = [each for each in group if each.count]
    name = _name_over(first.without_ranks, how, len(seen or group))
    labels = without_rank_labels(first.labels)
    combined = Series(name, first.units, first.better, metric=first.metric, labels=labels)
    combined.left_out = sum(each.left_out for each in group)
    combined.beyond = sum(each.beyond for each in group)
    combined.of_earlier = sum(each.of_earlier for each in group)
    if seen:
        _set_figures(combined, seen, how)
    return combined


def _set_figures(combined: Series, seen: Sequence[Series], how: OverRanks) -> None:
    """Compute the figures of the row `combined` from the figures of the ranks with values."""
    first = seen[0]

    def over(figure: str) -> float:
        return over_ranks_of([getattr(each, figure) for each in seen], how)

    combined.count = sum(each.count for each in seen)
    combined.tolerance = first.tolerance
    if first.floor is not None:
        combined.floor = over("floor")
    for figure in ("newest", "first", "last", "minimum", "maximum", "mean"):
        setattr(combined, figure, over(figure))
    combined.headline_is = first.headline_is
    combined.over = {
        "median": over("median"),
        "p95": over("p95"),
        "headline": _headline(seen, how),
        "runs": max(each.runs for each in seen),
    }
    if all(each.stdev is not None for each in seen):
        combined.over["stdev"] = over("stdev")
    combined.trend = _trend([each.trend for each in seen], how)


def _headline(ranks: Sequence[Series], how: OverRanks) -> float:
    """Return the job's headline over these ranks. As in `job_headlines`, the ranks of each run are combined
    first."""
    every = [each.numbers for each in ranks]
    repeats = dict.fromkeys(repeat for numbers in every for repeat in numbers)
    runs = [over_ranks_of([each[repeat] for each in every if repeat in each], how) for repeat in repeats]
    return over_runs(runs)


def _trend(trends: Sequence[Trend], how: OverRanks) -> Trend:
    """Return the trend over all ranks: the n-th value combines the n-th values of the ranks. Ranks whose
    trend has another step than the first rank's trend are ignored."""
    alike = [each.points for each in trends if each.step == trends[0].step]
    points = [over_ranks_of(values, how) for values in zip(*alike, strict=False)]
    return Trend(points, trends[0].step)


def _without_rank_labels(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record without the labels of its rank. A record without such labels is returned
    unchanged."""
    labels = record.get("labels") or {}
    has_rank = any(label in labels for label in RANK_LABELS)
    return {**record, "labels": without_rank_labels(labels)} if has_rank else record


def _name_over(name: str, how: OverRanks, count: int) -> str:
    return f"{name} ({how.value} of {count} ranks)" if count > 1 else name
