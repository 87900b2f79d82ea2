"""The benchmark descriptor: what a user writes, spec 0.1.0 of the benchmark service plus our own tables.

The texts below the fields are the only place in which they are described: the JSON Schema, the reference in
`docs/benchmark-descriptor.md` and the findings' advice are made of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from executor.descriptor.ec2_table import Ec2
from executor.descriptor.places import AbsolutePath, FolderPath, RelativeGlob, RelativePath
from executor.descriptor.presets import preset_names, with_presets
from executor.descriptor.results_table import ResultsTable
from executor.descriptor.service_tables import CustomParams, MetricTable, Server, SourceTable
from executor.descriptor.sink_tables import CloudWatchTable, KafkaTable, LogLinesTable, PrometheusTable
from executor.descriptor.sink_tables import SinkTable as SinkTable
from executor.descriptor.values import (
    ArmName,
    CommandText,
    Duration,
    Label,
    NodeCount,
    PeerSilence,
    PositiveDuration,
    Processes,
    SamplingInterval,
    Scheduling,
    SecretReference,
    Share,
    Table,
    VariableName,
    VariableText,
    Warmup,
    Word,
    shown,
    wrong,
)

Strategy = Literal["single_node", "horovod", "mpi", "torchrun", "inference"]
NOT_STARTED: Mapping[Strategy, str] = {
    "inference": "a server beside the benchmark",
}
"""Of these the ones that no agent of this version starts, and what they need."""

OtherEngine = Annotated[dict[str, Any] | None, Field(json_schema_extra={"x-other-engine": True})]
"""A table that another engine reads: whatever it holds is accepted, and not read here."""


def _presets(value: Any) -> Any:
    """One name is a list of one."""
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

    num_instances: NodeCount = Field(default=2, examples=[2])
    """Number of machines. `single_node` always uses one, and so does a descriptor without this table."""
    processes_per_instance: Processes = Field(default="1", examples=["gpus"])
    """Processes on each machine: an integer, also as a text, or `"gpus"` for one per GPU."""
    launch: Literal["mpirun", "user"] = Field(default="mpirun", examples=["user"])
    """Who starts `mpirun`, with `horovod` and `mpi`: this program, once for all processes; or the benchmark's own command, which
    then runs alone."""
    max_restarts: int = Field(default=0, ge=0, le=1000, examples=[3])
    """How often `torchrun` starts all processes again after one of them has failed."""
    cpus_per_process: int | None = Field(default=None, ge=1, le=100_000, examples=[4])
    """CPUs for each process: `mpirun` binds it to so many cores; `torchrun`'s processes are told to use so many threads
    (`OMP_NUM_THREADS`)."""
    mpirun_options: list[Word] = Field(default_factory=list, examples=[["--map-by", "socket"]])
    """More options for that `mpirun`, each a word of its own; they come behind ours. No shell sees them."""


class Hardware(Table):
    """The machines."""

    instance_type: str = Field(min_length=1, examples=["t3.small"])
    """The EC2 instance type. A run on this machine does not look at it: `"local"` says so."""
    strategy: Strategy = Field(default="single_node", examples=["horovod"])
    """How the machines work together: one machine; `mpirun` over all (`horovod`, `mpi`); `torchrun` on each; a server and its client."""
    availability_zone: str | None = Field(default=None, examples=["us-east-1a"])
    """The availability zone's name. Wins over `aws_zone_id`."""
    aws_zone_id: str | None = Field(default=None, examples=["use1-az2"])
    """The availability zone's id, which means the same zone in every account."""
    distributed: Distributed | None = None

    @property
    def nodes(self) -> int:
        """How many machines there are."""
        return (
            1
            if self.strategy == "single_node" or self.distributed is None
            else self.distributed.num_instances
        )


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
    """Environment variables. Texts, or integers. No secrets: those belong into `[env.secrets]`."""
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
    cwd: str | None = Field(default=None, min_length=1, examples=["/data/src"])
    """The folder that the command starts in: absolute, or relative to its work folder. Unset: the scripts' folder where there is one,
    else the work folder."""
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

    preset: PresetNames = Field(default_factory=list, examples=["fio"])
    """A program whose metrics `bai` knows, or a list of such: they are taken as if they stood here. `bai presets` lists all, and
    [patterns.md](patterns.md) shows them. A metric of the same name in this file wins."""
    metrics: list[MetricTable] = Field(default_factory=list)
    results: list[ResultsTable] = Field(default_factory=list)
    artifacts: list[RelativeGlob] = Field(default_factory=list, examples=[["runs/**"]])
    """Globs, relative to the benchmark's working folder: these files are kept with the job at the end."""
    buffering: Literal["line", "timed", "own"] = Field(default="line", examples=["timed"])
    """How the benchmark's output is buffered: `line` shows every line at once; `timed` flushes every 100 ms, for benchmarks that
    print very much; `own` leaves it alone, so that its last lines are lost when it is killed."""
    discard_stdout: bool = False
    """Whether what the benchmark prints to its standard output is thrown away: for timing a command that prints much. Its standard error is kept."""
    warmup: Warmup | None = Field(default=None, examples=["30s"])
    """`warmup` of every metric that does not say its own. Unset: nothing is left out."""

    @property
    def every_metric(self) -> list[MetricTable]:
        """The metrics of the file, and those of its presets."""
        return with_presets(self.metrics, self.preset)


class ArmTable(Table):
    """Two or more of these take turns in one job, so that they are compared on the same machine: see [repeats.md](repeats.md#comparing-two-or-more)."""

    name: ArmName = Field(examples=["b"])
    """What the arm is called in results."""
    benchmark_code: CommandText | None = Field(default=None, examples=["python3 train.py"])
    """Its command. Unset: that of `[ml]`."""
    args: CommandText | None = Field(default=None, examples=["--fused"])
    """Its arguments. Unset: those of `[ml]`."""
    vars: dict[VariableName, VariableText] = Field(default_factory=dict, examples=[{"OMP_NUM_THREADS": "4"}])
    """Its environment variables, beside those of `[env.vars]`."""
    labels: dict[Label, Label] = Field(default_factory=dict, examples=[{"branch": "main"}])
    """Its own labels, in addition to those of `[info]`. They are kept with the job; its metrics have the arm's name."""
    prepare: CommandText | None = Field(default=None, examples=["make clean"])
    """Its command before each run. Unset: that of `[repeat]`."""
    cleanup: CommandText | None = Field(default=None, examples=["rm -rf out"])
    """The same after each run."""


class RepeatTable(Table):
    """Runs the benchmark several times in one job, one run after the other: see [repeats.md](repeats.md)."""

    runs: int | None = Field(default=None, ge=1, le=100_000, examples=[10])
    """How many runs there are. With `until` at most so many, 50 of each arm where it is unset."""
    warmup_runs: int = Field(default=0, ge=0, le=100_000, examples=[1])
    """Runs before those, which no metric is taken from."""
    until: Share | None = Field(default=None, examples=["2%"])
    """Goes on, after 10 runs, until the 95 % confidence interval of the mean of `metric` reaches at most so far to either side, at two looks
    in a row, and the runs have no trend. With arms: the interval of their difference."""
    metric: str | None = Field(default=None, min_length=1, examples=["throughput"])
    """Whose headline `until` is about: one of `[[output.metrics]]`, or what each run takes: `wall_time`, `cpu_time`, `user_time`,
    `system_time`, `peak_memory`. Unset: the only metric that has `better`."""
    max_time: PositiveDuration | None = Field(default=None, examples=["2h"])
    """After so long no new run begins, with arms no new block. Unset: no limit but `[limits] max_runtime`, which is for all runs together."""
    min_runs: int | None = Field(default=None, ge=1, le=100_000, examples=[10])
    """With `max_time`: so many runs are done in any case. That further ones had no time left is then no warning."""
    prepare: CommandText | None = Field(default=None, examples=["sh drop_caches.sh"])
    """A command before each run, outside its timing; split as `benchmark_code` is, or several lines for /bin/sh. What it prints
    is in the log, and no metric. Where it fails, the job ends."""
    cleanup: CommandText | None = Field(default=None, examples=["rm -rf scratch"])
    """The same after each run."""
    keep_going: bool = False
    """Whether a run that fails is followed by the next one. The job has failed all the same. Not for `torchrun` on several nodes."""
    ignore_failure: bool = False
    """Whether a run counts whatever its exit code is. A signal, or a command that cannot be started, is a failure all the same."""
    arms: list[ArmTable] = Field(default_factory=list)
    seed: int = Field(default=0, ge=0, lt=2**63, examples=[7])
    """Of the order in which the arms take turns."""


class LimitsTable(Table):
    """How long things may take. Durations: `"250ms"`, `"90s"`, `"15m"`, `"2h"`, `"1h30m"`, `"1d"`."""

    max_runtime: PositiveDuration | None = Field(default=None, examples=["2h"])
    """From the benchmark's start to its forced end. Unset: none on this machine, 24h on EC2."""
    pull_timeout: PositiveDuration = Field(default=timedelta(hours=1), examples=["1h"])
    """For all data together."""
    join: PositiveDuration = Field(default=timedelta(minutes=10), examples=["10m"])
    """For a node that gives no sign of life, while the others wait for it."""
    peer_silence: PeerSilence = Field(default=timedelta(seconds=60), examples=["20s"])
    """Of several nodes, one that gives no sign of life for so long, nor answers when it is asked directly, is lost. At least 20s."""
    store_away: PositiveDuration = Field(default=timedelta(minutes=10), examples=["30m"])
    """Several nodes go on for so long while none of them reaches the job store. One that misses it alone ends after `peer_silence`."""
    grace: Duration = Field(default=timedelta(seconds=30), examples=["30s"])
    """From SIGTERM to SIGKILL when a benchmark is ended."""
    extract_timeout: Duration = Field(default=timedelta(minutes=30), examples=["2h"])
    """After the benchmark's exit, for metrics that are still to be taken from its output. What is left then, `bai extract` takes."""
    drain: Duration = Field(default=timedelta(seconds=60), examples=["60s"])
    """After that, for what is still to be sent."""
    no_output: PositiveDuration | None = Field(default=None, examples=["10m"])
    """A benchmark that neither prints nor emits for so long is ended. Unset: off."""
    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False, examples=[25.0])
    """On EC2, USD: a job that may cost more, or whose price is not known, is not launched. Unset: no bound."""
    wait_for_capacity: PositiveDuration | None = Field(default=None, examples=["6h"])
    """On EC2, from the submission on: where no zone has room, all are asked again, with pauses of up to five minutes, for so long.
    Unset: each is asked once."""


class HostMetricsTable(Table):
    """Samples of the machine itself: CPU, memory, disk, network, GPUs."""

    enabled: bool = True
    """Whether they are taken."""
    interval: SamplingInterval = Field(default=timedelta(seconds=5), examples=["5s"])
    """Time between two samples, at least 100ms."""


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
    env: Env = Field(default_factory=Env)
    ml: Ml | None = None
    data: Data = Field(default_factory=Data)
    output: OutputTable = Field(default_factory=OutputTable)
    repeat: RepeatTable | None = None
    limits: LimitsTable = Field(default_factory=LimitsTable)
    host_metrics: HostMetricsTable = Field(default_factory=HostMetricsTable)
    kafka: KafkaTable | None = None
    log_lines: LogLinesTable | None = None
    prometheus: PrometheusTable | None = None
    cloudwatch: CloudWatchTable | None = None
    aws: AwsTable = Field(default_factory=AwsTable)
    server: Server | None = None
    custom_params: CustomParams | None = None
    kubernetes: OtherEngine = None
    """Belongs to another engine: accepted, not read."""
    sagemaker: OtherEngine = None
    """Belongs to another engine: accepted, not read."""


SINKS = frozenset(
    name
    for name, each in Descriptor.model_fields.items()
    if any(isinstance(kind, type) and issubclass(kind, SinkTable) for kind in get_args(each.annotation))
)
"""The tables of the places that records go to."""
