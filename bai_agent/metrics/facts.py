"""The run's own facts, as the shim measured them: time, memory, context switches of the benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bai_agent.metrics.records import Value

_FACTS = (
    ("wall_seconds", "s"),
    ("user_seconds", "s"),
    ("system_seconds", "s"),
    ("peak_memory_bytes", "bytes"),
    ("context_switches_voluntary", ""),
    ("context_switches_involuntary", ""),
)


def run_facts(exited: Mapping[str, Any]) -> list[Value]:
    """Return the facts in `exit.json` as metrics; what is not known there (null) is left out."""
    return [
        Value(position, f"bai_run_{key}", json.dumps(exited[key]), units)
        for position, (key, units) in enumerate(_FACTS)
        if isinstance(exited.get(key), (int, float))
    ]
