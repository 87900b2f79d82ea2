"""The tables `[restart]`, `[elastic]` and `[checkpoint]`, with which a job continues after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from typing import Annotated

from bai_agent.job.schema.declared import Check, DeclaredTable, Example, Mistake
from bai_agent.job.schema.field_types import (
    Duration,
    DurationOrOff,
    ExitStatus,
    JobId,
    OwnFolder,
    PositiveDuration,
    in_range,
    shown,
)
from bai_agent.light_dataclass import dataclass


class SizePolicy(str, Enum):
    """What may change the number of nodes of an elastic job, in addition to `bai scale`."""

    FIXED = "fixed"
    """Only `bai scale` changes the number of nodes."""
    GOODPUT = "goodput"
    """The benchmark's hints about its speed also change the number of nodes."""


@dataclass(frozen=True, kw_only=True)
class Restart(DeclaredTable):
    """When a failed benchmark is restarted within the same job: see [restarts.md](restarts.md)."""

    max_restarts: Annotated[int, in_range(0, 1000), Example(3)] = 0
    """Largest number of restarts in the whole job. After this number of restarts, a further failure ends the
    job."""
    backoff: Annotated[Duration, Example("10s")] = timedelta(seconds=10)
    """Time between a failure and the first restart. The time doubles with each further restart, up to 5m."""
    exit_codes: Annotated[tuple[ExitStatus, ...], Example([1, 137])] = ()
    """Exit codes after which the benchmark is restarted. The code of a signal is 128 plus the signal's number.
    Unset: the benchmark is restarted after every failure, except failures that would recur, such as a missing
    command."""


@dataclass(frozen=True, kw_only=True)
class Elastic(DeclaredTable):
    """Settings of a job whose number of machines is a range, such as `"2:4"`. The key `replacements` also has an
    effect with the strategy `single_node`."""

    nodes: Annotated[int | None, in_range(1), Example(3)] = None
    """Number of machines that the job starts with. If unset, a job starts with the maximum of the range, or with
    the minimum if the policy is `"goodput"`."""
    policy: Annotated[SizePolicy | None, Example("fixed")] = None
    """`"goodput"`: AdaptDL's hints change the number of machines until `bai scale` sets a number. `"fixed"`:
    only `bai scale` changes the number. Unset: `"goodput"` for `adaptdl`, else `"fixed"`."""
    wait: Annotated[Duration, Example("10m")] = timedelta(minutes=10)
    """Maximum time for which the job waits if it has fewer machines than the minimum of the range. Afterwards, the
    job ends."""
    pause: Annotated[PositiveDuration, Example("1m")] = timedelta(minutes=1)
    """Shortest time between a start of the benchmark and a restart that lets a new machine join."""
    replacements: Annotated[int, in_range(0, 1000), Example(3)] = 0
    """Largest number of machines that are launched on EC2 in place of lost machines, over the whole job. Lost
    machines are replaced only while a command of `bai`, the watcher or the service checks the job."""


def _interval(every: timedelta | None) -> Mistake | None:
    if every is None or every >= timedelta(seconds=1):
        return None
    return "must be at least 1s", 'write for example "10m", or "off"'


@dataclass(frozen=True, kw_only=True)
class WrittenCheckpoint(DeclaredTable):
    """The folder in which the benchmark saves its checkpoints. bai copies the checkpoints to the job store,
    and restores the last checkpoint before a restart."""

    path: Annotated[OwnFolder, Example("checkpoints")]
    """The folder, as an absolute path or relative to the working folder. The benchmark's variable
    `BAI_CHECKPOINT_DIR` contains the path of the folder."""
    every: Annotated[DurationOrOff, Check(_interval), Example("10m")] = timedelta(minutes=10)
    """Time between two copies of the folder to the job store. With `"off"`, the folder is copied only when the
    benchmark ends."""
    shared: bool = False
    """Whether the folder is on a file system that all machines share. If true, nothing is copied."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        if self.shared and not self.path.startswith("/"):
            problem = f"{shown(self.path)} is relative, so each machine would use a folder of its own"
            yield "path", (problem, "write the absolute path of the shared folder, or remove shared")
        elif self.shared and ":" in self.path:
            problem = f'{shown(self.path)} has a ":", which separates the folders in BAI_CHECKPOINTS'
            yield "path", (problem, "write a path without a colon")


@dataclass(frozen=True, kw_only=True)
class CheckpointOrigin:
    """The checkpoint of another job with which this job begins. Both jobs are in the same job store."""

    job: JobId
    """The job's id."""
    name: str
    """The checkpoint's name: "checkpoint-0-3"."""
    sha256: str
    """SHA-256 of the checkpoint's marker, which lists the checksums of the checkpoint's files."""
    attempt: int = 0

    @property
    def title(self) -> str:
        """Job and name of the checkpoint, as in `BAI_RESUMED` and in messages, such as "train-1/checkpoint-0-3"."""
        return f"{self.job}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Checkpoint(WrittenCheckpoint):
    """The `[checkpoint]` table: the folder of the benchmark's checkpoints."""

    origin: CheckpointOrigin | None = None
    """Checkpoint of another job with which this job begins. Unset: the job begins without a checkpoint."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        yield from super().mistakes()
        if self.shared and self.origin is not None:
            yield "origin", ("has no effect, because shared = true copies no folder", "remove origin")
