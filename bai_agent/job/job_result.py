"""Makes the result of a job from the outcomes of its nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

from bai_agent.job.job_headlines import headlines_of_nodes, per_node
from bai_agent.job.outcome import FOR_ALL, NAMES_NODES, UNCAUSED, Outcome
from bai_agent.job.record_types import (
    ArtifactCount,
    CheckpointSummary,
    ExtractionSummary,
    GenerationOutcome,
    GitCommit,
    HeadlineValue,
    JobResult,
    KafkaDelivery,
    NeverNumber,
    NodeOutcome,
    RepeatOutcome,
)
from bai_agent.light_dataclass import dataclass, replace

T = TypeVar("T")
N = TypeVar("N", int, float)

_SUMMED = ("records", "lines", "log_bytes", "emit_bad_lines", "lost_bytes", "remaining_bytes")
_MISSING = ("required_missing", "empty_presets", "results_missing", "required_results_missing")
"""Keys of an extraction's summary that list missing metrics, presets and result files. A job's summary lists only the
items that are missing on all nodes."""
_CONSEQUENCE_MS = 5000


def job_result(
    job_id: str,
    nodes: Sequence[NodeOutcome],
    *,
    git: GitCommit | None = None,
    whole: bool = True,
    lost: Collection[int] = (),
    seen: Collection[str] = (),
) -> JobResult:
    """Return the result of a job from the outcomes of one or more nodes.

    The job gets the outcome, sentence, benchmark and last lines of the node that failed first. If no node failed, the
    job gets the outcome, sentence, benchmark and last lines of rank 0. A required metric is missing if no node has
    seen a value of the metric.

    whole: whether `nodes` are all nodes of the job.
    lost: ranks that were given up.
    seen: required metrics that lost nodes reported in their last heartbeats.
    """
    ranked = sorted(nodes, key=lambda node: node.rank)
    several = len(ranked) > 1
    cause = first_failure(ranked) or ranked[0]
    repeats = _repeats(_present(node.repeats for node in ranked))
    metrics = _extraction(
        _present(node.metrics for node in ranked),
        failed=[each.repeat for each in repeats or () if each.outcome != Outcome.SUCCEEDED.value],
        seen=seen,
    )
    verdict = _verdict_of(cause, several=several)
    if whole and metrics is not None:
        verdict = _judge_metrics(verdict, metrics, several=several)
    warnings = [
        *_titled(((node.rank, node.warnings) for node in ranked), several=several),
        *(node.sentence for node in ranked if _is_another_lost(node, cause, lost)),
        *verdict.warnings,
        *_titled(((node.rank, node.metrics.warnings) for node in ranked if node.metrics), several=several),
    ]
    return JobResult(
        job_id=job_id,
        outcome=verdict.outcome.value,
        status=verdict.outcome.status.value,
        exit_code=int(verdict.outcome.exit_code),
        sentence=verdict.sentence,
        benchmark=cause.benchmark,
        phases=_longest(_present(node.phases for node in ranked)),
        metrics=metrics,
        kafka=_kafka(_present(node.kafka for node in ranked)),
        last_lines=cause.last_lines or [],
        artifacts=_artifacts(_present(node.artifacts for node in ranked)),
        started=_of_known(min, (node.started for node in ranked)),
        ended=_of_known(max, (node.ended for node in ranked)),
        seconds=_of_known(max, (node.seconds for node in ranked)),
        git=git,
        repeats=repeats,
        generations=generations_of_nodes(ranked, cause),
        checkpoints=_checkpoints(ranked),
        transports=_transports(_present(node.transports for node in ranked)),
        warnings=list(dict.fromkeys(warnings)),
        own_usage=_present(node.own_usage for node in ranked) or None,
        lost=sorted(lost) or None,
    )


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    outcome: Outcome
    sentence: str
    warnings: Sequence[str] = ()


def _verdict_of(cause: NodeOutcome, *, several: bool) -> _Verdict:
    outcome = Outcome(cause.outcome)
    sentence = sentence_of_node(cause.rank, outcome, cause.sentence) if several else cause.sentence
    return _Verdict(outcome=outcome, sentence=sentence)


def _judge_metrics(verdict: _Verdict, metrics: ExtractionSummary, *, several: bool) -> _Verdict:
    """Return the job's outcome and sentence, with respect to missing required metrics. A job that succeeded otherwise
    fails if required metrics are missing."""
    succeeded = verdict.outcome is Outcome.SUCCEEDED
    warnings: list[str] = []
    if several:
        # In a job of one node, the node's extractor has already reported where it searched for the metrics.
        warnings += [
            f'output.results "{path}" gave no value on any node.' for path in metrics.results_missing
        ]
    if succeeded and not metrics.remaining_bytes:
        warnings += [
            f'The preset "{preset}" found nothing in the output: none of its metrics fits what was printed. '
            f"`bai presets {preset}` shows its patterns."
            for preset in metrics.empty_presets
        ]
    if metrics.required_missing and metrics.remaining_bytes:
        # The missing metrics are possibly in the part of the output that was not searched. A slow extractor
        # is not a failure of the benchmark.
        names = ", ".join(f'"{name}"' for name in metrics.required_missing)
        warnings.append(
            f"Only a part of the output was searched, without a value of these required metrics: {names}."
        )
    missing = _missing(metrics) if succeeded else None
    if missing is None:
        return replace(verdict, warnings=warnings)
    return _Verdict(
        outcome=Outcome.REQUIRED_METRIC_MISSING,
        sentence=f"The benchmark ended well, but {missing}.",
        warnings=warnings,
    )


def _missing(metrics: ExtractionSummary) -> str | None:
    """Return a text that names the required values that are missing; None if no required value is missing for sure."""
    if metrics.required_results_missing:
        paths = ", ".join(f'"{path}"' for path in metrics.required_results_missing)
        return f"these required result files gave no value: {paths}"
    if metrics.required_missing and not metrics.remaining_bytes:
        return missing_sentence(metrics.required_missing, metrics.never_numbers or {})
    return None


def _is_another_lost(node: NodeOutcome, cause: NodeOutcome, lost: Collection[int]) -> bool:
    """Return whether `node` is a lost node that the job's sentence does not name."""
    return node.rank in lost and node.outcome == Outcome.PEER_LOST.value and node.sentence != cause.sentence


def _artifacts(nodes: Sequence[ArtifactCount]) -> ArtifactCount:
    return ArtifactCount(files=sum(each.files for each in nodes), bytes=sum(each.bytes for each in nodes))


def _checkpoints(outcomes: Sequence[NodeOutcome]) -> CheckpointSummary | None:
    """Return the summary of all nodes' checkpoints."""
    nodes = _present(each.checkpoints for each in outcomes)
    return reduce(_both, nodes) if nodes else None


def _numbers(checkpoint: str | None) -> list[int]:
    """Return the generation and the number in a checkpoint's name, in a form that orders checkpoints by time."""
    return [int(each) for each in re.findall(r"[0-9]{1,9}", checkpoint or "")]


def _both(one: CheckpointSummary, other: CheckpointSummary) -> CheckpointSummary:
    """Return the combined summary of two nodes' checkpoints. Nodes restore in parallel, so the longer
    duration is used."""
    return CheckpointSummary(
        kept=one.kept + other.kept,
        bytes=one.bytes + other.bytes,
        seconds=round(one.seconds + other.seconds, 3),
        newest=max(one.newest, other.newest, key=_numbers),
        restored=max(one.restored, other.restored),
        restored_bytes=one.restored_bytes + other.restored_bytes,
        restore_seconds=max(one.restore_seconds, other.restore_seconds),
    )


def first_failure(nodes: Iterable[NodeOutcome]) -> NodeOutcome | None:
    """Return the node whose failure caused the job's failure; None if no node failed.

    If a process is killed, the processes on other nodes fail soon after. A launcher may report its own failure before
    the killed process is reported.
    """
    failed = [node for node in nodes if node.outcome != Outcome.SUCCEEDED.value]
    # A node that was stopped because another node failed is not the cause.
    own = [node for node in failed if node.outcome != Outcome.PEER_FAILED.value] or failed
    if not own:
        return None
    told = min(own, key=_when)
    if told.outcome in FOR_ALL:
        # Each node detects a cancellation or the time limit at its next check. Failures after that are
        # consequences. For example, mpirun fails after a serving node has stopped its sshd.
        return min(
            (node for node in own if node.outcome == told.outcome),
            key=lambda node: (node.serves, _when(node), node.rank),
        )
    # The launcher fails if a serving node is lost or killed, because processes of the launcher run on that
    # node. If a process on a serving node failed by itself, its failure is treated like a failure of the
    # launcher.
    lost = [node for node in own if node.serves and node.outcome not in (Outcome.FAILED, *FOR_ALL)]
    own = lost or own
    first = min(map(_when, own))
    early = [node for node in own if _when(node) - first <= _CONSEQUENCE_MS]
    killed = [node for node in early if node.outcome in UNCAUSED]
    servers = [node for node in early if node.is_server]
    return min(killed or servers or own, key=lambda node: (_when(node), node.rank))


def _when(node: NodeOutcome) -> int:
    return node.failed or node.ended or 0


def sentence_of_node(rank: int, outcome: Outcome, sentence: str) -> str:
    """Return the job's sentence, made from the sentence of a node. The result names the node, unless the outcome
    is in `NAMES_NODES`."""
    return sentence if outcome in NAMES_NODES else f"Node {rank}: {sentence}"


def missing_sentence(missing: Sequence[str], never_numbers: Mapping[str, NeverNumber]) -> str:
    """Return a text that says why required metrics have no value. A metric was never seen, or the metric's matches
    were never numbers."""
    unseen = ", ".join(f'"{name}"' for name in missing if name not in never_numbers)
    sentences = [f"these required metrics were never seen: {unseen}"] if unseen else []
    for name in missing:
        if name in never_numbers:
            found = never_numbers[name]
            sentences.append(f'the required metric "{name}" {never_a_number(found.count, found.first)}')
    return "; ".join(sentences)


def never_a_number(count: int, first: str) -> str:
    """Return the predicate of a sentence about a metric whose matches were never numbers."""
    times = "once" if count == 1 else f"{count} times"
    return f'matched {times}, but no match was a number; the first match was "{first}"'


def _titled(nodes: Iterable[tuple[int, Sequence[str] | None]], *, several: bool) -> list[str]:
    """Return the warnings of all nodes, each with the node's rank if the job has several nodes."""
    return [
        f"Node {rank}: {each}" if several else each for rank, warnings in nodes for each in warnings or ()
    ]


def _extraction(
    nodes: Sequence[ExtractionSummary], *, failed: Collection[int], seen: Collection[str]
) -> ExtractionSummary | None:
    """Return the summary of all nodes' extraction; None if no node reported an extraction.

    failed: runs that are excluded from every headline.
    seen: required metrics that lost nodes reported in their last heartbeats.
    """
    found = nodes[0] if len(nodes) == 1 else _extraction_of_several(nodes, failed=failed) if nodes else None
    if found is None or not seen:
        return found
    return replace(found, required_missing=[each for each in found.required_missing if each not in seen])


def _extraction_of_several(
    nodes: Sequence[ExtractionSummary], *, failed: Collection[int]
) -> ExtractionSummary:
    per_metric = _sum([node.per_metric for node in nodes])
    never = {name: each for node in nodes for name, each in (node.never_numbers or {}).items()}
    together: dict[str, Any] = {name: sum(getattr(node, name) for node in nodes) for name in _SUMMED}
    together |= {name: _missing_on_all([getattr(node, name) for node in nodes]) for name in _MISSING}
    return ExtractionSummary(
        **together,
        per_metric=per_metric,
        headlines=headlines_of_nodes([node.headlines or {} for node in nodes], failed=failed),
        not_numbers=_sum([node.not_numbers for node in nodes]),
        never_numbers={name: each for name, each in never.items() if not per_metric.get(name)},
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
    """Return the outcome of each run of the job; None if there are no runs. A run that failed on any node
    counts as failed."""
    if len(nodes) < 2:
        return list(nodes[0]) if nodes else None
    by_number: dict[int, list[RepeatOutcome]] = {}
    for each in (each for node in nodes for each in node):
        by_number.setdefault(each.repeat, []).append(each)
    return [_repeat(by_number[number]) for number in sorted(by_number)]


def _repeat(parts: Sequence[RepeatOutcome]) -> RepeatOutcome:
    """Return the outcome of a run, combined from the outcomes on all nodes."""
    failed = [each for each in parts if each.outcome != Outcome.SUCCEEDED.value]
    own = [each for each in failed if each.outcome != Outcome.PEER_FAILED.value] or failed
    said = min(own, key=lambda each: each.ended or 0) if own else parts[0]
    return replace(
        said,
        started=_of_known(min, (each.started for each in parts)),
        ended=_of_known(max, (each.ended for each in parts)),
        wall_seconds=_of_known(max, (each.wall_seconds for each in parts)),
        user_seconds=_of_known(sum, (each.user_seconds for each in parts)),
        system_seconds=_of_known(sum, (each.system_seconds for each in parts)),
        peak_memory_bytes=_of_known(max, (each.peak_memory_bytes for each in parts)),
    )


def generations_of_nodes(
    nodes: Sequence[NodeOutcome], cause: NodeOutcome | None = None
) -> list[GenerationOutcome] | None:
    """Return the generations of a job, in order; None if the job has no generations.

    cause: the node whose report is preferred for the generations that the node took part in. If `cause` is None, the
    report of a generation's first node is used.
    """
    parts: dict[int, dict[int, GenerationOutcome]] = {}
    # The report of `cause` comes first, because two nodes may report the same end in different words.
    for node in (*([cause] if cause is not None else []), *nodes):
        for each in node.generations or ():
            parts.setdefault(each.generation, {}).setdefault(node.rank, each)
    if not parts:
        return None if all(node.generations is None for node in nodes) else []
    found: list[GenerationOutcome] = []
    for number in sorted(parts):
        before = found[-1].ended if found else None
        # Members of the next generation know why this generation ended.
        heard = [node for node in parts[number] if node in parts.get(number + 1, {})]
        told = {node: parts[number][node] for node in heard} or parts[number]
        found.append(_generation(parts[number], told, before, several=len(nodes) > 1))
    if cause is not None and len(nodes) > 1 and cause.rank in parts[found[-1].generation]:
        # Reasons why earlier generations ended were sent to all nodes, and already name the node that caused
        # the end.
        sentence = sentence_of_node(cause.rank, Outcome(found[-1].outcome), found[-1].sentence)
        found[-1] = replace(found[-1], sentence=sentence)
    return found


def _generation(
    parts: Mapping[int, GenerationOutcome],
    told: Mapping[int, GenerationOutcome],
    before: int | None,
    *,
    several: bool,
) -> GenerationOutcome:
    """Return the outcome of a generation from the reports of its nodes.

    parts: reports of all nodes, by node.
    told: reports of the nodes that know why and when the generation ended. A hung node does not know the end, because
    the node possibly still ran the generation during the next generation.
    before: end of the previous generation (ms UTC).
    several: whether the job has several nodes.
    """
    first = next(iter(told.values()))
    # A lost node has reported nothing about the generation, but was a member of it.
    members = list(dict.fromkeys([*first.members, *sorted(parts)]))
    started = _of_known(min, (each.started for each in parts.values()))
    return replace(
        first,
        members=members,
        started=started,
        ended=_of_known(max, (each.ended for each in told.values())),
        wall_seconds=_of_known(max, (each.wall_seconds for each in told.values())),
        gap_seconds=max(0, started - before) / 1000 if started is not None and before is not None else None,
        headlines=_generation_headlines(parts, members=len(members)) if several else first.headlines,
    )


def _generation_headlines(
    parts: Mapping[int, GenerationOutcome], *, members: int
) -> dict[str, HeadlineValue]:
    found = headlines_of_nodes([each.headlines for each in parts.values()], failed=())
    headlines = {}
    for name, each in found.items():
        own = {
            str(node): part.headlines[name].value for node, part in parts.items() if name in part.headlines
        }
        share = per_node(each, members=members, measured=len(own))
        headlines[name] = replace(each, nodes=own, per_node=share)
    return headlines


def _transports(nodes: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, list[str]] | None:
    """Return the networks that any node uses, by library; None if no node reported a network."""
    libraries = dict.fromkeys(library for node in nodes for library in node)
    return {
        library: list(dict.fromkeys(each for node in nodes for each in node.get(library, ())))
        for library in libraries
    } or None


def _longest(nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the longest duration of each phase on any node (seconds)."""
    phases = dict.fromkeys(phase for node in nodes for phase in node)
    return {phase: max(node[phase] for node in nodes if phase in node) for phase in phases}


def _sum(nodes: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for node in nodes for name in node)
    return {name: sum(node.get(name, 0) for node in nodes) for name in names}


def _of_known(choose: Callable[[list[N]], N], values: Iterable[N | None]) -> N | None:
    known = _present(values)
    return choose(known) if known else None


def _present(values: Iterable[T | None]) -> list[T]:
    return [each for each in values if each is not None]
