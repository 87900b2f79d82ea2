"""Real Kafka brokers for tests, started and stopped by `scripts/kafka`."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "scripts" / "kafka"
USER, PASSWORD = "alice", "wonderland"


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A broker that listens on loopback."""

    dir: Path
    address: str
    listeners: dict[str, str]
    """Addresses, by security protocol."""
    cafile: str

    def start(self) -> None:
        """Start the broker again after `stop`, with the same ports and data."""
        _kafka("start", "--dir", str(self.dir))

    def stop(self) -> None:
        _kafka("stop", "--dir", str(self.dir))

    def create_topic(self, topic: str, *, partitions: int = 3, **settings: str) -> None:
        from kafka import KafkaAdminClient

        job_request = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": settings}}
        admin = KafkaAdminClient(bootstrap_servers=self.address, bootstrap_timeout_ms=20_000)
        try:
            admin.create_topics(job_request, timeout_ms=20_000, wait_for_metadata=True)
        finally:
            admin.close()

    def read(self, topic: str) -> list[Any]:
        """Return the messages in `topic`, in order within each partition; [] if there is no such topic."""
        with closing(TopicReader(self.address, topic)) as reader:
            return reader.read()


class TopicReader:
    """Reads a topic repeatedly with one consumer, because a new consumer takes a tenth of a second."""

    def __init__(self, address: str, topic: str) -> None:
        from kafka import KafkaConsumer

        self._topic = topic
        self._consumer = KafkaConsumer(
            bootstrap_servers=address, enable_auto_commit=False, bootstrap_timeout_ms=20_000
        )
        self._partitions: list[Any] = []
        self._records: list[Any] = []

    def read(self) -> list[Any]:
        """Return all messages in the topic, as `Broker.read` does."""
        from kafka import TopicPartition

        consumer = self._consumer
        if not self._partitions:
            numbers = consumer.partitions_for_topic(self._topic) or ()
            self._partitions = [TopicPartition(self._topic, number) for number in numbers]
            if not self._partitions:
                return []
            consumer.assign(self._partitions)
            consumer.seek_to_beginning(*self._partitions)
        ends = consumer.end_offsets(self._partitions)
        deadline = time.monotonic() + 60
        while any(consumer.position(partition) < ends[partition] for partition in self._partitions):
            assert time.monotonic() < deadline, f"{self._topic} could not be read within 60 s"
            for batch in consumer.poll(timeout_ms=500).values():
                self._records += batch
        return self._records

    def close(self) -> None:
        self._consumer.close(autocommit=False)


def new_broker(folder: Path, *, secure: bool = False) -> Broker:
    """Return a running broker with its files in `folder`, or the broker that already runs there.

    secure: whether it listens with TLS and with SASL too, which takes more seconds.
    """
    settings = ["--tls", "--sasl", f"{USER}:{PASSWORD}"] if secure else []
    answer = json.loads(_kafka("start", "--json", *settings, "--dir", str(folder)))
    return Broker(
        dir=folder,
        address=answer["address"],
        listeners=answer["listeners"],
        cafile=answer.get("cafile", ""),
    )


@contextmanager
def shared_broker(folder: Path) -> Iterator[Broker]:
    """Yield one broker for all processes of a test run. The first process starts it, the last stops it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    users = folder.with_name(f"{folder.name}.users")
    with _counted(users, 1):
        broker = new_broker(folder, secure=True)
    try:
        yield broker
    finally:
        with _counted(users, -1) as left:
            if left == 0:
                broker.stop()


@contextmanager
def _counted(path: Path, step: int) -> Iterator[int]:
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        count = int(file.read() or 0) + step
        file.truncate(0)
        file.write(str(count))
        file.flush()
        yield count


def _kafka(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
