"""Outcomes of a run. The agent, the store, `bai` and readers of its exit code use the same outcomes.

| exit code | meaning |
|---|---|
| 0 | succeeded |
| 1 | the benchmark failed; its own code is in the result |
| 2 | usage, or the descriptor is wrong |
| 3 | out of time |
| 4 | cancelled |
| 5 | bai, a machine or AWS failed |
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
    """Reason why a run ended, with a status, an exit code and a sentence."""

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
    def sentence(self) -> str:
        """The outcome in one sentence for the user, without details of a particular run."""
        return _MEANING[self][1]


OUTCOMES = frozenset(each.value for each in Outcome)
"""The values of all outcomes."""
_STATUS: dict[ExitCode, Status] = {
    ExitCode.SUCCEEDED: Status.SUCCEEDED,
    ExitCode.BENCHMARK_FAILED: Status.FAILED,
    ExitCode.USAGE: Status.ERROR,
    ExitCode.OUT_OF_TIME: Status.FAILED,
    ExitCode.CANCELLED: Status.CANCELED,
    ExitCode.OURS: Status.ERROR,
    ExitCode.KILLED: Status.FAILED,
}

_MEANING: dict[Outcome, tuple[ExitCode, str]] = {
    Outcome.SUCCEEDED: (ExitCode.SUCCEEDED, "The benchmark finished successfully."),
    Outcome.FAILED: (ExitCode.BENCHMARK_FAILED, "The benchmark failed."),
    Outcome.NOT_FOUND: (ExitCode.BENCHMARK_FAILED, "The benchmark's command was not found, so nothing ran."),
    Outcome.NOT_EXECUTABLE: (
        ExitCode.BENCHMARK_FAILED,
        "The benchmark's command could not be executed, so nothing ran.",
    ),
    Outcome.REQUIRED_METRIC_MISSING: (
        ExitCode.BENCHMARK_FAILED,
        "The benchmark ended well, but a required metric was never seen.",
    ),
    Outcome.BAD_DESCRIPTOR: (ExitCode.USAGE, "The job descriptor is wrong."),
    Outcome.MAX_RUNTIME: (
        ExitCode.OUT_OF_TIME,
        "The benchmark ran longer than limits.max_runtime and was ended.",
    ),
    Outcome.NO_OUTPUT: (
        ExitCode.OUT_OF_TIME,
        "The benchmark printed nothing for limits.no_output and was ended.",
    ),
    Outcome.CANCELLED: (ExitCode.CANCELLED, "The job was cancelled."),
    Outcome.PREPARE_FAILED: (ExitCode.OURS, "The machine could not be made ready for the benchmark."),
    Outcome.PULL_FAILED: (ExitCode.OURS, "The data or scripts could not be pulled."),
    Outcome.STORE_FAILED: (ExitCode.OURS, "The job store could not be read or written."),
    Outcome.DISK_FULL: (ExitCode.OURS, "The disk ran full and the benchmark was ended."),
    Outcome.INTERRUPTED: (ExitCode.OURS, "The agent was told to stop before the benchmark had finished."),
    Outcome.LOST: (
        ExitCode.OURS,
        "The benchmark was lost: the machine rebooted, or its shim was killed.",
    ),
    Outcome.LAUNCH_FAILED: (ExitCode.OURS, "EC2 did not give the job its machines."),
    Outcome.CAPACITY: (
        ExitCode.OURS,
        "EC2 has no capacity for these machines now in any of the job's subnets.",
    ),
    Outcome.QUOTA: (ExitCode.OURS, "The account's quota does not allow these machines; ask AWS for more."),
    Outcome.BOOT_FAILED: (ExitCode.OURS, "A machine booted, but no agent could start on it."),
    Outcome.JOIN_FAILED: (ExitCode.OURS, "The nodes of the job did not come together."),
    Outcome.PEER_FAILED: (ExitCode.OURS, "Another node of the job failed, so this node was ended."),
    Outcome.PEER_LOST: (ExitCode.OURS, "A node of the job was lost."),
    Outcome.AGENT_ERROR: (ExitCode.OURS, "The agent had an internal error."),
    Outcome.OOM: (
        ExitCode.KILLED,
        "The benchmark ran out of memory: the kernel killed one of its processes.",
    ),
    Outcome.KILLED: (ExitCode.KILLED, "The benchmark was killed by a signal that bai did not send."),
}

# A new outcome that is not added to one of these groups is only in `OWN_FAILURES`. The groups are tuples
# instead of sets, so that `in` also accepts the text of an outcome.
FOR_ALL = (Outcome.CANCELLED, Outcome.MAX_RUNTIME)
"""Outcomes of the job that each node also reports as its own outcome. Nodes that only serve another node explain these
outcomes less well than other nodes."""
FOR_ABSENT = (*FOR_ALL, Outcome.PEER_LOST, Outcome.JOIN_FAILED)
"""Outcomes of the job that are also the outcome of a node that was not a member of the last generation."""
NAMES_NODES = (
    Outcome.SUCCEEDED,
    Outcome.CANCELLED,
    Outcome.NO_OUTPUT,
    Outcome.JOIN_FAILED,
    Outcome.PEER_FAILED,
    Outcome.PEER_LOST,
)
"""Outcomes whose sentence concerns all nodes or already names the node."""
UNCAUSED = (Outcome.OOM, Outcome.KILLED, Outcome.PEER_LOST)
"""Outcomes that are never caused by another node's failure. The time of a node's last heartbeat is taken as
the time of its loss."""
OWN_FAILURES = tuple(
    each
    for each in Outcome
    if each not in (Outcome.SUCCEEDED, Outcome.INTERRUPTED, Outcome.PEER_FAILED, Outcome.PEER_LOST)
)
"""Outcomes of a node with a cause on this node, except the end of the node's machine."""
UNWANTED = (Outcome.CANCELLED, Outcome.INTERRUPTED)
"""Outcomes after which a run is ended without its remaining results."""
OF_A_RUN = (
    Outcome.SUCCEEDED,
    Outcome.FAILED,
    Outcome.NOT_FOUND,
    Outcome.NOT_EXECUTABLE,
    Outcome.OOM,
    Outcome.KILLED,
    Outcome.LOST,
    Outcome.CANCELLED,
    Outcome.MAX_RUNTIME,
    Outcome.NO_OUTPUT,
    Outcome.INTERRUPTED,
    Outcome.DISK_FULL,
)
"""Outcomes of a `[repeat]` job that are reported together with the number of the run."""
WITH_EXIT_STATUS = (Outcome.FAILED, Outcome.KILLED, Outcome.OOM)
"""Failures of the benchmark with an exit code, or with a signal that ended the benchmark."""
MAY_GET_BETTER = (*WITH_EXIT_STATUS, Outcome.NO_OUTPUT, Outcome.LOST)
"""Failures that may not occur again after a restart. All other failures would recur, or a user requested the end."""
NOT_RESTORED = Outcome.PULL_FAILED
"""Outcome of a member that could not restore the checkpoint. Members of a generation pull only checkpoints."""
LOSSES = (
    Outcome.LOST,
    Outcome.PEER_LOST,
    Outcome.INTERRUPTED,
    Outcome.STORE_FAILED,
    Outcome.AGENT_ERROR,
    NOT_RESTORED,
)
"""Outcomes that concern only one node. In an elastic job, each of these outcomes means a lost node, not a failure of
the benchmark."""


def signal_name(number: int) -> str:
    """Return a signal's name, for example "SIGTERM" for 15. For an unknown number, return a text such as "signal 99"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
