"""What `bai status` shows: the current status of one job, as a document and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from bai_agent.job.descriptor import Job
from bai_agent.job.generation_records import Hints
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import GenerationOutcome, JobResult, as_table
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import asdict, dataclass
from executor.documents.document import Block, Column, Fact, Facts, Heading, Paragraph, Phrase, Table, Title
from executor.documents.listing import status_phrase
from executor.documents.machines import environment_facts, usage_facts, warning_facts
from executor.documents.metrics import (
    headline_as_json,
    headline_rows,
    headlines_table,
    last_values_table,
    over_runs_table,
    span_since,
    time_since,
    unseen_notes,
)
from executor.documents.summary import (
    generations_of_result,
    generations_table,
    last_lines,
    result_facts,
    transport_sentences,
)
from executor.program import command
from executor.quantities import clock, counted, seconds
from executor.records.generation_status import GenerationStatus, SizeStatus
from executor.records.job_status import DIED, GOES_ON, JobStatus, NodeStatus, is_over
from executor.records.machine_facts import NodeEnvironment, machine_warnings
from executor.records.statistics import Measurements

if TYPE_CHECKING:
    from executor.analysis.measured_runs import OverRuns


_GENERATIONS = 64
_HINT_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True)
class StatusView:
    """Everything that `bai status` shows about a job."""

    job: Job
    status: JobStatus
    values: Mapping[str, Mapping[str, Any]]
    """The last record of each series."""
    result: JobResult | None = None
    """Result of the job; None until the job has ended."""
    measured: Measurements | None = None
    """Statistics of the job's values. None until the job has ended, and if there are too many values."""
    over_runs: Sequence[OverRuns] = ()
    machines: Sequence[NodeEnvironment] = ()
    command: Callable[..., str] = command
    """Function that returns the command line for a hint, made from the command's words."""
    generations: Sequence[GenerationOutcome] = ()
    """Past generations of a running job; empty without --verbose."""
    hints: Hints | None = None
    """The benchmark's latest hints about its speed with other numbers of nodes; None without --verbose."""
    size: SizeStatus | None = None
    """The latest change of the number of nodes, if the job's hints can change it; None without --verbose."""
    verbose: bool = False
    one_machine: bool = False
    """Whether all nodes of the job are on one machine."""

    @property
    def unseen(self) -> list[str]:
        """Names of the metrics that have no value although the job has ended."""
        if self.result is None or self.result.metrics is None:
            return []
        counts = self.result.metrics.per_metric
        return [each.name for each in self.job.metrics if counts.get(each.name) == 0]


def status_as_json(view: StatusView) -> dict[str, Any]:
    """Return all fields of the view as JSON values. `environments` is included only with --verbose."""
    step, result = view.status.next_step, view.result
    return {
        **view.status.as_table(),
        "warnings": list((result.warnings if result is not None else None) or view.status.warnings),
        "next_step": {"command": view.command(*step.words), "effect": step.effect} if step else None,
        "name": view.job.job.name,
        "set": view.job.set,
        "metrics": list(view.values.values()),
        "headlines": {each.name: headline_as_json(each) for each in headline_rows(view.measured)},
        "over_runs": [each.as_table() for each in view.over_runs],
        "result": as_table(result) if result is not None else None,
        "machine_warnings": [each.as_table() for each in machine_warnings(view.machines)],
        "generations": [
            as_table(each) for each in (result.generations or () if result else view.generations)
        ],
        **(
            {
                "environments": [each.as_table() for each in view.machines],
                "hints": asdict(view.hints) if view.hints is not None else None,
                "size": asdict(view.size) if view.size is not None else None,
            }
            if view.verbose
            else {}
        ),
    }


def status_blocks(view: StatusView) -> Iterator[Block]:
    """Yield the job's state, its numbers and its nodes. If the job's agent has died, also yield the next step
    for the user."""
    yield Title(view.status.job_id, _title(view.status))
    yield Facts(list(_facts(view)))
    if view.result is not None:
        yield from last_lines(view.result)
    yield unseen_notes(view.unseen, view.result)
    yield from _numbers(view)
    yield over_runs_table(view.over_runs)
    yield generations_of_result(view.job, view.result)
    yield generations_table(view.generations, metrics=0, most=_GENERATIONS)
    yield nodes_table(
        view.status.nodes, is_over=is_over(view.status), is_elastic=view.status.generation is not None
    )
    if view.verbose:
        yield from _details(view)


def _title(status: JobStatus) -> Phrase:
    """Return the job's status as title and, for a running elastic job, its generation."""
    phrase = status_phrase(status)
    if status.generation is None or status.status not in GOES_ON:
        return phrase
    return Phrase(f"{phrase.text}  {generation_sentence(status.generation)}", phrase.tone)


def _facts(view: StatusView) -> Iterator[Fact]:
    status = view.status
    yield from _outcome(status)
    if status.status == DIED:
        yield from _dead_agent(view)
    elif not is_over(status):
        yield from _activity(status)
    if status.machine and status.machine != status.sentence:
        yield Fact("machine", status.machine)
    if (step := status.next_step) is not None:
        yield Fact("to do", f"{view.command(*step.words)}  {step.effect}", copied=True)
    if status.started:
        span = f", took {seconds(status.seconds or 0)}" if is_over(status) else ""
        yield Fact("started", clock(status.started) + span)
    yield from _known_of_run(view)


def _known_of_run(view: StatusView) -> Iterator[Fact]:
    """Yield the facts of the job's result or, before there is a result, the current warnings, followed by the
    warnings about the job's machines."""
    status, result = view.status, view.result
    if result is not None:
        yield from result_facts(result)
    else:
        yield from (Fact("warning", text, "caution") for text in status.warnings)
    if not view.verbose:
        more = view.command("status", "-v", status.job_id)
        yield from warning_facts(machine_warnings(view.machines), more=more)
    if result is not None:
        yield Fact("log", view.command("logs", status.job_id), copied=True)


def _outcome(status: JobStatus) -> Iterator[Fact]:
    if status.sentence:
        code = f" (bai's exit code is {status.exit_code})" if status.exit_code else ""
        yield Fact("outcome", status.sentence + code)


def _dead_agent(view: StatusView) -> Iterator[Fact]:
    """Yield the state of a job whose agent has died, and the next step for the user."""
    status = view.status
    since = f"; last seen {time_since(status.since)}" if status.since else ""
    yield Fact("agent", f"gone, without a result{since}")
    if status.last_words:
        yield Fact("", f'its log ends with "{status.last_words}"')
    unwatched = status.benchmark_alive and not status.benchmark_watched
    if status.benchmark_alive is not None:
        runs = "still running" if status.benchmark_alive else "does not run"
        yield Fact(
            "benchmark",
            f"{runs}, but its shim is gone too: nothing will record its end" if unwatched else runs,
        )
    ends = "  ends the benchmark as well, and writes the result" if unwatched else ""
    yield Fact("to do", f"{view.command('resume', status.job_id)}{ends}", copied=True)
    if status.benchmark_alive:
        yield Fact("", f"{view.command('cancel', status.job_id)}  ends the benchmark", copied=True)


def _activity(status: JobStatus) -> Iterator[Fact]:
    since = f", since {span_since(status.since)}" if status.since else ""
    yield Fact("phase", f"{status.phase or 'starting'}{since}")
    # The restarts of an elastic job are in the title. Restarts are not counted here, because the job's events
    # call every change a restart.
    if status.restarts is not None and status.generation is None:
        yield Fact("restarts", status.restarts)
    if status.cancelling:
        yield Fact("", "cancelling")
    if status.agent_alive:
        yield Fact("agent", "alive")


def _numbers(view: StatusView) -> Iterator[Block]:
    """Yield the headlines of a job that has ended, or the last values of a running job."""
    if view.result is not None and view.measured is not None:
        yield headlines_table(view.measured)
        return
    yield last_values_table(view.job, view.values)
    if view.result is not None and view.values:
        more = view.command("metrics", view.status.job_id)
        yield Paragraph(f"the last values are too many to show here; all: {more}", "soft")


def generation_sentence(generation: GenerationStatus) -> str:
    """Return a sentence about the current generation of an elastic job: its members, when and why it started,
    and how many restarts were used."""
    span = span_since(generation.since) if generation.since is not None else "a moment"
    since = f", since {generation.why}" if generation.why else ""
    if generation.is_parked:
        left = (
            f" for {seconds((generation.until - now_ms()) / 1000)} more"
            if _is_ahead(generation.until)
            else ""
        )
        now = f"{len(generation.members)} of at least {counted(generation.least, 'node')} left for {span}{since}; waits{left}"
    else:
        members = counted(len(generation.members), "member")
        now = f"{members} for {span}{since}" if generation.has_begun else f"{members} about to begin{since}"
    return (
        f"generation {generation.number} of {generation.least}:{generation.most} nodes (desired {generation.desired}): {now} · "
        f"{generation.restarts} of {generation.max_restarts} restarts used"
    )


def _is_ahead(time_ms: int | None) -> TypeGuard[int]:
    return time_ms is not None and time_ms > now_ms()


def nodes_table(nodes: Sequence[NodeStatus], *, is_over: bool, is_elastic: bool = False) -> Table:
    """Return a table with a row per node. The table is empty for a job of one node."""
    ranks = ["rank"] if is_elastic else []
    names = ("node", *ranks, "instance", "address", "phase", "last sign")
    columns = [Column(name, number=False) for name in names]
    # Only the column that says how a node ended is wrapped, because users copy the ids in the other columns.
    columns.append(Column("end", number=False, wraps=True))
    return Table(columns, [_node_row(each, is_over=is_over, is_elastic=is_elastic) for each in nodes])


def _node_row(node: NodeStatus, *, is_over: bool, is_elastic: bool) -> list[Phrase]:
    ended = node.outcome is not None
    sign = time_since(node.last_sign) if node.last_sign is not None and not ended else ""
    rank = [Phrase("–" if node.group_rank is None else str(node.group_rank))] if is_elastic else []
    return [
        Phrase(str(node.rank)),
        *rank,
        Phrase(node.instance_id or ("here" if node.address is not None else "")),
        Phrase(node.address or ""),
        Phrase(_phase(node) if not ended and not is_over else ""),
        Phrase(sign),
        _node_end(node, is_over=is_over),
    ]


def _phase(node: NodeStatus) -> str:
    return "–" if node.left is not None else node.phase or "starting"


def _node_end(node: NodeStatus, *, is_over: bool) -> Phrase:
    """Return how a node's part of the job ended, and any problem with the node's record."""
    is_good = node.outcome == Outcome.SUCCEEDED.value
    end = node.left or ("did not say how it ended" if is_over else "")
    if node.outcome is not None:
        end = node.outcome if is_good else f"{node.outcome}: {node.sentence}"
    if node.trouble is not None:
        return Phrase("; ".join(filter(None, (end, node.trouble))), "caution")
    return Phrase(end, "good" if is_good else "bad")


def _details(view: StatusView) -> Iterator[Block]:
    """Yield transports, settings, the usage of bai's own programs, and the machine of each node."""
    yield Facts(_transports(view.status.nodes))
    yield Facts(_settings(view.job))
    yield Facts([*size_facts(view.size), *_hints(view.hints)])
    if view.result is not None and view.result.own_usage:
        yield Facts(list(usage_facts(view.result.own_usage, one_machine=view.one_machine)))
    for node in view.machines:
        if len(view.machines) > 1:
            yield Heading(f"node {node.rank}", f"node-{node.rank}")
        yield Facts(list(environment_facts(node)))


def _transports(nodes: Sequence[NodeStatus]) -> list[Fact]:
    """Return the network transports between the nodes, each with the nodes that reported it."""
    ranks: dict[str, list[str]] = {}
    for node in nodes:
        for sentence in transport_sentences(node.transports):
            ranks.setdefault(sentence, []).append(str(node.rank))
    return [
        Fact("transport", sentence if len(found) == len(nodes) else f"{sentence} (node {', '.join(found)})")
        for sentence, found in ranks.items()
    ]


def size_facts(size: SizeStatus | None) -> list[Fact]:
    """Return facts about the latest change of the number of nodes."""
    if size is None:
        return []
    if size.requested is not None:
        words = f"`bai scale` has set {counted(size.requested, 'node')}, and goodput has proposed no other number since then"
    elif size.proposed is not None and size.proposed_at is not None:
        words = f"goodput proposed {counted(size.proposed, 'node')} {time_since(size.proposed_at)}"
    else:
        words = "goodput has proposed no other number of nodes"
    return [Fact("size", words)]


def _hints(hints: Hints | None) -> list[Fact]:
    """Return the benchmark's latest hints, with the node that sent them and their age. Very long hints are
    truncated."""
    if hints is None:
        return []
    text = hints.text if len(hints.text) <= _HINT_CHARACTERS else f"{hints.text[: _HINT_CHARACTERS - 1]}…"
    return [
        Fact("hints", text),
        Fact("", f"sent by node {hints.node} in generation {hints.generation}, {time_since(hints.time)}"),
    ]


def _settings(job: Job) -> list[Fact]:
    """Return the descriptor's values that `--set` has changed."""
    return [Fact("" if i else "set", f"{key}={value}") for i, (key, value) in enumerate(job.set.items())]
