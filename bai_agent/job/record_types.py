"""What stands in a job's record: a run's events, how each node ended, how the job did. docs/run-directory.md is the reference.

Both programs have these classes. An agent fills them from its own files; `bai`, which reads what others wrote, has them
validated: each field's `Rule` says what it must be (executor/records/reading.py).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from bai_agent.job.outcome import ExitCode

T = TypeVar("T")


@dataclass(frozen=True)
class Rule:
    """What a value must be where somebody else wrote it. Only pydantic, which asks for a schema, makes use of it."""

    words: str
    lowest: float | None = None
    limit: float | None = None
    """The value is less than this."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "is-instance", "cls": str} if source is str else handler(source)
        if source in (int, float, bool):
            schema = {**schema, "strict": True}
        if source is float:
            schema["allow_inf_nan"] = False
        bounds = {"ge": self.lowest, "lt": self.limit}
        schema |= {name: bound for name, bound in bounds.items() if bound is not None}
        return {
            "type": "custom-error",
            "schema": schema,
            "custom_error_type": "record",
            "custom_error_message": f"expected {self.words}",
        }


_LATEST = 2**47
"""ms: beyond it (the year 6429) no calendar of ours is asked."""

Text = Annotated[str, Rule("a text")]
Truth = Annotated[bool, Rule("true or false")]
Number = Annotated[float, Rule("a number")]
Count = Annotated[int, Rule("a count", 0, 2**63)]
Moment = Annotated[int, Rule("milliseconds since the epoch", 0, _LATEST)]
Seconds = Annotated[float, Rule("a time in seconds", 0, _LATEST)]
Texts = Annotated[list[Text], Rule("a list, each a text")]
Labels = Annotated[dict[Text, Text], Rule("a table of texts")]
Counts = Annotated[dict[Text, Count], Rule("a table of counts")]
Transports = Annotated[dict[Text, Texts], Rule("a table of lists, each of texts")]


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """Something that happened in a run: a line of `events.jsonl`."""

    type: ClassVar[str]
    time: Moment = 0
    """ms UTC; set by whoever appends it."""


@dataclass(frozen=True, kw_only=True)
class AgentEvent(RunEvent):
    """An agent was started, for the first time or again."""

    type = "agent_started"
    pid: Count
    version: Text = ""
    boot_id: Text | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseEvent(RunEvent):
    """A phase began or is over."""

    type = "phase"
    phase: Text
    state: Text
    """"started" or "finished"."""
    seconds: Seconds | None = None
    """How long it took, where it has finished."""
    uptime: Seconds | None = None
    """Since the machine's boot, by its monotonic clock: the time of day may be set meanwhile."""


@dataclass(frozen=True, kw_only=True)
class PullEvent(RunEvent):
    """How far the pull of one source has come."""

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
    """The benchmark's requirements are being installed, or have been."""

    type = "requirements"
    path: Text
    """The file, as the descriptor names it."""
    done: Truth


@dataclass(frozen=True, kw_only=True)
class BenchmarkStartEvent(RunEvent):
    """The benchmark was started."""

    type = "benchmark_started"
    pid: Count
    argv: Texts


@dataclass(frozen=True, kw_only=True)
class RepeatEvent(RunEvent):
    """A run of a job with `[repeat]` has begun; not each one is told of where they are short."""

    type = "repeat"
    run: Count
    """Its number among all runs, from 0."""
    repeat: Count | None
    """Its number as records have it; None: a warm-up run."""
    name: Text
    """"run 3 of 10": for people, who count from 1."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkExitEvent(RunEvent):
    """The benchmark has ended."""

    type = "benchmark_exited"
    code: Count | None
    signal: Count | None = None
    wall_seconds: Seconds | None = None


@dataclass(frozen=True, kw_only=True)
class TruncationEvent(RunEvent):
    """The benchmark truncated its output."""

    type = "output_truncated"
    bytes: Count
    """How long the output was before."""


@dataclass(frozen=True, kw_only=True)
class StopEvent(RunEvent):
    """The run is being ended early."""

    type = "stop"
    reason: Text = ""
    """The value of an `Outcome`."""
    message: Text


@dataclass(frozen=True, kw_only=True)
class WarningEvent(RunEvent):
    """Something that a person should know, in a sentence."""

    type = "warning"
    message: Text


@dataclass(frozen=True, kw_only=True)
class WaitEvent(RunEvent):
    """The run waits until it has the machine for itself."""

    type = "waiting"
    jobs: Texts = field(default_factory=list)
    """Which jobs run there, as far as they can be seen."""
    message: Text


@dataclass(frozen=True, kw_only=True)
class NeighbourEvent(RunEvent):
    """Another job runs on this machine at the same time."""

    type = "neighbour"
    job_id: Text | None
    """None for jobs of other users: what they say of themselves is not passed on."""
    since: Moment
    """From when on both ran."""
    until: Moment | None = None
    """None: they still do."""


@dataclass(frozen=True, kw_only=True)
class TransportEvent(RunEvent):
    """A library has said which network it uses."""

    type = "transport"
    library: Text
    """"NCCL" or "Open MPI"."""
    uses: Texts
    """In its own words, all that it has said so far: "NET/Socket", "P2P"."""


@dataclass(frozen=True, kw_only=True)
class ExtractionEvent(RunEvent):
    """The extractor has done its work after the benchmark's end, or was given up."""

    type = "extraction"
    seconds: Seconds
    stalled: Truth


@dataclass(frozen=True, kw_only=True)
class SinkEvent(RunEvent):
    """A sink is out of reach, or back."""

    type = "sink"
    sink: Text
    error: Text | None
    """Why it is out of reach; None: it is back."""
    message: Text


@dataclass(frozen=True, kw_only=True)
class DeliveryEvent(RunEvent):
    """What became of what went to a sink."""

    type = "delivery"
    sink: Text
    delivered: Count
    undelivered: Count
    error: Text | None


@dataclass(frozen=True, kw_only=True)
class OutcomeEvent(RunEvent):
    """How the run ended."""

    type = "outcome"
    outcome: Text
    exit_code: Count
    sentence: Text


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(RunEvent):
    """An event of another version."""

    type = ""
    table: Mapping[str, Any] = field(default_factory=dict)


EVENTS: Mapping[str, type[RunEvent]] = {
    each.type: each
    for each in (
        AgentEvent,
        PhaseEvent,
        PullEvent,
        BenchmarkStartEvent,
        RepeatEvent,
        RequirementsEvent,
        BenchmarkExitEvent,
        TruncationEvent,
        StopEvent,
        WarningEvent,
        WaitEvent,
        NeighbourEvent,
        TransportEvent,
        ExtractionEvent,
        SinkEvent,
        DeliveryEvent,
        OutcomeEvent,
    )
}


def event_table(event: RunEvent) -> dict[str, Any]:
    """Return an event as JSON values."""
    if isinstance(event, UnknownEvent):
        return dict(event.table)
    return {"time": event.time, "type": event.type, **dataclasses.asdict(event)}


@dataclass(frozen=True, kw_only=True)
class MetricRecord:
    """A line of `metrics.jsonl`, as far as its readers need it."""

    name: Text
    src: Text
    value: Number
    units: Text | None = None
    timestamp: Moment
    labels: Labels | None = None
    repeat: Count | None = None
    """Which run of a job with `[repeat]` it is of, from 0; None in other jobs, and of what is not of one run."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkExit:
    """How the benchmark ended: `exit.json`. None: nobody saw it."""

    code: Count | None = None
    signal: Count | None = None
    """That ended it."""
    exec_error: dict[Text, Any] | None = None
    """Why it never ran."""
    stop: Text | None = None
    """The `Outcome` for which we ended it."""
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
    context_switches_voluntary: Count | None = None
    context_switches_involuntary: Count | None = None
    emit_lost_bytes: Count | None = None
    time: Moment | None = None
    lost: Truth | None = None


@dataclass(frozen=True, kw_only=True)
class NeverNumber:
    """A metric that matched, but never a number."""

    count: Count
    first: Text


@dataclass(frozen=True, kw_only=True)
class HeadlineValue:
    """The one number of a metric that stands for the job, of one set of labels and one arm."""

    value: Number
    units: Text = ""
    name: Text | None = None
    """The metric's; None in records of older versions, which have it as the key alone."""
    labels: dict[Text, Text] | None = None
    arm: Text | None = None
    ranks: Count = 1
    """Of how many ranks it is made."""
    over_ranks: Text | None = None
    """How: an `OverRanks`; None of one rank."""
    runs: dict[Text, list[Number]] | None = None
    """In the record of one of several nodes: the numbers of its ranks, by repeat; "" of the only run."""


@dataclass(frozen=True, kw_only=True)
class ExtractionSummary:
    """What was extracted: `extracted.json`."""

    records: Count = 0
    lines: Count = 0
    log_bytes: Count = 0
    per_metric: Counts = field(default_factory=dict)
    headlines: dict[Text, HeadlineValue] | None = None
    """By metric, as far as one number says it and there were not too many to look for it."""
    not_numbers: Counts = field(default_factory=dict)
    never_numbers: dict[Text, NeverNumber] | None = None
    required_missing: Texts = field(default_factory=list)
    empty_presets: Texts = field(default_factory=list)
    """Presets of which no metric matched anywhere."""
    results_missing: Texts = field(default_factory=list)
    """Paths of result files that gave no value."""
    required_results_missing: Texts = field(default_factory=list)
    """The same, of those that had to."""
    emit_bad_lines: Count = 0
    lost_bytes: Count = 0
    remaining_bytes: Count = 0
    warnings: Texts = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class KafkaDelivery:
    """What of the metrics reached Kafka, in messages."""

    delivered: Count | None = None
    undelivered: Count | None = None
    error: Text | None = None


@dataclass(frozen=True, kw_only=True)
class ArtifactCount:
    """What was kept of the benchmark's files."""

    files: Count
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class GitCommit:
    """The commit that the descriptor's folder stood at."""

    commit: Text
    branch: Text | None = None
    dirty: Truth | None = None


@dataclass(frozen=True, kw_only=True)
class RepeatOutcome:
    """How one run of a job with `[repeat]` ended. What is not known of a run that was lost is None."""

    repeat: Count
    """From 0; warm-up runs are not counted, and not listed."""
    arm: Text | None = None
    """Which of the two descriptors it ran, in a job that compares two."""
    outcome: Text
    """The value of an `Outcome`."""
    code: Count | None = None
    signal: Count | None = None
    started: Moment | None = None
    ended: Moment | None = None
    wall_seconds: Seconds | None = None
    user_seconds: Seconds | None = None
    system_seconds: Seconds | None = None
    peak_memory_bytes: Count | None = None
    ignored_code: Count | None = None
    """Its exit code, where that is ignored and was not 0: `code` is 0 then."""


Repeats = Annotated[list[RepeatOutcome], Rule("a list of runs")]


@dataclass(frozen=True, kw_only=True)
class ProcessUsage:
    """What one of our own programs took of a machine, without the processes that it started."""

    cpu_seconds: Seconds
    """User and system."""
    peak_memory_bytes: Count | None = None
    at_least: Truth = False
    """One that was killed took more than is known."""


@dataclass(frozen=True, kw_only=True)
class OwnUsage:
    """What our own programs took of a node's machine. None: not known."""

    rank: Count = 0
    cpus: Count | None = None
    """How many logical CPUs the machine has."""
    benchmark_seconds: Seconds | None = None
    """For how long the benchmark ran there."""
    agent: ProcessUsage | None = None
    extractor: ProcessUsage | None = None
    """Of all its processes."""
    shim: ProcessUsage | None = None


@dataclass(frozen=True, kw_only=True)
class NodeOutcome:
    """How one node's part of a job ended."""

    rank: Count = 0
    outcome: Text
    """The value of an `Outcome`."""
    sentence: Text
    benchmark: BenchmarkExit | None = None
    phases: Annotated[dict[Text, Seconds], Rule("a table of seconds")] | None = None
    """Those that have finished."""
    metrics: ExtractionSummary | None = None
    kafka: KafkaDelivery | None = None
    last_lines: Texts | None = None
    """Of what the benchmark printed."""
    artifacts: ArtifactCount | None = None
    started: Moment | None = None
    failed: Moment | None = None
    """When the benchmark, or the first of its processes, failed; before it was drained, and maybe others were ended."""
    ended: Moment | None = None
    warnings: Texts | None = None
    serves: Truth = False
    """The node only serves another one, which starts processes of the benchmark there."""
    transports: Transports | None = None
    """By library what it said that it uses: "NET/Socket", "P2P"."""
    repeats: Repeats | None = None
    """The runs of a job with `[repeat]` that began, in their order; None in other jobs."""
    own_usage: OwnUsage | None = None
    complete: Truth = True
    """Nothing follows: the node has sent all that it has. False: it has just failed."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How a job ended: `result.json`."""

    version: Count = 1
    job_id: Text = ""
    outcome: Text
    """The value of an `Outcome`, of this version or another."""
    status: Text
    exit_code: Annotated[int, Rule("an exit code from 0 to 6", 0, max(ExitCode) + 1)]
    sentence: Text
    benchmark: BenchmarkExit | None = None
    phases: Annotated[dict[Text, Seconds], Rule("a table of seconds")] | None = None
    metrics: ExtractionSummary | None = None
    kafka: KafkaDelivery | None = None
    last_lines: Texts | None = None
    artifacts: ArtifactCount | None = None
    started: Moment | None = None
    ended: Moment | None = None
    git: GitCommit | None = None
    warnings: Texts | None = None
    transports: Transports | None = None
    """Of all nodes together."""
    repeats: Repeats | None = None
    """The runs of a job with `[repeat]` that began, in their order; None in other jobs."""
    own_usage: Annotated[list[OwnUsage], Rule("a list of what each node's programs took")] | None = None
    """By rank, of those nodes that have said so."""
    lost: Annotated[list[Count], Rule("a list of ranks")] | None = None
    """Ranks of nodes that were given up: nobody knows how they ended."""
    on_behalf: Truth = False
    """Somebody else wrote it for machines that could not."""


def as_table(value: Any) -> dict[str, Any]:
    """Return one of these dataclasses as JSON values."""
    return dataclasses.asdict(value)


def from_table(kind: type[T], table: Mapping[str, Any]) -> T:
    """Return a table of our own as a `kind`, without validation; keys that it does not have are left out.

    Raises TypeError where a key is missing.
    """
    hints = _type_hints(typing.cast("Any", kind))
    return kind(**{name: _value(hints[name], table[name]) for name in hints if name in table})


@cache
def _type_hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def _value(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (kind,) = (each for each in typing.get_args(kind) if each is not type(None))
    if typing.get_origin(kind) is list:
        return [_value(typing.get_args(kind)[0], each) for each in value]
    if typing.get_origin(kind) is dict:
        return {key: _value(typing.get_args(kind)[1], each) for key, each in value.items()}
    return from_table(kind, value) if dataclasses.is_dataclass(kind) and isinstance(kind, type) else value
