"""Real Kafka brokers for tests, started and stopped by `scripts/kafka`."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "scripts" / "kafka"
USER, PASSWORD = "alice", "wonderland"


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A broker that listens on loopback."""

    dir: Path
    address: str
    listeners: dict[str, str]
    """Security protocol → address."""
    cafile: str

    def start(self) -> None:
        """Start it again after `stop`: same ports, same data."""
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
        """Return all that is in `topic` now, in order within each partition; nothing where there is no such topic."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=self.address, enable_auto_commit=False, bootstrap_timeout_ms=20_000
        )
        try:
            partitions = [
                TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()
            ]
            if not partitions:
                return []
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            ends = consumer.end_offsets(partitions)
            records: list[Any] = []
            deadline = time.monotonic() + 60
            while any(consumer.position(partition) < ends[partition] for partition in partitions):
                assert time.monotonic() < deadline, f"{topic} could not be read within 60 s"
                for batch in consumer.poll(timeout_ms=500).values():
                    records += batch
            return records
        finally:
            consumer.close(autocommit=False)


def new_broker(folder: Path, *, secure: bool = False) -> Broker:
    """Return a running broker with its files in `folder`; where one runs there already, that one.

    `secure`: it listens with TLS and with SASL too, which takes seconds more.
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
    """One broker for all processes of a test run: the first starts it, the last one to leave stops it."""
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
