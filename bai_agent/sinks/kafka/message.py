"""The metric message, as the benchmark service and its exporters read it from the topic."""

from __future__ import annotations

import json
from dataclasses import dataclass

from bai_agent.job.descriptor import Job
from bai_agent.sinks.labels import labels_of
from bai_agent.sinks.record import HOST, read_record


@dataclass(frozen=True)
class MetricMessage:
    """One record of `metrics.jsonl` on its way to Kafka."""

    value: bytes
    """`{"name", "value", "timestamp", "labels"}`: UTF-8 JSON, the timestamp in milliseconds."""
    headers: list[tuple[str, bytes]]
    """`job`, `rank` and `seq`: together they name the record, so that a reader can tell a repetition."""


class MetricMessageWriter:
    """Turns the records of one node of a job into messages."""

    def __init__(self, job: Job, *, rank: int) -> None:
        identity = job.job
        self.key = identity.client_id.encode()
        labels = self._reserved = labels_of(job, rank=rank)
        # Encoded once: they are most of a message, and the same in nearly all.
        self._labels = json.dumps(labels)
        self._headers = [("job", identity.id.encode()), ("rank", str(rank).encode())]
        self._host_metrics = job.kafka is not None and job.kafka.host_metrics

    def write(self, line: bytes) -> MetricMessage | None:
        """Return the message of one line of `metrics.jsonl`; None where host metrics are not wanted.

        Raises ValueError where the line is not a record.
        """
        record = read_record(line)
        if record.src == HOST and not self._host_metrics:
            return None
        text = json.dumps({"name": record.name, "value": record.value, "timestamp": record.timestamp})
        # The job's come last, for the same reason.
        labels = json.dumps({**record.labels, **self._reserved}) if record.labels else self._labels
        message = f'{text[:-1]}, "labels": {labels}}}'
        return MetricMessage(message.encode(), [*self._headers, ("seq", b"%d" % record.seq)])
