"""The configuration of `bai serve`: the `[service]` table, and the names that the benchmark service's deployments set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from bai_agent.job.descriptor import Kafka
from executor.errors import UsageError

_QUEUE = re.compile(r"https?://[A-Za-z0-9.-]+(?::\d{1,5})?/\d{12}/[A-Za-z0-9_-]{1,80}(?:\.fifo)?")


@dataclass(frozen=True, kw_only=True)
class Topics:
    """The `[service.topics]` table: where events come from and go to."""

    fetcher: str = "BAI_APP_FETCHER"
    executor: str = "BAI_APP_EXECUTOR"
    status: str = "BAI_APP_STATUS"
    cmd_submit: str = "CMD_SUBMIT"
    cmd_return: str = "CMD_RETURN"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The `[service.bounds]` table: what others may ask for. Unset: no bound."""

    instance_types: tuple[str, ...] = ()
    """Patterns of allowed types, such as "g5.*"; none: all."""
    regions: tuple[str, ...] = ()
    """Allowed regions; none: all."""
    nodes: int | None = None
    """Machines of one job."""
    duration: timedelta | None = None
    """The longest that any of a job's `[limits]` may be."""
    volume_gib: int = 2000
    """GiB of all volumes of one machine."""
    volume_types: tuple[str, ...] = ("gp3", "gp2", "st1", "sc1")
    """Allowed types of volumes; none: all. Of io1 and io2 each operation per second is paid for."""
    volume_iops: int = 16_000
    """Operations per second that are asked for, of all volumes of one machine."""
    volume_throughput: int = 1_000
    """MiB/s that are asked for, of all volumes of one machine."""
    capacity_reservations: tuple[str, ...] = ()
    """Ids of capacity reservations, blocks among them, that jobs may name; none: none. They are paid for already, by whoever made them."""
    cost: float | None = None
    """USD that a job may cost at most, if it used all of its time. A type without a known price is refused then."""
    client_cost: float | None = None
    """USD that all open jobs of one client may cost at most, each as above."""


@dataclass(frozen=True, kw_only=True)
class ServiceTable:
    """The `[service]` table."""

    engine_ids: tuple[str, ...] = ("aws.ec2",)
    """The values of `info.execution_engine` that are ours."""
    group: str = "ec2-executor"
    """The consumer group."""
    topics: Topics = Topics()
    partitions: int = 3
    """Of topics that we create."""
    replicas: int | None = None
    """Of topics that we create. Unset: three, or one for each broker where these are fewer."""
    session_timeout: timedelta = timedelta(seconds=10)
    """After so long without a sign of life another replica gets our part of the topics."""
    max_poll_interval: timedelta = timedelta(minutes=5)
    """After so long without a poll it gets them, too: https://kafka.apache.org/documentation/#consumerconfigs_max.poll.interval.ms"""
    launches: int = 8
    """Jobs that are launched at once."""
    look_interval: timedelta = timedelta(seconds=15)
    """Between two looks at a launched job."""
    dashboard: str | None = None
    """The address of a job's metrics, with "{action_id}" and "{client_id}" in it where these belong. Unset: there is none."""
    dead_letter_topic: str = "BAI_EC2_DEAD_LETTER"
    """Where messages go that cannot be read."""
    events_queue: str | None = None
    """The address of the SQS queue into which EventBridge puts EC2's events. Unset: machines are only asked for."""
    bounds: Bounds = Bounds()

    def __post_init__(self) -> None:
        if not self.engine_ids:
            raise ValueError("engine_ids must name at least one engine")
        for name in ("partitions", "launches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be an integer ≥ 1")
        if self.session_timeout < timedelta(seconds=3):
            raise ValueError("session_timeout must be at least 3s")
        if (
            not max(self.session_timeout, timedelta(seconds=10))
            <= self.max_poll_interval
            <= timedelta(hours=1)
        ):
            raise ValueError("max_poll_interval must be from 10s to 1h, and at least session_timeout")
        if not timedelta(seconds=1) <= self.look_interval <= timedelta(seconds=30):
            raise ValueError("look_interval must be from 1s to 30s")
        if self.dashboard is not None and not self.dashboard.startswith(("http://", "https://")):
            raise ValueError('dashboard must be an address that begins with "http://" or "https://"')
        if self.events_queue is not None and not _QUEUE.fullmatch(self.events_queue):
            raise ValueError(
                'events_queue must be the address of an SQS queue, such as "https://sqs.eu-central-1.amazonaws.com/123456789012/bai-events"'
            )
        if self.replicas is not None and self.replicas < 1:
            raise ValueError("replicas must be an integer ≥ 1")


TOPICS = {
    "CONSUMER_TOPIC": "fetcher",
    "PRODUCER_TOPIC": "executor",
    "STATUS_TOPIC": "status",
    "CMD_SUBMIT_TOPIC": "cmd_submit",
    "CMD_RETURN_TOPIC": "cmd_return",
}
"""Names of the service's deployments → keys of `Topics`."""


def of_service(
    table: ServiceTable,
    *,
    group: str | None = None,
    engine_ids: tuple[str, ...] = (),
    environment: Mapping[str, str] = os.environ,
) -> ServiceTable:
    """Return the configuration that holds: flags, then the environment of the service's deployments, then the file's `table`.

    Raises UsageError.
    """
    changes: dict[str, Any] = {}
    topics = {key: environment[name] for name, key in TOPICS.items() if environment.get(name)}
    if topics:
        changes["topics"] = replace(table.topics, **topics)
    for name, key in (("NUM_PARTITIONS", "partitions"), ("REPLICATION_FACTOR", "replicas")):
        if text := environment.get(name, "").strip():
            if not text.isascii() or not text.isdecimal():
                raise UsageError(f'{name} is "{text}"; it must be an integer ≥ 1')
            changes[key] = int(text)
    if group or environment.get("CONSUMER_GROUP_ID"):
        changes["group"] = group or environment["CONSUMER_GROUP_ID"]
    if engine_ids:
        changes["engine_ids"] = engine_ids
    try:
        return replace(table, **changes)
    except ValueError as error:
        raise UsageError(f"the service's configuration: {error}") from error


def brokers_of(kafka: Kafka | None, environment: Mapping[str, str] = os.environ) -> Kafka:
    """Return the Kafka that the service works with: the configuration's, else the one that its deployments name. Raises UsageError."""
    named = [each.strip() for each in environment.get("KAFKA_BOOTSTRAP_SERVERS", "").split(",")]
    brokers = tuple(each for each in named if each)
    if kafka is not None:
        # Ours go first: BAI_KAFKA_BROKERS has been read into it.
        own = environment.get("BAI_KAFKA_BROKERS", "").strip()
        return replace(kafka, brokers=brokers) if brokers and not own else kafka
    if not brokers:
        raise UsageError(
            "no Kafka brokers are configured; set KAFKA_BOOTSTRAP_SERVERS or BAI_KAFKA_BROKERS, or write [kafka] brokers "
            "into the configuration"
        )
    return Kafka(brokers=brokers)
