"""How a run ended: one vocabulary for the agent, the store, `bai` and whoever reads its exit code.

| exit code | meaning |
|---|---|
| 0 | succeeded |
| 1 | the benchmark failed; its own code is in the result |
| 2 | usage, or the descriptor is wrong |
| 3 | out of time |
| 4 | cancelled |
| 5 | our side or AWS's |
| 6 | killed from outside |
"""

from __future__ import annotations

import signal
from enum import Enum, IntEnum


class ExitCode(IntEnum):
    """The exit code of `bai run`, `bai-agent run` and `bai status --wait`."""

    SUCCEEDED = 0
    BENCHMARK_FAILED = 1
    USAGE = 2
    OUT_OF_TIME = 3
    CANCELLED = 4
    OURS = 5
    KILLED = 6


class Status(str, Enum):
    """A job's state in the benchmark service's words (its BAI_APP_STATUS topic)."""

    PENDING = "PENDING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    ERROR = "ERROR"
    CANCELED = "CANCELED"


class Outcome(str, Enum):
    """Why a run ended. Each has a status, an exit code, whether a retry may help, and a sentence."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NOT_FOUND = "not_found"
    NOT_EXECUTABLE = "not_executable"
    REQUIRED_METRIC_MISSING = "required_metric_missing"
    BAD_DESCRIPTOR = "bad_descriptor"
    MAX_RUNTIME = "max_runtime"
    NO_OUTPUT = "no_output"
    CANCELLED = "cancelled"
    PREPARE_FAILED = "prepare_failed"
    PULL_FAILED = "pull_failed"
    STORE_FAILED = "store_failed"
    DISK_FULL = "disk_full"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    LAUNCH_FAILED = "launch_failed"
    CAPACITY = "capacity"
    QUOTA = "quota"
    BOOT_FAILED = "boot_failed"
    AGENT_ERROR = "agent_error"
    JOIN_FAILED = "join_failed"
    PEER_FAILED = "peer_failed"
    PEER_LOST = "peer_lost"
    OOM = "oom"
    KILLED = "killed"

    @property
    def exit_code(self) -> ExitCode:
        return _MEANING[self][0]

    @property
    def status(self) -> Status:
        return _STATUS[self.exit_code]

    @property
    def retryable(self) -> bool:
        """Whether the same job, unchanged, may well succeed when it is run again."""
        return _MEANING[self][1]

    @property
    def sentence(self) -> str:
        """One sentence for a person, without the details that only the run knows."""
        return _MEANING[self][2]


_STATUS: dict[ExitCode, Status] = {
    ExitCode.SUCCEEDED: Status.SUCCEEDED,
    ExitCode.BENCHMARK_FAILED: Status.FAILED,
    ExitCode.USAGE: Status.ERROR,
    ExitCode.OUT_OF_TIME: Status.FAILED,
    ExitCode.CANCELLED: Status.CANCELED,
    ExitCode.OURS: Status.ERROR,
    ExitCode.KILLED: Status.FAILED,
}

_MEANING: dict[Outcome, tuple[ExitCode, bool, str]] = {
    Outcome.SUCCEEDED: (ExitCode.SUCCEEDED, False, "The benchmark finished successfully."),
    Outcome.FAILED: (ExitCode.BENCHMARK_FAILED, False, "The benchmark failed."),
    Outcome.NOT_FOUND: (
        ExitCode.BENCHMARK_FAILED,
        False,
        "The benchmark's command was not found; it never ran.",
    ),
    Outcome.NOT_EXECUTABLE: (
        ExitCode.BENCHMARK_FAILED,
        False,
        "The benchmark's command could not be executed; it never ran.",
    ),
    Outcome.REQUIRED_METRIC_MISSING: (
        ExitCode.BENCHMARK_FAILED,
        False,
        "The benchmark ended well, but a required metric was never seen.",
    ),
    Outcome.BAD_DESCRIPTOR: (ExitCode.USAGE, False, "The job descriptor is wrong."),
    Outcome.MAX_RUNTIME: (
        ExitCode.OUT_OF_TIME,
        False,
        "The benchmark ran longer than limits.max_runtime and was ended.",
    ),
    Outcome.NO_OUTPUT: (
        ExitCode.OUT_OF_TIME,
        False,
        "The benchmark printed nothing for limits.no_output and was ended.",
    ),
    Outcome.CANCELLED: (ExitCode.CANCELLED, False, "The job was cancelled."),
    Outcome.PREPARE_FAILED: (ExitCode.OURS, False, "The machine could not be made ready for the benchmark."),
    Outcome.PULL_FAILED: (ExitCode.OURS, True, "The data or scripts could not be pulled."),
    Outcome.STORE_FAILED: (ExitCode.OURS, True, "The job store could not be read or written."),
    Outcome.DISK_FULL: (ExitCode.OURS, False, "The disk ran full and the benchmark was ended."),
    Outcome.INTERRUPTED: (
        ExitCode.OURS,
        True,
        "The agent was told to stop before the benchmark had finished.",
    ),
    Outcome.LOST: (
        ExitCode.OURS,
        True,
        "The benchmark was lost: the machine rebooted, or what watched it was killed.",
    ),
    Outcome.LAUNCH_FAILED: (ExitCode.OURS, False, "EC2 did not give the job its machines."),
    Outcome.CAPACITY: (
        ExitCode.OURS,
        True,
        "EC2 has no capacity for these machines now, in none of the job's subnets.",
    ),
    Outcome.QUOTA: (
        ExitCode.OURS,
        False,
        "The account's quota does not allow these machines; ask AWS for more.",
    ),
    Outcome.BOOT_FAILED: (ExitCode.OURS, False, "A machine booted, and no agent could start on it."),
    Outcome.JOIN_FAILED: (ExitCode.OURS, True, "The nodes of the job did not come together."),
    Outcome.PEER_FAILED: (ExitCode.OURS, False, "Another node of the job failed, and this one was ended."),
    Outcome.PEER_LOST: (ExitCode.OURS, True, "A node of the job was lost."),
    Outcome.AGENT_ERROR: (ExitCode.OURS, True, "The agent met an error of its own."),
    Outcome.OOM: (
        ExitCode.KILLED,
        False,
        "The benchmark ran out of memory: the kernel killed a process of it.",
    ),
    Outcome.KILLED: (
        ExitCode.KILLED,
        True,
        "The benchmark was killed by a signal that did not come from us.",
    ),
}


def signal_name(number: int) -> str:
    """Return "SIGTERM" for 15; "signal 99" where there is no such one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
