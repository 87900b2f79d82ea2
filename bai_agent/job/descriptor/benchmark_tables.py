"""The tables `[job]`, `[git]`, `[benchmark]`, `[output]` and `[repeat]` of a job descriptor."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from bai_agent.job.schema.declared import DeclaredTable, Example
from bai_agent.job.schema.field_types import (
    ID_RULE,
    FilledText,
    ImageName,
    JobId,
    PositiveDuration,
    PositivePercentage,
    VariableName,
    in_range,
    is_glob_below,
    is_job_id,
)
from bai_agent.light_dataclass import dataclass, field

ARM = "BAI_ARM"
"""The environment variable that names the arm."""

LEAST_RUNS = 10
"""Number of runs after which `until` is evaluated for the first time. After fewer runs, the computed
confidence interval would often be too narrow."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity of the job: the `[job]` table."""

    id: str
    name: str = ""
    action_id: str | None = None
    """The benchmark service's id of the request. Unset: the job's id."""
    parent_action_id: str | None = None
    client_id: str = "local"
    """The client of the job, which is the key of the job's Kafka messages and the value of their label
    `client-id`."""
    username: str | None = None
    """The benchmark service's name of the user who requested the job."""
    created_by: str | None = None
    """The program that received the job's request from the benchmark service."""
    attempt: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of every metric message."""

    def __post_init__(self) -> None:
        if not is_job_id(self.id):
            raise ValueError(f'id "{self.id}" {ID_RULE}')


@dataclass(frozen=True, kw_only=True)
class Git:
    """The checked-out commit of the descriptor's folder: the `[git]` table."""

    commit: str
    branch: str = ""
    dirty: bool = False


class Buffering(str, Enum):
    """How the benchmark's output is buffered on its way into the file."""

    LINE = "line"
    TIMED = "timed"
    OWN = "own"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """The command and its environment: the `[benchmark]` table. Either `argv` or `script` is set."""

    argv: tuple[str, ...] = ()
    """The command and its arguments, which are started without a shell. `$(NAME)` is replaced by the value of
    the environment variable."""
    script: str | None = None
    """The text of a script. /bin/sh runs the script if its first line does not begin with `#!`. With `script`,
    `argv` contains the script's arguments."""
    cwd: str | None = None
    """The folder in which the command starts: absolute, or relative to the work folder. Unset: the scripts'
    folder if the job has scripts, else the work folder."""
    env: dict[VariableName, str] = field(default_factory=dict)
    secrets: dict[VariableName, str] = field(default_factory=dict)
    """Environment variables by reference: name → "env:NAME", "secretsmanager:…" or "ssm:…", resolved where
    the benchmark runs."""
    inherit_env: bool = False
    """Whether the benchmark inherits the agent's environment (for a job on this machine, the environment of
    the caller)."""
    python: str | None = None
    """Absolute path of a Python, whose folder is put first on the benchmark's PATH."""
    requirements: str | None = None
    """Path of a requirements file, relative to the scripts' folder. Its packages are installed into a venv of
    the job."""
    user: str | None = None
    container: ImageName | None = None
    """Image of the podman container in which the command runs."""
    buffering: Buffering = Buffering.LINE
    exclusive: bool = False
    """Whether the run waits until no other job runs on this machine. During the run, other exclusive jobs
    wait."""

    def __post_init__(self) -> None:
        if not self.argv and self.script is None:
            raise ValueError("is empty: write argv or script")
        if self.container is not None and (self.python is not None or self.requirements is not None):
            raise ValueError(
                "container excludes python and requirements, because the image has its own Python and packages"
            )


@dataclass(frozen=True, kw_only=True)
class Output:
    """The `[output]` table."""

    artifacts: tuple[str, ...] = ()
    """Globs relative to the benchmark's working folder. Matching files are saved in the job store when the
    job ends."""
    discard_stdout: bool = False
    """Whether the benchmark's standard output goes to /dev/null. The benchmark's standard error is still
    logged."""

    def __post_init__(self) -> None:
        # The globs are checked now, because a bad glob that is detected only at the end would cost a whole
        # run its result.
        for pattern in self.artifacts:
            if not is_glob_below(pattern):
                raise ValueError(
                    f'artifacts "{pattern}" is not a glob below the working folder; write for example "runs/**" or "*.csv"'
                )


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the arms that a job compares: an item of `[[repeat.arms]]`."""

    name: JobId
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the arm, in addition to the labels of `[job]`. Only shown to users."""
    argv: tuple[str, ...] = ()
    """The arm's command and its arguments, in place of the command of `[benchmark]`."""
    script: str | None = None
    env: dict[VariableName, str] = field(default_factory=dict)
    """The arm's complete environment, which replaces the environment of `[benchmark]`."""
    prepare: tuple[str, ...] = ()
    """Command before each run of the arm. If empty, the arm uses `prepare` of `[repeat]`."""
    cleanup: tuple[str, ...] = ()
    """Command after each run of the arm. If empty, the arm uses `cleanup` of `[repeat]`."""
    requirements: str | None = None
    """Requirements file of the arm, in place of the requirements file of `[benchmark]`, if arms have folders
    of their own."""
    scripts_sha256: str | None = None
    """A checksum over names and contents of the arm's own scripts when the job was submitted. Only shown to
    users."""
    git: Git | None = None
    """The checked-out commit of the folder with the arm's own descriptor."""


@dataclass(frozen=True, kw_only=True)
class WrittenRepeat(DeclaredTable):
    """Runs the benchmark several times in one job, one run after the other: see [repeats.md](repeats.md)."""

    runs: Annotated[int | None, in_range(1, 100_000), Example(10)] = None
    """Number of runs. With `until`, the largest number of runs. Unset: 50 runs of each arm."""
    warmup_runs: Annotated[int, in_range(0, 100_000), Example(1)] = 0
    """Number of warm-up runs before the measured runs. No metric is taken from warm-up runs."""
    until: Annotated[PositivePercentage | None, Example("2%")] = None
    """Required precision of the mean of `metric`, as a share of the mean. The job stops when the 95 % confidence
    interval extends at most this share to either side at two successive checks, and the runs have no trend. The
    first check is after ten runs of each arm. With arms, the interval of the difference between arms counts."""
    metric: Annotated[FilledText | None, Example("throughput")] = None
    """Name of the metric whose headline `until` evaluates, or name of a resource of each run (`wall_time`,
    `cpu_time`, `user_time`, `system_time`, `peak_memory`). If unset, `until` uses the only metric with `better`."""
    max_time: Annotated[PositiveDuration | None, Example("2h")] = None
    """Time after which no new run begins. In a job with arms, no new block (one run of each arm) begins. Unset:
    only `[limits] max_runtime` limits the time of all runs together."""
    min_runs: Annotated[int | None, in_range(1, 100_000), Example(10)] = None
    """With `max_time`: minimum number of runs, which are made even after `max_time`. If `max_time` then prevents
    further runs, there is no warning."""
    keep_going: bool = False
    """Whether further runs are made after a run has failed. The job still fails. Not for `torchrun` or
    `each_node` on several nodes."""
    ignore_failure: bool = False
    """Whether a run counts as successful with any exit code. A run still fails if a signal ends the benchmark,
    or if the benchmark cannot be started."""
    seed: Annotated[int, in_range(0, 2**63 - 1), Example(7)] = 0
    """Seed of the order in which the arms take turns."""


@dataclass(frozen=True, kw_only=True)
class Repeat(WrittenRepeat):
    """The `[repeat]` table: the benchmark is run several times, one run after the other, in one job."""

    runs: Annotated[int, in_range(1)] = field()
    """Number of runs. With `until`, the largest number of runs."""
    warmup_runs: Annotated[int, in_range(0)] = 0
    prepare: tuple[str, ...] = ()
    """Command that is run before each run, with its arguments. Empty: no command."""
    cleanup: tuple[str, ...] = ()
    """Command that is run after each run, with its arguments. Empty: no command."""
    arms: tuple[Arm, ...] = ()
    """Two or more arms that take turns. Each arm gets an equal part of `runs`. Empty if the job has no arms."""

    def __post_init__(self) -> None:
        if (self.until is None) != (self.metric is None):
            raise ValueError(
                "until and metric must be set together, because metric names the metric whose interval until uses"
            )
        if self.min_runs is not None and not 1 <= self.min_runs <= self.runs:
            raise ValueError("min_runs must be an integer from 1 to runs")
        if self.min_runs is not None and self.max_time is None:
            raise ValueError("min_runs has an effect only with max_time; add max_time, or remove min_runs")
        if self.arms and not 1 < len(self.arms) == len({each.name for each in self.arms}):
            raise ValueError("arms must be at least two tables with different names")
        if self.arms and (self.runs % len(self.arms) or self.warmup_runs % len(self.arms)):
            raise ValueError(
                f"runs and warmup_runs must be multiples of {len(self.arms)}, because each arm gets an equal part of the runs"
            )

    @property
    def sequence(self) -> list[int]:
        """Return the arm of each run, including warm-up runs. Every block contains each arm once. The order within
        a block depends on the seed."""
        if not self.arms:
            return [0] * (self.warmup_runs + self.runs)
        count = len(self.arms)
        return shuffled_blocks(count, (self.warmup_runs + self.runs) // count, seed=self.seed)

    @property
    def arms_of_runs(self) -> list[str]:
        """Name of each run's arm, in the order of the runs' numbers in records. Empty if the job has no arms."""
        return [self.arms[arm].name for arm in self.sequence[self.warmup_runs :]] if self.arms else []

    @property
    def decided_after(self) -> int | None:
        """Number of runs after which `until` is evaluated for the first time; None if the number of runs is
        fixed."""
        least = LEAST_RUNS * max(1, len(self.arms))
        return None if self.until is None else min(least, self.runs)


def shuffled_blocks(count: int, blocks: int, *, seed: int) -> list[int]:
    """Return a sequence of blocks. Each block contains every number below `count` once. The order within a block
    depends on the seed."""
    import random  # most jobs draw nothing

    draw = random.Random(seed)  # noqa: S311 - whoever has the seed shall draw the same
    if count == 2:
        # For two arms, the random numbers are drawn as in earlier versions, so that an existing job keeps the
        # order of its arms.
        return [each for _ in range(blocks) for each in draw.choice(([0, 1], [1, 0]))]
    return [each for _ in range(blocks) for each in draw.sample(range(count), count)]
