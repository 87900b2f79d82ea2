"""What sinks send of a job: a line of `metrics.jsonl`, as they read it, and the labels by which readers elsewhere find it."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from bai_agent.job.descriptor import Job

HOST = "host"
"""`src` of what was measured of the machine."""


class Record(NamedTuple):
    """A value of a metric."""

    src: str
    name: str
    value: float
    units: str
    timestamp: int
    """ms UTC."""
    seq: int
    labels: dict[str, str]
    """Its own, with the repeat among them; not those of the job."""


def read_record(line: bytes) -> Record:
    """Return the record of one line. Raises ValueError, RecursionError where it is none."""
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    name, value, timestamp, seq = (record.get(key) for key in ("name", "value", "timestamp", "seq"))
    if not isinstance(name, str) or type(timestamp) is not int or type(seq) is not int:
        raise ValueError("name, timestamp or seq is missing")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not is_finite(value):
        raise ValueError("the value is not a finite number")
    own = record.get("labels")
    labels = labels_in(own) if own is not None else {}
    if type(repeat := record.get("repeat")) is int:
        labels = {**labels, "repeat": str(repeat)}
    return Record(
        src=str(record.get("src", "")),
        name=name,
        value=value,
        units=str(record.get("units") or ""),
        timestamp=timestamp,
        seq=seq,
        labels=labels,
    )


def labels_of(job: Job, *, rank: int) -> dict[str, str]:
    """Return the job's own labels, and those that say which job, whose, and which of its nodes it is."""
    identity = job.job
    labels = dict(identity.labels)
    # After the user's own: nobody can pass for another job by a label's name.
    labels["action-id"] = identity.action_id or identity.id
    labels["client-id"] = identity.client_id
    if identity.parent_action_id is not None:
        labels["parent-action-id"] = identity.parent_action_id
    if job.strategy.nodes > 1:
        labels["rank"] = str(rank)
    return labels


def labels_in(labels: object) -> dict[str, str]:
    """Return the labels of a record. Raises ValueError where they are none."""
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in labels.values()):
        raise ValueError("the labels are not texts by name")
    return labels


def is_finite(value: float) -> bool:
    """Return whether a double can hold `value`."""
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond what a double holds: no reader could take it either
        return False
