"""The job descriptor's tables: what one job's agents need, fully resolved, nothing left to look up.

`descriptor_file.py` reads and writes them as TOML. `docs/job-descriptor.md` is their reference.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import PurePosixPath

from bai_agent.job.pattern_groups import read_groups, taken_names

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

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError("nodes must be an integer ≥ 1")
        if not re.fullmatch(r"0*[1-9][0-9]{0,5}|gpus", self.processes_per_node):
            raise ValueError(f'processes_per_node "{self.processes_per_node}" must be a number ≥ 1 or "gpus"')


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

    def __post_init__(self) -> None:
        if not self.argv and self.script is None:
            raise ValueError("neither argv nor script says what to run")
        for text in (*self.argv, self.script or "", *self.env.values()):
            if "\0" in text:
                raise ValueError("a NUL character cannot be passed to a process")
        for name in (*self.env, *self.secrets):
            if not _ENVIRONMENT_NAME.fullmatch(name):
                raise ValueError(f'"{name}" is no name of an environment variable')


EC2_MAX_RUNTIME = timedelta(hours=24)
"""Where a job on EC2 names no limit: a machine costs as long as it is on."""
_MACHINE_SLACK = timedelta(minutes=15)
"""Beyond a job's own limits: for the boot, and for what no limit covers."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The `[limits]` table. Durations."""

    max_runtime: timedelta | None = None
    """From the benchmark's start to its forced end; unset: no limit."""
    pull_timeout: timedelta = timedelta(hours=1)
    grace: timedelta = timedelta(seconds=30)
    """From SIGTERM to SIGKILL."""
    extract_timeout: timedelta = timedelta(minutes=30)
    """After the benchmark's exit, for metrics that are still to be taken from its output."""
    drain: timedelta = timedelta(seconds=60)
    """After that, for what is still to be sent."""
    no_output: timedelta | None = None
    """A benchmark that neither prints nor emits for so long is ended; unset: off."""

    def machine_time(self, *, max_runtime: timedelta) -> timedelta:
        """Return how long a machine that is there for such a run may be on, when the benchmark may take `max_runtime`."""
        at_work = max_runtime + self.pull_timeout + self.grace + self.extract_timeout + self.drain
        return at_work + _MACHINE_SLACK


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

    def __post_init__(self) -> None:
        if self.mode is not None and not re.fullmatch(r"0?[0-7]{3}", self.mode):
            raise ValueError(f'mode "{self.mode}" is not an octal permission such as "0644"')
        for name, digits in (("md5", 32), ("sha256", 64)):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", value):
                raise ValueError(f"{name} must be {digits} hexadecimal digits")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric to extract: an item of `[[metrics]]`."""

    name: str
    pattern: str
    """A regular expression in Python's syntax; `job/pattern_groups.py` tells what its groups are for."""
    units: str = ""
    better: Better | None = None
    required: bool = False
    """A run in which it never matched has not succeeded."""
    number: NumberForm = NumberForm.PLAIN
    repaint: Repaint = Repaint.ALL


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
class Output:
    """The `[output]` table."""

    artifacts: tuple[str, ...] = ()
    """Globs relative to the benchmark's working folder, kept in the store at the end."""

    def __post_init__(self) -> None:
        # Found out only at the end, it would cost a whole run its result.
        for pattern in self.artifacts:
            if not is_glob_below(pattern):
                raise ValueError(
                    f'artifacts "{pattern}" is no glob below the working folder; write for example "runs/**" or "*.csv"'
                )


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
    host_metrics: HostMetrics = HostMetrics()
    kafka: Kafka | None = None
    output: Output = Output()
    store: Store | None = None
    end: End = End()
    git: Git | None = None


def check_patterns(metrics: Sequence[Metric], *, labels: Collection[str]) -> None:
    """Raise ValueError where a metric's pattern does not compile, or its groups contradict what the metric is.

    labels: the names of the job's own.
    """
    for index, metric in enumerate(metrics):
        where = f'[[metrics]] {index} "{metric.name}"'
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


def is_glob_below(text: str) -> bool:
    """Return whether `text` is a glob that every Python takes, relative to a folder and not the folder itself."""
    if text.startswith("/") or "\0" in text:
        return False
    parts = PurePosixPath(text).parts
    return bool(parts) and not any("**" in part and part != "**" for part in parts)
