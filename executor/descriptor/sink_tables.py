"""The tables of the benchmark descriptor that say where records are sent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from executor.descriptor.places import AbsolutePath, Brokers, ListenAddress, WebAddress
from executor.descriptor.values import Dimensions, LogGroup, Namespace, SecretReference, Table


class SinkTable(Table):
    """Where records are sent. In the job descriptor such a table has the same name and the same keys."""


class KafkaTable(SinkTable):
    """Where metric messages are sent. Without this table none are, unless the configuration names brokers."""

    brokers: Brokers = Field(examples=[["broker-1:9092", "broker-2:9092"]])
    """Bootstrap brokers, `host:port`."""
    topic: str = Field(default="BAI_METRICS", min_length=1, examples=["BAI_METRICS"])
    """The topic of the metric messages."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", examples=["SASL_SSL"]
    )
    """Kafka's security protocol."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "AWS_MSK_IAM"] | None = Field(
        default=None, examples=["SCRAM-SHA-512"]
    )
    """Kafka's SASL mechanism; needed with `SASL_PLAINTEXT` and `SASL_SSL`. All but `AWS_MSK_IAM` need user and password."""
    sasl_username: str | None = Field(default=None, examples=["metrics"])
    """The user."""
    sasl_password: SecretReference | None = Field(default=None, examples=["env:KAFKA_PASSWORD"])
    """A reference to the password, as in `[env.secrets]`; never the password."""
    ssl_cafile: str | None = Field(default=None, examples=["/etc/kafka/ca.pem"])
    """Certificates that are trusted; unset: the system's."""
    ssl_certfile: str | None = Field(default=None, examples=["/etc/kafka/client.pem"])
    """Our own certificate."""
    ssl_keyfile: str | None = Field(default=None, examples=["/etc/kafka/client.key"])
    """Its private key."""
    host_metrics: bool = False
    """Whether host metrics are sent as well."""


class LogLinesTable(SinkTable):
    """What the benchmark prints, as JSON lines in a file of the machine that runs it. Without this table there is none, unless the configuration names it."""

    path: AbsolutePath = Field(examples=["/var/log/bai/benchmark.jsonl"])
    """The file, which is appended to; a log shipper of the machine takes it on. See [docs/service.md](service.md#results)."""


class PrometheusTable(SinkTable):
    """The last value of each metric, and how many there were, for Prometheus; at least one of the two addresses. See [docs/sinks.md](sinks.md#prometheus)."""

    pushgateway: WebAddress | None = Field(default=None, examples=["http://pushgateway:9091"])
    """A Pushgateway to which they are pushed every few seconds. It keeps a run's group for ever, unless someone deletes it."""
    username: str | None = Field(default=None, min_length=1, examples=["metrics"])
    """The user, where the Pushgateway asks for one (HTTP basic authentication)."""
    password: SecretReference | None = Field(default=None, examples=["ssm:/bai/pushgateway-password"])
    """A reference to the password, as in `[env.secrets]`; never the password."""
    delete_on_end: bool = False
    """Whether the run's group is deleted from the Pushgateway at the end. Prometheus may then not have seen the last values."""
    listen: ListenAddress | None = Field(default=None, examples=["127.0.0.1:9109"])
    """An address of the machine that runs the job where Prometheus can scrape `/metrics` while the run lasts. Whoever reaches it may read."""
    host_metrics: bool = False
    """Whether host metrics are among them."""


class CloudWatchTable(SinkTable):
    """Metrics as log events in CloudWatch's embedded metric format. See [docs/sinks.md](sinks.md#cloudwatch)."""

    log_group: LogGroup = Field(examples=["/bai/metrics"])
    """The log group; it must be there. Each node of a job writes a log stream of its own, `JOB/RANK`."""
    namespace: Namespace = Field(default="bai", examples=["Team/Benchmarks"])
    """CloudWatch's namespace of the metrics."""
    dimensions: Dimensions | None = Field(default=None, examples=[["task_name", "rank"]])
    """Names of labels that become dimensions, at most 30; all labels can be searched for in the log. Each combination of values is a metric
    that CloudWatch charges for. Unset: the labels of the job and of the record, and the rank, without the job's id."""
    high_resolution: bool = False
    """Whether CloudWatch keeps a value for each second, and not for each minute."""
    region: str | None = Field(default=None, min_length=1, examples=["eu-central-1"])
    """The log group's region; unset: the machine's."""
    host_metrics: bool = False
    """Whether host metrics are sent as well."""
