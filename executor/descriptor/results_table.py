"""Files that the benchmark writes its results to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Results
from bai_agent.job.tables import read_table
from executor.descriptor.places import RelativeGlob
from executor.descriptor.raw_table import ERROR, Raw, RawFinding, at, items
from executor.descriptor.values import MetricName, Percentage, Table

Place = Annotated[str, Field(min_length=1)]
LabelName = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]


class ResultsTable(Table):
    """Files that the benchmark writes: after its end, metrics are taken from them."""

    path: RelativeGlob = Field(examples=["out/*.json"])
    """A glob, relative to the benchmark's working folder. Files that were there before it began are not read."""
    format: Literal[
        "hyperfine", "google-benchmark", "pytest-benchmark", "bmf", "jmh", "mllog", "csv", "json"
    ] = Field(examples=["hyperfine"])
    """What wrote the files, or how they are built: [extraction.md](extraction.md#results-in-files) names the metrics and labels of each."""
    metrics: list[MetricName] = Field(default_factory=list, examples=[["mean"]])
    """The names of the metrics that are taken. Unset: all that the files hold."""
    required: bool = False
    """Whether a run in which these files gave no value has failed."""
    better: Literal["lower", "higher"] | None = Field(default=None, examples=["lower"])
    """Which direction is an improvement, for the metrics that `metrics` names."""
    over_ranks: Literal["each", "mean", "sum", "min", "max"] = Field(default="each", examples=["sum"])
    """As in `[[output.metrics]]`, where several nodes write such files."""
    headline: Literal["last", "min", "max", "mean", "median"] = Field(default="last", examples=["median"])
    """Which number of all values of a run stands for the run, for the metrics that `metrics` names."""
    tolerance: Percentage | None = Field(default=None, examples=["2%"])
    """A difference between runs that is no larger than this is of no importance, for the metrics that `metrics` names."""
    values: list[Place] = Field(default_factory=list, examples=[["seconds"]])
    """With `csv` the columns that hold values, with `json` the paths to them: `results[*].mean`."""
    name: MetricName | None = Field(default=None, examples=["latency"])
    """With `csv` and `json`: the metric's name. Unset: the column's, or the path's last key."""
    name_from: Place | None = Field(default=None, examples=["metric"])
    """With `csv` and `json`: the column, or the path, of the metric's name, where each value has its own."""
    units: str = Field(default="", examples=["ms"])
    """With `csv` and `json`: the units."""
    units_from: Place | None = Field(default=None, examples=["unit"])
    """With `csv` and `json`: the column, or the path, of the units."""
    step: Place | None = Field(default=None, examples=["epoch"])
    """With `csv` and `json`: the column, or the path, of the step, which becomes the plots' axis."""
    labels: dict[LabelName, Place] = Field(default_factory=dict, examples=[{"job": "jobname"}])
    """With `csv` and `json`: labels of the records, each with the column, or the path, of its value."""
    delimiter: str = Field(default=",", examples=[";"])
    """With `csv`: what stands between two cells."""
    header: bool = True
    """With `csv`: whether the first line names the columns. Else they are called `1`, `2`, `3` and so on."""


def result_files(table: Raw) -> Iterator[RawFinding]:
    """Check what the keys of results say together."""
    labels = at(table, "info", "labels")
    for where, written in items(table, "output", "results"):
        try:
            results = read_table(
                Results, {key: value for key, value in written.items() if key != "tolerance"}, where=""
            )
        except DescriptorError:
            continue  # a wrong type, of which the model tells
        for key, problem, fix in results.mistakes():
            yield (*where, key), problem, fix, ERROR
        for name in sorted(results.labels.keys() & set(labels)):
            yield (
                (*where, "labels"),
                f'"{name}" is a label of [info.labels] as well',
                "rename one of them",
                ERROR,
            )
