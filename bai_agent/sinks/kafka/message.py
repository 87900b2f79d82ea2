"""The metric message, as the benchmark service and its exporters read it from the topic."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from bai_agent.job.descriptor import Job


@dataclass(frozen=True)
class Message:
    """One record of `metrics.jsonl` on its way to Kafka."""

    value: bytes
    """`{"name", "value", "timestamp", "labels"}`: UTF-8 JSON, the timestamp in milliseconds."""
    headers: list[tuple[str, bytes]]
    """`job`, `rank` and `seq`: together they name the record, so that a reader can tell a repetition."""


class MessageWriter:
    """Turns the records of one node of a job into messages."""

    def __init__(self, job: Job, *, rank: int) -> None:
        identity = job.job
        self.key = identity.client_id.encode()
        labels = dict(identity.labels)
        # After the user's own: nobody can pass for another job by a label's name.
        labels["action-id"] = identity.action_id or identity.id
        labels["client-id"] = identity.client_id
        if identity.parent_action_id is not None:
            labels["parent-action-id"] = identity.parent_action_id
        self._reserved = labels
        # Encoded once: they are most of a message, and the same in nearly all.
        self._labels = json.dumps(labels)
        self._headers = [("job", identity.id.encode()), ("rank", str(rank).encode())]
        self._host_metrics = job.kafka is not None and job.kafka.host_metrics

    def write(self, line: bytes) -> Message | None:
        """Return the message of one line of `metrics.jsonl`; None where host metrics are not wanted.

        Raises ValueError where the line is no record.
        """
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("not a JSON object")
        if record.get("src") == "host" and not self._host_metrics:
            return None
        name, value, timestamp, seq = (record.get(key) for key in ("name", "value", "timestamp", "seq"))
        if not isinstance(name, str) or type(timestamp) is not int or type(seq) is not int:
            raise ValueError("name, timestamp or seq is missing")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not _is_finite(value):
            raise ValueError("the value is no finite number")
        text = json.dumps({"name": name, "value": value, "timestamp": timestamp})
        own = record.get("labels")
        # The job's come last, for the same reason.
        labels = json.dumps({**_labels_in(own), **self._reserved}) if own is not None else self._labels
        message = f'{text[:-1]}, "labels": {labels}}}'
        return Message(message.encode(), [*self._headers, ("seq", b"%d" % seq)])


def _labels_in(labels: object) -> dict[str, str]:
    """Return the labels of a record. Raises ValueError where they are none."""
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in labels.values()):
        raise ValueError("the labels are not texts by name")
    return labels


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except (
        OverflowError
    ):  # an integer beyond what a double holds: readers of the topic could not take it either
        return False
