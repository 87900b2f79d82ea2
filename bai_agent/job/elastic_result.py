"""Makes the result of an elastic job from the last decision and the outcome of each node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bai_agent.job.generation_records import NextGeneration
from bai_agent.job.job_result import job_result, sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import GitCommit, JobResult, NodeOutcome
from bai_agent.light_dataclass import replace

_OF_ONE_NODE = frozenset({"hopeless", "used_up"})
"""Reasons for the job's end that mean the failure of a single node. The outcome of the failed node has more
details."""


def elastic_result(
    job_id: str,
    end: NextGeneration,
    nodes: Sequence[NodeOutcome],
    *,
    lost: Mapping[int, str],
    seen: Collection[str] = (),
    measured: Sequence[NodeOutcome] = (),
    replaced: Sequence[int] = (),
    git: GitCommit | None = None,
) -> JobResult:
    """Return the result of a job.

    end: the last decision.
    nodes: outcomes of the nodes.
    lost: nodes that were given up, each with the node's name for messages.
    seen: required metrics that had a value on the lost nodes.
    measured: values of the lost nodes, from their records.
    replaced: nodes in whose place machines were launched.
    """
    unheard = sorted(set(lost) - {each.rank for each in nodes})
    warnings = [f"{lost[each]} was lost." for each in unheard]
    if end.outcome == Outcome.SUCCEEDED.value:
        failed = [each for each in nodes if each.outcome != Outcome.SUCCEEDED.value]
        warnings += [sentence_of_node(each.rank, Outcome(each.outcome), each.sentence) for each in failed]
        of_all = job_result(job_id, _successes(_with(nodes, measured)), git=git, lost=unheard, seen=seen)
        result = _succeeded(of_all, nodes, end)
    else:
        of_all = job_result(job_id, _with(nodes, measured), git=git, lost=unheard, seen=seen)
        result = _ended(of_all, end)
    warnings = list(dict.fromkeys([*(result.warnings or ()), *warnings]))
    return replace(result, warnings=warnings, replaced=list(replaced) or None)


def _with(nodes: Sequence[NodeOutcome], measured: Sequence[NodeOutcome]) -> list[NodeOutcome]:
    """Return the outcomes of nodes, with the values in `measured` added. Some lost nodes reported only the reason for
    their failure, without values."""
    said = {each.rank: each for each in nodes}
    for each in measured:
        before = said.get(each.rank, each)
        said[each.rank] = replace(
            before,
            metrics=each.metrics or before.metrics,
            generations=each.generations or before.generations,
            warnings=list(dict.fromkeys([*(before.warnings or ()), *(each.warnings or ())])),
        )
    return list(said.values())


def _successes(nodes: Sequence[NodeOutcome]) -> list[NodeOutcome]:
    """Return all outcomes as successes. The job continued without the failed nodes, but the values of the failed nodes
    still count."""
    return [replace(each, outcome=Outcome.SUCCEEDED.value) for each in nodes]


def _succeeded(result: JobResult, nodes: Sequence[NodeOutcome], end: NextGeneration) -> JobResult:
    """Return a successful result with the report of the last generation's first member. A result that is not a success
    is unchanged, for example if a required metric is missing."""
    good = {each.rank: each for each in nodes if each.outcome == Outcome.SUCCEEDED.value}
    first = next((good[each] for each in end.members if each in good), None)
    if first is None or result.outcome != Outcome.SUCCEEDED.value:
        return result
    number = first.generations[-1].generation if first.generations else 0
    # The duration in the node's sentence is only the duration of the last generation.
    sentence = f"{first.sentence.removesuffix('.')} in generation {number}." if number else first.sentence
    return replace(result, sentence=sentence, benchmark=first.benchmark, last_lines=first.last_lines or [])


def _ended(result: JobResult, end: NextGeneration) -> JobResult:
    """Return the result with the outcome of the last decision. If the failure of a single node ended the job, the
    result is unchanged, because the node's outcome has more details."""
    if end.why in _OF_ONE_NODE and result.outcome != Outcome.SUCCEEDED.value:
        return result
    outcome = Outcome(end.outcome)
    return replace(
        result,
        outcome=outcome.value,
        status=outcome.status.value,
        exit_code=int(outcome.exit_code),
        sentence=end.sentence or outcome.sentence,
    )
