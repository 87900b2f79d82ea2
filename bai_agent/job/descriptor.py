"""The job descriptor's tables: what one job's agents need, fully resolved, nothing left to look up.

`descriptor_file.py` reads and writes them as TOML. `docs/job-descriptor.md` is their reference.
"""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from bai_agent.job.durations import format_duration
from bai_agent.job.json_path import last_key, read_json_path
from bai_agent.job.pattern_groups import RESERVED, UNIT, VALUE, read_groups, taken_names
from bai_agent.job.star_path import path_mistakes, read_star_path

VERSION = 1
"""The format of these tables."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Better(str, Enum):
    """Which direction of a metric is an improvement."""

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
    """Which states of a progress bar, each ended by a carriage return within one line, a metric is taken from."""

    ALL = "all"
    LAST = "last"


class OverRanks(str, Enum):
    """What a person is shown of a metric that several nodes or processes print."""

    EACH = "each"
    MEAN = "mean"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


class Headline(str, Enum):
    """Which number of all that a run gives for a metric stands for the run."""

    LAST = "last"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    MEDIAN = "median"


class ResultFormat(str, Enum):
    """What wrote a file of results, or how it is built; `metrics/results/formats.py` reads them."""

    HYPERFINE = "hyperfine"
    GOOGLE_BENCHMARK = "google-benchmark"
    PYTEST_BENCHMARK = "pytest-benchmark"
    BMF = "bmf"
    JMH = "jmh"
    MLLOG = "mllog"
    CSV = "csv"
    JSON = "json"


class Unpack(str, Enum):
    """What becomes of a pulled archive."""

    NO = "no"
    """It stays as it is, at `path`."""
    INTO = "into"
    """Its members land in the folder `path`; the archive itself is not kept."""
    IN_PLACE = "in_place"
    """It lands at `path` and its members beside it; the archive itself is not kept."""


class SourceKind(str, Enum):
    """What a source is for: it decides which folder its relative path starts at."""

    DATA = "data"
    SCRIPTS = "scripts"


class Buffering(str, Enum):
    """How the benchmark's output is buffered on its way into the file."""

    LINE = "line"
    TIMED = "timed"
    OWN = "own"


class MpiLaunch(str, Enum):
    """Who starts mpirun, with the strategies `horovod` and `mpi`."""

    MPIRUN = "mpirun"
    USER = "user"


class Power(str, Enum):
    """What becomes of the machine after the end."""

    STAY = "stay"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who this job is: the `[job]` table."""

    id: str
    name: str = ""
    action_id: str | None = None
    """The service's id of the request; the job id unless said."""
    parent_action_id: str | None = None
    client_id: str = "local"
    """Whose job it is: the Kafka messages' key and their label `client-id`."""
    username: str | None = None
    """Who asked for it, as the service knows them."""
    created_by: str | None = None
    """The program that took the request from the service."""
    attempt: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of every metric message."""

    def __post_init__(self) -> None:
        if not is_job_id(self.id):
            raise ValueError(
                f'id "{self.id}" must be 1 to 128 of A-Z a-z 0-9 . _ - and start with a letter or digit'
            )


@dataclass(frozen=True, kw_only=True)
class StrategyTable:
    """How the nodes work together: the `[strategy]` table."""

    name: str = "single_node"
    nodes: int = 1
    processes_per_node: str = "1"
    """A number, or "gpus" for one process per GPU."""
    launch: MpiLaunch = MpiLaunch.MPIRUN
    """`user`: the command runs alone, and starts mpirun itself. Of the strategies `horovod` and `mpi`."""
    max_restarts: int = 0
    """How often torchrun starts all processes again after one of them has failed. Of the strategy `torchrun`."""
    cpus_per_process: int | None = None
    """CPUs for each process; unset: its launcher's own way."""
    gpus: int | None = None
    """How many GPUs each node has by its instance type, where `processes_per_node` counts them; one with another number of them
    does not start. Unset: any number."""
    mpirun_options: tuple[str, ...] = ()
    """Put behind those that mpirun is started with, as they are. Of `launch` `mpirun`."""
    efa: bool = False
    """The machines have Elastic Fabric Adapters: a library that moves data between them by sockets is warned of."""

    @property
    def process_logs(self) -> bool:
        """Whether each process keeps its output in a file of its own, which metrics are taken from: where we start mpirun."""
        return self.name in ("horovod", "mpi") and self.launch is MpiLaunch.MPIRUN

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError("nodes must be an integer ≥ 1")
        if self.max_restarts < 0:
            raise ValueError("max_restarts must be an integer ≥ 0")
        if self.cpus_per_process is not None and self.cpus_per_process < 1:
            raise ValueError("cpus_per_process must be an integer ≥ 1")
        if not re.fullmatch(r"0*[1-9][0-9]{0,5}|gpus", self.processes_per_node):
            raise ValueError(f'processes_per_node "{self.processes_per_node}" must be a number ≥ 1 or "gpus"')
        if any(not option or "\0" in option for option in self.mpirun_options):
            raise ValueError("mpirun_options must be words; none can be empty or hold a NUL character")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What runs: the `[benchmark]` table. Either `argv` or `script` is set."""

    argv: tuple[str, ...] = ()
    """The command and its arguments; no shell sees it. `$(NAME)` is expanded from the environment."""
    script: str | None = None
    """The text of a script; without a first line `#!` it is run by /bin/sh. `argv` are then its arguments."""
    cwd: str | None = None
    """Absolute, or relative to the work folder; unset: the scripts' folder if there is one, else the work folder."""
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    """Environment name → reference ("env:NAME", "secretsmanager:…", "ssm:…"), resolved where it runs."""
    inherit_env: bool = False
    """Whether the agent's own environment is passed on (locally it is the caller's)."""
    python: str | None = None
    """Absolute path of the Python whose folder comes first on PATH."""
    requirements: str | None = None
    """A requirements file, relative to the scripts' folder, installed into a venv of the job."""
    user: str | None = None
    buffering: Buffering = Buffering.LINE
    exclusive: bool = False
    """Whether the run begins only when no other job runs on this machine, and keeps others that want the same away."""

    def __post_init__(self) -> None:
        if not self.argv and self.script is None:
            raise ValueError("neither argv nor script says what to run")
        for text in (*self.argv, self.script or "", *self.env.values()):
            if "\0" in text:
                raise ValueError("a NUL character cannot be passed to a process")
        for name in (*self.env, *self.secrets):
            if not _ENVIRONMENT_NAME.fullmatch(name):
                raise ValueError(f'"{name}" is not a name of an environment variable')


EC2_MAX_RUNTIME = timedelta(hours=24)
"""Where a job on EC2 names no limit: a machine costs as long as it is on."""
_MACHINE_SLACK = timedelta(minutes=15)
"""Beyond a job's own limits: for the boot, and for what no limit covers."""


LEAST_PEER_SILENCE = timedelta(seconds=20)
"""Below that a healthy node with one slow request to the store would be lost."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The `[limits]` table. Durations."""

    max_runtime: timedelta | None = None
    """From the benchmark's start to its forced end; unset: no limit."""
    pull_timeout: timedelta = timedelta(hours=1)
    join: timedelta = timedelta(minutes=10)
    """For a node that gives no sign of life, while the others wait for it."""
    peer_silence: timedelta = timedelta(seconds=60)
    """Of several nodes, one that gives no sign of life for so long, nor answers, is lost."""
    store_away: timedelta = timedelta(minutes=10)
    """Of several nodes, none is ended or lost for so long because none reaches the job store."""
    grace: timedelta = timedelta(seconds=30)
    """From SIGTERM to SIGKILL."""
    extract_timeout: timedelta = timedelta(minutes=30)
    """After the benchmark's exit, for metrics that are still to be taken from its output."""
    drain: timedelta = timedelta(seconds=60)
    """After that, for what is still to be sent."""
    no_output: timedelta | None = None
    """A benchmark that neither prints nor emits for so long is ended; unset: off."""

    def machine_time(self, *, max_runtime: timedelta, nodes: int = 1) -> timedelta:
        """Return how long a machine that is there for such a run may be on, when the benchmark may take `max_runtime`.

        Several nodes may wait for each other, and for the store through which they meet.
        """
        at_work = max_runtime + self.pull_timeout + self.grace + self.extract_timeout + self.drain
        together = self.join + self.store_away if nodes > 1 else timedelta()
        return at_work + together + _MACHINE_SLACK

    def __post_init__(self) -> None:
        if self.peer_silence < LEAST_PEER_SILENCE:
            raise ValueError(f"peer_silence must be at least {format_duration(LEAST_PEER_SILENCE)}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One thing to pull: an item of `[[sources]]`."""

    src: str
    """An address of one of the schemes in `job/source_schemes.py`."""
    path: str
    """Where it lands: absolute, or relative to the folder that the benchmark starts in (data), or the scripts' (scripts)."""
    kind: SourceKind = SourceKind.DATA
    id: str | None = None
    directory: bool = False
    """The source is a prefix or folder even though `src` does not end in a slash."""
    size: int | None = None
    """Bytes, where known."""
    md5: str | None = None
    sha256: str | None = None
    unpack: Unpack = Unpack.NO
    mode: str | None = None
    """Octal permissions of a file, "0644"."""
    region: str | None = None
    anonymous: bool = False
    arm: str | None = None
    """The arm of `[repeat]` that it is for. Where a source has one, each arm has folders of its own; unset: it is for both."""

    def __post_init__(self) -> None:
        if self.mode is not None and not re.fullmatch(r"0?[0-7]{3}", self.mode):
            raise ValueError(f'mode "{self.mode}" is not an octal permission such as "0644"')
        for name, digits in (("md5", 32), ("sha256", 64)):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", value):
                raise ValueError(f"{name} must be {digits} hexadecimal digits")


class OfRun(str, Enum):
    """What a run itself took, of which a metric can be made."""

    WALL_TIME = "wall_time"
    CPU_TIME = "cpu_time"
    """User and system time together."""
    USER_TIME = "user_time"
    SYSTEM_TIME = "system_time"
    PEAK_MEMORY = "peak_memory"

    @property
    def units(self) -> str:
        """The units that it is measured in."""
        return "bytes" if self is OfRun.PEAK_MEMORY else "s"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric to extract: an item of `[[metrics]]`."""

    name: str
    pattern: str = ""
    """A regular expression in Python's syntax; `job/pattern_groups.py` tells what its groups are for. Empty where `json` or `of_run` is set."""
    of_run: OfRun | None = None
    """What the run itself took, in place of a number that it prints."""
    json: str | None = None
    """The way to the value in lines that are JSON objects; `job/json_path.py` reads it."""
    json_step: str | None = None
    """The way to the step in the same object."""
    json_labels: tuple[str, ...] = ()
    """The ways to labels in the same object; each has the name of its last key."""
    after: str | None = None
    """A regular expression: the metric counts only behind lines that match it, and not in those."""
    until: str | None = None
    """A regular expression: it no longer counts from a line on that matches it, until `after` matches again."""
    context: tuple[str, ...] = ()
    """Regular expressions: the named groups of the last line that matched one of them are labels, step or unit of the values from that line on."""
    units: str = ""
    better: Better | None = None
    required: bool = False
    """A run in which it never matched has not succeeded."""
    number: NumberForm = NumberForm.PLAIN
    repaint: Repaint = Repaint.ALL
    over_ranks: OverRanks = OverRanks.EACH
    headline: Headline = Headline.LAST
    tolerance: float | None = None
    """Differences between runs up to this share (0.02: two percent) are of no importance; unset: any counts."""
    warmup: timedelta | None = None
    """Values of so long from the benchmark's start, in each repeat of it, are left out of statistics and headline. They are records all the same."""
    warmup_values: int = 0
    """So many first values of each series are left out in the same way."""
    revision: str | None = None
    """The definition that a preset gave it, "fio/2": the preset, and a number that is raised only if the metric's numbers change."""

    @property
    def preset(self) -> str | None:
        """The name of the preset that it comes from; None if the descriptor defines it itself."""
        return None if self.revision is None else self.revision.partition("/")[0]

    @property
    def context_has_unit(self) -> bool:
        """Whether an earlier line says the unit of its values."""
        return any("(?P<unit>" in pattern for pattern in self.context)

    def __post_init__(self) -> None:
        if self.of_run is not None and (self.pattern or self.json is not None):
            raise ValueError("of_run excludes pattern and json; keep one of them")
        if self.of_run is not None and self.units != self.of_run.units:
            raise ValueError(f'units of {self.of_run.value} must be "{self.of_run.units}"')
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise ValueError("tolerance must be a finite number ≥ 0, for example 0.02 for two percent")
        if self.warmup_values < 0:
            raise ValueError("warmup_values must be an integer ≥ 0")
        if self.warmup is not None and self.warmup_values:
            raise ValueError("warmup and warmup_values exclude each other; keep one of them")


@dataclass(frozen=True, kw_only=True)
class Results:
    """Files of the benchmark that metrics are taken from after its end: an item of `[[results]]`.

    `values`, `step`, `name_from`, `units_from` and the values of `labels` are columns of CSV files, or paths in JSON files
    (`star_path.py`); the other formats know by themselves.
    """

    path: str
    """A glob relative to the benchmark's working folder."""
    format: ResultFormat
    metrics: tuple[str, ...] = ()
    """The names of those that are taken; none: all."""
    required: bool = False
    """A run in which these files gave no value has not succeeded."""
    better: Better | None = None
    over_ranks: OverRanks = OverRanks.EACH
    headline: Headline = Headline.LAST
    tolerance: float | None = None
    values: tuple[str, ...] = ()
    name: str | None = None
    """The metric's name, where there is one column or path of values. Unset: the column's, or the path's last key."""
    name_from: str | None = None
    units: str = ""
    units_from: str | None = None
    step: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    delimiter: str = ","
    header: bool = True
    """Whether a CSV file's first line names its columns; else they are called 1, 2, 3 …"""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its metrics, as far as they are known before a file is there."""
        if self.metrics or self.name_from is not None:
            return self.metrics
        if self.name is not None:
            return (self.name,)
        if self.format is ResultFormat.JSON:
            return tuple(read_star_path(each).name for each in self.values)
        return self.values

    def mistakes(self) -> Iterator[tuple[str, str, str]]:
        """Yield each key that is wrong, what is wrong with it, and what to do."""
        if not is_glob_below(self.path) or ".." in PurePosixPath(self.path).parts:
            yield (
                "path",
                f'"{self.path}" is not a glob below the working folder',
                'write for example "out/*.json"',
            )
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            yield "tolerance", "is not a finite number ≥ 0", "write for example 0.02 for two percent"
        by_place = self.format in (ResultFormat.CSV, ResultFormat.JSON)
        if by_place:
            yield from self._wrong_places()
        else:
            keys = ("values", "name", "name_from", "units", "units_from", "step", "labels")
            for key in (key for key in keys if getattr(self, key)):
                yield key, f'is for "csv" and "json"; "{self.format.value}" says it by itself', "remove it"
        if self.format is not ResultFormat.CSV:
            for key in (key for key in ("delimiter", "header") if getattr(self, key) not in (",", True)):
                yield key, 'is for "csv"', "remove it"
        elif len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            yield (
                "delimiter",
                f'"{self.delimiter}" does not tell cells apart',
                "write one character, such as a semicolon",
            )
        judged = self.better is not None or self.headline is not Headline.LAST or self.tolerance is not None
        if judged and not self.names:
            fix = "name the metrics that better, headline and tolerance are for"
            yield "metrics", "is missing", fix

    def _wrong_places(self) -> Iterator[tuple[str, str, str]]:
        of_json = self.format is ResultFormat.JSON
        example = '["results[*].mean"]' if of_json else '["seconds"]'
        if not self.values:
            kind = "paths" if of_json else "columns"
            yield "values", "is missing", f"write the {kind} of the values, for example {example}"
        if self.name is not None and (self.name_from is not None or len(self.values) > 1):
            yield "name", "is the name of one metric", "remove it, or keep one of values and no name_from"
        for name in sorted(RESERVED.intersection(self.labels)):
            yield "labels", f'"{name}" is the name of a label that records get by themselves', "rename it"
        if of_json:
            for mistake in path_mistakes(self.values, [each for each in self.places if each is not None]):
                yield "values", mistake, f"write for example {example}"

    @property
    def places(self) -> tuple[str | None, ...]:
        """Where it finds what belongs to a value."""
        return (self.name_from, self.units_from, self.step, *self.labels.values())


@dataclass(frozen=True, kw_only=True)
class HostMetrics:
    """The `[host_metrics]` table."""

    enabled: bool = True
    interval: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        if self.interval < timedelta(milliseconds=100):
            raise ValueError("interval must be at least 100ms")


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """The `[kafka]` table: where metric messages go."""

    brokers: tuple[str, ...]
    topic: str = "BAI_METRICS"
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = None
    """A reference, never the secret itself: "env:NAME", "secretsmanager:…", "ssm:…"."""
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    host_metrics: bool = False
    """Whether host metrics are pushed as well."""


@dataclass(frozen=True, kw_only=True)
class LogLines:
    """The `[log_lines]` table: where what the benchmark prints is written as JSON, for a log shipper."""

    path: str
    """An absolute path of the machine that runs the job; what is there is appended to."""

    def __post_init__(self) -> None:
        if not self.path.startswith("/") or "\0" in self.path:
            raise ValueError(f'path "{self.path}" is not an absolute path')


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """The `[prometheus]` table: where the last value of each metric goes, or is to be had. One of the two addresses is set."""

    pushgateway: str | None = None
    """The address of a Pushgateway, "http://host:9091"."""
    username: str | None = None
    """For HTTP basic authentication there."""
    password: str | None = None
    """A reference, never the secret itself: "env:NAME", "secretsmanager:…", "ssm:…"."""
    delete_on_end: bool = False
    """Whether the run's group is deleted from the Pushgateway at the end."""
    listen: str | None = None
    """The address, "host:port", where the machine that runs the job answers Prometheus while the run lasts."""
    host_metrics: bool = False
    """Whether host metrics are among them."""

    def __post_init__(self) -> None:
        if self.pushgateway is None and self.listen is None:
            raise ValueError("neither pushgateway nor listen says where to")
        if self.pushgateway is not None and not is_web_address(self.pushgateway):
            raise ValueError(
                f'pushgateway "{self.pushgateway}" is not an address such as "http://host:9091", without user and password'
            )
        if self.listen is not None:
            split_address(self.listen)
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")


MOST_DIMENSIONS = 30
"""Of one metric in CloudWatch: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_MetricDatum.html"""


@dataclass(frozen=True, kw_only=True)
class CloudWatch:
    """The `[cloudwatch]` table: where metrics go in CloudWatch's embedded metric format."""

    log_group: str
    """The log group, which is there already."""
    namespace: str = "bai"
    """CloudWatch's namespace of the metrics."""
    dimensions: tuple[str, ...] | None = None
    """Names of the labels that become dimensions; unset: the job's own, those of a record, and the rank."""
    high_resolution: bool = False
    """Whether CloudWatch keeps each second, and not each minute."""
    region: str | None = None
    """The log group's; unset: the machine's."""
    host_metrics: bool = False
    """Whether host metrics are sent as well."""

    def __post_init__(self) -> None:
        if not is_log_group(self.log_group):
            raise ValueError(f'log_group "{self.log_group}" must be 1 to 512 of A-Z a-z 0-9 . - _ / #')
        if not is_namespace(self.namespace):
            raise ValueError(
                f'namespace "{self.namespace}" must be 1 to 255 of A-Z a-z 0-9 . - _ / # : and a space, and not start with ":" or "AWS/"'
            )
        if self.dimensions is not None and len(self.dimensions) > MOST_DIMENSIONS:
            raise ValueError(
                f"dimensions holds {len(self.dimensions)} names; CloudWatch takes {MOST_DIMENSIONS}"
            )


@dataclass(frozen=True, kw_only=True)
class Output:
    """The `[output]` table."""

    artifacts: tuple[str, ...] = ()
    """Globs relative to the benchmark's working folder, kept in the store at the end."""
    discard_stdout: bool = False
    """Whether the benchmark's standard output is /dev/null; its standard error is in the log all the same."""

    def __post_init__(self) -> None:
        # Found out only at the end, it would cost a whole run its result.
        for pattern in self.artifacts:
            if not is_glob_below(pattern):
                raise ValueError(
                    f'artifacts "{pattern}" is not a glob below the working folder; write for example "runs/**" or "*.csv"'
                )


ARM = "BAI_ARM"
"""The environment variable that names the arm."""

LEAST_RUNS = 10
"""Runs after which `until` is looked at for the first time: an interval of fewer, chosen by its width, is often too narrow."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of those that a job compares: an item of `[[repeat.arms]]`."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    """Its own, in addition to those of `[job]`. For people."""
    argv: tuple[str, ...] = ()
    """As those of `[benchmark]`, in their place."""
    script: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    """All that `[benchmark] env` would be."""
    prepare: tuple[str, ...] = ()
    """Its command before each run; empty: that of `[repeat]`."""
    cleanup: tuple[str, ...] = ()
    """One after each run."""
    requirements: str | None = None
    """As that of `[benchmark]`, in its place, where arms have folders of their own."""
    scripts_sha256: str | None = None
    """A sum over names and contents of its own scripts, as they were at submission. For people."""
    git: Git | None = None
    """The commit that its own descriptor's folder stood at."""

    def __post_init__(self) -> None:
        if not is_job_id(self.name):
            raise ValueError(
                f'name "{self.name}" must be of A-Z a-z 0-9 . _ - and start with a letter or digit'
            )


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The `[repeat]` table: the benchmark is run several times, one run after the other, in one job."""

    runs: int
    """With `until`: at most so many."""
    warmup_runs: int = 0
    """Runs before those, which no metric is taken from."""
    until: float | None = None
    """Runs go on until the confidence interval of the mean of `metric` is, to either side, at most this share of it."""
    metric: str | None = None
    """Whose headline `until` is about."""
    max_time: timedelta | None = None
    """After so long no new run begins, with arms no new block; unset: no limit."""
    min_runs: int | None = None
    """With `max_time`: so many runs are done in any case."""
    prepare: tuple[str, ...] = ()
    """A command before each run, and its arguments; empty: none."""
    cleanup: tuple[str, ...] = ()
    """One after each run."""
    keep_going: bool = False
    """Whether a run that fails is followed by the next one."""
    ignore_failure: bool = False
    """Whether a run counts whatever its exit code is."""
    arms: tuple[Arm, ...] = ()
    """Two or more that take turns, each for an equal part of `runs`; none: the benchmark itself."""
    seed: int = 0
    """Of the order in which the arms take turns."""

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise ValueError("runs must be an integer ≥ 1")
        if self.warmup_runs < 0:
            raise ValueError("warmup_runs must be an integer ≥ 0")
        if self.until is not None and not 0 < self.until < math.inf:
            raise ValueError("until must be a finite number > 0, for example 0.02 for two percent")
        if (self.until is None) != (self.metric is None):
            raise ValueError("until and metric go together: metric says whose interval until is about")
        if self.min_runs is not None and not 1 <= self.min_runs <= self.runs:
            raise ValueError("min_runs must be an integer from 1 to runs")
        if self.min_runs is not None and self.max_time is None:
            raise ValueError("min_runs is for max_time: it says how many runs are done in any case")
        steps = [
            self.prepare,
            self.cleanup,
            *(step for each in self.arms for step in (each.prepare, each.cleanup)),
        ]
        if any("\0" in word for step in steps for word in step):
            raise ValueError("a NUL character cannot be passed to a process")
        if self.arms and not 1 < len(self.arms) == len({each.name for each in self.arms}):
            raise ValueError("arms must be two or more, with names of their own")
        if self.arms and (self.runs % len(self.arms) or self.warmup_runs % len(self.arms)):
            raise ValueError(
                f"runs and warmup_runs must be multiples of {len(self.arms)}, as each arm has an equal part of them"
            )

    @property
    def sequence(self) -> list[int]:
        """Return the arm of each run, warm-up runs included: every block has each arm once, in an order that the seed decides."""
        if not self.arms:
            return [0] * (self.warmup_runs + self.runs)
        draw = random.Random(self.seed)  # noqa: S311 - whoever has the seed shall draw the same
        count = len(self.arms)
        blocks = range((self.warmup_runs + self.runs) // count)
        if count == 2:
            # As jobs of two arms have always drawn: a job that exists has the order that it began with.
            return [arm for _ in blocks for arm in draw.choice(([0, 1], [1, 0]))]
        return [arm for _ in blocks for arm in draw.sample(range(count), count)]

    @property
    def arms_of_runs(self) -> list[str]:
        """The name of the arm that each run is of, by its number in records; empty without arms."""
        return [self.arms[arm].name for arm in self.sequence[self.warmup_runs :]] if self.arms else []

    @property
    def decided_after(self) -> int | None:
        """After how many runs it is looked for the first time whether they are enough; None where their number is fixed."""
        least = LEAST_RUNS * max(1, len(self.arms))
        return None if self.until is None else min(least, self.runs)


@dataclass(frozen=True, kw_only=True)
class Store:
    """The `[store]` table: where the job's record is kept, beside the run directory."""

    url: str
    """file:///absolute/folder or s3://bucket/prefix; the job is `<url>/<job id>/`."""
    region: str | None = None
    """The bucket's region; unset: found out."""
    endpoint: str | None = None
    """Another S3 server than AWS's own; unset: the environment's, if it names one."""


@dataclass(frozen=True, kw_only=True)
class End:
    """The `[end]` table."""

    power: Power = Power.STAY
    keep_on_failure: timedelta | None = None
    """A machine on which the job did not succeed is kept so long, to be looked into; unset: not at all."""


@dataclass(frozen=True, kw_only=True)
class Git:
    """The commit that the descriptor's folder stood at: the `[git]` table."""

    commit: str
    branch: str = ""
    dirty: bool = False


@dataclass(frozen=True, kw_only=True)
class Job:
    """A whole job descriptor."""

    job: Identity
    benchmark: Benchmark
    version: int = VERSION
    strategy: StrategyTable = StrategyTable()
    limits: Limits = Limits()
    sources: tuple[Source, ...] = ()
    metrics: tuple[Metric, ...] = ()
    results: tuple[Results, ...] = ()
    host_metrics: HostMetrics = HostMetrics()
    kafka: Kafka | None = None
    log_lines: LogLines | None = None
    prometheus: Prometheus | None = None
    cloudwatch: CloudWatch | None = None
    output: Output = Output()
    repeat: Repeat | None = None
    store: Store | None = None
    end: End = End()
    git: Git | None = None
    set: dict[str, str] = field(default_factory=dict)
    """Keys of the benchmark descriptor → the texts that were set for them in place of what the file says. For people."""

    def __post_init__(self) -> None:
        arms = {each.name for each in self.repeat.arms} if self.repeat is not None else set()
        for source in self.sources:
            if source.arm is not None and source.arm not in arms:
                raise ValueError(f'[[sources]] arm "{source.arm}" is none of [[repeat.arms]]')
        if self.repeat is None:
            return
        if self.runs_together and self.repeat.keep_going:
            raise ValueError(
                "[repeat] keep_going is not for the strategy torchrun on several nodes: where a run fails on one of them, the others "
                "may wait for it for ever"
            )
        if self.arms_apart and self.strategy.nodes > 1 and self.strategy.name in ("mpi", "horovod"):
            raise ValueError(
                "[[sources]] arm: arms with files of their own are not for the strategies mpi and horovod on several nodes"
            )
        if self.repeat.metric is not None and all(each.name != self.repeat.metric for each in self.metrics):
            raise ValueError(f'[repeat] metric "{self.repeat.metric}" is none of [[metrics]]')

    @property
    def arms_apart(self) -> tuple[Arm, ...]:
        """The arms where each has folders of its own, as there is a source for one of them alone; none where they share all."""
        if self.repeat is None or all(each.arm is None for each in self.sources):
            return ()
        return self.repeat.arms

    def of_arm(self, arm: Arm) -> Job:
        """Return the job as if `arm` were all that it runs."""
        benchmark = replace(self.benchmark, argv=arm.argv, script=arm.script, env=arm.env)
        if self.arms_apart:
            benchmark = replace(benchmark, requirements=arm.requirements)
        sources = tuple(replace(each, arm=None) for each in self.sources if each.arm in (None, arm.name))
        identity = replace(self.job, labels={**self.job.labels, **arm.labels})
        return replace(
            self, job=identity, benchmark=benchmark, sources=sources, repeat=None, git=arm.git or self.git
        )

    @property
    def runs_together(self) -> bool:
        """Whether, of several nodes, each starts its own part of every run."""
        return self.strategy.name == "torchrun" and self.strategy.nodes > 1

    def named_metrics(self) -> tuple[Metric, ...]:
        """Return what is said of metrics by their names: of those with a pattern, and of those in files, which have none."""
        of_files = (
            Metric(
                name=name,
                pattern="",
                units=each.units,
                better=each.better,
                over_ranks=each.over_ranks,
                headline=each.headline,
                tolerance=each.tolerance,
            )
            for each in self.results
            for name in each.names
        )
        return (*self.metrics, *of_files)


def check_patterns(metrics: Sequence[Metric], *, labels: Collection[str]) -> None:
    """Raise ValueError where a metric's pattern does not compile, or its groups contradict what the metric is.

    labels: the names of the job's own.
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
                f"{where}: json_step and json_labels go with json, and pattern is there; remove them"
            )
        try:
            pattern = compile_pattern(metric.pattern)
        except ValueError as error:
            raise ValueError(f"{where}: the pattern does not compile: {error}") from error
        groups = read_groups(pattern)
        for name in taken_names(groups):
            raise ValueError(
                f'{where}: the group "{name}" has the name of a label that records get by themselves'
            )
        for name in taken_names(groups, labels):
            raise ValueError(
                f'{where}: the group "{name}" has the name of a label of [job] labels; rename one of them'
            )
        if groups.unit and not metric.units:
            raise ValueError(f"{where}: the pattern has a group unit, so units must say what to convert to")


def _check_json(metric: Metric, *, where: str, labels: Collection[str]) -> None:
    if metric.json is None:
        raise ValueError(f"{where}: neither pattern, json nor of_run says what to take")
    if metric.pattern:
        raise ValueError(f"{where}: pattern and json exclude each other; keep one of them")
    paths = {"json": metric.json}
    paths.update({"json_step": metric.json_step} if metric.json_step is not None else {})
    paths.update({f"json_labels[{number}]": path for number, path in enumerate(metric.json_labels)})
    names = {}
    for key, text in paths.items():
        try:
            names[key] = last_key(read_json_path(text))
        except ValueError as error:
            raise ValueError(f'{where}: {key} "{text}" is not a path: {error}') from error
    for key, name in names.items():
        if key.startswith("json_labels") and (name in RESERVED or name in labels):
            raise ValueError(f'{where}: {key}: "{name}" is the name of a label that records have already')


def marker_problem(text: str) -> str | None:
    """Return why a section cannot begin or end at lines that match `text`; None where it can."""
    try:
        pattern = compile_pattern(text)
    except ValueError as error:
        return f"does not compile: {error}"
    return "matches an empty text, and empty lines do not count" if pattern.search("") else None


def context_problem(
    context: Sequence[str], *, pattern: str, units: str, labels: Collection[str]
) -> str | None:
    """Return why a metric with this `pattern` cannot have this `context`; None if it can. labels: the names of the job's own."""
    unit_groups = int("(?P<unit>" in pattern)
    for text in context:
        if problem := marker_problem(text):
            return problem
        names = set(compile_pattern(text).groupindex)
        if not names:
            return f"has no named group in '{text}', so its lines say nothing"
        if VALUE in names:
            return f"has a group value in '{text}'; the value is taken by pattern"
        if taken := names & {*RESERVED, *labels}:
            return f"has a group \"{min(taken)}\" in '{text}', which is a label of its own; rename the group"
        unit_groups += UNIT in names
    if unit_groups > 1:
        return "takes a unit, and so does another pattern of the metric; keep one of them"
    return "takes a unit, so units must say what to convert to" if unit_groups and not units else None


def check_results(results: Sequence[Results], *, labels: Collection[str]) -> None:
    """Raise ValueError where keys of results contradict each other, or a label has the name of one of the job's own `labels`."""
    for index, each in enumerate(results):
        where = f'[[results]] {index} "{each.path}"'
        for key, problem, fix in each.mistakes():
            raise ValueError(f"{where}: {key} {problem}; {fix}")
        for name in each.labels.keys() & set(labels):
            raise ValueError(
                f'{where}: the label "{name}" has the name of a label of [job] labels; rename it'
            )


def is_job_id(text: str) -> bool:
    """Return whether a job can have this id."""
    return _ID.fullmatch(text) is not None


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises ValueError, which says why `text` is none.

    Without the warnings that are for programmers.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error
    except (RecursionError, OverflowError, MemoryError) as error:
        raise ValueError("it is too large") from error


def is_web_address(text: str) -> bool:
    """Return whether `text` is the address of a web server, without credentials in it."""
    try:
        parts = urlsplit(text)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        return False
    clean = not (parts.query or parts.fragment or "@" in parts.netloc or re.search(r"[\s\x00-\x1f]", text))
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port_ok and clean and text.isascii()


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of "host:port". Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host) or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError(f'listen "{text}" is not an address such as "127.0.0.1:9109"')
    if int(port) > 65535:
        raise ValueError(f'listen "{text}" has a port above 65535')
    return host.strip("[]"), int(port)


def is_log_group(text: str) -> bool:
    """Return whether a log group of CloudWatch Logs can have this name."""
    return re.fullmatch(r"[A-Za-z0-9._/#-]{1,512}", text) is not None


def is_namespace(text: str) -> bool:
    """Return whether CloudWatch takes this namespace from its users."""
    legal = re.fullmatch(r"[A-Za-z0-9._/#: -]{1,255}", text) is not None and text.strip() != ""
    return legal and not text.startswith((":", "AWS/"))


def is_glob_below(text: str) -> bool:
    """Return whether `text` is a glob that every Python takes, relative to a folder and not the folder itself."""
    if text.startswith("/") or "\0" in text:
        return False
    parts = PurePosixPath(text).parts
    return bool(parts) and not any("**" in part and part != "**" for part in parts)
