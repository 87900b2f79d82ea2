"""Tables of the benchmark service's format: sources and metrics, and those that only other engines read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from bai_agent.job.source_schemes import SCHEMES
from executor.descriptor.places import SourceText, TargetPath
from executor.descriptor.values import (
    JsonPathText,
    Md5,
    MetricName,
    Mode,
    Pattern,
    Percentage,
    Sha256,
    Table,
    VariableName,
    VariableText,
    Warmup,
)


class SourceTable(Table):
    """One thing that is pulled before the run."""

    src: SourceText = Field(
        examples=["s3://bucket/train.npz"],
        description=f"{', '.join(each.forms for each in SCHEMES.values())}, or a path relative to this file.",
    )
    path: TargetPath = Field(examples=["/data/train.npz"])
    """Where it lands: absolute, `~/…` (the home of who runs it), or relative to the folder that the benchmark starts in.
    `--data-root` prefixes all but relative ones."""
    id: str | None = Field(default=None, examples=["train"])
    """A name, for other programs. Kept in the job descriptor."""
    md5: Md5 | None = Field(default=None, examples=["8a61469f7ea1b51cbae51d4f78837e45"])
    """The file's MD5, checked while it is written."""
    sha256: Sha256 | None = Field(default=None, examples=["0" * 64])
    """The file's SHA-256, checked while it is written."""
    unpack: Literal[False, True, "into", "in_place"] = Field(default=False, examples=["into"])
    """An archive: `true` or `"into"` puts its members into the folder `path`, `"in_place"` beside `path`."""
    mode: Mode | None = Field(default=None, examples=["0755"])
    """The file's permissions, octal, as a text."""
    region: str | None = Field(default=None, examples=["eu-west-1"])
    """The bucket's region. Unset: found."""
    anonymous: bool = False
    """Whether the bucket is read without credentials."""


class MetricTable(Table):
    """One number to take from the benchmark's output."""

    name: MetricName = Field(examples=["train_loss"])
    """The metric's name."""
    units: str = Field(default="", examples=["ms"])
    """Its units; `""` for none. A group `unit` in the pattern is converted to them."""
    pattern: Pattern | None = Field(default=None, examples=[r"train loss (\d+\.\d+)"])
    """A regular expression in Python's syntax, searched in every line. The value is the group named `value`, else the first
    group without a name, else the only other named group, else the whole match. A group named `step` becomes the plots'
    axis, one named `unit` is the value's unit, and other named groups become labels. Use single quotes: `'loss (\\d+)'`.
    Required, unless `json` or `of_run` says what to take."""
    of_run: Literal["wall_time", "cpu_time", "user_time", "system_time", "peak_memory"] | None = Field(
        default=None, examples=["wall_time"]
    )
    """In place of `pattern`: what the run itself took. Times are in seconds (`units = "s"`), the memory of its largest process in
    `"bytes"`. `cpu_time` is user and system time together."""
    json_key: JsonPathText | None = Field(default=None, alias="json", examples=["train.loss"])
    """In place of `pattern`, where lines are JSON objects: the way to the value, keys with dots between; `'"a.b".c'` where a key has
    dots itself, `losses[0]` in an array."""
    json_step: JsonPathText | None = Field(default=None, examples=["step"])
    """With `json`: the way to the step in the same object."""
    json_labels: list[JsonPathText] = Field(default_factory=list, examples=[["split"]])
    """With `json`: the ways to labels in the same object. Each has the name of its last key."""
    after: Pattern | None = Field(default=None, examples=["^== Latency"])
    """A regular expression: the metric counts only behind a line that matches it. For logs with several tables of one shape."""
    until: Pattern | None = Field(default=None, examples=["^== "])
    """A regular expression: a line that matches it ends what `after` began; without `after`, what began with the log."""
    context: list[Pattern] = Field(
        default_factory=list, examples=[["^== (?P<test>\\w+) ==", "time in (?P<unit>\\w+)"]]
    )
    """Regular expressions for lines that say something about the values that follow: their named groups become labels, or the unit or step.
    Several matches in one line are about the first value of a line, the second, and so on: the heads of columns."""
    number: Literal["plain", "thousands", "si", "auto"] = Field(default="plain", examples=["thousands"])
    """How numbers are written: `thousands` reads `60,911.3`, `si` reads `1.2k` and `4Ki`, `auto` both."""
    repaint: Literal["all", "last"] = Field(default="all", examples=["last"])
    """Of the states that a progress bar repaints in one line: `all`, as they come, or the `last` one alone."""
    over_ranks: Literal["each", "mean", "sum", "min", "max"] = Field(default="each", examples=["sum"])
    """Where several nodes or processes print it: what summary, `bai status` and `bai metrics` show. Records are of `each`, always."""
    better: Literal["lower", "higher"] | None = Field(default=None, examples=["lower"])
    """Which direction is an improvement."""
    headline: Literal["last", "min", "max", "mean", "median"] = Field(default="last", examples=["max"])
    """Which number of all values of a run stands for the run, in lists and comparisons."""
    tolerance: Percentage | None = Field(default=None, examples=["2%"])
    """A difference between runs that is no larger than this is of no importance. Unset: any counts."""
    warmup: Warmup | None = Field(default=None, examples=["30s"])
    """What statistics and headline leave out: values of so long from the benchmark's start, or as an integer, so many first values
    of each series. They are kept as records. Unset: as `[output] warmup` says."""
    required: bool = False
    """Whether a run in which it never matched has failed."""
    example: str | None = Field(default=None, examples=["epoch 3: train loss 0.6931"])
    """A line as the benchmark prints it. `bai validate` runs the pattern on it, and prints what is taken."""


class ServerHardware(Table):
    """The machine of the server under test."""

    instance_type: str = Field(min_length=1, examples=["p3.8xlarge"])
    """The EC2 instance type."""
    availability_zone: str | None = Field(default=None, examples=["us-east-1a"])
    """The availability zone's name."""
    aws_zone_id: str | None = Field(default=None, examples=["use1-az2"])
    """The availability zone's id."""


class ReadinessProbe(Table):
    """How to see over HTTP that the server is ready."""

    path: str = Field(examples=["/ping"])
    """The path that is asked for."""
    port: int | None = Field(default=None, ge=1, le=65535, examples=[8080])
    """The port. Unset: the server's first."""
    scheme: Literal["http", "https", "HTTP", "HTTPS"] = Field(default="http", examples=["https"])
    """The scheme."""
    initial_delay_seconds: int = Field(default=10, ge=0, examples=[10])
    """Before the first probe."""
    period_seconds: int = Field(default=10, ge=1, examples=[10])
    """Between probes."""
    timeout_seconds: int = Field(default=1, ge=1, examples=[1])
    """For one probe."""
    success_threshold: int = Field(default=1, ge=1, examples=[1])
    """Answers in a row that make it ready."""
    failure_threshold: int = Field(default=3, ge=1, examples=[3])
    """Failures in a row that make it failed."""


class ServerEnv(Table):
    """What the server runs in."""

    docker_image: str | None = Field(default=None, examples=["example/server:1"])
    """The server's container image."""
    start_command: str = Field(examples=["/opt/bin/server"])
    """The command that starts it."""
    start_command_args: str | None = Field(default=None, examples=["--model=digits"])
    """Its arguments."""
    ports: list[int] = Field(examples=[[8080, 8081]])
    """Ports that it listens on."""
    privileged: bool = False
    """For containers."""
    extended_shm: bool = True
    """For containers."""
    vars: dict[VariableName, VariableText] = Field(default_factory=dict, examples=[{"MODEL": "digits"}])
    """Environment variables."""
    readiness_probe: ReadinessProbe | None = None


class Model(Table):
    """A model that the server loads."""

    src: str = Field(min_length=1, examples=["s3://bucket/model.tar"])
    """Where it comes from."""
    path: str = Field(min_length=1, examples=["/models/model.tar"])
    """Where it lands."""
    id: str | None = Field(default=None, examples=["digits"])
    """A name."""
    md5: Md5 | None = Field(default=None, examples=["8a61469f7ea1b51cbae51d4f78837e45"])
    """The file's MD5."""


class ServerOutput(Table):
    """What is taken from what the server prints."""

    metrics: list[MetricTable] = Field(default_factory=list)


class Server(Table):
    """The server under test, with strategy `inference`. Accepted and checked; this version does not run it."""

    hardware: ServerHardware
    env: ServerEnv
    models: list[Model] = Field(default_factory=list)
    output: ServerOutput = Field(default_factory=ServerOutput)


class CustomParams(Table):
    """Parameters of other engines. `dashboard` and `region` become the labels `dashboard-name` and `region`."""

    python_version: str | None = Field(default=None, examples=["py3"])
    """For SageMaker."""
    sagemaker_job_name: str | None = Field(default=None, examples=["digits"])
    """For SageMaker."""
    dashboard: str | None = Field(default=None, examples=["digits"])
    """The dashboard on which the metrics are shown."""
    region: str | None = Field(default=None, examples=["us-east-1"])
    """The region by which the metrics are labelled."""
    merge: bool | None = Field(default=None, examples=[True])
    """For SageMaker."""
    hyper_params: dict[str, Any] = Field(default_factory=dict, examples=[{"epochs": 8}])
    """For SageMaker: any values."""
