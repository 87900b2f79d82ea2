"""Tables of the benchmark service's format: sources and metrics, and tables for other engines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from bai_agent.job.descriptor import WrittenMetric, WrittenSource
from bai_agent.job.schema.declared import Example
from bai_agent.job.schema.field_types import Md5
from bai_agent.light_dataclass import dataclass
from executor.descriptor.values import (
    DescriptorTable,
    SourceText,
    TargetPath,
    VariableName,
    VariableText,
    Warmup,
)


@dataclass(frozen=True, kw_only=True)
class SourceTable(WrittenSource):
    """A file or folder that is pulled before the run."""

    src: Annotated[SourceText, Example("s3://bucket/train.npz")]
    path: Annotated[TargetPath, Example("/data/train.npz")]
    """Its place on the machine: absolute, `~/…` (the user's home), or relative to the folder in which the benchmark starts.
    `--data-root` is put before all but relative ones."""


@dataclass(frozen=True, kw_only=True)
class MetricTable(WrittenMetric):
    """A number to take from the benchmark's output."""

    warmup: Annotated[Warmup | None, Example("30s")] = None
    """Values that statistics and the headline leave out: those of this time from the benchmark's start or, for an integer, this many
    first values of each series. They are kept as records. Unset: `warmup` of `[output]`."""
    example: Annotated[str | None, Example("epoch 3: train loss 0.6931")] = None
    """A line of the benchmark's output. `bai validate` runs the pattern on it, and prints the values."""


class ServerHardware(DescriptorTable):
    """The machine of the server under test."""

    instance_type: str = Field(min_length=1, examples=["p3.8xlarge"])
    """The EC2 instance type."""
    availability_zone: str | None = Field(default=None, examples=["us-east-1a"])
    """The availability zone's name."""
    aws_zone_id: str | None = Field(default=None, examples=["use1-az2"])
    """The availability zone's id."""


class ReadinessProbe(DescriptorTable):
    """An HTTP request that shows that the server is ready."""

    path: str = Field(examples=["/ping"])
    """The path of the request."""
    port: int | None = Field(default=None, ge=1, le=65535, examples=[8080])
    """The port. Unset: the server's first."""
    scheme: Literal["http", "https", "HTTP", "HTTPS"] = Field(default="http", examples=["https"])
    """The scheme."""
    initial_delay_seconds: int = Field(default=10, ge=0, examples=[10])
    """Seconds before the first probe."""
    period_seconds: int = Field(default=10, ge=1, examples=[10])
    """Seconds between probes."""
    timeout_seconds: int = Field(default=1, ge=1, examples=[1])
    """Longest time of a probe (seconds)."""
    success_threshold: int = Field(default=1, ge=1, examples=[1])
    """Answers in a row after which the server is ready."""
    failure_threshold: int = Field(default=3, ge=1, examples=[3])
    """Failures in a row after which the server has failed."""


class ServerEnv(DescriptorTable):
    """The environment of the server."""

    docker_image: str | None = Field(default=None, examples=["example/server:1"])
    """The server's container image."""
    start_command: str = Field(examples=["/opt/bin/server"])
    """The command that starts the server."""
    start_command_args: str | None = Field(default=None, examples=["--model=digits"])
    """Arguments of the command."""
    ports: list[int] = Field(examples=[[8080, 8081]])
    """Ports on which the server listens."""
    privileged: bool = False
    """Accepted for containers."""
    extended_shm: bool = True
    """Accepted for containers."""
    vars: dict[VariableName, VariableText] = Field(default_factory=dict, examples=[{"MODEL": "digits"}])
    """Environment variables."""
    readiness_probe: ReadinessProbe | None = None


class Model(DescriptorTable):
    """A model that the server loads."""

    src: str = Field(min_length=1, examples=["s3://bucket/model.tar"])
    """The model's address."""
    path: str = Field(min_length=1, examples=["/models/model.tar"])
    """The model's place on the machine."""
    id: str | None = Field(default=None, examples=["digits"])
    """The model's name."""
    md5: Md5 | None = Field(default=None, examples=["8a61469f7ea1b51cbae51d4f78837e45"])
    """The file's MD5."""


class ServerOutput(DescriptorTable):
    """Metrics that are taken from the server's output."""

    metrics: list[MetricTable] = Field(default_factory=list)


class Server(DescriptorTable):
    """The server under test, with strategy `inference`. It is accepted and checked; this version does not run it."""

    hardware: ServerHardware
    env: ServerEnv
    models: list[Model] = Field(default_factory=list)
    output: ServerOutput = Field(default_factory=ServerOutput)


class CustomParams(DescriptorTable):
    """Parameters of other engines. `dashboard` and `region` become the labels `dashboard-name` and `region`."""

    python_version: str | None = Field(default=None, examples=["py3"])
    """Parameter of SageMaker."""
    sagemaker_job_name: str | None = Field(default=None, examples=["digits"])
    """Parameter of SageMaker."""
    dashboard: str | None = Field(default=None, examples=["digits"])
    """The dashboard on which the metrics are shown."""
    region: str | None = Field(default=None, examples=["us-east-1"])
    """The region by which the metrics are labelled."""
    merge: bool | None = Field(default=None, examples=[True])
    """Parameter of SageMaker."""
    hyper_params: dict[str, Any] = Field(default_factory=dict, examples=[{"epochs": 8}])
    """Parameters of SageMaker, with any values."""
