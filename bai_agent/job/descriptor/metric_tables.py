"""Metrics that are taken from the benchmark's output and files, and samples of the machine: `[[metrics]]`, `[[results]]` and
`[host_metrics]`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any

from bai_agent.job.schema.declared import DeclaredTable, Example, Mistake
from bai_agent.job.schema.field_types import (
    Duration,
    FilledText,
    JsonPathText,
    LabelName,
    MetricName,
    Pattern,
    Percentage,
    RelativeGlob,
    at_least,
    compile_pattern,
)
from bai_agent.job.schema.json_path import last_key, path_mistakes, read_json_path, read_star_path
from bai_agent.job.schema.pattern_groups import RESERVED, UNIT, VALUE, read_groups, taken_names
from bai_agent.job.schema.tables import marked_keys
from bai_agent.light_dataclass import dataclass, field, replace

_NEVER = r"\Zof another node's output"
"""A pattern that matches no line. The extractor skips a line without the pattern's literal text, so the pattern
is never searched."""


class Better(str, Enum):
    """The direction in which a change of a metric is an improvement."""

    LOWER = "lower"
    HIGHER = "higher"


class NumberForm(str, Enum):
    """How a benchmark writes its numbers."""

    PLAIN = "plain"
    """`60911.3`, `1.5e-05`."""
    THOUSANDS = "thousands"
    """`60,911.3` as well."""
    SI = "si"
    """`1.2k`, `4Ki` as well."""
    AUTO = "auto"
    """All of them."""


class Repaint(str, Enum):
    """The states of a progress bar from which a metric is taken. A progress bar prints its states into one
    line, and ends each state by a carriage return."""

    ALL = "all"
    LAST = "last"


class OverRanks(str, Enum):
    """How a metric is shown if several nodes or processes print it."""

    EACH = "each"
    MEAN = "mean"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


class Headline(str, Enum):
    """How a run's values of a metric become one number."""

    LAST = "last"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    MEDIAN = "median"


class ResultFormat(str, Enum):
    """The program that wrote a result file, or the structure of the file. `metrics/results/documents.py`
    reads these formats."""

    HYPERFINE = "hyperfine"
    GOOGLE_BENCHMARK = "google-benchmark"
    PYTEST_BENCHMARK = "pytest-benchmark"
    BMF = "bmf"
    JMH = "jmh"
    MLLOG = "mllog"
    CSV = "csv"
    JSON = "json"


class OfRun(str, Enum):
    """Resources of a run that can be metrics."""

    WALL_TIME = "wall_time"
    CPU_TIME = "cpu_time"
    """User and system time together."""
    USER_TIME = "user_time"
    SYSTEM_TIME = "system_time"
    PEAK_MEMORY = "peak_memory"

    @property
    def units(self) -> str:
        """Units of the resource's values."""
        return "bytes" if self is OfRun.PEAK_MEMORY else "s"


class About(Enum):
    """The purpose of a metric's key, as a mark of the key's field. `marked_keys` lists the keys with certain
    marks."""

    LINE = "line"
    """How values are found and parsed in a line of the output."""
    LINES_ABOVE = "lines above"
    """Earlier lines that decide how values of a line are read."""
    SUMMARY = "summary"
    """How a run's values become one number."""
    JUDGEMENT = "judgement"
    """How the metric's number is compared with other numbers."""


@dataclass(frozen=True, kw_only=True)
class WrittenMetric(DeclaredTable):
    """A metric that is taken from the benchmark's output."""

    name: Annotated[MetricName, Example("train_loss")]
    """Name of the metric."""
    units: Annotated[str, About.JUDGEMENT, Example("ms")] = ""
    """The metric's units; `""` if the metric has no units. Values are converted to `units` if the pattern has a
    group `unit`."""
    pattern: Annotated[Pattern, About.LINE, Example(r"train loss (\d+\.\d+)")] = ""
    """A regular expression in Python's syntax, searched in every line. The value is the first of these that exists:
    the group `value`, the first unnamed group, the only named group, the whole match. The group `step` is the
    horizontal axis of plots. The group `unit` is the value's unit. Other named groups become labels. Use single
    quotes: `'loss (\\d+)'`. Required unless `json` or `of_run` is set."""
    of_run: Annotated[OfRun | None, Example("wall_time")] = None
    """In place of `pattern`: a resource that the run itself used. Times are in seconds (`units = "s"`).
    `peak_memory` is the peak memory of the run's largest process, in `"bytes"`. `cpu_time` is user plus system
    time."""
    json: Annotated[JsonPathText | None, About.LINE, Example("train.loss")] = None
    """In place of `pattern`, for lines that are JSON objects: the path of the value, such as `a.b`,
    `'"a.b".c'` for a key with a dot, or `losses[0]`."""
    json_step: Annotated[JsonPathText | None, About.LINE, Example("step")] = None
    """With `json`: the path of the step in the same object."""
    json_labels: Annotated[tuple[JsonPathText, ...], About.LINE, Example(["split"])] = ()
    """With `json`: the paths of labels in the same object. Each label is named after the last key of its
    path."""
    after: Annotated[Pattern | None, About.LINES_ABOVE, Example("^== Latency")] = None
    """A regular expression. The metric is read only after a line that matches `after`. Use `after` for logs with
    several tables of the same shape."""
    until: Annotated[Pattern | None, About.LINES_ABOVE, Example("^== ")] = None
    """A regular expression. After a matching line, the metric is not read until a later line matches `after`.
    Without `after`, the metric is read from the start of the log."""
    context: Annotated[
        tuple[Pattern, ...], About.LINES_ABOVE, Example(["^== (?P<test>\\w+) ==", "time in (?P<unit>\\w+)"])
    ] = ()
    """Regular expressions for lines that describe the following values: named groups become labels, unit or
    step. Several matches in one line are the heads of columns. The first column head belongs to the first value
    of a later line, the second to the second value, and so on."""
    number: Annotated[NumberForm, About.LINE, Example("thousands")] = NumberForm.PLAIN
    """Notation of numbers: `thousands` reads `60,911.3`, `si` reads `1.2k` and `4Ki`, and `auto` reads all three
    forms."""
    repaint: Annotated[Repaint, About.LINE, Example("last")] = Repaint.ALL
    """States of a progress bar from which the metric is taken: `all` states in a line, or only the `last`
    state."""
    over_ranks: Annotated[OverRanks, About.SUMMARY, Example("sum")] = OverRanks.EACH
    """How the summary, `bai status` and `bai metrics` show the metric if several nodes or processes print it.
    Each record has the value of a single rank."""
    better: Annotated[Better | None, About.JUDGEMENT, Example("lower")] = None
    """The direction in which a change of the metric is an improvement."""
    headline: Annotated[Headline, About.SUMMARY, Example("max")] = Headline.LAST
    """How a run's values become the number that lists and comparisons use."""
    tolerance: Annotated[Percentage | None, About.JUDGEMENT, Example("2%")] = None
    """Difference between runs, as a share, up to which the metric does not count as changed. Unset: every
    difference counts."""
    required: bool = False
    """Whether a run without a value of this metric has failed."""

    @property
    def context_has_unit(self) -> bool:
        """Whether a pattern of `context` has a group `unit`."""
        return any("(?P<unit>" in pattern for pattern in self.context)


@dataclass(frozen=True, kw_only=True)
class Metric(WrittenMetric):
    """One metric to extract: an item of `[[metrics]]`."""

    name: str
    warmup: Annotated[timedelta | None, About.SUMMARY] = None
    """Duration of the warm-up, from the benchmark's start in each repeat. Values of the warm-up are recorded,
    but left out of statistics and headline."""
    warmup_values: Annotated[int, About.SUMMARY] = 0
    """Number of first values of each series that are recorded but left out of statistics and headline."""
    revision: str | None = None
    """Name and version of the preset's definition, for example "fio/2". The preset's version is raised only if
    the metric's numbers change."""
    server: bool = False
    """Whether the metric is searched in the output of the server of `[server]` instead of the client's
    output."""

    @property
    def preset(self) -> str | None:
        """Name of the preset that defines the metric; None if the descriptor defines the metric itself."""
        return None if self.revision is None else self.revision.partition("/")[0]

    def unsearched(self) -> Metric:
        """Return a copy of this metric whose pattern matches no line. The copy is for a node whose output is not
        searched for the metric."""
        plain = Metric(name=self.name, pattern=_NEVER)
        keys = ("of_run", *marked_keys(Metric, About.LINE, About.LINES_ABOVE))
        values: dict[str, Any] = {key: getattr(plain, key) for key in keys}
        return replace(self, **values)

    def __post_init__(self) -> None:
        if self.of_run is not None and (self.pattern or self.json is not None):
            raise ValueError("of_run excludes pattern and json; keep one of them")
        if self.of_run is not None and self.units != self.of_run.units:
            raise ValueError(f'units of {self.of_run.value} must be "{self.of_run.units}"')
        if self.warmup_values < 0:
            raise ValueError("warmup_values must be an integer ≥ 0")
        if self.warmup is not None and self.warmup_values:
            raise ValueError("warmup and warmup_values exclude each other; keep one of them")


@dataclass(frozen=True, kw_only=True)
class Results(DeclaredTable):
    """Files that the benchmark writes, from which metrics are taken after its end."""

    path: Annotated[RelativeGlob, Example("out/*.json")]
    """A glob, relative to the benchmark's working folder. Files that existed before the benchmark began are
    not read."""
    format: Annotated[ResultFormat, Example("hyperfine")]
    """The program that wrote the files, or the files' structure.
    [extraction.md](extraction.md#results-in-files) lists the metrics and labels of each format."""
    metrics: Annotated[tuple[MetricName, ...], Example(["mean"])] = ()
    """Names of the metrics to take. If unset, all metrics in the files are taken."""
    required: bool = False
    """Whether a run fails if the files give no value."""
    better: Annotated[Better | None, Example("lower")] = None
    """For the metrics that `metrics` lists: the direction in which a change is an improvement."""
    over_ranks: Annotated[OverRanks, Example("sum")] = OverRanks.EACH
    """How a metric is shown if several nodes write such files, as in `[[output.metrics]]`."""
    headline: Annotated[Headline, Example("median")] = Headline.LAST
    """For the metrics that `metrics` lists: how a run's values become one number."""
    tolerance: Annotated[Percentage | None, Example("2%")] = None
    """For the metrics that `metrics` lists: difference between runs, as a share, up to which a metric does
    not count as changed."""
    values: Annotated[tuple[FilledText, ...], Example(["seconds"])] = ()
    """With `csv`: the columns that hold values. With `json`: the paths to the values, such as
    `results[*].mean`."""
    name: Annotated[MetricName | None, Example("latency")] = None
    """With `csv` and `json`: the metric's name. Unset: the column's name, or the path's last key."""
    name_from: Annotated[FilledText | None, Example("metric")] = None
    """With `csv` and `json`: the column or path of the metric's name, if each value has a name of its own."""
    units: Annotated[str, Example("ms")] = ""
    """With `csv` and `json`: the units of the values."""
    units_from: Annotated[FilledText | None, Example("unit")] = None
    """With `csv` and `json`: the column or path of the units, if each value has units of its own."""
    step: Annotated[FilledText | None, Example("epoch")] = None
    """With `csv` and `json`: the column or path of the step, which becomes the plots' axis."""
    labels: Annotated[dict[LabelName, FilledText], Example({"job": "jobname"})] = field(default_factory=dict)
    """With `csv` and `json`: labels of the records, each with the column or path of the label's value."""
    delimiter: Annotated[str, Example(";")] = ","
    """With `csv`: the character between two cells."""
    header: bool = True
    """With `csv`: whether the first line names the columns. If false, the columns are called `1`, `2`, `3` and
    so on."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics that this table names, and that are thus known before a result file exists."""
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
                yield key, (f'is only for "csv" and "json", not for "{self.format.value}"', "remove it")
        if self.format is not ResultFormat.CSV:
            for key in (key for key in ("delimiter", "header") if getattr(self, key) not in (",", True)):
                yield key, ('is for "csv"', "remove it")
        elif len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            yield (
                "delimiter",
                (f'"{self.delimiter}" cannot separate cells', "write one character, such as a semicolon"),
            )
        judged = self.better is not None or self.headline is not Headline.LAST or self.tolerance is not None
        if judged and not self.names:
            fix = "name the metrics to which better, headline and tolerance apply"
            yield "metrics", ("is missing", fix)

    def _wrong_places(self) -> Iterator[tuple[str, Mistake]]:
        of_json = self.format is ResultFormat.JSON
        example = '["results[*].mean"]' if of_json else '["seconds"]'
        if not self.values:
            kind = "paths" if of_json else "columns"
            yield "values", ("is missing", f"write the {kind} of the values, for example {example}")
        if self.name is not None and (self.name_from is not None or len(self.values) > 1):
            yield "name", ("names only one metric", "remove it, or keep one of values and remove name_from")
        for name in sorted(RESERVED.intersection(self.labels)):
            yield "labels", (f'"{name}" is the name of a label that bai adds to records', "rename it")
        if of_json:
            for mistake in path_mistakes(self.values, [each for each in self.places if each is not None]):
                yield "values", (mistake, f"write for example {example}")

    @property
    def places(self) -> tuple[str | None, ...]:
        """The columns or paths of a value's name, units, step and labels."""
        return (self.name_from, self.units_from, self.step, *self.labels.values())


@dataclass(frozen=True, kw_only=True)
class HostMetrics(DeclaredTable):
    """Samples of the machine's CPU, memory, disk, network and GPUs."""

    enabled: bool = True
    """Whether samples are taken."""
    interval: Annotated[
        Duration,
        at_least(
            timedelta(milliseconds=100),
            'write "100ms" or more; [host_metrics] enabled = false switches them off',
        ),
        Example("5s"),
    ] = timedelta(seconds=5)
    """Time between two samples, at least 100ms."""


def check_patterns(metrics: Sequence[Metric], *, labels: Collection[str]) -> None:
    """Raise ValueError if a metric's pattern does not compile, or its groups contradict the metric's keys.

    labels: names of the job's labels.
    """
    for index, metric in enumerate(metrics):
        where = f'[[metrics]] {index} "{metric.name}"'
        for key, text in (("after", metric.after), ("until", metric.until)):
            if text is not None and (problem := marker_problem(text)):
                raise ValueError(f"{where}: {key} {problem}")
        if problem := context_problem(
            metric.context, pattern=metric.pattern, units=metric.units, labels=labels
        ):
            raise ValueError(f"{where}: context {problem}")
        if metric.of_run is not None:
            continue
        if metric.json is not None or not metric.pattern:
            _check_json(metric, where=where, labels=labels)
            continue
        if metric.json_step is not None or metric.json_labels:
            raise ValueError(
                f"{where}: json_step and json_labels need json, but the metric has a pattern; remove both keys"
            )
        try:
            pattern = compile_pattern(metric.pattern)
        except ValueError as error:
            raise ValueError(f"{where}: the pattern does not compile: {error}") from error
        groups = read_groups(pattern)
        for name in taken_names(groups):
            raise ValueError(f'{where}: the group "{name}" has the name of a label that bai adds to records')
        for name in taken_names(groups, labels):
            raise ValueError(
                f'{where}: the group "{name}" has the name of a label of [job] labels; rename one of them'
            )
        if groups.unit and not metric.units:
            raise ValueError(f"{where}: the pattern has a group unit, so units must name the target unit")


def _check_json(metric: Metric, *, where: str, labels: Collection[str]) -> None:
    if metric.json is None:
        raise ValueError(f"{where}: write pattern, json or of_run")
    if metric.pattern:
        raise ValueError(f"{where}: pattern and json exclude each other; keep one of them")
    for index, path in enumerate(metric.json_labels):
        name = last_key(read_json_path(path))
        if name in RESERVED or name in labels:
            problem = f'"{name}" is the name of a label that records already have'
            raise ValueError(f"{where}: json_labels[{index}]: {problem}")


def marker_problem(text: str) -> str | None:
    """Return the mistake in a pattern of `after`, `until` or `context`; None if the pattern has no mistake."""
    try:
        pattern = compile_pattern(text)
    except ValueError as error:
        return f"does not compile: {error}"
    return "matches an empty text, but empty lines are ignored" if pattern.search("") else None


def context_problem(
    context: Sequence[str], *, pattern: str, units: str, labels: Collection[str]
) -> str | None:
    """Return the mistake in a metric's `context`; None if `context` fits `pattern`, `units` and `labels`.
    labels: names of the job's labels."""
    unit_groups = int("(?P<unit>" in pattern)
    for text in context:
        if problem := marker_problem(text):
            return problem
        names = set(compile_pattern(text).groupindex)
        if not names:
            return f"has no named group in '{text}', so a match has no effect"
        if VALUE in names:
            return f"has a group \"value\" in '{text}', but only pattern can take the value"
        if taken := names & {*RESERVED, *labels}:
            return f"has a group \"{min(taken)}\" in '{text}', but records already have this label; rename the group"
        unit_groups += UNIT in names
    if unit_groups > 1:
        return "takes a unit, and so does another pattern of the metric; keep one of them"
    return "has a group unit, so units must name the target unit" if unit_groups and not units else None


def check_results(results: Sequence[Results], *, labels: Collection[str]) -> None:
    """Raise ValueError if a label in `[[results]]` has the name of one of the job's `labels`."""
    for index, each in enumerate(results):
        where = f'[[results]] {index} "{each.path}"'
        for name in each.labels.keys() & set(labels):
            raise ValueError(
                f'{where}: the label "{name}" has the name of a label of [job] labels; rename it'
            )
