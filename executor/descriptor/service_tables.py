"""Tables of a descriptor that have the format of the benchmark service. Some tables are only for engines that `bai` does not have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from bai_agent.job.descriptor.metric_tables import About, WrittenMetric
from bai_agent.job.descriptor.source_tables import WrittenSource
from bai_agent.job.descriptor.strategy_tables import ReadinessProbe
from bai_agent.job.schema.declared import Example
from bai_agent.job.schema.field_types import Port, VariableName
from bai_agent.light_dataclass import dataclass
from executor.descriptor.values import DescriptorTable, SourceText, TargetPath, VariableText, Warmup


@dataclass(frozen=True, kw_only=True)
class SourceTable(WrittenSource):
    """A file or folder that is pulled before the run."""

    src: Annotated[SourceText, Example("s3://bucket/train.npz")]
    path: Annotated[TargetPath, Example("/data/train.npz")]
    """Path on the machine: absolute, `~/…` (the user's home), or relative to the folder in which the
    benchmark starts. `--data-root` is put before paths that are not relative."""


@dataclass(frozen=True, kw_only=True)
class MetricTable(WrittenMetric):
    """A number to take from the benchmark's output."""

    warmup: Annotated[Warmup | None, About.SUMMARY, Example("30s")] = None
    """Warm-up whose values are left out of statistics and headline: a time since the benchmark's start, or a
    number of first values of each series. Unset: `warmup` of `[output]`."""
    example: Annotated[str | None, Example("epoch 3: train loss 0.6931")] = None
    """A line of the benchmark's output. `bai validate` runs the pattern on this line, and prints the
    values."""


class ServerHardware(DescriptorTable):
    """The machine of the server under test."""

    instance_type: str = Field(min_length=1, examples=["p3.8xlarge"])
    """The EC2 instance type."""
    availability_zone: str | None = Field(default=None, examples=["us-east-1a"])
    """The availability zone's name."""
    aws_zone_id: str | None = Field(default=None, examples=["use1-az2"])
    """The availability zone's id."""


class ServerEnv(DescriptorTable):
    """The environment of the server. `user`, `python` and `secrets` of `[env]`, and `[ml.script]`, apply to
    both machines."""

    docker_image: str | None = Field(default=None, examples=["example/server:1"])
    """Accepted; has no effect, because no containers are started. The server's machine has the same image as
    its client's."""
    start_command: str = Field(examples=["/opt/bin/server"])
    """The command that starts the server, written like `[ml] benchmark_code`. The server must not go to the
    background."""
    start_command_args: str | None = Field(default=None, examples=["--model=digits"])
    """Arguments of the start command."""
    ports: list[Port] = Field(min_length=1, examples=[[8080, 8081]])
    """Ports on which the server listens, at the address of its machine. The client finds the ports in
    the variables `INFERENCE_SERVER_PORT`, `INFERENCE_SERVER_PORT_1` and so on."""
    privileged: bool = False
    """Accepted for containers."""
    extended_shm: bool = True
    """Accepted for containers."""
    vars: dict[VariableName, VariableText] = Field(default_factory=dict, examples=[{"MODEL": "digits"}])
    """Environment variables of the server, which replace those of `[env.vars]`."""
    readiness_probe: ReadinessProbe | None = None


@dataclass(frozen=True, kw_only=True)
class Model(SourceTable):
    """A model that the server loads. Only the server's machine pulls the model."""

    src: Annotated[SourceText, Example("s3://bucket/model.tar")]
    """Address of the model, as in `[[data.sources]]`, but without `job:…`."""
    path: Annotated[TargetPath, Example("/models/model.tar")]
    """Path on the server's machine, written as in `[[data.sources]]`."""


class ServerOutput(DescriptorTable):
    """Metrics that are taken from the server's output."""

    metrics: list[MetricTable] = Field(default_factory=list)


class ServerTable(DescriptorTable):
    """The server under test, with the strategy `inference`: see [many-nodes.md](many-nodes.md#a-server-and-its-client)."""

    hardware: ServerHardware
    env: ServerEnv
    models: list[Model] = Field(default_factory=list)
    output: ServerOutput = Field(default_factory=ServerOutput)


class CustomParams(DescriptorTable):
    """Parameters of other engines. The keys `dashboard` and `region` set the labels `dashboard-name` and `region`."""

    python_version: str | None = Field(default=None, examples=["py3"])
    """Parameter of SageMaker."""
    sagemaker_job_name: str | None = Field(default=None, examples=["digits"])
    """Parameter of SageMaker."""
    dashboard: str | None = Field(default=None, examples=["digits"])
    """The dashboard on which the metrics are shown."""
    region: str | None = Field(default=None, examples=["us-east-1"])
    """The region as a label of the metrics."""
    merge: bool | None = Field(default=None, examples=[True])
    """Parameter of SageMaker."""
    hyper_params: dict[str, Any] = Field(default_factory=dict, examples=[{"epochs": 8}])
    """Parameters of SageMaker, with any values."""
