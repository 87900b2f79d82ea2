"""Computes statistics of all metrics of a run from the run's records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import Headline, OverRanks
from bai_agent.job.job_headlines import ARM, LastGenerations
from executor.records.counted_values import LEAST, RUN_FACT, floor_of
from executor.records.over_ranks import over_ranks
from executor.records.reading import HOST, RUN, MalformedLines
from executor.records.series import Series, labelled_name, with_arm
from executor.records.series_lines import RANK_LABELS, SeriesBatch, SeriesReader

LABEL_SETS = 64
"""Maximum number of rows of one metric. Series beyond this number share the last row."""
_ROWS = 1024
"""Maximum number of rows of one metric if ranks are shown separately."""
OTHERS = "{…}"
_PLACE_LABELS = (*RANK_LABELS, ARM)
_Place: TypeAlias = tuple[int, str]
"""Id of a group of rows, and a name in this group."""
_RowKey: TypeAlias = tuple[str, str, int | None, int | None]
"""Key of a row: source, name of the row, repeat, generation."""


class Measurements:
    """Statistics of all metrics of a run, by source."""

    def __init__(
        self,
        job: Job | None = None,
        *,
        starts: Mapping[int | None, int] | None = None,
        failed: Collection[int] = (),
        memory_floor: float = LEAST,
    ) -> None:
        """failed: runs whose values do not count in any figure. memory_floor: smallest measurable peak memory
        (bytes)."""
        self.benchmark: dict[str, Series] = {}
        """Metrics of the benchmark: the descriptor's metrics in its order, followed by other metrics in order
        of appearance."""
        self.host: dict[str, Series] = {}
        self.run: dict[str, Series] = {}
        self.records = 0
        self.malformed = MalformedLines()
        self.last_timestamp: int | None = None
        self.starts: dict[int | None, int] = dict(starts or {})
        """Start of the benchmark (ms UTC), by repeat; the key None stands for the only run. If the start is
        missing, the time of the first value counts."""
        self.failed = frozenset(failed)
        self._memory_floor = memory_floor
        self._arms = job.repeat.arms_of_runs if job is not None and job.repeat is not None else []
        named = job.named_metrics() if job is not None else ()
        self._metrics = {metric.name: metric for metric in named}
        self._last_generations = LastGenerations()
        self._of_place: dict[_Place, set[str]] = {}
        """The rows of each metric and set of labels, one row per rank."""
        self._left_out: dict[_Place, dict[int, int]] = {}
        """Number of warm-up values of each generation, by row."""
        self._reader = SeriesReader(self._key_of)
        self._warmed: dict[_RowKey, int] = {}
        """Number of warm-up values that were left out."""
        self.over_ranks: Mapping[str, OverRanks] = {metric.name: metric.over_ranks for metric in named}
        """Metric name → how several ranks of the metric are shown."""
        self._rows: dict[str, set[str]] = {}
        self._label_sets: dict[str, set[str]] = {}
        """Labels of the rows of each metric, without ranks."""
        for metric in job.metrics if job is not None else ():
            self.benchmark[metric.name] = self._described(Series(metric.name, metric.units), metric.name)

    @property
    def rows(self) -> list[Series]:
        """The benchmark's metrics, with one row over all ranks if the descriptor requests such a row."""
        return over_ranks(self.benchmark.values(), self.over_ranks)

    def add_lines(self, content: bytes, *, rank: int | None = None) -> None:
        """Add whole lines of `metrics.jsonl`. rank: number of the node, in a job of several nodes."""
        lines = self._reader.read(content, rank=rank)
        self.records += lines.count
        self.malformed.add(content, taken=lines.count)
        if lines.last_timestamp is not None:
            self.last_timestamp = lines.last_timestamp
        for key, batch in lines.batches.items():
            self._add(key, batch)

    def _add(self, key: _RowKey, batch: SeriesBatch) -> None:
        source, row, repeat, generation = key
        group = {HOST: self.host, RUN: self.run}.get(source, self.benchmark)
        series = group.get(row)
        if series is None:
            series = group[row] = self._new_series(row, with_arm(batch.record, self._arms))
            self._forget_bare(series.metric)
        series.beyond += batch.beyond
        if not batch.values:
            return
        warm_up, values = self._split_warm_up(key, batch)
        if generation is not None:
            if not self._is_of_last(group, series, row, generation, has_number=bool(values)):
                series.of_earlier += len(batch.values)
                return
            series = group[row]
            left_out = self._left_out.setdefault((id(group), row), {})
            left_out[generation] = left_out.get(generation, 0) + len(warm_up)
        if repeat in self.failed:
            series.of_failed += len(batch.values)
            series.newest = [*warm_up, *values][-1]
            return
        series.leave_out(warm_up)
        series.add_all(values, repeat=repeat)

    def _is_of_last(
        self, group: dict[str, Series], series: Series, row: str, generation: int, *, has_number: bool
    ) -> bool:
        """Return whether figures include values of a generation. The generation's first number removes the
        values of earlier generations from all figures."""
        place = id(group), series.without_ranks
        rows = self._of_place.setdefault(place, set())
        rows.add(row)
        if has_number and self._last_generations.add(place, generation):
            for each in rows:
                left_out = self._left_out.get((id(group), each), {}).get(generation, 0)
                group[each] = group[each].of_next_generation(left_out=left_out)
        return not self._last_generations.is_past(place, generation)

    def leave_out_runs(self, failed: Collection[int]) -> None:
        """Remove the values of these failed runs from all figures."""
        self.failed |= frozenset(failed)
        for group in (self.benchmark, self.run):
            for name, series in group.items():
                group[name] = series.without(self.failed)

    def raise_memory_floor(self, floor: float) -> None:
        """Treat a peak memory of up to `floor` bytes as an upper bound only. Called when the shim's own peak
        memory is known."""
        self._memory_floor = floor
        for series in (*self.benchmark.values(), *self.run.values()):
            series.floor = floor if series.floor is not None else None

    def _key_of(self, record: Mapping[str, Any]) -> _RowKey:
        """Return the key of the row that a record belongs to."""
        record = with_arm(record, self._arms)
        return (
            record["src"],
            self._row(record) if "labels" in record else record["name"],
            record.get("repeat"),
            record.get("generation"),
        )

    def _split_warm_up(self, key: _RowKey, batch: SeriesBatch) -> tuple[Sequence[float], Sequence[float]]:
        """Split the values of a series; return the warm-up values and the values that count in figures."""
        source, _, repeat, generation = key
        values = batch.values
        metric = self._metrics.get(batch.record["name"])
        if metric is None or source in (HOST, RUN):
            return (), values
        if metric.warmup is None:
            left_out = self._warmed.get(key, 0)
            count = min(metric.warmup_values - left_out, len(values))
            self._warmed[key] = left_out + count
            return values[:count], values[count:]
        times, _ = batch.read_times()
        start = self._start(generation if repeat is None else repeat, first_value=times[0])
        end = start + metric.warmup.total_seconds() * 1000
        timed = list(zip(times, values, strict=True))
        return [value for time, value in timed if time < end], [value for time, value in timed if time >= end]

    def _start(self, part: int | None, *, first_value: int) -> int:
        """Return the start of a run or generation (ms UTC). If the start is not recorded, the time of the
        first value is used."""
        known = self.starts.get(None) if not part else None
        return self.starts.setdefault(part, first_value if known is None else known)

    def _row(self, record: Mapping[str, Any]) -> str:
        """Return the name of the row for a record with labels. The number of rows of a metric is limited, so
        several series may share the last row."""
        name = labelled_name(record)
        rows = self._rows.setdefault(record["name"], set())
        if name not in rows:
            own = {key: each for key, each in (record["labels"] or {}).items() if key not in _PLACE_LABELS}
            row = labelled_name({**record, "labels": own})
            sets = self._label_sets.setdefault(record["name"], set())
            if (row not in sets and len(sets) >= LABEL_SETS) or len(rows) >= _ROWS:
                return f"{record['name']}{OTHERS}"
            sets.add(row)
            rows.add(name)
        return name

    def _new_series(self, name: str, record: Mapping[str, Any]) -> Series:
        units = record.get("units") or ""
        if name.endswith(OTHERS) and name != record["name"]:
            # A row of many series has no headline.
            return Series(name, units, metric=record["name"])
        labels = dict(record["labels"]) if name != record["name"] else {}
        series = Series(name, units, metric=record["name"] if labels else "", labels=labels)
        return series if record["src"] == HOST else self._described(series, record["name"])

    def _described(self, series: Series, metric: str) -> Series:
        """Return a series of the benchmark or the run, completed with the metric's settings in the
        descriptor."""
        known = self._metrics.get(metric)
        series.headline_is = Headline.LAST
        if known is not None:
            series.better, series.headline_is = known.better, known.headline
            series.tolerance = known.tolerance
        is_fact = known is None and metric == RUN_FACT
        series.floor = self._memory_floor if is_fact else floor_of(known, self._memory_floor)
        return series

    def _forget_bare(self, metric: str) -> None:
        """Remove the metric's row without labels if all records of the metric have labels, because an empty
        row would mean that the metric was never seen."""
        bare = self.benchmark.get(metric)
        if bare is not None and not bare.seen:
            del self.benchmark[metric]
