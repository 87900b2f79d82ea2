"""The job descriptor's tables: all facts that one job's agents need, with nothing left to look up.

`descriptor_file.py` reads and writes them as TOML. `docs/job-descriptor.md` is their reference.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from enum import Enum
from typing import Annotated, Literal

from bai_agent.job.outcome import ExitCode
from bai_agent.job.schema.declared import Check, DeclaredTable, Example, Mistake, MistakeError, WrittenAs
from bai_agent.job.schema.field_types import (
    AbsolutePath,
    Brokers,
    Dimensions,
    Duration,
    DurationOrOff,
    ExitStatus,
    FilledText,
    ImageName,
    JsonPathText,
    LabelName,
    ListenAddress,
    LogGroup,
    Md5,
    MetricName,
    Mode,
    MountTarget,
    Namespace,
    OwnFolder,
    Pattern,
    Percentage,
    PositiveDuration,
    PositivePercentage,
    RelativeGlob,
    RequestPath,
    SecretReference,
    Sha256,
    WebAddress,
    at_least,
    compile_pattern,
    in_range,
    is_glob_below,
    shown,
)
from bai_agent.job.schema.json_path import last_key, read_json_path
from bai_agent.job.schema.pattern_groups import RESERVED, UNIT, VALUE, read_groups, taken_names
from bai_agent.job.schema.star_path import path_mistakes, read_star_path
from bai_agent.light_dataclass import dataclass, field, replace

VERSION = 1
"""The format of these tables."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


_NEVER = r"\Zof another node's output"
"""A pattern without any match. Its text lets lines be skipped without a search."""


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
    """States of a progress bar, each ended by a carriage return within one line, from which a metric is
    taken."""

    ALL = "all"
    LAST = "last"


class OverRanks(str, Enum):
    """How a metric is shown that several nodes or processes print."""

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
    """The program or structure of a file of results; `metrics/results/formats.py` reads them."""

    HYPERFINE = "hyperfine"
    GOOGLE_BENCHMARK = "google-benchmark"
    PYTEST_BENCHMARK = "pytest-benchmark"
    BMF = "bmf"
    JMH = "jmh"
    MLLOG = "mllog"
    CSV = "csv"
    JSON = "json"


class Unpack(str, Enum):
    """How a pulled archive is unpacked."""

    NO = "no"
    """It stays packed, at `path`."""
    INTO = "into"
    """Its members are written into the folder `path`; the archive itself is not kept."""
    IN_PLACE = "in_place"
    """Its members are written beside `path`; the archive itself is not kept."""


class SourceKind(str, Enum):
    """The purpose of a source, which decides where its relative path starts."""

    DATA = "data"
    SCRIPTS = "scripts"


class Buffering(str, Enum):
    """How the benchmark's output is buffered on its way into the file."""

    LINE = "line"
    TIMED = "timed"
    OWN = "own"


class MpiLaunch(str, Enum):
    """Which program starts mpirun, with the strategies `horovod` and `mpi`."""

    MPIRUN = "mpirun"
    USER = "user"


class SizePolicy(str, Enum):
    """What changes the number of nodes of an elastic job, apart from `bai scale`."""

    FIXED = "fixed"
    """Nothing."""
    GOODPUT = "goodput"
    """The benchmark's hints about its speed."""


class Power(str, Enum):
    """What happens to the machine after the end."""

    STAY = "stay"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity of the job: the `[job]` table."""

    id: str
    name: str = ""
    action_id: str | None = None
    """The service's id of the request. Unset: the job id."""
    parent_action_id: str | None = None
    client_id: str = "local"
    """The client of the job: the Kafka messages' key and their label `client-id`."""
    username: str | None = None
    """The user who requested the job, as the service knows them."""
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
    """Number of nodes; the largest number, if there is a range."""
    min_nodes: int | None = None
    """Least number of nodes that an elastic job runs with. None if the job is fixed."""
    processes_per_node: str = "1"
    """A number, or "gpus" for one process per GPU."""
    launch: MpiLaunch = MpiLaunch.MPIRUN
    """`user`: the command runs alone, and starts mpirun itself. For the strategies `horovod` and `mpi`."""
    max_restarts: int = 0
    """The same number as in `[restart]`, for the strategy `torchrun`."""
    cpus_per_process: int | None = None
    """CPUs for each process; unset: decided by its launcher."""
    gpus: int | None = None
    """Number of GPUs of each node by its instance type, if `processes_per_node` counts them; a node with
    another number does not start. Unset: any number."""
    mpirun_options: tuple[str, ...] = ()
    """Options of mpirun, placed unchanged after our own. Of `launch` `mpirun`."""
    efa: bool = False
    """Whether the machines have Elastic Fabric Adapters: then a library that moves data between them by
    sockets causes a warning."""

    @property
    def process_logs(self) -> bool:
        """Whether each process keeps its output in a file of its own, from which metrics are taken: if we
        start mpirun."""
        return self.name in ("horovod", "mpi") and self.launch is MpiLaunch.MPIRUN

    @property
    def is_supervised(self) -> bool:
        """Whether the agent is the supervisor of the benchmark's processes, as AdaptDL has it."""
        return self.name == "adaptdl"

    @property
    def saved_code(self) -> int | None:
        """Exit code of a benchmark that has saved its state and asks to be restarted. None if there is
        none."""
        return 143 if self.is_supervised else None

    @property
    def absorbs_losses(self) -> bool:
        """Whether the benchmark continues by itself if nodes come or go: in an elastic job only the loss of the first
        node ends a generation."""
        return self.name == "ray"

    @property
    def serving_program(self) -> str:
        """Name for people of the program by which the other nodes serve the first one."""
        return "Ray" if self.name == "ray" else "sshd, through which node 0 starts processes on this node,"

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError("nodes must be an integer ≥ 1")
        if self.min_nodes is not None and not 1 <= self.min_nodes <= self.nodes:
            raise ValueError(f"min_nodes must be an integer from 1 to nodes, which is {self.nodes}")
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
    """The command and its environment: the `[benchmark]` table. Either `argv` or `script` is set."""

    argv: tuple[str, ...] = ()
    """The command and its arguments; no shell sees it. `$(NAME)` is expanded from the environment."""
    script: str | None = None
    """The text of a script; without a first line `#!` it is run by /bin/sh. The words of `argv` are then
    the script's arguments."""
    cwd: str | None = None
    """The folder in which the command starts: absolute, or relative to the work folder. Unset: the scripts'
    folder if there is one, else the work folder."""
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    """Environment variables by reference: name → "env:NAME", "secretsmanager:…" or "ssm:…", resolved where
    the benchmark runs."""
    inherit_env: bool = False
    """Whether the agent's own environment is passed on (locally it is the caller's)."""
    python: str | None = None
    """Absolute path of the Python whose folder comes first on PATH."""
    requirements: str | None = None
    """A requirements file, relative to the scripts' folder, installed into a venv of the job."""
    user: str | None = None
    container: ImageName | None = None
    """Image of the container, by podman, in which the command runs."""
    buffering: Buffering = Buffering.LINE
    exclusive: bool = False
    """Whether the run begins only when no other job runs on this machine, and makes other exclusive jobs
    wait."""

    def __post_init__(self) -> None:
        if not self.argv and self.script is None:
            raise ValueError("is empty: write argv or script")
        for text in (*self.argv, self.script or "", *self.env.values()):
            if "\0" in text:
                raise ValueError("a NUL character cannot be passed to a process")
        if self.container is not None and (self.python is not None or self.requirements is not None):
            raise ValueError(
                "container excludes python and requirements: the image has its own Python and packages"
            )
        for name in (*self.env, *self.secrets):
            if not _ENVIRONMENT_NAME.fullmatch(name):
                raise ValueError(f'"{name}" is not a name of an environment variable')


ELASTIC_SILENCE = timedelta(seconds=20)
"""`limits.peer_silence` of an elastic job that does not set it."""
EC2_MAX_RUNTIME = timedelta(hours=24)
"""Limit of a job on EC2 that sets none, because a machine costs as long as it is on."""
_MACHINE_SLACK = timedelta(minutes=15)
"""Time in addition to a job's own limits: for the boot, and for steps that no limit covers."""


@dataclass(frozen=True, kw_only=True)
class Limits(DeclaredTable):
    """Limits of the duration of each step."""

    max_runtime: Annotated[PositiveDuration | None, Example("2h")] = None
    """From the benchmark's start to its forced end. Unset: none on this machine, 24h on EC2."""
    pull_timeout: Annotated[PositiveDuration, Example("1h")] = timedelta(hours=1)
    """For all data together."""
    join: Annotated[PositiveDuration, Example("10m")] = timedelta(minutes=10)
    """For how long the other nodes wait for a node without signs of life."""
    peer_silence: Annotated[
        Duration,
        at_least(
            timedelta(seconds=20),
            "nodes give signs of life every 5 s, and a healthy one may have a slow request to the store",
        ),
        Example("20s"),
    ] = timedelta(seconds=60)
    """One of several nodes is lost after this time without a sign of life or an answer. At least 20s, the
    default of elastic jobs."""
    store_away: Annotated[PositiveDuration, Example("30m")] = timedelta(minutes=10)
    """For how long several nodes continue if none of them reaches the job store. A single node that does not
    reach it ends after `peer_silence`."""
    grace: Annotated[Duration, Example("30s")] = timedelta(seconds=30)
    """From SIGTERM to SIGKILL when a benchmark is ended."""
    extract_timeout: Annotated[Duration, Example("2h")] = timedelta(minutes=30)
    """Time after the benchmark's exit for the rest of the extraction, while it makes progress. `bai extract`
    can search the rest later."""
    drain: Annotated[Duration, Example("60s")] = timedelta(seconds=60)
    """Time after that for records and files that are still to be sent."""
    no_output: Annotated[PositiveDuration | None, Example("10m")] = None
    """Time without output or `emit` after which the benchmark is ended. Unset: off."""

    def machine_time(self, *, max_runtime: timedelta, nodes: int = 1) -> timedelta:
        """Return how long a machine for such a run may be on, if the benchmark may take `max_runtime`.

        Several nodes may wait for each other, and for the store through which they meet.
        """
        at_work = max_runtime + self.pull_timeout + self.grace + self.extract_timeout + self.drain
        together = self.join + self.store_away if nodes > 1 else timedelta()
        return at_work + together + _MACHINE_SLACK


def _unpack(value: object) -> Unpack:
    choices = {False: Unpack.NO, True: Unpack.INTO, "into": Unpack.INTO, "in_place": Unpack.IN_PLACE}
    for each, unpack in choices.items():
        if type(value) is type(each) and value == each:
            return unpack
    problem = f"{shown(value) if isinstance(value, str) else value} is not one of the choices"
    raise MistakeError([("", (problem, 'possible: false, true, "into", "in_place"'))])


@dataclass(frozen=True, kw_only=True)
class WrittenSource(DeclaredTable):
    """Data or scripts that are pulled before the run."""

    src: Annotated[str, Example("s3://bucket/train.npz")]
    path: Annotated[str, Example("/data/train.npz")]
    id: Annotated[str | None, Example("train")] = None
    """A name, for other programs. Kept in the job descriptor."""
    md5: Annotated[Md5 | None, Example("8a61469f7ea1b51cbae51d4f78837e45")] = None
    """The file's MD5, checked while it is written."""
    sha256: Annotated[Sha256 | None, Example("0" * 64)] = None
    """The file's SHA-256, checked while it is written."""
    unpack: Annotated[
        Unpack, WrittenAs(_unpack, {"enum": [False, True, "into", "in_place"]}), Example("into")
    ] = Unpack.NO
    """An archive: `true` or `"into"` puts its members into the folder `path`, `"in_place"` beside `path`."""
    mode: Annotated[Mode | None, Example("0755")] = None
    """The file's permissions, octal, as a text."""
    region: Annotated[str | None, Example("eu-west-1")] = None
    """The bucket's region. Unset: found."""
    anonymous: bool = False
    """Whether the bucket is read without credentials."""


@dataclass(frozen=True, kw_only=True)
class Source(WrittenSource):
    """A source as an agent pulls it: an item of `[[sources]]`."""

    src: str
    """An address of one of the schemes in `job/schema/source_schemes.py`."""
    path: str
    """Its place on the machine: absolute, or relative to the folder in which the benchmark starts (data), or
    the scripts' folder (scripts)."""
    kind: SourceKind = SourceKind.DATA
    directory: bool = False
    """The source is a prefix or folder even though `src` does not end in a slash."""
    size: int | None = None
    """Bytes, where known."""
    etag: str | None = None
    """The S3 object's ETag, without quotes, if its content must not have changed since the job was planned."""
    endpoint: str | None = None
    """Address of an S3 server other than AWS's; unset: the one of the environment, if any."""
    arm: str | None = None
    """The arm of `[repeat]` that needs it. If a source has one, each arm has folders of its own; unset: it is
    for both."""
    server: bool = False
    """Whether it is for the server of `[server]`, and not for its client. Scripts are for both."""


class MountType(str, Enum):
    """How a network file system is mounted."""

    EFS = "efs"
    """Amazon EFS with TLS, by the program mount.efs."""
    NFS = "nfs"
    """NFS version 4, by the program mount.nfs."""

    @property
    def program(self) -> str:
        """The program by which `mount` mounts it."""
        return f"mount.{self.value}"

    @property
    def package(self) -> str:
        """The package of that program, for people."""
        if self is MountType.EFS:
            return "amazon-efs-utils"
        return "nfs-common (Debian, Ubuntu) or nfs-utils (Amazon Linux)"


_HOST = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_-]{1,63})*\.?"
"""A name or an IPv4 address. A longer or an empty part of a name cannot be looked up, with an error of its own kind."""
_NFS_SRC = re.compile(rf"(?P<server>{_HOST}|\[[0-9A-Fa-f:.]+\]):/[^\s\x00-\x1f\x7f]*")
_EFS_SRC = re.compile(r"fs-[0-9a-f]{8,40}:/[^\s\x00-\x1f\x7f]*")


@dataclass(frozen=True, kw_only=True)
class Mount(DeclaredTable):
    """A network file system. It is mounted on each machine before the pull, and unmounted at the job's end: see
    [data.md](data.md#network-file-systems)."""

    type: Annotated[MountType, Example("efs")]
    """`efs`: Amazon EFS, encrypted with TLS, by the package amazon-efs-utils. `nfs`: NFS version 4."""
    src: Annotated[str, Example("fs-0123456789abcdef0:/")]
    """The file system: `fs-…:/FOLDER` with `efs`, `SERVER:/EXPORT` with `nfs`."""
    target: Annotated[MountTarget, Example("/efs")]
    """The absolute path of the folder where it is mounted: a new or an empty one."""
    iam: Annotated[bool, Example(True)] = False
    """With `efs`: whether the machine identifies itself with its role, as the file system's policy may require."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        if self.type is MountType.EFS and not _EFS_SRC.fullmatch(self.src):
            problem = f"{shown(self.src)} is not a file system of EFS and a folder in it"
            yield "src", (problem, 'write for example "fs-0123456789abcdef0:/"')
        if self.type is MountType.NFS and not _NFS_SRC.fullmatch(self.src):
            problem = f"{shown(self.src)} is not a server and its export"
            yield "src", (problem, 'write for example "10.0.0.5:/export"')
        elif self.type is MountType.NFS and _EFS_SRC.fullmatch(self.src):
            problem = f"{shown(self.src)} names no server, but a file system of EFS"
            yield "src", (problem, 'write type = "efs", or its DNS name: "fs-….efs.REGION.amazonaws.com:/"')
        if self.iam and self.type is not MountType.EFS:
            yield "iam", ("is for efs", "remove it")

    @property
    def server(self) -> str | None:
        """Name or address of the NFS server. None for EFS, whose server mount.efs finds."""
        found = _NFS_SRC.fullmatch(self.src) if self.type is MountType.NFS else None
        return found["server"].strip("[]") if found is not None else None

    def contains(self, path: str) -> bool:
        """Return whether an absolute path is the mount's target or below it."""
        return path == self.target or path.startswith(f"{self.target}/")


def overlapping_target(targets: Sequence[str]) -> tuple[int, str] | None:
    """Return the index of the first target that is, contains or is in an earlier one, with that one; None if there is none."""
    for index, target in enumerate(targets):
        for earlier in targets[:index]:
            if f"{target}/".startswith(f"{earlier}/") or earlier.startswith(f"{target}/"):
                return index, earlier
    return None


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
        """The units of its values."""
        return "bytes" if self is OfRun.PEAK_MEMORY else "s"


@dataclass(frozen=True, kw_only=True)
class WrittenMetric(DeclaredTable):
    """A metric that is taken from the benchmark's output."""

    name: Annotated[MetricName, Example("train_loss")]
    """The metric's name."""
    units: Annotated[str, Example("ms")] = ""
    """Its units; `""` for none. A group `unit` in the pattern is converted to them."""
    pattern: Annotated[Pattern, Example(r"train loss (\d+\.\d+)")] = ""
    """A regular expression in Python's syntax, searched in every line. The value is the group `value`, else the
    first unnamed group, else the only named one, else the match. The group `step` is the plots' axis, `unit` the
    unit; others become labels. Use single quotes: `'loss (\\d+)'`. Required without `json` and `of_run`."""
    of_run: Annotated[OfRun | None, Example("wall_time")] = None
    """In place of `pattern`: a resource of the run itself. Times are in seconds (`units = "s"`), the peak
    memory of its largest process in `"bytes"`; `cpu_time` is user plus system time."""
    json: Annotated[JsonPathText | None, Example("train.loss")] = None
    """In place of `pattern`, for lines that are JSON objects: the path of the value, such as `a.b`,
    `'"a.b".c'` for a key with a dot, or `losses[0]`."""
    json_step: Annotated[JsonPathText | None, Example("step")] = None
    """With `json`: the path of the step in the same object."""
    json_labels: Annotated[tuple[JsonPathText, ...], Example(["split"])] = ()
    """With `json`: the ways to labels in the same object. Each label has the name of its path's last key."""
    after: Annotated[Pattern | None, Example("^== Latency")] = None
    """A regular expression: the metric counts only after a line that matches it. Use it for logs with several
    tables of the same shape."""
    until: Annotated[Pattern | None, Example("^== ")] = None
    """A regular expression: a matching line ends the metric until `after` matches again; without `after`
    the metric starts with the log."""
    context: Annotated[tuple[Pattern, ...], Example(["^== (?P<test>\\w+) ==", "time in (?P<unit>\\w+)"])] = ()
    """Regular expressions for lines that describe the following values: named groups become labels, unit
    or step. Several matches in a line are heads of columns: for the first value of a line, the second, and
    so on."""
    number: Annotated[NumberForm, Example("thousands")] = NumberForm.PLAIN
    """Notation of numbers: `thousands` reads `60,911.3`, `si` reads `1.2k` and `4Ki`, `auto` both."""
    repaint: Annotated[Repaint, Example("last")] = Repaint.ALL
    """States of a progress bar in one line from which the metric is taken: `all` of them, or only the
    `last`."""
    over_ranks: Annotated[OverRanks, Example("sum")] = OverRanks.EACH
    """How the summary, `bai status` and `bai metrics` show the metric if several nodes or processes print it.
    Records always exist for each rank."""
    better: Annotated[Better | None, Example("lower")] = None
    """Which direction is an improvement."""
    headline: Annotated[Headline, Example("max")] = Headline.LAST
    """How a run's values become the one number that lists and comparisons use."""
    tolerance: Annotated[Percentage | None, Example("2%")] = None
    """Largest share by which runs may differ without consequence. Unset: any counts."""
    required: bool = False
    """Whether a run without a match has failed."""


@dataclass(frozen=True, kw_only=True)
class Metric(WrittenMetric):
    """One metric to extract: an item of `[[metrics]]`."""

    name: str
    warmup: timedelta | None = None
    """Time from the benchmark's start, in each repeat, whose values are left out of statistics and headline.
    The values are still recorded."""
    warmup_values: int = 0
    """Number of first values of each series that are left out in the same way."""
    revision: str | None = None
    """The preset's definition, "fio/2": its name, and a number that is raised only if the metric's numbers
    change."""
    server: bool = False
    """Whether it is searched in the output of the server of `[server]`, and not in that of its client."""

    @property
    def preset(self) -> str | None:
        """The name of the preset that it comes from; None if the descriptor defines it itself."""
        return None if self.revision is None else self.revision.partition("/")[0]

    @property
    def context_has_unit(self) -> bool:
        """Whether an earlier line says the unit of its values."""
        return any("(?P<unit>" in pattern for pattern in self.context)

    def unsearched(self) -> Metric:
        """Return this metric with a pattern that no line matches, for a node whose output it is not about."""
        return replace(
            self,
            pattern=_NEVER,
            of_run=None,
            json=None,
            json_step=None,
            json_labels=(),
            after=None,
            until=None,
            context=(),
        )

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


@dataclass(frozen=True, kw_only=True)
class HostMetrics(DeclaredTable):
    """Samples of the machine itself: CPU, memory, disk, network, GPUs."""

    enabled: bool = True
    """Whether they are taken."""
    interval: Annotated[
        Duration,
        at_least(
            timedelta(milliseconds=100),
            'write "100ms" or more; [host_metrics] enabled = false switches them off',
        ),
        Example("5s"),
    ] = timedelta(seconds=5)
    """Time between two samples, at least 100ms."""


class SinkTable(DeclaredTable):
    """A destination of records. Both descriptors and the configuration have such a table, with the same
    keys."""


@dataclass(frozen=True, kw_only=True)
class Kafka(SinkTable):
    """The Kafka brokers to which metrics are sent. Without this table none are sent, unless the configuration
    names brokers."""

    brokers: Annotated[Brokers, Example(["broker-1:9092", "broker-2:9092"])]
    """Bootstrap brokers, `host:port`."""
    topic: Annotated[FilledText, Example("BAI_METRICS")] = "BAI_METRICS"
    """The topic of the metric messages."""
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Example("SASL_SSL")
    ] = "PLAINTEXT"
    """Kafka's security protocol."""
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "AWS_MSK_IAM"] | None, Example("SCRAM-SHA-512")
    ] = None
    """Kafka's SASL mechanism; needed with `SASL_PLAINTEXT` and `SASL_SSL`. All but `AWS_MSK_IAM` need user and password."""
    sasl_username: Annotated[str | None, Example("metrics")] = None
    """The user."""
    sasl_password: Annotated[SecretReference | None, Example("env:KAFKA_PASSWORD")] = None
    """A reference to the password, as in `[env.secrets]`; never the password."""
    ssl_cafile: Annotated[str | None, Example("/etc/kafka/ca.pem")] = None
    """Certificates that are trusted; unset: the system's."""
    ssl_certfile: Annotated[str | None, Example("/etc/kafka/client.pem")] = None
    """Our own certificate."""
    ssl_keyfile: Annotated[str | None, Example("/etc/kafka/client.key")] = None
    """Its private key."""
    host_metrics: bool = False
    """Whether host metrics are sent as well."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        if not self.security_protocol.startswith("SASL"):
            return
        if self.sasl_mechanism is None:
            fix = 'add sasl_mechanism, for example "SCRAM-SHA-512", with sasl_username and sasl_password'
            yield "sasl_mechanism", (f"is missing, and security_protocol is {self.security_protocol}", fix)
        elif self.sasl_mechanism != "AWS_MSK_IAM":
            for key, example in (("sasl_username", "metrics"), ("sasl_password", "env:KAFKA_PASSWORD")):
                if getattr(self, key) is None:
                    problem = f"is missing, and {self.sasl_mechanism} needs it"
                    yield key, (problem, f'add {key} = "{example}"')


@dataclass(frozen=True, kw_only=True)
class LogLines(SinkTable):
    """A file on the benchmark's machine for its output as JSON lines. Without this table no such file is
    written, unless the configuration names one."""

    path: Annotated[AbsolutePath, Example("/var/log/bai/benchmark.jsonl")]
    """Path of the file. Lines are appended, for a log shipper on the machine. See
    [docs/service.md](service.md#results)."""


@dataclass(frozen=True, kw_only=True)
class Prometheus(SinkTable):
    """The last value of each metric and the number of its values, for Prometheus; at least one of the two
    addresses is required. See [docs/sinks.md](sinks.md#prometheus)."""

    pushgateway: Annotated[WebAddress | None, Example("http://pushgateway:9091")] = None
    """A Pushgateway to which metrics are pushed every few seconds. It keeps a run's group until it is
    deleted."""
    username: Annotated[FilledText | None, Example("metrics")] = None
    """The user, if the Pushgateway asks for one (HTTP basic authentication)."""
    password: Annotated[SecretReference | None, Example("ssm:/bai/pushgateway-password")] = None
    """A reference to the password, as in `[env.secrets]`; never the password."""
    delete_on_end: bool = False
    """Whether the run's group is deleted from the Pushgateway at the end. Prometheus may then miss the last
    values."""
    listen: Annotated[ListenAddress | None, Example("127.0.0.1:9109")] = None
    """An address of the job's machine for Prometheus, which scrapes `/metrics` there during the run.
    Everyone who reaches the address may read."""
    host_metrics: bool = False
    """Whether host metrics are also written."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        if self.pushgateway is None and self.listen is None:
            fix = 'add pushgateway = "http://pushgateway:9091", or listen = "127.0.0.1:9109"'
            yield "", ("names no address", fix)
        if self.password is None and self.username is not None:
            fix = 'add password = "ssm:/bai/pushgateway-password", or remove username'
            yield "password", ("is missing, and username is there", fix)
        if self.username is None and self.password is not None:
            fix = 'add username = "metrics", or remove password'
            yield "username", ("is missing, and password is there", fix)


@dataclass(frozen=True, kw_only=True)
class CloudWatch(SinkTable):
    """Metrics as log events in CloudWatch's embedded metric format. See [docs/sinks.md](sinks.md#cloudwatch)."""

    log_group: Annotated[LogGroup, Example("/bai/metrics")]
    """The log group, which must exist. Each node of a job writes a log stream of its own, `JOB/RANK`."""
    namespace: Annotated[Namespace, Example("Team/Benchmarks")] = "bai"
    """CloudWatch's namespace of the metrics."""
    dimensions: Annotated[Dimensions | None, Example(["task_name", "rank"])] = None
    """Labels that become dimensions, at most 30; CloudWatch charges for each combination of values. The
    log has all labels. Unset: the labels of job and record, and the rank, without the job's id."""
    high_resolution: bool = False
    """Whether CloudWatch keeps a value for each second, not only each minute."""
    region: Annotated[FilledText | None, Example("eu-central-1")] = None
    """The log group's region; unset: the machine's."""
    host_metrics: bool = False
    """Whether host metrics are sent as well."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """The `[output]` table."""

    artifacts: tuple[str, ...] = ()
    """Globs relative to the benchmark's working folder, kept in the store at the end."""
    discard_stdout: bool = False
    """Whether the benchmark's standard output is /dev/null; its standard error is in the log all the same."""

    def __post_init__(self) -> None:
        # Detected only at the end, it would cost a whole run its result.
        for pattern in self.artifacts:
            if not is_glob_below(pattern):
                raise ValueError(
                    f'artifacts "{pattern}" is not a glob below the working folder; write for example "runs/**" or "*.csv"'
                )


CONTAINER_STRATEGIES = ("single_node", "each_node", "torchrun")
"""Strategies of jobs with a container: the others start programs of ours, or a server for other nodes, with the benchmark."""

ARM = "BAI_ARM"
"""The environment variable that names the arm."""

LEAST_RUNS = 10
"""Smallest number of runs before `until` is evaluated: an interval of fewer runs, chosen by its width, is
often too narrow."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the arms that a job compares: an item of `[[repeat.arms]]`."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    """The arm's labels, in addition to those of `[job]`. For people."""
    argv: tuple[str, ...] = ()
    """The arm's values, in place of those of `[benchmark]`."""
    script: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    """The arm's complete environment, in place of that of `[benchmark]`."""
    prepare: tuple[str, ...] = ()
    """The arm's command before each run; empty: that of `[repeat]`."""
    cleanup: tuple[str, ...] = ()
    """One after each run."""
    requirements: str | None = None
    """The arm's requirements in place of those of `[benchmark]`, if arms have folders of their own."""
    scripts_sha256: str | None = None
    """A checksum over names and contents of the arm's own scripts at submission. For people."""
    git: Git | None = None
    """The commit of the folder of the arm's own descriptor."""

    def __post_init__(self) -> None:
        if not is_job_id(self.name):
            raise ValueError(
                f'name "{self.name}" must be of A-Z a-z 0-9 . _ - and start with a letter or digit'
            )


@dataclass(frozen=True, kw_only=True)
class WrittenRepeat(DeclaredTable):
    """Runs the benchmark several times in one job, one run after the other: see [repeats.md](repeats.md)."""

    runs: Annotated[int | None, in_range(1, 100_000), Example(10)] = None
    """Number of runs. With `until` the largest number of runs. Unset: 50 of each arm."""
    warmup_runs: Annotated[int, in_range(0, 100_000), Example(1)] = 0
    """Number of runs before those, from which no metric is taken."""
    until: Annotated[PositivePercentage | None, Example("2%")] = None
    """Precision of the mean of `metric`: from the tenth run on, runs end when the 95 % confidence interval
    extends at most this share to either side twice in a row, without a trend. With arms: the interval of
    their difference."""
    metric: Annotated[FilledText | None, Example("throughput")] = None
    """The metric whose headline `until` evaluates, or a resource of each run: `wall_time`, `cpu_time`,
    `user_time`, `system_time`, `peak_memory`. Unset: the only metric that has `better`."""
    max_time: Annotated[PositiveDuration | None, Example("2h")] = None
    """Time after which no new run begins (with arms: no new block). Unset: no limit except `[limits]
    max_runtime`, which is for all runs together."""
    min_runs: Annotated[int | None, in_range(1, 100_000), Example(10)] = None
    """With `max_time`: so many runs are done in any case. If no time is left for further runs, that is then
    not a warning."""
    keep_going: bool = False
    """Whether runs continue after one failed. The job still fails. Not for `torchrun` or
    `each_node` on several nodes."""
    ignore_failure: bool = False
    """Whether a run counts with any exit code. A signal, or a command that cannot be started, is a failure
    all the same."""
    seed: Annotated[int, in_range(0, 2**63 - 1), Example(7)] = 0
    """Seed of the order in which the arms take turns."""


@dataclass(frozen=True, kw_only=True)
class Repeat(WrittenRepeat):
    """The `[repeat]` table: the benchmark is run several times, one run after the other, in one job."""

    runs: Annotated[int, in_range(1)] = field()
    """With `until`: at most so many."""
    warmup_runs: Annotated[int, in_range(0)] = 0
    prepare: tuple[str, ...] = ()
    """A command before each run, and its arguments; empty: none."""
    cleanup: tuple[str, ...] = ()
    """One after each run."""
    arms: tuple[Arm, ...] = ()
    """Two or more arms that take turns, each for an equal part of `runs`; none: the benchmark itself."""

    def __post_init__(self) -> None:
        if (self.until is None) != (self.metric is None):
            raise ValueError(
                "until and metric go together: metric names the metric whose interval until uses"
            )
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
        count = len(self.arms)
        return shuffled_blocks(count, (self.warmup_runs + self.runs) // count, seed=self.seed)

    @property
    def arms_of_runs(self) -> list[str]:
        """The name of each run's arm, by its number in records; empty without arms."""
        return [self.arms[arm].name for arm in self.sequence[self.warmup_runs :]] if self.arms else []

    @property
    def decided_after(self) -> int | None:
        """Number of runs after which `until` is evaluated for the first time; None if the number of runs is
        fixed."""
        least = LEAST_RUNS * max(1, len(self.arms))
        return None if self.until is None else min(least, self.runs)


@dataclass(frozen=True, kw_only=True)
class Restart(DeclaredTable):
    """When a benchmark that failed is started again, in the same job: see [restarts.md](restarts.md)."""

    max_restarts: Annotated[int, in_range(0, 1000), Example(3)] = 0
    """Number of restarts over the whole job. Later failures end it."""
    backoff: Annotated[Duration, Example("10s")] = timedelta(seconds=10)
    """Time between a failure and the first restart. It doubles with each further restart, up to 5m."""
    exit_codes: Annotated[tuple[ExitStatus, ...], Example([1, 137])] = ()
    """Exit codes after which the benchmark is restarted; 128 plus a number is a signal. Unset: after every
    failure, except one that would repeat itself, such as a missing command."""


@dataclass(frozen=True, kw_only=True)
class Elastic(DeclaredTable):
    """Settings of a job whose number of machines is a range, such as `"2:4"`. `replacements` also works with
    `single_node`."""

    nodes: Annotated[int | None, in_range(1), Example(3)] = None
    """Number of machines that are wanted at the start. Unset: the largest number of the range; the least one with
    `policy = "goodput"`."""
    policy: Annotated[SizePolicy | None, Example("fixed")] = None
    """`"goodput"`: AdaptDL's hints change the number of machines until `bai scale` sets one; `"fixed"`: only `bai scale` does. Unset:
    `"goodput"` for `adaptdl`, else `"fixed"`."""
    wait: Annotated[Duration, Example("10m")] = timedelta(minutes=10)
    """Time for which the job waits with fewer machines than the least. It ends then."""
    pause: Annotated[PositiveDuration, Example("1m")] = timedelta(minutes=1)
    """Least time between a start of the benchmark and its end for a machine that has joined."""
    replacements: Annotated[int, in_range(0, 1000), Example(3)] = 0
    """Most machines that are launched on EC2 in place of lost ones, over the whole job, while a command or the service follows it."""


def _interval(every: timedelta | None) -> Mistake | None:
    if every is None or every >= timedelta(seconds=1):
        return None
    return "must be at least 1s", 'write for example "10m", or "off"'


@dataclass(frozen=True, kw_only=True)
class WrittenCheckpoint(DeclaredTable):
    """The folder in which the benchmark keeps its checkpoints. They are stored with the job, and restored
    before a restart."""

    path: Annotated[OwnFolder, Example("checkpoints")]
    """The folder: in the working folder, or absolute. `BAI_CHECKPOINT_DIR` is its path in the environment of the benchmark."""
    every: Annotated[DurationOrOff, Check(_interval), Example("10m")] = timedelta(minutes=10)
    """Time between two copies of the folder to the job store; `"off"` for only one at each end of the benchmark."""
    shared: bool = False
    """Whether the folder is on a file system that all machines share. Nothing is copied then."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        if self.shared and not self.path.startswith("/"):
            problem = f"{shown(self.path)} is relative, so it is in a working folder of each machine's own"
            yield "path", (problem, "write the absolute path of the shared folder, or remove shared")
        elif self.shared and ":" in self.path:
            problem = f'{shown(self.path)} has a ":", which separates the folders in BAI_CHECKPOINTS'
            yield "path", (problem, "name the folder by a path without one")


@dataclass(frozen=True, kw_only=True)
class CheckpointOrigin:
    """The checkpoint of another job in the same job store, from which a job begins."""

    job: str
    """The job's id."""
    name: str
    """The checkpoint's name: "checkpoint-0-3"."""
    sha256: str
    """SHA-256 of its marker, which has the sums of its files."""
    attempt: int = 0

    def __post_init__(self) -> None:
        if not is_job_id(self.job):
            raise ValueError(f'job "{self.job}" is not a job id')

    @property
    def title(self) -> str:
        """Name in `BAI_RESUMED` and for people: "train-1/checkpoint-0-3"."""
        return f"{self.job}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Checkpoint(WrittenCheckpoint):
    """The `[checkpoint]` table: the folder of the benchmark's checkpoints."""

    origin: CheckpointOrigin | None = None
    """Unset: the job begins without a checkpoint."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        yield from super().mistakes()
        if self.shared and self.origin is not None:
            yield "origin", ("is for a folder that is copied, and shared = true copies none", "remove one")


@dataclass(frozen=True, kw_only=True)
class ReadinessProbe(DeclaredTable):
    """An HTTP request that shows that the server is ready: it is answered with a status from 200 to 399. Without this table the
    server is ready when its first port accepts a connection."""

    path: Annotated[RequestPath, Example("/ping")]
    """The path of the request."""
    port: Annotated[int | None, in_range(1, 65535), Example(8080)] = None
    """The port. Unset: the server's first."""
    scheme: Annotated[Literal["http", "https", "HTTP", "HTTPS"], Example("https")] = "http"
    """The scheme. Certificates are not verified."""
    initial_delay_seconds: Annotated[int, in_range(0, 86_400), Example(10)] = 10
    """Seconds before the first probe."""
    period_seconds: Annotated[int, in_range(1, 86_400), Example(10)] = 10
    """Seconds between probes."""
    timeout_seconds: Annotated[int, in_range(1, 86_400), Example(1)] = 1
    """Longest time of a probe (seconds)."""
    success_threshold: Annotated[int, in_range(1, 1000), Example(1)] = 1
    """Answers in a row after which the server is ready."""
    failure_threshold: Annotated[int, in_range(1, 1000), Example(3)] = 3
    """Accepted; has no effect: the client waits for `limits.join`, however many probes fail."""


SERVER_NODE = 1
"""Node of the server in a job with `[server]`; node 0 is its client."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server under test, which node 1 runs: the `[server]` table. Either `argv` or `script` is set."""

    ports: tuple[Annotated[int, in_range(1, 65535)], ...]
    """Ports on which it listens."""
    argv: tuple[str, ...] = ()
    """Its command and arguments, like the benchmark's."""
    script: str | None = None
    """The text of a script, like the benchmark's."""
    env: dict[str, str] = field(default_factory=dict)
    """Its environment variables, in place of the benchmark's."""
    readiness_probe: ReadinessProbe | None = None

    def __post_init__(self) -> None:
        if not self.ports or len(set(self.ports)) < len(self.ports):
            raise ValueError("ports must be one or more different ports")

    def environment(self, address: str) -> dict[str, str]:
        """Return the variables by which the client finds the server at `address`."""
        first, *others = map(str, self.ports)
        numbered = {f"INFERENCE_SERVER_PORT_{number}": port for number, port in enumerate(others, 1)}
        return {"INFERENCE_SERVER_HOST": address, "INFERENCE_SERVER_PORT": first, **numbered}


@dataclass(frozen=True, kw_only=True)
class Store:
    """The `[store]` table: the place of the job's record, in addition to the run directory."""

    url: str
    """file:///absolute/folder or s3://bucket/prefix; the job is `<url>/<job id>/`."""
    region: str | None = None
    """The bucket's region; unset: found out."""
    endpoint: str | None = None
    """Address of an S3 server other than AWS's; unset: the one of the environment, if any."""


@dataclass(frozen=True, kw_only=True)
class End:
    """The `[end]` table."""

    power: Power = Power.STAY
    keep_on_failure: timedelta | None = None
    """How long a machine is kept for inspection if the job did not succeed; unset: not at all."""
    keep_after: timedelta | None = None
    """How long a machine is kept after a job that was not cancelled, also if it succeeded; unset: not at all."""

    def keep_time(self, exit_code: object) -> timedelta:
        """Return how long machines are kept after a job with this exit code. None and what is no exit code: it failed."""
        if exit_code == ExitCode.CANCELLED:
            return timedelta()
        after = self.keep_after or timedelta()
        return after if exit_code == ExitCode.SUCCEEDED else max(after, self.keep_on_failure or timedelta())


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
    mounts: tuple[Mount, ...] = ()
    metrics: tuple[Metric, ...] = ()
    results: tuple[Results, ...] = ()
    host_metrics: HostMetrics = HostMetrics()
    kafka: Kafka | None = None
    log_lines: LogLines | None = None
    prometheus: Prometheus | None = None
    cloudwatch: CloudWatch | None = None
    output: Output = Output()
    repeat: Repeat | None = None
    restart: Restart = Restart()
    elastic: Elastic = Elastic()
    checkpoint: Checkpoint | None = None
    server: Server | None = None
    store: Store | None = None
    end: End = End()
    git: Git | None = None
    set: dict[str, str] = field(default_factory=dict)
    """Keys of the benchmark descriptor → texts of `--set`, which replace the file's values. For people."""

    def __post_init__(self) -> None:
        arms = {each.name for each in self.repeat.arms} if self.repeat is not None else set()
        for source in self.sources:
            if source.arm is not None and source.arm not in arms:
                raise ValueError(f'[[sources]] arm "{source.arm}" is none of [[repeat.arms]]')
        self._check_mounts()
        if self.restart.max_restarts and self.strategy.max_restarts:
            raise ValueError("[restart] and [strategy] max_restarts say the same; keep that of [restart]")
        self._check_elastic()
        self._check_server()
        if self.checkpoint is not None and self.checkpoint.origin is not None and self.store is None:
            raise ValueError("[checkpoint.origin] is a job in the job store, and [store] is missing")
        self._check_container()
        if self.repeat is None:
            return
        if self.restart.max_restarts:
            raise ValueError(
                "[restart] max_restarts is not for jobs with [repeat]: a run that was restarted measures nothing"
            )
        if self.is_elastic:
            raise ValueError(
                "[strategy] min_nodes is not for jobs with [repeat]: runs on other numbers of nodes are not alike"
            )
        if self.checkpoint is not None:
            raise ValueError(
                "[checkpoint] is not for jobs with [repeat]: a run that continues another one measures nothing"
            )
        if self.runs_together and self.repeat.keep_going:
            raise ValueError(
                f"[repeat] keep_going is not for the strategy {self.strategy.name} on several nodes: where a run fails on one of "
                "them, the others may wait for ever"
            )
        if (
            self.arms_apart
            and self.strategy.nodes > 1
            and self.strategy.name in ("mpi", "horovod", "inference")
        ):
            raise ValueError(
                f"[[sources]] arm: arms with files of their own are not for the strategy {self.strategy.name} on several nodes"
            )
        if self.repeat.metric is not None and all(each.name != self.repeat.metric for each in self.metrics):
            raise ValueError(f'[repeat] metric "{self.repeat.metric}" is none of [[metrics]]')

    def _check_mounts(self) -> None:
        if (overlap := overlapping_target([each.target for each in self.mounts])) is not None:
            raise ValueError(f"[[mounts]] target {self.mounts[overlap[0]].target} and {overlap[1]} overlap")

    def _check_elastic(self) -> None:
        least, most = self.strategy.min_nodes, self.strategy.nodes
        if self.elastic.policy is SizePolicy.GOODPUT and not self.strategy.is_supervised:
            raise ValueError(f'[elastic] policy "goodput" is for adaptdl, not for {self.strategy.name}')
        if least is None:
            if self.elastic != Elastic():
                raise ValueError("[elastic] is for jobs with [strategy] min_nodes, and it is missing")
        elif not least <= self.desired_nodes <= most:
            raise ValueError(f"[elastic] nodes must be from {least} to {most}, not {self.desired_nodes}")

    def _check_server(self) -> None:
        serves = self.strategy.name == "inference"
        if serves != (self.server is not None):
            raise ValueError("[server] and the strategy inference go together")
        if not serves:
            return
        if self.strategy.nodes != 2 or self.is_elastic:
            raise ValueError("[strategy] nodes must be 2 for the strategy inference: a client and its server")
        if self.restart_policy.max_restarts or self.checkpoint is not None:
            raise ValueError("[restart] and [checkpoint] are not for the strategy inference")

    def _check_container(self) -> None:
        if self.benchmark.container is not None and self.strategy.name not in CONTAINER_STRATEGIES:
            raise ValueError(
                f"[benchmark] container is for the strategies {', '.join(CONTAINER_STRATEGIES)}, not for {self.strategy.name}"
            )

    @property
    def is_elastic(self) -> bool:
        """Whether nodes may be lost and may join while the job runs."""
        return self.strategy.min_nodes is not None

    @property
    def desired_nodes(self) -> int:
        """Number of nodes that the job starts with."""
        if self.elastic.nodes is None and self.takes_proposals:
            return self.strategy.min_nodes or 1
        return self.elastic.nodes or self.strategy.nodes

    @property
    def takes_proposals(self) -> bool:
        """Whether the benchmark's hints may change the number of nodes."""
        is_fixed = self.elastic.policy is SizePolicy.FIXED
        return self.is_elastic and self.strategy.is_supervised and not is_fixed

    @property
    def restart_policy(self) -> Restart:
        """When a failed benchmark is started again, all nodes with the same members."""
        if self.repeat is not None or not self.strategy.max_restarts:
            return self.restart
        return Restart(max_restarts=self.strategy.max_restarts)

    @property
    def may_restart(self) -> bool:
        """Whether a failed benchmark is started again."""
        return self.restart_policy.max_restarts > 0

    @property
    def has_generations(self) -> bool:
        """Whether the job may have more than one generation."""
        return self.is_elastic or self.may_restart

    @property
    def arms_apart(self) -> tuple[Arm, ...]:
        """The arms, if each has folders of its own because a source is for one arm alone; empty if they share
        all folders."""
        if self.repeat is None or all(each.arm is None for each in self.sources):
            return ()
        return self.repeat.arms

    def of_arm(self, arm: Arm) -> Job:
        """Return the job with `arm` as its only command."""
        benchmark = replace(self.benchmark, argv=arm.argv, script=arm.script, env=arm.env)
        if self.arms_apart:
            benchmark = replace(benchmark, requirements=arm.requirements)
        sources = tuple(replace(each, arm=None) for each in self.sources if each.arm in (None, arm.name))
        identity = replace(self.job, labels={**self.job.labels, **arm.labels})
        return replace(
            self, job=identity, benchmark=benchmark, sources=sources, repeat=None, git=arm.git or self.git
        )

    def is_server(self, node: int) -> bool:
        """Return whether a node runs the job's server."""
        return self.server is not None and node == SERVER_NODE

    def of_node(self, node: int) -> Job:
        """Return the job as a node runs it: of a job with a server, the server's part or its client's."""
        if self.server is None:
            return self
        serves = self.is_server(node)
        identity = replace(self.job, labels={**self.job.labels, "role": "server" if serves else "client"})
        sources = [each for each in self.sources if each.kind is SourceKind.SCRIPTS or each.server is serves]
        own = replace(
            self,
            job=identity,
            sources=tuple(sources),
            # All of them on both: a required metric is missing if neither node has seen it.
            metrics=tuple(each if each.server is serves else each.unsearched() for each in self.metrics),
        )
        if not serves:
            return own
        server = self.server
        benchmark = replace(self.benchmark, argv=server.argv, script=server.script, env=server.env, cwd=None)
        return replace(own, benchmark=benchmark, repeat=None, output=Output())

    @property
    def runs_together(self) -> bool:
        """Whether each of several nodes starts its own part of every run."""
        return self.strategy.name in ("each_node", "torchrun") and self.strategy.nodes > 1

    def named_metrics(self) -> tuple[Metric, ...]:
        """Return the settings of metrics by name: of those with a pattern, and of those in files, which have
        none."""
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
    """Raise ValueError if a metric's pattern does not compile, or its groups contradict the metric's keys.

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
        raise ValueError(f"{where}: write pattern, json or of_run")
    if metric.pattern:
        raise ValueError(f"{where}: pattern and json exclude each other; keep one of them")
    for index, path in enumerate(metric.json_labels):
        name = last_key(read_json_path(path))
        if name in RESERVED or name in labels:
            problem = f'"{name}" is the name of a label that records have already'
            raise ValueError(f"{where}: json_labels[{index}]: {problem}")


def marker_problem(text: str) -> str | None:
    """Return why a section cannot begin or end at lines that match `text`; None if it can."""
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
        return "takes a unit, as another pattern of the metric does; keep one of them"
    return "takes a unit, so units must say what to convert to" if unit_groups and not units else None


def check_results(results: Sequence[Results], *, labels: Collection[str]) -> None:
    """Raise ValueError if a label of results has the name of one of the job's own `labels`."""
    for index, each in enumerate(results):
        where = f'[[results]] {index} "{each.path}"'
        for name in each.labels.keys() & set(labels):
            raise ValueError(
                f'{where}: the label "{name}" has the name of a label of [job] labels; rename it'
            )


def shuffled_blocks(count: int, blocks: int, *, seed: int) -> list[int]:
    """Return the numbers below `count` once for each block, in an order of each block that the seed decides."""
    import random  # most jobs draw nothing

    draw = random.Random(seed)  # noqa: S311 - whoever has the seed shall draw the same
    if count == 2:
        # The same draws as for two arms in earlier versions: an existing job keeps its order.
        return [each for _ in range(blocks) for each in draw.choice(([0, 1], [1, 0]))]
    return [each for _ in range(blocks) for each in draw.sample(range(count), count)]


def is_job_id(text: str) -> bool:
    """Return whether a job can have this id."""
    return _ID.fullmatch(text) is not None
