"""Writes how a job ended in place of machines that cannot: `result.json`, once, whoever is first."""

from __future__ import annotations

import json
from typing import Any

from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import now_ms
from bai_agent.job.tables import write_table
from bai_agent.metrics.terminal import last_lines
from executor.records.follower import events_of, tail_position
from executor.records.reading import result_of
from executor.records.run_state import RunState

_LAST_BYTES = 65536
_LAST_LINES = 20


def write_result(record: JobRecord, outcome: Outcome, sentence: str, *, attempt: int = 0) -> bool:
    """Write that the job ended so; return False, and leave it, where it has a result. Raises StoreError.

    It has the keys of an agent's result (docs/run-directory.md), and `"on_behalf": true`.
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
        last = _last_lines(record, attempt)
    else:
        # Only its own machine can look the secrets up, and a result goes further than the log.
        warnings.append(
            "The last lines of the output are not in the result: secrets may stand in them, which are not known here. "
            "`bai logs` shows them."
        )
    result: dict[str, Any] = {
        "version": 1,
        "job_id": record.job_id,
        "outcome": outcome.value,
        "status": outcome.status.value,
        "exit_code": int(outcome.exit_code),
        "sentence": sentence,
        "benchmark": None,
        "phases": state.finished,
        "metrics": None,
        "kafka": None,
        "last_lines": last,
        "artifacts": {"files": len(kept), "bytes": sum(each.size for each in kept)},
        "started": state.started if state.started is not None else now,
        "ended": now,
        "git": write_table(job.git) if job is not None and job.git is not None else None,
        "warnings": warnings,
        "on_behalf": True,
    }
    content = json.dumps(Redactor().redact_all(result, own_levels=1), ensure_ascii=False).encode(
        errors="replace"
    )
    return record.store.put(record.key("result.json"), content + b"\n", if_absent=True)


def _last_lines(record: JobRecord, attempt: int) -> list[str]:
    node = record.node(attempt=attempt)
    if not node.size("log"):
        return []
    position = tail_position(node, "log", _LAST_BYTES)
    text = node.read("log", position, limit=_LAST_BYTES).decode(errors="replace")
    return last_lines(text, _LAST_LINES)
