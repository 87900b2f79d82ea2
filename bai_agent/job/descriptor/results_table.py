"""Metrics that are taken from files: `[[results]]`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from typing import Annotated

from bai_agent.job.descriptor.metric_tables import Better, Headline, OverRanks
from bai_agent.job.schema.declared import DeclaredTable, Example, Mistake
from bai_agent.job.schema.field_types import FilledText, LabelName, MetricName, Percentage, RelativeGlob
from bai_agent.job.schema.json_path import path_mistakes, read_star_path
from bai_agent.job.schema.pattern_groups import RESERVED
from bai_agent.light_dataclass import dataclass, field


class ResultFormat(str, Enum):
    """The program or structure of a file of results; `metrics/results/formats.py` reads them."""

    HYPERFINE = "hyperfine"
    GOOGLE_BENCHMARK = "google-benchmark"
    PYTEST_BENCHMARK = "pytest-benchmark"
    BMF = "bmf"
    JMH = "jmh"
    MLLOG = "mllog"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Results(DeclaredTable):
    """Files that the benchmark writes, from which metrics are taken after its end."""

    path: Annotated[RelativeGlob, Example("out/*.json")]
    """A glob, relative to the benchmark's working folder. Files that existed before the benchmark began are
    not read."""
    format: Annotated[ResultFormat, Example("hyperfine")]
    """The program that wrote the files, or their structure: [extraction.md](extraction.md#results-in-files)
    names the metrics and labels of each."""
    metrics: Annotated[tuple[MetricName, ...], Example(["mean"])] = ()
    """Names of the metrics to take. Unset: all that the files hold."""
    required: bool = False
    """Whether a run without a value from these files has failed."""
    better: Annotated[Better | None, Example("lower")] = None
    """Which direction is an improvement, for the metrics that `metrics` names."""
    over_ranks: Annotated[OverRanks, Example("sum")] = OverRanks.EACH
    """As in `[[output.metrics]]`, if several nodes write such files."""
    headline: Annotated[Headline, Example("median")] = Headline.LAST
    """How a run's values become one number, for the metrics that `metrics` names."""
    tolerance: Annotated[Percentage | None, Example("2%")] = None
    """Share up to which differences between runs do not matter, for the metrics that `metrics` names."""
    values: Annotated[tuple[FilledText, ...], Example(["seconds"])] = ()
    """With `csv` the columns that hold values, with `json` the paths to them: `results[*].mean`."""
    name: Annotated[MetricName | None, Example("latency")] = None
    """With `csv` and `json`: the metric's name. Unset: the column's, or the path's last key."""
    name_from: Annotated[FilledText | None, Example("metric")] = None
    """With `csv` and `json`: the column or path of the metric's name, if each value has its own."""
    units: Annotated[str, Example("ms")] = ""
    """With `csv` and `json`: the units."""
    units_from: Annotated[FilledText | None, Example("unit")] = None
    """With `csv` and `json`: the column, or the path, of the units."""
    step: Annotated[FilledText | None, Example("epoch")] = None
    """With `csv` and `json`: the column, or the path, of the step, which becomes the plots' axis."""
    labels: Annotated[dict[LabelName, FilledText], Example({"job": "jobname"})] = field(default_factory=dict)
    """With `csv` and `json`: labels of the records, each with the column, or the path, of its value."""
    delimiter: Annotated[str, Example(";")] = ","
    """With `csv`: the character between two cells."""
    header: bool = True
    """With `csv`: whether the first line names the columns. Otherwise they are called `1`, `2`, `3` and so
    on."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its metrics, as far as they are known before a file exists."""
        if self.metrics or self.name_from is not None:
            return self.metrics
        if self.name is not None:
            return (self.name,)
        if self.format is ResultFormat.JSON:
            return tuple(read_star_path(each).name for each in self.values)
        return self.values

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        by_place = self.format in (ResultFormat.CSV, ResultFormat.JSON)
        if by_place:
            yield from self._wrong_places()
        else:
            keys = ("values", "name", "name_from", "units", "units_from", "step", "labels")
            for key in (key for key in keys if getattr(self, key)):
                yield key, (f'is for "csv" and "json"; "{self.format.value}" says it by itself', "remove it")
        if self.format is not ResultFormat.CSV:
            for key in (key for key in ("delimiter", "header") if getattr(self, key) not in (",", True)):
                yield key, ('is for "csv"', "remove it")
        elif len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            yield (
                "delimiter",
                (f'"{self.delimiter}" does not tell cells apart', "write one character, such as a semicolon"),
            )
        judged = self.better is not None or self.headline is not Headline.LAST or self.tolerance is not None
        if judged and not self.names:
            fix = "name the metrics that better, headline and tolerance are for"
            yield "metrics", ("is missing", fix)

    def _wrong_places(self) -> Iterator[tuple[str, Mistake]]:
        of_json = self.format is ResultFormat.JSON
        example = '["results[*].mean"]' if of_json else '["seconds"]'
        if not self.values:
            kind = "paths" if of_json else "columns"
            yield "values", ("is missing", f"write the {kind} of the values, for example {example}")
        if self.name is not None and (self.name_from is not None or len(self.values) > 1):
            yield "name", ("is the name of one metric", "remove it, or keep one of values and no name_from")
        for name in sorted(RESERVED.intersection(self.labels)):
            yield "labels", (f'"{name}" is the name of a label that records get by themselves', "rename it")
        if of_json:
            for mistake in path_mistakes(self.values, [each for each in self.places if each is not None]):
                yield "values", (mistake, f"write for example {example}")

    @property
    def places(self) -> tuple[str | None, ...]:
        """The columns or paths of all that belongs to a value."""
        return (self.name_from, self.units_from, self.step, *self.labels.values())


def check_results(results: Sequence[Results], *, labels: Collection[str]) -> None:
    """Raise ValueError if a label of results has the name of one of the job's own `labels`."""
    for index, each in enumerate(results):
        where = f'[[results]] {index} "{each.path}"'
        for name in each.labels.keys() & set(labels):
            raise ValueError(
                f'{where}: the label "{name}" has the name of a label of [job] labels; rename it'
            )
