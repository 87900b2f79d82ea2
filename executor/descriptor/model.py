"""The benchmark descriptor: what a user writes, spec 0.1.0 of the benchmark service plus our own tables.

The texts below the fields are the only place in which they are described: the JSON Schema, the reference in
`docs/benchmark-descriptor.md` and the findings' advice are made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from executor.descriptor.ec2_table import Ec2
from executor.descriptor.places import AbsolutePath, Brokers, FolderPath, RelativeGlob, RelativePath
from executor.descriptor.service_tables import CustomParams, MetricTable, Server, SourceTable
from executor.descriptor.values import (
    CommandText,
    Duration,
    Label,
    PositiveDuration,
    Processes,
    SamplingInterval,
    Scheduling,
    SecretReference,
    Table,
    VariableName,
    VariableText,
)

Strategy = Literal["single_node", "horovod", "torchrun", "inference"]
NOT_STARTED: Mapping[Strategy, str] = {
    "horovod": "several instances and mpirun",
    "torchrun": "several instances and torchrun",
    "inference": "a server beside the benchmark",
}
"""Of these the ones that no agent of this version starts, and what they need."""

OtherEngine = Annotated[dict[str, Any] | None, Field(json_schema_extra={"x-other-engine": True})]
"""A table that another engine reads: whatever it holds is accepted, and not read here."""


class Info(Table):
    """What this benchmark is, and by which engine it is run when."""

    description: str = Field(examples=["Trains a small network on handwritten digits"])
    """What the benchmark does, for people."""
    task_name: str | None = Field(default=None, examples=["digits"])
    """The benchmark's name. It becomes the label `task_name` where the labels have none."""
    execution_engine: Literal[
        "default", "local", "aws.ec2", "aws.sagemaker", "aws.eks", "aws.ecs", "aws.batch", "kubernetes"
    ] = Field(default="default", examples=["aws.ec2"], json_schema_extra={"x-advised": ["local", "aws.ec2"]})
    """Where it runs: `aws.ec2` on EC2 instances, `local` and `default` on this machine. The others belong to other programs;
    such a file can still be run here with `--on local`."""
    scheduling: Scheduling = Field(default="single_run", examples=["0 3 * * 1-5"])
    """`single_run`, or the cron expression by which the benchmark service repeats it."""
    labels: dict[Label, Label] = Field(default_factory=dict, examples=[{"task_name": "digits"}])
    """Labels of every metric, at most 10. Keys and values: 1 to 63 of `A-Z a-z 0-9 - _ .`, a letter or digit at both ends."""


class Distributed(Table):
    """How many machines work together, and how many processes run on each."""

    num_instances: int = Field(default=2, ge=1, examples=[2])
    """Number of machines. `single_node` always uses one."""
    processes_per_instance: Processes = Field(default="1", examples=["gpus"])
    """Processes on each machine: a whole number, also as a text, or `"gpus"` for one per GPU."""


class Hardware(Table):
    """The machines."""

    instance_type: str = Field(min_length=1, examples=["t3.small"])
    """The EC2 instance type. A run on this machine does not look at it: `"local"` says so."""
    strategy: Strategy = Field(default="single_node", examples=["horovod"])
    """How the machines work together: one machine; `mpirun` over all; `torchrun` on each; a server and its client."""
    availability_zone: str | None = Field(default=None, examples=["us-east-1a"])
    """The availability zone's name. Wins over `aws_zone_id`."""
    aws_zone_id: str | None = Field(default=None, examples=["use1-az2"])
    """The availability zone's id, which means the same zone in every account."""
    distributed: Distributed | None = None


class Env(Table):
    """What the benchmark runs in."""

    docker_image: str | None = Field(default=None, examples=["ami-0123456789abcdef0"])
    """The benchmark service's key for the image. Used here where it is an AMI (`ami-…` or `ssm:/…`): no containers
    are started."""
    image: str | None = Field(default=None, examples=["ami-0123456789abcdef0"])
    """The image, for whichever engine. `[aws.ec2] image` wins over it."""
    privileged: bool = False
    """Accepted; without meaning outside a container."""
    extended_shm: bool = True
    """Accepted; without meaning outside a container, where all of /dev/shm is there."""
    python: AbsolutePath | None = Field(default=None, examples=["/opt/pytorch/bin/python"])
    """Absolute path of the Python whose folder comes first on PATH."""
    user: str | None = Field(default=None, min_length=1, examples=["ubuntu"])
    """The user that the benchmark runs as. Unset: the caller on this machine, root on an instance."""
    vars: dict[VariableName, VariableText] = Field(default_factory=dict, examples=[{"OMP_NUM_THREADS": "4"}])
    """Environment variables. Texts, or whole numbers. No secrets: those belong into `[env.secrets]`."""
    secrets: dict[VariableName, SecretReference] = Field(
        default_factory=dict, examples=[{"HF_TOKEN": "env:HF_TOKEN"}]
    )
    """Environment variables whose values are looked up where the benchmark runs and never written to disk:
    `env:NAME` (this machine's environment, local runs only), `ssm:NAME`, `secretsmanager:NAME`."""


class Script(Table):
    """The benchmark's own files: script mode."""

    path: FolderPath | None = Field(default=None, examples=["."])
    """A folder, relative to this file, that is copied to where the benchmark runs and is its working folder there.
    `.gitignore` and `.baiignore` are honoured; virtual environments, caches and `.git` are left out. `$(BAI_SCRIPTS_PATH)` is its path in the command."""
    script: str | None = Field(default=None, min_length=1, examples=["scripts.tar"])
    """An archive with the scripts, relative to this file; the benchmark service's form of `path`."""
    requirements: RelativePath | None = Field(default=None, examples=["requirements.txt"])
    """A pip requirements file in that folder. Installed before the run, outside its timing, into a venv of the job."""


class Ml(Table):
    """What runs."""

    benchmark_code: CommandText | None = Field(default=None, examples=["python3 train.py"])
    """The command. One line is split like a shell would, but no shell runs it. Several lines, or a text that starts with `#!`,
    are a script (`/bin/sh` unless `#!` says otherwise). `$(NAME)` becomes the value of that environment variable."""
    args: CommandText | None = Field(default=None, examples=["--epochs 8"])
    """More arguments, put behind the command with a space between."""
    framework: Literal["tensorflow", "mxnet", "pytorch", ""] = Field(default="", examples=["pytorch"])
    """The framework, for other engines. Not read here."""
    framework_version: str | None = Field(default=None, examples=["2.4"])
    """The framework's version, for other engines. Not read here."""
    script: Script | None = None


class Data(Table):
    """What the benchmark reads."""

    sources: list[SourceTable] = Field(default_factory=list)


class OutputTable(Table):
    """What is taken from what the benchmark prints and writes."""

    metrics: list[MetricTable] = Field(default_factory=list)
    artifacts: list[RelativeGlob] = Field(default_factory=list, examples=[["runs/**"]])
    """Globs, relative to the benchmark's working folder: these files are kept with the job at the end."""
    buffering: Literal["line", "timed", "own"] = Field(default="line", examples=["timed"])
    """How the benchmark's output is buffered: `line` shows every line at once; `timed` flushes every 100 ms, for benchmarks that
    print very much; `own` leaves it alone, so that its last lines are lost when it is killed."""


class LimitsTable(Table):
    """How long things may take. Durations: `"250ms"`, `"90s"`, `"15m"`, `"2h"`, `"1h30m"`, `"1d"`."""

    max_runtime: PositiveDuration | None = Field(default=None, examples=["2h"])
    """From the benchmark's start to its forced end. Unset: none on this machine, 24h on EC2."""
    pull_timeout: PositiveDuration = Field(default=timedelta(hours=1), examples=["1h"])
    """For all data together."""
    grace: Duration = Field(default=timedelta(seconds=30), examples=["30s"])
    """From SIGTERM to SIGKILL when a benchmark is ended."""
    extract_timeout: Duration = Field(default=timedelta(minutes=30), examples=["2h"])
    """After the benchmark's exit, for metrics that are still to be taken from its output. What is left then, `bai extract` takes."""
    drain: Duration = Field(default=timedelta(seconds=60), examples=["60s"])
    """After that, for what is still to be sent."""
    no_output: PositiveDuration | None = Field(default=None, examples=["10m"])
    """A benchmark that neither prints nor emits for so long is ended. Unset: off."""


class HostMetricsTable(Table):
    """Samples of the machine itself: CPU, memory, disk, network, GPUs."""

    enabled: bool = True
    """Whether they are taken."""
    interval: SamplingInterval = Field(default=timedelta(seconds=5), examples=["5s"])
    """Time between two samples, at least 100ms."""


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


class AwsTable(Table):
    """Tables of the engines on AWS."""

    ec2: Ec2 | None = None
    sagemaker: OtherEngine = None
    """Belongs to another engine: accepted, not read."""
    eks: OtherEngine = None
    """Belongs to another engine: accepted, not read."""
    ecs: OtherEngine = None
    """Belongs to another engine: accepted, not read."""
    batch: OtherEngine = None
    """Belongs to another engine: accepted, not read."""


class Descriptor(Table):
    """A benchmark descriptor: what to run, on what, and which numbers to take from it."""

    spec_version: Literal["0.1.0"] = Field(examples=["0.1.0"])
    """The format's version."""
    info: Info
    hardware: Hardware
    env: Env = Env()
    ml: Ml | None = None
    data: Data = Data()
    output: OutputTable = OutputTable()
    limits: LimitsTable = LimitsTable()
    host_metrics: HostMetricsTable = HostMetricsTable()
    kafka: KafkaTable | None = None
    aws: AwsTable = AwsTable()
    server: Server | None = None
    custom_params: CustomParams | None = None
    kubernetes: OtherEngine = None
    """Belongs to another engine: accepted, not read."""
    sagemaker: OtherEngine = None
    """Belongs to another engine: accepted, not read."""
