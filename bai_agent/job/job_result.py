"""How a job ended, made from how each of its nodes did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from bai_agent.job.job_headlines import headlines_of_nodes
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import (
    ArtifactCount,
    ExtractionSummary,
    GitCommit,
    JobResult,
    KafkaDelivery,
    NeverNumber,
    NodeOutcome,
    RepeatOutcome,
)

T = TypeVar("T")

_OF_ALL_NODES = frozenset(
    {
        Outcome.SUCCEEDED,
        Outcome.CANCELLED,
        Outcome.NO_OUTPUT,
        Outcome.JOIN_FAILED,
        Outcome.PEER_FAILED,
        Outcome.PEER_LOST,
    }
)
"""What happens to all nodes, or whose sentence names the node."""

_KILLED = frozenset({Outcome.OOM.value, Outcome.KILLED.value, Outcome.PEER_LOST.value})
"""What no other node's failure brings about. That a node was lost counts from its last sign of life."""
_CONSEQUENCE_MS = 5000
_OF_THE_JOB = frozenset({Outcome.CANCELLED.value, Outcome.MAX_RUNTIME.value})
"""What ends all nodes alike, of which those that compute have more to tell."""


def job_result(
    job_id: str,
    nodes: Sequence[NodeOutcome],
    *,
    git: GitCommit | None = None,
    whole: bool = True,
    lost: Collection[int] = (),
) -> JobResult:
    """Return how a job ended whose nodes, one or more, ended so.

    The node that failed first is the cause: its outcome, sentence, benchmark and last lines are the job's; without one,
    those of rank 0. A required metric is missing where no node has seen it. whole: these are all nodes of the job.
    lost: ranks that were given up.
    """
    ranked = sorted(nodes, key=lambda node: node.rank)
    cause = first_failure(ranked) or ranked[0]
    repeats = _repeats([node.repeats for node in ranked if node.repeats is not None])
    metrics = _extraction(
        [node.metrics for node in ranked if node.metrics is not None],
        failed=[each.repeat for each in repeats or () if each.outcome != Outcome.SUCCEEDED.value],
    )
    of_extraction = ((node.rank, node.metrics.warnings) for node in ranked if node.metrics)
    several = len(ranked) > 1
    outcome = Outcome(cause.outcome)
    sentence = sentence_of_node(cause.rank, outcome, cause.sentence) if several else cause.sentence
    warnings = _titled(((node.rank, node.warnings) for node in ranked), several=several)
    warnings += [
        node.sentence
        for node in ranked
        if node.rank in lost and node.outcome == Outcome.PEER_LOST.value and node.sentence != cause.sentence
    ]
    if whole and several and metrics is not None:
        # Of one node the extractor has told where it looked.
        warnings += [
            f'output.results "{path}" gave no value on any node.' for path in metrics.results_missing
        ]
    if whole and metrics is not None and outcome is Outcome.SUCCEEDED and not metrics.remaining_bytes:
        warnings += [
            f'The preset "{preset}" found nothing in the output: none of its metrics fits what was printed. '
            f"`bai presets {preset}` shows what it looks for."
            for preset in metrics.empty_presets
        ]
    if whole and metrics is not None and metrics.required_results_missing and outcome is Outcome.SUCCEEDED:
        paths = ", ".join(f'"{path}"' for path in metrics.required_results_missing)
        outcome = Outcome.REQUIRED_METRIC_MISSING
        sentence = f"The benchmark ended well, but these required result files gave no value: {paths}."
    if whole and metrics is not None and metrics.required_missing:
        if metrics.remaining_bytes:
            # What was not searched may hold them: that we were slow is not the benchmark's failure.
            names = ", ".join(f'"{name}"' for name in metrics.required_missing)
            warnings.append(
                f"These required metrics were not in the part of the output that was searched: {names}."
            )
        elif outcome is Outcome.SUCCEEDED:
            missing = missing_sentence(metrics.required_missing, metrics.never_numbers or {})
            outcome = Outcome.REQUIRED_METRIC_MISSING
            sentence = f"The benchmark ended well, but {missing}."
    return JobResult(
        job_id=job_id,
        outcome=outcome.value,
        status=outcome.status.value,
        exit_code=int(outcome.exit_code),
        sentence=sentence,
        benchmark=cause.benchmark,
        phases=_longest([node.phases or {} for node in ranked]),
        metrics=metrics,
        kafka=_kafka([node.kafka for node in ranked if node.kafka is not None]),
        last_lines=cause.last_lines or [],
        artifacts=ArtifactCount(
            files=sum(node.artifacts.files for node in ranked if node.artifacts),
            bytes=sum(node.artifacts.bytes for node in ranked if node.artifacts),
        ),
        started=_of(min, [node.started for node in ranked]),
        ended=_of(max, [node.ended for node in ranked]),
        git=git,
        repeats=repeats,
        transports=_transports([node.transports for node in ranked if node.transports]),
        warnings=list(dict.fromkeys([*warnings, *_titled(of_extraction, several=several)])),
        own_usage=[node.own_usage for node in ranked if node.own_usage is not None] or None,
        lost=sorted(lost) or None,
    )


def first_failure(nodes: Iterable[NodeOutcome]) -> NodeOutcome | None:
    """Return the node whose failure is the cause of the others', where any failed.

    Those that talk to a process which is killed fail moments later, and a launcher may see its own end of that sooner.
    """
    failed = [node for node in nodes if node.outcome != Outcome.SUCCEEDED.value]
    # Whoever was ended because of another one is not the cause.
    own = [node for node in failed if node.outcome != Outcome.PEER_FAILED.value] or failed
    if not own:
        return None
    told = min(own, key=_when)
    if told.outcome in _OF_THE_JOB:
        # Each node hears of it when it looks. What fails later fails of that: such as mpirun, when another node has ended its sshd.
        return min(
            (node for node in own if node.outcome == told.outcome),
            key=lambda node: (node.serves, _when(node), node.rank),
        )
    # What a node that only serves lost or had killed, the processes that run through it lost with it: the launcher fails of that.
    # A process of it that failed by itself is one like those of the launcher.
    lost = [node for node in own if node.serves and node.outcome not in (Outcome.FAILED.value, *_OF_THE_JOB)]
    own = lost or own
    first = min(map(_when, own))
    killed = [node for node in own if node.outcome in _KILLED and _when(node) - first <= _CONSEQUENCE_MS]
    return min(killed or own, key=lambda node: (_when(node), node.rank))


def _when(node: NodeOutcome) -> int:
    return node.failed or node.ended or 0


def sentence_of_node(rank: int, outcome: Outcome, sentence: str) -> str:
    """Return how a node ended in a sentence for all; it names the node, unless what happened is not of one node alone."""
    return sentence if outcome in _OF_ALL_NODES else f"Node {rank}: {sentence}"


def missing_sentence(missing: Sequence[str], never_numbers: Mapping[str, NeverNumber]) -> str:
    """Return what is known of required metrics without a value: never seen, or seen and never a number."""
    unseen = ", ".join(f'"{name}"' for name in missing if name not in never_numbers)
    sentences = [f"these required metrics were never seen: {unseen}"] if unseen else []
    for name in missing:
        if name in never_numbers:
            found = never_numbers[name]
            sentences.append(f'the required metric "{name}" {never_a_number(found.count, found.first)}')
    return "; ".join(sentences)


def never_a_number(count: int, first: str) -> str:
    """Return the end of a sentence about a metric whose pattern matched in vain."""
    times = "once" if count == 1 else f"{count} times"
    return f'matched {times}, but never a number; the first was "{first}"'


def _titled(nodes: Iterable[tuple[int, Sequence[str] | None]], *, several: bool) -> list[str]:
    """Return the warnings of all nodes, with the node's rank where there are several."""
    return [
        f"Node {rank}: {each}" if several else each for rank, warnings in nodes for each in warnings or ()
    ]


def _extraction(nodes: Sequence[ExtractionSummary], *, failed: Collection[int]) -> ExtractionSummary | None:
    """Return what all nodes extracted together; None where none did. failed: runs that count in no headline."""
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    per_metric = _sum([node.per_metric for node in nodes])
    never = {name: each for node in nodes for name, each in (node.never_numbers or {}).items()}
    return ExtractionSummary(
        records=sum(node.records for node in nodes),
        lines=sum(node.lines for node in nodes),
        log_bytes=sum(node.log_bytes for node in nodes),
        per_metric=per_metric,
        headlines=headlines_of_nodes([node.headlines or {} for node in nodes], failed=failed),
        not_numbers=_sum([node.not_numbers for node in nodes]),
        never_numbers={name: each for name, each in never.items() if not per_metric.get(name)},
        required_missing=_missing_on_all([node.required_missing for node in nodes]),
        empty_presets=_missing_on_all([node.empty_presets for node in nodes]),
        results_missing=_missing_on_all([node.results_missing for node in nodes]),
        required_results_missing=_missing_on_all([node.required_results_missing for node in nodes]),
        emit_bad_lines=sum(node.emit_bad_lines for node in nodes),
        lost_bytes=sum(node.lost_bytes for node in nodes),
        remaining_bytes=sum(node.remaining_bytes for node in nodes),
        warnings=list(dict.fromkeys(each for node in nodes for each in node.warnings)),
    )


def _missing_on_all(nodes: Sequence[Sequence[str]]) -> list[str]:
    return [each for each in nodes[0] if all(each in missing for missing in nodes)]


def _kafka(nodes: Sequence[KafkaDelivery]) -> KafkaDelivery | None:
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    return KafkaDelivery(
        delivered=sum(node.delivered or 0 for node in nodes),
        undelivered=sum(node.undelivered or 0 for node in nodes),
        error=next((node.error for node in nodes if node.error), None),
    )


def _repeats(nodes: Sequence[Sequence[RepeatOutcome]]) -> list[RepeatOutcome] | None:
    """Return how each run of the job ended: it failed where it failed on one node; None where there are no runs."""
    if len(nodes) < 2:
        return list(nodes[0]) if nodes else None
    by_number: dict[int, list[RepeatOutcome]] = {}
    for each in (each for node in nodes for each in node):
        by_number.setdefault(each.repeat, []).append(each)
    return [_repeat(by_number[number]) for number in sorted(by_number)]


def _repeat(parts: Sequence[RepeatOutcome]) -> RepeatOutcome:
    """Return how a run ended whose parts on the nodes ended so."""
    failed = [each for each in parts if each.outcome != Outcome.SUCCEEDED.value]
    own = [each for each in failed if each.outcome != Outcome.PEER_FAILED.value] or failed
    said = min(own, key=lambda each: each.ended or 0) if own else parts[0]
    return replace(
        said,
        started=_of(min, [each.started for each in parts]),
        ended=_of(max, [each.ended for each in parts]),
        wall_seconds=_of_known(max, [each.wall_seconds for each in parts]),
        user_seconds=_of_known(sum, [each.user_seconds for each in parts]),
        system_seconds=_of_known(sum, [each.system_seconds for each in parts]),
        peak_memory_bytes=_of(max, [each.peak_memory_bytes for each in parts]),
    )


def _of_known(choose: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return choose(known) if known else None


def _transports(nodes: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, list[str]] | None:
    """Return by library what any node uses; None where none said so."""
    libraries = dict.fromkeys(library for node in nodes for library in node)
    return {
        library: list(dict.fromkeys(each for node in nodes for each in node.get(library, ())))
        for library in libraries
    } or None


def _longest(nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each phase's seconds on the node that took longest for it."""
    phases = dict.fromkeys(phase for node in nodes for phase in node)
    return {phase: max(node[phase] for node in nodes if phase in node) for phase in phases}


def _sum(nodes: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for node in nodes for name in node)
    return {name: sum(node.get(name, 0) for node in nodes) for name in names}


def _of(choose: Callable[[list[int]], int], times: Sequence[int | None]) -> int | None:
    known = [each for each in times if each is not None]
    return choose(known) if known else None
