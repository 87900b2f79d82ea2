"""Sinks that are unreachable for some time are reported once, and their recovery too."""

from __future__ import annotations

from bai_agent.job.record_types import SinkEvent
from bai_agent.sinks import PATIENCE, SinkTroubles


def test_a_lasting_sink_error_and_its_recovery_are_each_reported_once() -> None:
    now = [0.0]
    told: list[SinkEvent] = []
    troubles = SinkTroubles(told.append, clock=lambda: now[0])

    for seconds in (0, 1, PATIENCE, PATIENCE + 1, PATIENCE + 2):
        now[0] = seconds
        troubles.observe({"Kafka": "broker-1:9092 refuses", "The job store": None})
    troubles.observe({"Kafka": None, "The job store": None})

    assert [(event.sink, event.error) for event in told] == [
        ("Kafka", "broker-1:9092 refuses"),
        ("Kafka", None),
    ]


def test_a_short_sink_error_is_not_reported() -> None:
    now = [0.0]
    told: list[SinkEvent] = []
    troubles = SinkTroubles(told.append, clock=lambda: now[0])

    for error in ("away", None, "away", None):
        now[0] += PATIENCE - 1
        troubles.observe({"Kafka": error})

    assert told == []
