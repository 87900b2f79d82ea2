"""Reads the configuration of `bai serve`: the `[service]` table, and environment variables that existing
deployments of the service set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta

from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.light_dataclass import dataclass, replace
from executor.errors import UsageError

_QUEUE = re.compile(r"https?://[A-Za-z0-9.-]+(?::\d{1,5})?/\d{12}/[A-Za-z0-9_-]{1,80}(?:\.fifo)?")


@dataclass(frozen=True, kw_only=True)
class Topics:
    """The `[service.topics]` table: names of the topics of events."""

    fetcher: str = "BAI_APP_FETCHER"
    executor: str = "BAI_APP_EXECUTOR"
    status: str = "BAI_APP_STATUS"
    cmd_submit: str = "CMD_SUBMIT"
    cmd_return: str = "CMD_RETURN"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The `[service.bounds]` table: limits for the jobs that requests ask for. A limit with the value None is
    not enforced."""

    instance_types: tuple[str, ...] = ()
    """Patterns of allowed types, such as "g5.*"; empty if all types are allowed."""
    regions: tuple[str, ...] = ()
    """Allowed regions; empty if all regions are allowed."""
    nodes: int | None = None
    """Maximum number of machines of one job."""
    duration: timedelta | None = None
    """Maximum of each duration in a job's `[limits]`."""
    volume_gib: int = 2000
    """Maximum total size of the volumes of one machine (GiB)."""
    volume_types: tuple[str, ...] = ("gp3", "gp2", "st1", "sc1")
    """Allowed types of volumes; empty if all types are allowed. io1 and io2 are not in the default, because
    they cost money for each operation per second."""
    volume_iops: int = 16_000
    """Maximum total of provisioned operations per second of the volumes of one machine."""
    volume_throughput: int = 1_000
    """Maximum total of provisioned throughput of the volumes of one machine (MiB/s)."""
    capacity_reservations: tuple[str, ...] = ()
    """Ids of capacity reservations and blocks that jobs may name; empty if jobs may name no reservation. The
    machines in these reservations are already paid for."""
    cost: float | None = None
    """Maximum cost of a job that uses all of its time (USD). If `cost` is set, a type without a known price is
    refused."""
    client_cost: float | None = None
    """Maximum total cost of all open jobs of one client (USD). The cost of each job is its maximum cost, as for
    `cost`."""


@dataclass(frozen=True, kw_only=True)
class ServiceTable:
    """The `[service]` table."""

    engine_ids: tuple[str, ...] = ("aws.ec2",)
    """Values of `info.execution_engine` that this service runs."""
    group: str = "ec2-executor"
    """Name of the consumer group."""
    topics: Topics = Topics()
    partitions: int = 3
    """Number of partitions of the topics that the service creates."""
    replicas: int | None = None
    """Number of replicas of the topics that the service creates. Unset: three replicas, or one replica for each
    broker if there are fewer brokers."""
    session_timeout: timedelta = timedelta(seconds=10)
    """Time without a heartbeat to Kafka after which another replica gets this replica's partitions."""
    max_poll_interval: timedelta = timedelta(minutes=5)
    """Time without a poll after which another replica gets this replica's partitions:
    https://kafka.apache.org/documentation/#consumerconfigs_max.poll.interval.ms"""
    launches: int = 8
    """Maximum number of jobs that are launched at the same time."""
    look_interval: timedelta = timedelta(seconds=15)
    """Time between two checks of a launched job."""
    dashboard: str | None = None
    """Address of a job's metrics, in which "{action_id}" and "{client_id}" are replaced; None if there is no dashboard."""
    dead_letter_topic: str = "BAI_EC2_DEAD_LETTER"
    """Topic of messages that cannot be read."""
    events_queue: str | None = None
    """Address of the SQS queue that gets EC2's events from EventBridge; None if machines are only polled."""
    bounds: Bounds = Bounds()

    def __post_init__(self) -> None:
        second, minute = timedelta(seconds=1), timedelta(minutes=1)
        for holds, rule in (
            (self.engine_ids, "engine_ids must name at least one engine"),
            (self.partitions >= 1, "partitions must be an integer ≥ 1"),
            (self.launches >= 1, "launches must be an integer ≥ 1"),
            (self.replicas is None or self.replicas >= 1, "replicas must be an integer ≥ 1"),
            (self.session_timeout >= 3 * second, "session_timeout must be at least 3s"),
            (
                max(self.session_timeout, 10 * second) <= self.max_poll_interval <= 60 * minute,
                "max_poll_interval must be from 10s to 1h, and at least session_timeout",
            ),
            (second <= self.look_interval <= 30 * second, "look_interval must be from 1s to 30s"),
            (
                self.dashboard is None or self.dashboard.startswith(("http://", "https://")),
                'dashboard must be an address that begins with "http://" or "https://"',
            ),
            (
                self.events_queue is None or _QUEUE.fullmatch(self.events_queue),
                'events_queue must be the address of an SQS queue, such as "https://sqs.eu-central-1.amazonaws.com/123456789012/bai-events"',
            ),
        ):
            if not holds:
                raise ValueError(rule)


TOPICS = {
    "CONSUMER_TOPIC": "fetcher",
    "PRODUCER_TOPIC": "executor",
    "STATUS_TOPIC": "status",
    "CMD_SUBMIT_TOPIC": "cmd_submit",
    "CMD_RETURN_TOPIC": "cmd_return",
}
"""Environment variable that the service's deployments set → key of `Topics`."""


def service_table(
    table: ServiceTable,
    *,
    group: str | None = None,
    engine_ids: tuple[str, ...] = (),
    environment: Mapping[str, str] = os.environ,
) -> ServiceTable:
    """Return the effective configuration of the service. Flags override the deployment's environment
    variables, which override `table`, the table in the configuration file. Raises UsageError.
    """
    topics = {key: environment[name] for name, key in TOPICS.items() if environment.get(name)}
    changes = {
        "topics": replace(table.topics, **topics),
        "partitions": _number("NUM_PARTITIONS", environment),
        "replicas": _number("REPLICATION_FACTOR", environment),
        "group": group or environment.get("CONSUMER_GROUP_ID"),
        "engine_ids": engine_ids,
    }
    try:
        return replace(table, **{key: each for key, each in changes.items() if each not in (None, "", ())})  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(f"the service's configuration: {error}") from error


def _number(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name, "").strip()
    if text and not (text.isascii() and text.isdecimal()):
        raise UsageError(f'{name} is "{text}"; it must be an integer ≥ 1')
    return int(text) if text else None


def service_kafka(kafka: Kafka | None, environment: Mapping[str, str] = os.environ) -> Kafka:
    """Return the Kafka cluster of the service: the one in the configuration, otherwise the one in the
    deployment's environment variables. Raises UsageError."""
    named = [each.strip() for each in environment.get("KAFKA_BOOTSTRAP_SERVERS", "").split(",")]
    brokers = tuple(each for each in named if each)
    if kafka is not None:
        # BAI_KAFKA_BROKERS takes precedence; the configuration has already read that variable.
        own = environment.get("BAI_KAFKA_BROKERS", "").strip()
        return replace(kafka, brokers=brokers) if brokers and not own else kafka
    if not brokers:
        raise UsageError(
            "no Kafka brokers are configured; set KAFKA_BOOTSTRAP_SERVERS or BAI_KAFKA_BROKERS, or write [kafka] brokers "
            "into the configuration"
        )
    return Kafka(brokers=brokers)
