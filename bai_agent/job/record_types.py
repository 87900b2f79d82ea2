"""Types of a job's record: events of a run, outcomes of nodes, and results. docs/run-directory.md is the
reference.

`bai` and the agent read these types with `bai_agent.decode`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from bai_agent.decode import Rule, checked
from bai_agent.job.outcome import ExitCode
from bai_agent.light_dataclass import dataclass, field

_LATEST = 2**47
"""Latest time that is accepted (ms UTC). The time is in the year 6429, which calendar functions still support."""

Text = Annotated[str, Rule("a text")]
Truth = Annotated[bool, Rule("true or false")]
Number = Annotated[float, Rule("a number")]
Count = Annotated[int, Rule("a count", 0, 2**63)]
Moment = Annotated[int, Rule("milliseconds since the epoch", 0, _LATEST)]
Seconds = Annotated[float, Rule("a time in seconds", 0, _LATEST)]
Texts = Annotated[list[Text], Rule("a list, each a text")]
Labels = Annotated[dict[Text, Text], Rule("a table of texts")]
Counts = Annotated[dict[Text, Count], Rule("a table of counts")]
PortNumber = Annotated[int, Rule("a port", 0, 2**16)]
Transports = Annotated[dict[Text, Texts], Rule("a table of lists, each of texts")]


_EVENTS: dict[str, type[RunEvent]] = {}
"""Classes of the events that this version of bai knows, by event type."""


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """An event of a run: a line of `events.jsonl`."""

    type: ClassVar[str]
    time: Moment = 0
    """Time of the event (ms UTC), set when the event is appended."""

    def __init_subclass__(cls) -> None:
        if cls.type:
            _EVENTS[cls.type] = cls


@dataclass(frozen=True, kw_only=True)
class AgentEvent(RunEvent):
    """An agent was started or restarted."""

    type = "agent_started"
    pid: Count
    version: Text = ""
    boot_id: Text | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseEvent(RunEvent):
    """A phase began or ended."""

    type = "phase"
    phase: Text
    state: Text
    """"started" or "finished"."""
    seconds: Seconds | None = None
    """Duration of the phase; None if the phase has not finished."""
    uptime: Seconds | None = None
    """Seconds since the machine's boot, by the monotonic clock, because the time of day may be changed."""


@dataclass(frozen=True, kw_only=True)
class PullEvent(RunEvent):
    """Progress of one source's pull."""

    type = "pull"
    src: Text
    path: Text = ""
    bytes: Count
    total_bytes: Count | None
    objects: Count = 0
    total_objects: Count | None = None
    done: Truth


@dataclass(frozen=True, kw_only=True)
class RequirementsEvent(RunEvent):
    """The installation of the benchmark's requirements has started or ended."""

    type = "requirements"
    path: Text
    """Path of the requirements file, as in the descriptor."""
    done: Truth


@dataclass(frozen=True, kw_only=True)
class BenchmarkStartEvent(RunEvent):
    """The benchmark was started."""

    type = "benchmark_started"
    pid: Count
    argv: Texts
    generation: Count = 0
    """Number of times that the benchmark was started before this start."""
    output_bytes: Count | None = None
    """Length of the output before the start (bytes). None if an older version wrote the event."""


@dataclass(frozen=True, kw_only=True)
class RepeatEvent(RunEvent):
    """A run of a `[repeat]` job started. Very short runs may not be reported individually."""

    type = "repeat"
    run: Count
    """Number of the run among all runs, from 0."""
    repeat: Count | None
    """Number of the run as records contain it; None for a warm-up run."""
    name: Text
    """"run 3 of 10", the run's name for people, who count from 1."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkExitEvent(RunEvent):
    """The benchmark ended."""

    type = "benchmark_exited"
    code: Count | None
    signal: Count | None = None
    wall_seconds: Seconds | None = None


@dataclass(frozen=True, kw_only=True)
class RestartEvent(RunEvent):
    """A failed benchmark will be restarted."""

    type = "restart"
    generation: Count
    """Number of the generation that begins next."""
    max_restarts: Count
    backoff_seconds: Seconds
    """Time between the benchmark's failure and the restart (seconds)."""
    outcome: Text
    """Outcome of the previous generation, as the value of an `Outcome` member."""
    message: Text
    """Sentence that describes the outcome of the previous generation."""

    @property
    def sentence(self) -> str:
        """A sentence for people."""
        after = f" {self.backoff_seconds:g} s later" if self.backoff_seconds else ""
        return f"{self.message} Restart {self.generation} of {self.max_restarts} follows{after}."


@dataclass(frozen=True, kw_only=True)
class GenerationEvent(RestartEvent):
    """A generation of an elastic job begins with this node as a member."""

    type = "generation"
    members: Annotated[list[Count], Rule("a list of nodes")] = field(default_factory=list)
    """Numbers of the generation's nodes, in the order of their group ranks."""

    @property
    def sentence(self) -> str:
        nodes = ", ".join(map(str, self.members))
        return f"{self.message} Generation {self.generation} begins with node{'s' if len(self.members) > 1 else ''} {nodes}."


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(RunEvent):
    """A checkpoint is complete in the job store."""

    type = "checkpoint"
    name: Text
    files: Count
    bytes: Count
    seconds: Seconds
    """Duration of the checkpoint's upload, which happens during the benchmark or after its end."""


@dataclass(frozen=True, kw_only=True)
class RestoreEvent(RunEvent):
    """A generation continues from a checkpoint, or begins without a checkpoint."""

    type = "restore"
    generation: Count
    name: Text | None
    """Name of the checkpoint; None if the job had no checkpoint yet."""
    files: Count = 0
    bytes: Count = 0
    """Number of bytes that were restored; 0 if the folder already contained the checkpoint."""
    seconds: Seconds = 0.0

    @property
    def sentence(self) -> str:
        if self.name is None:
            return f"There is no checkpoint yet: generation {self.generation} begins without one."
        begins = f"Generation {self.generation}" if self.generation else "The job"
        return f"{begins} continues from {self.name}."


@dataclass(frozen=True, kw_only=True)
class TruncationEvent(RunEvent):
    """The benchmark truncated its output."""

    type = "output_truncated"
    bytes: Count
    """Length of the output before the truncation (bytes)."""


@dataclass(frozen=True, kw_only=True)
class StopEvent(RunEvent):
    """The run ends early."""

    type = "stop"
    reason: Text = ""
    """Reason for the early end, as the value of an `Outcome` member."""
    message: Text


@dataclass(frozen=True, kw_only=True)
class WarningEvent(RunEvent):
    """A warning that is shown to the user."""

    type = "warning"
    message: Text


@dataclass(frozen=True, kw_only=True)
class WaitEvent(RunEvent):
    """The run waits until no other job uses the machine."""

    type = "waiting"
    jobs: Texts = field(default_factory=list)
    """The other jobs on this machine that bai can see."""
    message: Text


@dataclass(frozen=True, kw_only=True)
class NeighbourEvent(RunEvent):
    """Another job runs on this machine at the same time."""

    type = "neighbour"
    job_id: Text | None
    """Id of the other job. None for a job of another user, because ids of other users' jobs are not
    trusted."""
    since: Moment
    """Time at which this job and the other job began to run together (ms UTC)."""
    until: Moment | None = None
    """Time at which one of the two jobs ended (ms UTC); None if both jobs still run."""


@dataclass(frozen=True, kw_only=True)
class TransportEvent(RunEvent):
    """A library reported the network that it uses."""

    type = "transport"
    library: Text
    """"NCCL" or "Open MPI"."""
    uses: Texts
    """All networks that the library reported, in the library's own words, such as "NET/Socket" and "P2P"."""


@dataclass(frozen=True, kw_only=True)
class ExtractionEvent(RunEvent):
    """The extraction ended after the benchmark's end, or bai stopped waiting for the extractor."""

    type = "extraction"
    seconds: Seconds
    stalled: Truth


@dataclass(frozen=True, kw_only=True)
class SinkEvent(RunEvent):
    """A sink became unreachable or reachable."""

    type = "sink"
    sink: Text
    error: Text | None
    """Reason why the sink is unreachable; None if the sink is reachable again."""
    message: Text


@dataclass(frozen=True, kw_only=True)
class DeliveryEvent(RunEvent):
    """Delivery of records to a sink."""

    type = "delivery"
    sink: Text
    delivered: Count
    undelivered: Count
    error: Text | None


@dataclass(frozen=True, kw_only=True)
class OutcomeEvent(RunEvent):
    """The run ended."""

    type = "outcome"
    outcome: Text
    exit_code: Count
    sentence: Text


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(RunEvent):
    """An event that only another version of bai knows."""

    type = ""
    table: Mapping[str, Any] = field(default_factory=dict)


def event_table(event: RunEvent) -> dict[str, Any]:
    """Return an event as JSON values."""
    if isinstance(event, UnknownEvent):
        return dict(event.table)
    return {"time": event.time, "type": event.type, **dataclasses.asdict(event)}


def event_of(table: Any, *, where: str) -> RunEvent:
    """Return the event in a JSON value, which any version of bai may have written. Raises RecordError."""
    event = checked(_AnyEvent, table, where=where)
    kind = _EVENTS.get(event.type)
    return UnknownEvent(time=event.time, table=table) if kind is None else checked(kind, table, where=where)


@dataclass(frozen=True, kw_only=True)
class _AnyEvent:
    time: Moment
    type: Text


@dataclass(frozen=True, kw_only=True)
class MetricRecord:
    """The parts of a line of `metrics.jsonl` that its readers need."""

    name: Text
    src: Text
    value: Number
    units: Text | None = None
    timestamp: Moment
    labels: Labels | None = None
    repeat: Count | None = None
    """Number of the value's run in a `[repeat]` job, from 0. None in a job without `[repeat]`, or if the
    value belongs to no single run."""
    generation: Count | None = None
    """Number of the value's generation in a job with restarts, from 0. None in a job without restarts, or if the
    value belongs to no single generation."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkExit:
    """The end of the benchmark: the content of `exit.json`. Unknown values are None."""

    code: Count | None = None
    signal: Count | None = None
    """Signal that ended the benchmark."""
    exec_error: dict[Text, Any] | None = None
    """Reason why the benchmark could not be started; None if the benchmark was started."""
    stop: Text | None = None
    """Reason for which the agent stopped the benchmark, as the value of an `Outcome` member."""
    stop_signal: Count | None = None
    oom: Truth | None = None
    left_behind: Count | None = None
    left_behind_names: Counts | None = None
    output_bytes: Count | None = None
    emit_bytes: Count | None = None
    wall_seconds: Seconds | None = None
    user_seconds: Seconds | None = None
    system_seconds: Seconds | None = None
    peak_memory_bytes: Count | None = None
    """Peak memory of the benchmark's largest process."""
    tree_peak_memory_bytes: Count | None = None
    """Peak memory of all processes of the benchmark together, including the page cache. None if no cgroup
    measured the memory."""
    context_switches_voluntary: Count | None = None
    context_switches_involuntary: Count | None = None
    emit_lost_bytes: Count | None = None
    time: Moment | None = None
    lost: Truth | None = None


@dataclass(frozen=True, kw_only=True)
class NeverNumber:
    """A metric whose pattern matched, but never matched a number."""

    count: Count
    first: Text


@dataclass(frozen=True, kw_only=True)
class HeadlineValue:
    """The number of a metric that represents the job, for one set of labels and one arm."""

    value: Number
    units: Text = ""
    name: Text | None = None
    """Name of the metric; None in records of older versions, in which the name is only the key."""
    labels: dict[Text, Text] | None = None
    arm: Text | None = None
    ranks: Count = 1
    """Number of ranks whose numbers are combined into the headline."""
    over_ranks: Text | None = None
    """How the numbers of several ranks are combined, as the value of an `OverRanks`; None for a single rank."""
    runs: dict[Text, list[Number]] | None = None
    """Numbers of the node's ranks, by the number of the run, if the job has several nodes. The key is "" in a job
    without `[repeat]`."""
    generation: Count | None = None
    """Number of the generation with the headline's values; None if the job has no generations."""
    nodes: dict[Text, Number] | None = None
    """Headline of each node, by the node's number, in a generation of several nodes."""
    per_node: Number | None = None
    """A single node's share of a sum or rate, in a generation of several nodes. None for other metrics."""


@dataclass(frozen=True, kw_only=True)
class ExtractionSummary:
    """Counts and headlines of the extraction, from `extracted.json`."""

    records: Count = 0
    lines: Count = 0
    log_bytes: Count = 0
    per_metric: Counts = field(default_factory=dict)
    headlines: dict[Text, HeadlineValue] | None = None
    """Headlines by metric. A metric has no headline if no single number represents the metric, or if the metric has
    too many series."""
    not_numbers: Counts = field(default_factory=dict)
    never_numbers: dict[Text, NeverNumber] | None = None
    required_missing: Texts = field(default_factory=list)
    empty_presets: Texts = field(default_factory=list)
    """Names of the presets whose metrics matched no line of the output."""
    results_missing: Texts = field(default_factory=list)
    """Paths of result files without values."""
    required_results_missing: Texts = field(default_factory=list)
    """Paths of required result files without values."""
    emit_bad_lines: Count = 0
    lost_bytes: Count = 0
    remaining_bytes: Count = 0
    warnings: Texts = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class KafkaDelivery:
    """Delivery of metrics to Kafka (messages)."""

    delivered: Count | None = None
    undelivered: Count | None = None
    error: Text | None = None


@dataclass(frozen=True, kw_only=True)
class ArtifactCount:
    """Number and size of the saved artifacts."""

    files: Count
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class GitCommit:
    """Checked-out commit of the descriptor's folder."""

    commit: Text
    branch: Text | None = None
    dirty: Truth | None = None


@dataclass(frozen=True, kw_only=True)
class RepeatOutcome:
    """The end of one run of a `[repeat]` job. If the run was lost, its unknown values are None."""

    repeat: Count
    """Number of the run, from 0. Warm-up runs are neither counted nor listed."""
    arm: Text | None = None
    """Arm of the run, in a job that compares several arms; None in other jobs."""
    outcome: Text
    """Outcome of the run, as the value of an `Outcome` member."""
    code: Count | None = None
    signal: Count | None = None
    started: Moment | None = None
    ended: Moment | None = None
    wall_seconds: Seconds | None = None
    user_seconds: Seconds | None = None
    system_seconds: Seconds | None = None
    peak_memory_bytes: Count | None = None
    ignored_code: Count | None = None
    """Exit code other than 0 that was ignored. The field `code` is then 0. None if no exit code was ignored."""


Repeats = Annotated[list[RepeatOutcome], Rule("a list of runs")]


@dataclass(frozen=True, kw_only=True)
class GenerationOutcome:
    """The end of one generation of a job with restarts. If the generation was lost, its unknown values are None."""

    generation: Count
    """Number of the generation, from 0. The number equals the number of restarts before the generation."""
    outcome: Text
    """Outcome of the generation, as the value of an `Outcome` member."""
    sentence: Text = ""
    code: Count | None = None
    signal: Count | None = None
    started: Moment | None = None
    ended: Moment | None = None
    wall_seconds: Seconds | None = None
    output_begin: Count = 0
    """Offset in the output at which the generation begins (bytes)."""
    output_end: Count | None = None
    """Offset in the output at which the generation ends (bytes)."""
    members: Annotated[list[Count], Rule("a list of nodes")] = field(default_factory=list)
    """Numbers of the generation's nodes, in the order of their group ranks."""
    gap_seconds: Seconds | None = None
    """Time without a running benchmark before the generation's start (seconds). None for the first generation, or
    if the time is unknown."""
    headlines: dict[Text, HeadlineValue] = field(default_factory=dict)
    """Headlines of the generation, by metric with labels."""


Generations = Annotated[list[GenerationOutcome], Rule("a list of generations")]


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary:
    """Number, size and duration of a job's checkpoints."""

    kept: Count = 0
    bytes: Count = 0
    """Total size of the checkpoints (bytes)."""
    seconds: Seconds = 0.0
    """Total duration of the uploads, during the benchmark or after its end (seconds)."""
    newest: Text | None = None
    restored: Count = 0
    """Number of generations that began from a checkpoint."""
    restored_bytes: Count = 0
    restore_seconds: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class ProcessUsage:
    """Resources that one of bai's programs used, without the program's child processes."""

    cpu_seconds: Seconds
    """User and system time of the processes."""
    peak_memory_bytes: Count | None = None
    at_least: Truth = False
    """Whether a process of the program was killed, so that the values are only lower bounds."""


@dataclass(frozen=True, kw_only=True)
class RunEnd(BenchmarkExit):
    """The end of one run or of all runs, as the shim records it in `repeats.jsonl` and `exit.json`."""

    arm: Text | None = None
    ignored_code: Count | None = None
    """Exit code other than 0 that was ignored. The field `code` is then 0. None if no exit code was ignored."""
    own_usage: ProcessUsage | None = None
    """Resources that the shim used."""

    @property
    def was_stopped(self) -> bool:
        """Whether the coordinator ordered the run to end."""
        return self.stop is not None or self.stop_signal is not None


@dataclass(frozen=True, kw_only=True)
class ExtractionEnd(ExtractionSummary):
    """The content of `extracted.json`."""

    generations: dict[Text, dict[Text, HeadlineValue]] | None = None
    """Headlines by the number of the generation. None if the job has no generations."""

    own_usage: ProcessUsage | None = None


@dataclass(frozen=True, kw_only=True)
class OwnUsage:
    """Resources that bai's programs used on a node. A value is None if it is unknown."""

    rank: Count = 0
    cpus: Count | None = None
    """Number of logical CPUs."""
    benchmark_seconds: Seconds | None = None
    """Duration of the benchmark on this node."""
    agent: ProcessUsage | None = None
    extractor: ProcessUsage | None = None
    """Resources of all processes of the extractor."""
    shim: ProcessUsage | None = None


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of one node's part of a job, or of the whole job."""

    outcome: Text
    """Outcome, as the value of an `Outcome` member. A result of another version of bai may contain an outcome that
    this version does not know."""
    sentence: Text
    benchmark: BenchmarkExit | None = None
    phases: Annotated[dict[Text, Seconds], Rule("a table of seconds")] | None = None
    """Duration of each finished phase (seconds). A job of several nodes has the durations of the slowest node."""
    metrics: ExtractionSummary | None = None
    kafka: KafkaDelivery | None = None
    last_lines: Texts | None = None
    """Last lines of the benchmark's output."""
    artifacts: ArtifactCount | None = None
    started: Moment | None = None
    ended: Moment | None = None
    seconds: Seconds | None = None
    """Duration since the agent's first phase, by a monotonic clock (seconds). A job's result contains the duration
    of the slowest node. None if unknown."""
    warnings: Texts | None = None
    transports: Transports | None = None
    """Networks that each communication library reported, such as "NET/Socket" and "P2P"."""
    repeats: Repeats | None = None
    """The runs of a `[repeat]` job that have started, in order; None in other jobs."""
    generations: Generations | None = None
    """The generations that have started in a job with restarts, in order; None in other jobs."""
    checkpoints: CheckpointSummary | None = None
    """Summary of the job's checkpoints. None in jobs without `[checkpoint]`."""


@dataclass(frozen=True, kw_only=True)
class NodeOutcome(Ending):
    """The end of one node's part of a job."""

    rank: Count = 0
    failed: Moment | None = None
    """Time at which the benchmark, or the first of its processes, failed (ms UTC). Other processes are stopped, and
    records are sent, only after this time."""
    serves: Truth = False
    """Whether the node only serves another node. The other node starts the benchmark's processes on this node, or is
    the client of this node's server."""
    is_server: Truth = False
    """Whether the node runs the job's server. The client notices a failure of the server at once."""
    own_usage: OwnUsage | None = None
    complete: Truth = True
    """Whether the node has sent all records and files. False while a failed node still sends records or files."""


@dataclass(frozen=True, kw_only=True)
class JobResult(Ending):
    """The end of a job: `result.json`."""

    version: Count = 1
    job_id: Text = ""
    status: Text
    exit_code: Annotated[int, Rule("an exit code from 0 to 6", 0, max(ExitCode) + 1)]
    git: GitCommit | None = None
    own_usage: Annotated[list[OwnUsage], Rule("a list of the resources that bai used per node")] | None = None
    """Resources that bai's programs used on each node that reported its resources, in the order of the ranks."""
    lost: Annotated[list[Count], Rule("a list of ranks")] | None = None
    """Ranks of nodes that were given up as lost. The ends of these nodes are unknown."""
    replaced: Annotated[list[Count], Rule("a list of ranks")] | None = None
    """Ranks of the nodes that were replaced by new machines; None if no machine was replaced."""
    on_behalf: Truth = False
    """Whether another program wrote the result, because the job's machines could not write it."""

    @property
    def duration(self) -> float | None:
        """Duration of the job (seconds). The difference between the times of day is used if the monotonic duration is
        unknown. None if neither is known."""
        if self.seconds is not None or self.started is None or self.ended is None:
            return self.seconds
        return max(0, self.ended - self.started) / 1000


def as_table(value: Any) -> dict[str, Any]:
    """Return an instance of one of this module's dataclasses as JSON values."""
    return dataclasses.asdict(value)
