from __future__ import annotations

import json
from pathlib import Path

import pytest

from bai_agent.job.record_types import (
    AgentEvent,
    BenchmarkExitEvent,
    PhaseEvent,
    PullEvent,
    RunEvent,
    SinkEvent,
    UnknownEvent,
    event_table,
)
from bai_agent.runtime.event_log import EventLog, read_events
from executor.records.reading import events_in


@pytest.mark.parametrize(
    "event",
    [
        AgentEvent(pid=1, version="0.2.0", boot_id="b"),
        PhaseEvent(phase="run", state="started"),
        PhaseEvent(phase="run", state="finished", seconds=0.0),
        PullEvent(
            src="s3://b/k", path="data", bytes=0, total_bytes=None, objects=0, total_objects=None, done=False
        ),
        BenchmarkExitEvent(code=None, signal=None, wall_seconds=None),
        SinkEvent(sink="Kafka", error=None, message="back"),
    ],
)
def test_an_event_is_read_back(tmp_path: Path, event: RunEvent) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, clock=lambda: 1_795_000_000_000)

    log.add(event)

    (ours,) = read_events(path)
    (theirs,) = events_in(path.read_bytes())
    assert ours == theirs == log.seen[0]
    assert event_table(ours) == {**event_table(event), "time": 1_795_000_000_000}


def test_empty_keys_of_an_event_are_written_as_null() -> None:
    table = event_table(SinkEvent(sink="Kafka", error=None, message="back"))

    assert table == {"time": 0, "type": "sink", "sink": "Kafka", "error": None, "message": "back"}


def test_an_event_of_another_version_is_passed_on_unchanged() -> None:
    newer = {"time": 1, "type": "teleported", "to": [1, {"x": None}]}

    (event,) = events_in(json.dumps(newer).encode() + b"\n")

    assert isinstance(event, UnknownEvent)
    assert event_table(event) == newer


@pytest.mark.parametrize(
    "line",
    [
        {"type": "warning", "message": "no time"},
        {"time": "now", "type": "warning", "message": "x"},
        {"time": 1, "type": "warning"},
        {"time": 1, "type": "pull", "src": "s", "bytes": -1, "total_bytes": 1, "done": True},
        {"time": 1, "type": "phase", "phase": "run", "state": "finished", "seconds": "long"},
        {"time": True, "type": "teleported"},
        ["warning"],
    ],
)
def test_a_line_that_is_not_an_event_is_skipped(line: object) -> None:
    assert events_in(json.dumps(line).encode() + b"\n") == []
