"""The benchmark descriptor, which users write: version 0.1.0 of the benchmark service's format, plus bai's
own tables.

The docstrings of the fields are their only descriptions. The JSON Schema, the reference in `docs/benchmark-descriptor.md` and the
advice of findings contain these docstrings.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from bai_agent.job.descriptor.benchmark_tables import Buffering, WrittenRepeat
from bai_agent.job.descriptor.metric_tables import HostMetrics, Results
from bai_agent.job.descriptor.restart_tables import Elastic, Restart, WrittenCheckpoint
from bai_agent.job.descriptor.sink_tables import CloudWatch, Kafka, LogLines, Prometheus, SinkTable
from bai_agent.job.descriptor.source_tables import Mount
from bai_agent.job.descriptor.strategy_tables import MpiLaunch
from bai_agent.job.schema.declared import Example, Mistake, wrong
from bai_agent.job.schema.field_types import (
    AbsolutePath,
    ImageName,
    JobId,
    RelativeGlob,
    RelativePath,
    SecretReference,
    VariableName,
    Word,
    shown,
)
from bai_agent.light_dataclass import dataclass
from executor.configuration.job_tables import JobLimits
from executor.descriptor.ec2_table import Ec2
from executor.descriptor.matrix_table import MatrixTable
from executor.descriptor.presets import preset_names, with_presets
from executor.descriptor.service_tables import CustomParams, MetricTable, ServerTable, SourceTable
from executor.descriptor.values import (
    DescriptorTable,
    FolderPath,
    GitAddress,
    GitRef,
    JobText,
    Label,
    NodeCount,
    NodeRange,
    Processes,
    VariableText,
    Warmup,
)

Strategy = Literal["single_node", "each_node", "horovod", "mpi", "torchrun", "adaptdl", "ray", "inference"]
OtherEngine = Annotated[dict[str, Any] | None, Field(json_schema_extra={"x-other-engine": True})]
"""A table of another engine. Any content is accepted and ignored."""


def _presets(value: Any) -> Any:
    """Return the names of presets as a list. A single name becomes a list with one item."""
    names = [value] if isinstance(value, str) else value
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name not in preset_names():
            close = difflib.get_close_matches(name.lower(), preset_names(), n=1)
            meant = f'did you mean "{close[0]}"? ' if close else ""
            raise wrong(f"{shown(name)} is not a preset", f"{meant}There are {', '.join(preset_names())}")
    return names


PresetNames = Annotated[
    list[str],
    BeforeValidator(_presets),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class Info(DescriptorTable):
    """The benchmark's name and labels, and the engine that runs it."""

    description: str = Field(examples=["Trains a small network on handwritten digits"])
    """A description of the benchmark for readers."""
    task_name: str | None = Field(default=None, examples=["digits"])
    """The benchmark's name. The name becomes the label `task_name` unless `labels` sets that label."""
    execution_engine: Literal[
        "default", "local", "aws.ec2", "aws.sagemaker", "aws.eks", "aws.ecs", "aws.batch", "kubernetes"
    ] = Field(default="default", examples=["aws.ec2"], json_schema_extra={"x-advised": ["local", "aws.ec2"]})
    """Where the benchmark runs. `aws.ec2` means EC2 instances, and `local` and `default` mean this machine. Only
    other programs support the other engines. The option `--on local` overrides `execution_engine`."""
    scheduling: str = Field(default="single_run", examples=["0 3 * * 1-5"])
    """`single_run`, or the cron expression with which the benchmark service repeats the benchmark."""
    labels: dict[Label, Label] = Field(default_factory=dict, examples=[{"task_name": "digits"}])
    """Labels of every metric, at most 10. Keys and values have 1 to 63 characters of `A-Z a-z 0-9 - _ .`,
    with a letter or digit at both ends."""


class Distributed(DescriptorTable):
    """The number of machines that work together, and the number of processes on each."""

    num_instances: NodeCount = Field(default=NodeRange(most=2), examples=["2:4"])
    """Number of machines, or a range such as "2:4" for an elastic job. `single_node`, and a descriptor
    without this table, use one machine; `inference` uses two."""
    processes_per_instance: Processes = Field(default="1", examples=["gpus"])
    """Processes on each machine: an integer, which may be a text, or `"gpus"` for one per GPU. Always 1 with `each_node`, `ray` and `inference`."""
    launch: MpiLaunch = Field(default=MpiLaunch.MPIRUN, strict=False, examples=["user"])
    """For `horovod` and `mpi`. With `mpirun`, `bai` starts `mpirun` once for all processes. With `user`, the
    benchmark's command starts `mpirun`."""
    max_restarts: int = Field(default=0, ge=0, le=1000, examples=[3])
    """Number of times that all processes of `torchrun` are restarted after a process has failed. The key is
    another name of `restart.max_restarts`."""
    cpus_per_process: int | None = Field(default=None, ge=1, le=100_000, examples=[4])
    """CPUs of each process. `mpirun` binds each process to this many cores. Processes of `torchrun` and
    `adaptdl` get this number of threads (`OMP_NUM_THREADS`)."""
    mpirun_options: list[Word] = Field(default_factory=list, examples=[["--map-by", "socket"]])
    """Further options for the `mpirun` that `bai` starts, one text for each word. `bai` puts these options
    after its own, and no shell reads them."""


class Hardware(DescriptorTable):
    """The machines."""

    instance_type: str = Field(min_length=1, examples=["t3.small"])
    """The EC2 instance type. Runs on this machine ignore the type; write `"local"` for such runs."""
    strategy: Strategy = Field(default="single_node", examples=["horovod"])
    """How the command is started. `single_node` starts the command once, on one machine. `each_node` starts the
    command once on each machine. `horovod` and `mpi` use `mpirun` over all machines. `torchrun` uses torchrun on
    each machine. `adaptdl` starts AdaptDL's replicas on each machine. `ray` starts the command on the first
    machine, with Ray on all machines. `inference` starts the command on a client, with a server on a second
    machine."""
    availability_zone: str | None = Field(default=None, examples=["us-east-1a"])
    """The availability zone's name. This key takes precedence over `aws_zone_id`."""
    aws_zone_id: str | None = Field(default=None, examples=["use1-az2"])
    """The availability zone's id, which is the same zone in every account."""
    distributed: Distributed | None = None

    @property
    def nodes(self) -> int:
        """Number of machines; the maximum if it is a range."""
        if self.strategy == "inference":
            return 2
        return (
            1
            if self.strategy == "single_node" or self.distributed is None
            else self.distributed.num_instances.most
        )


class Env(DescriptorTable):
    """The environment of the benchmark."""

    docker_image: str | None = Field(default=None, examples=["ami-0123456789abcdef0"])
    """The benchmark service's key for the image. If the value is an AMI (`ami-…` or `ssm:/…`), `bai` uses the AMI
    for the machine. `bai` ignores other images. To start a container, use `container`."""
    image: str | None = Field(default=None, examples=["ami-0123456789abcdef0"])
    """The machine image, for every execution engine. `[aws.ec2] image` overrides this key."""
    container: ImageName | None = Field(default=None, examples=["registry.example/train:1"])
    """The image of a container in which podman runs the command, see [containers.md](containers.md). Only for
    `single_node`, `each_node` and `torchrun`."""
    privileged: bool = False
    """Accepted; has no effect."""
    extended_shm: bool = True
    """Accepted; has no effect, because all of /dev/shm is available."""
    python: AbsolutePath | None = Field(default=None, examples=["/opt/pytorch/bin/python"])
    """Absolute path of the Python whose folder is put first on PATH."""
    user: str | None = Field(default=None, min_length=1, examples=["ubuntu"])
    """The user as whom the benchmark runs. Unset: the caller on this machine, root on an instance."""
    vars: dict[VariableName, VariableText] = Field(default_factory=dict, examples=[{"OMP_NUM_THREADS": "4"}])
    """Environment variables of the benchmark, as texts or integers. `$(NAME)` in a value stands for another
    environment variable of the benchmark. Write secrets into `[env.secrets]`."""
    secrets: dict[VariableName, SecretReference] = Field(
        default_factory=dict, examples=[{"HF_TOKEN": "env:HF_TOKEN"}]
    )
    """Environment variables with secret values, which `bai` never writes to disk. References: `env:NAME`
    (this machine's environment, only for local runs), `ssm:NAME`, `secretsmanager:NAME`."""


class Script(DescriptorTable):
    """The benchmark's own files, its scripts."""

    path: FolderPath | None = Field(default=None, examples=["."])
    """A folder, relative to this file, that is copied as the benchmark's working folder, except virtual
    environments, caches, `.git`, and files that `.gitignore` and `.baiignore` name. In the command,
    `$(BAI_SCRIPTS_PATH)` is the path of the copied folder."""
    script: str | None = Field(default=None, min_length=1, examples=["scripts.tar"])
    """An archive with the scripts, in place of `path`: a path relative to this file, or `s3://bucket/key`. `bai`
    fetches an archive in a bucket when the job is submitted."""
    git: GitAddress | None = Field(default=None, examples=["https://github.com/group/repository"])
    """The https address of a git repository, in place of `path`. The repository's files become the scripts' folder.
    The address contains neither a user nor a token, so the repository must be public."""
    ref: GitRef | None = Field(default=None, examples=["v1.2"])
    """A branch, a tag or a full commit of the repository in `git`. The name is resolved to a commit at
    submission. Unset: the default branch."""
    folder: RelativePath | None = Field(default=None, examples=["benchmarks/resnet"])
    """The only folder of the repository in `git` that becomes the scripts' folder. Unset: the whole
    repository."""
    requirements: RelativePath | None = Field(default=None, examples=["requirements.txt"])
    """A pip requirements file in the scripts' folder. The packages are installed into a venv of the job
    before the run. The run's time does not include the installation."""


class Ml(DescriptorTable):
    """The command of the benchmark, and its own files."""

    benchmark_code: str | None = Field(default=None, examples=["python3 train.py"])
    """The command: either one line, which is split as in a shell but run without one, or a script, which has
    several lines or starts with `#!` (default: `/bin/sh`). `$(NAME)` becomes the value of the environment
    variable `NAME`."""
    args: str | None = Field(default=None, examples=["--epochs 8"])
    """Further arguments, which are appended to the command after a space."""
    cwd: str | None = Field(default=None, min_length=1, examples=["/data/src"])
    """The folder in which the command starts: absolute, or relative to the job's work folder. Unset: the
    scripts' folder if there is one, otherwise the work folder."""
    framework: Literal["tensorflow", "mxnet", "pytorch", ""] = Field(default="", examples=["pytorch"])
    """The framework, for other engines. Not used here."""
    framework_version: str | None = Field(default=None, examples=["2.4"])
    """The framework's version, for other engines. Not used here."""
    script: Script | None = None


class Data(DescriptorTable):
    """The data of the benchmark."""

    sources: list[SourceTable] = Field(default_factory=list)


class OutputTable(DescriptorTable):
    """Metrics and files that are taken from the benchmark's output."""

    preset: PresetNames = Field(default_factory=list, examples=["fio"])
    """A program whose metrics `bai` knows, or a list of such programs. `bai presets` and
    [patterns.md](patterns.md) list the known programs. A metric of the same name in this file replaces the preset's."""
    metrics: list[MetricTable] = Field(default_factory=list)
    results: list[Results] = Field(default_factory=list)
    artifacts: list[RelativeGlob] = Field(default_factory=list, examples=[["runs/**"]])
    """Globs for files that are saved with the job at the end, relative to the benchmark's working folder."""
    buffering: Buffering = Field(default=Buffering.LINE, strict=False, examples=["timed"])
    """Buffering of the benchmark's output. With `line`, every line is written immediately. With `timed`, the output
    is flushed every 100 ms, which suits large output. `own` leaves the benchmark's buffering unchanged, so a killed
    benchmark loses its last lines."""
    discard_stdout: bool = False
    """Whether the benchmark's standard output is discarded, to time a command that prints a lot. The standard
    error is still saved."""
    warmup: Warmup | None = Field(default=None, examples=["30s"])
    """Default for the `warmup` of metrics that do not set their own. Unset: no values are left out."""

    @property
    def every_metric(self) -> list[MetricTable]:
        """The metrics of the file, and those of its presets."""
        return with_presets(self.metrics, self.preset)


class ArmTable(DescriptorTable):
    """An arm is one of the commands that a job compares. The arms take turns in the job, so that they are compared
    on the same machine: see [repeats.md](repeats.md#comparing-two-or-more)."""

    name: JobId = Field(examples=["b"])
    """The arm's name in results."""
    benchmark_code: str | None = Field(default=None, examples=["python3 train.py"])
    """The arm's command. Unset: that of `[ml]`."""
    args: str | None = Field(default=None, examples=["--fused"])
    """The arm's arguments. Unset: those of `[ml]`."""
    vars: dict[VariableName, VariableText] = Field(default_factory=dict, examples=[{"OMP_NUM_THREADS": "4"}])
    """The arm's environment variables, in addition to those of `[env.vars]`."""
    labels: dict[Label, Label] = Field(default_factory=dict, examples=[{"branch": "main"}])
    """The arm's labels, in addition to those of `[info]`. These labels are saved with the job, but metrics
    get only the arm's name as a label."""
    prepare: str | None = Field(default=None, examples=["make clean"])
    """The arm's command before each run. Unset: that of `[repeat]`."""
    cleanup: str | None = Field(default=None, examples=["rm -rf out"])
    """The arm's command after each run. Unset: that of `[repeat]`."""


@dataclass(frozen=True, kw_only=True)
class RepeatTable(WrittenRepeat):
    """Repeated runs of the benchmark in one job, one after the other: see [repeats.md](repeats.md)."""

    prepare: Annotated[str | None, Example("sh drop_caches.sh")] = None
    """A command before each run, which the run's time does not include. The command is split like
    `benchmark_code`, or is a script of several lines for /bin/sh. Its output is logged, but not searched for
    metrics. If the command fails, the job ends."""
    cleanup: Annotated[str | None, Example("rm -rf scratch")] = None
    """A command after each run, with the same rules as `prepare`."""
    arms: tuple[ArmTable, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckpointTable(WrittenCheckpoint):
    """The folder in which the benchmark saves its checkpoints. The checkpoints are copied into the job store,
    and restored before a restart: see [checkpoints.md](checkpoints.md)."""

    from_: Annotated[JobText | None, Field(alias="from"), Example("job:last")] = None
    """Reference to an earlier job that has ended, possibly by a failure or a cancellation: `job:ID`, `job:last`,
    `job:last:NAME` or `job:label=KEY=VALUE`. The new job begins from the earlier job's newest checkpoint."""

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        yield from super().mistakes()
        if self.shared and self.from_ is not None:
            problem = "has no effect, because shared = true copies no folder"
            yield (
                "from",
                (problem, "remove from or shared; the benchmark can read the other job's folder itself"),
            )


class AwsTable(DescriptorTable):
    """Tables of the engines on AWS."""

    ec2: Ec2 | None = None
    sagemaker: OtherEngine = None
    """Accepted, but not used by `bai`."""
    eks: OtherEngine = None
    """Accepted, but not used by `bai`."""
    ecs: OtherEngine = None
    """Accepted, but not used by `bai`."""
    batch: OtherEngine = None
    """Accepted, but not used by `bai`."""


class Descriptor(DescriptorTable):
    """A benchmark descriptor: the command, its machines, and the metrics to take from its output."""

    spec_version: Literal["0.1.0"] = Field(examples=["0.1.0"])
    """The format's version."""
    info: Info
    hardware: Hardware
    env: Env = Field(default_factory=Env)
    ml: Ml = Field(default_factory=Ml)
    data: Data = Field(default_factory=Data)
    mounts: list[Mount] = Field(default_factory=list)
    output: OutputTable = Field(default_factory=OutputTable)
    repeat: RepeatTable | None = None
    matrix: MatrixTable | None = None
    restart: Restart = Field(default_factory=Restart)
    elastic: Elastic = Field(default_factory=Elastic)
    checkpoint: CheckpointTable | None = None
    limits: JobLimits = Field(default_factory=JobLimits)
    host_metrics: HostMetrics = Field(default_factory=HostMetrics)
    kafka: Kafka | None = None
    log_lines: LogLines | None = None
    prometheus: Prometheus | None = None
    cloudwatch: CloudWatch | None = None
    aws: AwsTable = Field(default_factory=AwsTable)
    server: ServerTable | None = None
    custom_params: CustomParams | None = None
    kubernetes: OtherEngine = None
    """Accepted, but not used by `bai`."""
    sagemaker: OtherEngine = None
    """Accepted, but not used by `bai`."""

    @property
    def used_server(self) -> ServerTable | None:
        """The server that the strategy starts; None if it does not start one."""
        return self.server if self.hardware.strategy == "inference" else None


SINKS = frozenset(
    name
    for name, each in Descriptor.model_fields.items()
    if any(isinstance(kind, type) and issubclass(kind, SinkTable) for kind in get_args(each.annotation))
)
"""Names of the tables of sinks."""
