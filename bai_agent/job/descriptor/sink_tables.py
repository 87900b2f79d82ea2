"""Where a job's record and metrics go: `[store]`, and the tables of the sinks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from bai_agent.job.schema.declared import DeclaredTable, Example, Mistake
from bai_agent.job.schema.field_types import (
    AbsolutePath,
    Brokers,
    Dimensions,
    FilledText,
    ListenAddress,
    LogGroup,
    Namespace,
    SecretReference,
    WebAddress,
)
from bai_agent.light_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Store:
    """The `[store]` table: the place of the job's record, in addition to the run directory."""

    url: str
    """file:///absolute/folder or s3://bucket/prefix; the job is `<url>/<job id>/`."""
    region: str | None = None
    """The bucket's region; unset: looked up."""
    endpoint: str | None = None
    """Address of an S3 server other than AWS's; unset: the address in the environment, if any."""


class SinkTable(DeclaredTable):
    """A table that names a destination of records. Benchmark descriptors, job descriptors and the configuration
    use the same keys for a destination."""


@dataclass(frozen=True, kw_only=True)
class Kafka(SinkTable):
    """The Kafka brokers to which metrics are sent. Without this table, no metrics are sent to Kafka, unless
    the configuration names brokers."""

    brokers: Annotated[Brokers, Example(["broker-1:9092", "broker-2:9092"])]
    """Bootstrap brokers, `host:port`."""
    topic: Annotated[FilledText, Example("BAI_METRICS")] = "BAI_METRICS"
    """The topic of the metric messages."""
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Example("SASL_SSL")
    ] = "PLAINTEXT"
    """Kafka's security protocol."""
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "AWS_MSK_IAM"] | None, Example("SCRAM-SHA-512")
    ] = None
    """Kafka's SASL mechanism; needed with `SASL_PLAINTEXT` and `SASL_SSL`. All mechanisms except
    `AWS_MSK_IAM` need user and password."""
    sasl_username: Annotated[str | None, Example("metrics")] = None
    """The user."""
    sasl_password: Annotated[SecretReference | None, Example("env:KAFKA_PASSWORD")] = None
    """A reference to the password, as in `[env.secrets]`; never the password."""
    ssl_cafile: Annotated[str | None, Example("/etc/kafka/ca.pem")] = None
    """Certificates that are trusted. Unset: the certificates of the system."""
    ssl_certfile: Annotated[str | None, Example("/etc/kafka/client.pem")] = None
    """Certificate with which bai identifies itself to the brokers."""
    ssl_keyfile: Annotated[str | None, Example("/etc/kafka/client.key")] = None
    """Private key of the certificate in `ssl_certfile`."""
    host_metrics: bool = False
    """Whether host metrics are sent as well."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        if not self.security_protocol.startswith("SASL"):
            return
        if self.sasl_mechanism is None:
            fix = 'add sasl_mechanism, for example "SCRAM-SHA-512", with sasl_username and sasl_password'
            yield "sasl_mechanism", (f"is missing, but security_protocol is {self.security_protocol}", fix)
        elif self.sasl_mechanism != "AWS_MSK_IAM":
            for key, example in (("sasl_username", "metrics"), ("sasl_password", "env:KAFKA_PASSWORD")):
                if getattr(self, key) is None:
                    problem = f"is missing, but {self.sasl_mechanism} needs it"
                    yield key, (problem, f'add {key} = "{example}"')


@dataclass(frozen=True, kw_only=True)
class LogLines(SinkTable):
    """A file on the benchmark's machine for its output as JSON lines. Without this table, no such file is
    written, unless the configuration names a file."""

    path: Annotated[AbsolutePath, Example("/var/log/bai/benchmark.jsonl")]
    """Path of the file. Lines are appended, for a log shipper on the machine. See
    [docs/service.md](service.md#results)."""


@dataclass(frozen=True, kw_only=True)
class Prometheus(SinkTable):
    """Makes the last value and the number of values of each metric available to Prometheus. At least one of
    `pushgateway` and `listen` is required. See [docs/sinks.md](sinks.md#prometheus)."""

    pushgateway: Annotated[WebAddress | None, Example("http://pushgateway:9091")] = None
    """A Pushgateway to which metrics are pushed every few seconds. The Pushgateway keeps the metrics of a run
    as a group until somebody deletes this group."""
    username: Annotated[FilledText | None, Example("metrics")] = None
    """The user's name, if the Pushgateway requires HTTP basic authentication."""
    password: Annotated[SecretReference | None, Example("ssm:/bai/pushgateway-password")] = None
    """A reference to the password, as in `[env.secrets]`; never the password."""
    delete_on_end: bool = False
    """Whether the run's group is deleted from the Pushgateway when the run ends. Prometheus may miss the last
    values of a deleted group."""
    listen: Annotated[ListenAddress | None, Example("127.0.0.1:9109")] = None
    """Address on the job's machine at which Prometheus can scrape `/metrics` during the run. Every client that
    reaches the address can read the metrics."""
    host_metrics: bool = False
    """Whether host metrics are available to Prometheus as well."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        if self.pushgateway is None and self.listen is None:
            fix = 'add pushgateway = "http://pushgateway:9091", or listen = "127.0.0.1:9109"'
            yield "", ("names no address", fix)
        if self.password is None and self.username is not None:
            fix = 'add password = "ssm:/bai/pushgateway-password", or remove username'
            yield "password", ("is missing, but username is set", fix)
        if self.username is None and self.password is not None:
            fix = 'add username = "metrics", or remove password'
            yield "username", ("is missing, but password is set", fix)


@dataclass(frozen=True, kw_only=True)
class CloudWatch(SinkTable):
    """Metrics as log events in CloudWatch's embedded metric format. See [docs/sinks.md](sinks.md#cloudwatch)."""

    log_group: Annotated[LogGroup, Example("/bai/metrics")]
    """The log group, which must exist. Each node of a job writes a log stream of its own, `JOB/RANK`."""
    namespace: Annotated[Namespace, Example("Team/Benchmarks")] = "bai"
    """CloudWatch's namespace of the metrics."""
    dimensions: Annotated[Dimensions | None, Example(["task_name", "rank"])] = None
    """Labels that become dimensions, at most 30. CloudWatch charges for each combination of the labels'
    values. The log events contain all labels. Unset: the rank, and the labels of the job and of the record without
    the job's id."""
    high_resolution: bool = False
    """Whether CloudWatch stores a value for each second instead of each minute."""
    region: Annotated[FilledText | None, Example("eu-central-1")] = None
    """The log group's region. Unset: the machine's region."""
    host_metrics: bool = False
    """Whether host metrics are sent as well."""
