"""Writes `result.json` for machines that cannot; only the first result is kept."""

from __future__ import annotations

import json

from bai_agent.job.job_result import sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import ArtifactCount, GitCommit, JobResult, NodeOutcome, as_table
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import now_ms
from bai_agent.metrics.terminal import last_lines
from executor.records.follower import events_of, tail_position
from executor.records.node_status import node_outcomes
from executor.records.reading import result_of
from executor.records.run_state import RunState

_LAST_BYTES = 65536
_LAST_LINES = 20
_OWN_FAILURES = {each.value for each in Outcome} - {
    Outcome.SUCCEEDED.value,
    Outcome.INTERRUPTED.value,
    Outcome.PEER_FAILED.value,
    Outcome.PEER_LOST.value,
}
"""Outcomes of a node that are not what its machine's end, or another node's, made of it."""


def write_result(
    record: JobRecord, outcome: Outcome, sentence: str, *, attempt: int = 0, rank: int = 0
) -> bool:
    """Write that the job ended so; return False, and leave it, where it has a result. Raises StoreError.

    It has the keys of an agent's result (docs/run-directory.md), and `"on_behalf": true`. rank: the node that is the cause, whose last
    lines are the result's. A node of several that has said why it failed goes before: then that is the cause, and what is given a warning.
    """
    if result_of(record) is not None:
        return False
    state = RunState()
    for event in events_of(record.node(attempt=attempt)):
        state.apply(event)
    now = now_ms()
    warnings = list(state.warnings)
    kept = record.store.find(record.key("artifacts/"))
    job = record.job() if record.exists() else None
    last: list[str] = []
    if job is not None and not job.benchmark.secrets:
        last = _last_lines(record, attempt, rank)
    else:
        # Only its own machine can look the secrets up, and a result goes further than the log.
        warnings.append(
            "The last lines of the output are not in the result: secrets may stand in them, which are not known here. "
            "`bai logs` shows them."
        )
    if (failed := _first_failure(record, attempt)) is not None:
        warnings.append(sentence)
        outcome = Outcome(failed.outcome)
        sentence = sentence_of_node(failed.rank, outcome, failed.sentence)
        last = failed.last_lines or last
    result = JobResult(
        job_id=record.job_id,
        outcome=outcome.value,
        status=outcome.status.value,
        exit_code=int(outcome.exit_code),
        sentence=sentence,
        phases=state.finished,
        last_lines=last,
        artifacts=ArtifactCount(files=len(kept), bytes=sum(each.size for each in kept)),
        started=state.started if state.started is not None else now,
        ended=now,
        git=GitCommit(**vars(job.git)) if job is not None and job.git is not None else None,
        warnings=warnings,
        on_behalf=True,
    )
    table = Redactor().redact_all(as_table(result), own_levels=1)
    content = json.dumps(table, ensure_ascii=False).encode(errors="replace")
    return record.store.put(record.key("result.json"), content + b"\n", if_absent=True)


def _first_failure(record: JobRecord, attempt: int) -> NodeOutcome | None:
    """Return how the node ended that failed first, by itself; None where none has said that it did."""
    failed = [each for each in node_outcomes(record, attempt=attempt) if each.outcome in _OWN_FAILURES]
    return min(failed, key=lambda each: (each.ended or 0, each.rank), default=None)


def _last_lines(record: JobRecord, attempt: int, rank: int) -> list[str]:
    node = record.node(rank, attempt=attempt)
    if not node.size("log"):
        return []
    position = tail_position(node, "log", _LAST_BYTES)
    text = node.read("log", position, limit=_LAST_BYTES).decode(errors="replace")
    return last_lines(text, _LAST_LINES)
