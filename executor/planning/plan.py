"""Makes a job descriptor from a benchmark descriptor. The module uses neither disk, network, clock nor
randomness."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Arm, Benchmark, Git, Identity, Output, Repeat
from bai_agent.job.descriptor.limit_tables import EC2_MAX_RUNTIME, ELASTIC_SILENCE, End, Limits, Power
from bai_agent.job.descriptor.metric_tables import Better, Metric, OfRun
from bai_agent.job.descriptor.restart_tables import Checkpoint, Elastic, Restart
from bai_agent.job.descriptor.sink_tables import SinkTable, Store
from bai_agent.job.descriptor.source_tables import Source
from bai_agent.job.descriptor.strategy_tables import SHARED_FILES_STRATEGIES, Server, StrategyTable
from bai_agent.job.schema.declared import as_kind
from bai_agent.job.schema.source_schemes import grants_access
from bai_agent.light_dataclass import dataclass, field, fields, replace
from executor.configuration.job_tables import JobLimits
from executor.descriptor.checks.command_checks import is_script
from executor.descriptor.model import ArmTable, Descriptor
from executor.descriptor.presets import PresetMetric
from executor.descriptor.service_tables import MetricTable, SourceTable
from executor.descriptor.values import as_label
from executor.errors import PlanError
from executor.planning.arms import ArmFiles, FileArm, file_arms
from executor.planning.job_sources import Uploaded, job_sources, moved, plan_checkpoint
from executor.planning.job_strategy import plan_strategy
from executor.planning.scripts_folder import ScriptsOrigin

_MOST_RUNS = 50
"""Maximum number of runs if `[repeat]` sets `until` but not `runs`."""

_ADAPTDL_LIMITS = {"grace": timedelta(seconds=120)}
"""Default limits of an AdaptDL job: those that AdaptDL itself uses on Ray."""
_ADAPTDL_PAUSE = timedelta(minutes=5)
_ADAPTDL_FOLDER = "checkpoints"


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """All inputs of a plan except the benchmark descriptor."""

    folder: Path
    """Absolute folder of the descriptor, which is the base of the descriptor's relative paths."""
    job_id: str
    client_id: str
    where: Literal["local", "ec2"] = "local"
    store: Store | None = None
    arguments: Sequence[str] = ()
    """More arguments of the benchmark, which follow the arguments in the descriptor."""
    scripts: ScriptsOrigin | None = None
    """Origin of the scripts: the copy that `copy_scripts` made, or the original folder."""
    data_root: Path | None = None
    """Folder below which sources with absolute paths are placed."""
    home: Path | None = None
    """Folder that `~` stands for in paths of data. None on an instance, where `~` stands for the home folder
    of the job's user."""
    git: Git | None = None
    sinks: Mapping[str, Any] = field(default_factory=dict)
    """Default destinations of records and output, by the names of their tables."""
    defaults: JobLimits = field(default_factory=JobLimits)
    """Values of the limits that the descriptor does not set."""
    uploads: Mapping[Path, Uploaded] = field(default_factory=dict)
    """Objects in the staging bucket (EC2 only), by the absolute path of the local file or folder."""
    set: Mapping[str, str] = field(default_factory=dict)
    """Key → value that overrode the descriptor file. The overriding values are already in the descriptor, and
    are repeated in the job's record."""
    exclusive: bool = False
    """Whether the job waits until no other job is running on its machine."""
    arms: Mapping[str, ArmFiles] = field(default_factory=dict)
    """Files of each arm, if arms have their own files."""


def plan(descriptor: Descriptor, inputs: PlanInputs) -> Job:
    """Return the job descriptor with which an agent runs `descriptor`, on this machine or an instance. Raises
    PlanError."""
    on_ec2 = inputs.where == "ec2"
    if on_ec2:
        _check_remote(descriptor)
    strategy = plan_strategy(descriptor, inputs.where)
    if strategy.is_supervised and strategy.min_nodes is None:
        raise PlanError(
            'hardware.distributed.num_instances: adaptdl runs on a range of machines; write for example "1:4".'
        )
    if descriptor.repeat is not None:
        _check_repeated(descriptor, strategy)
    sources = _sources(descriptor, inputs)
    if (
        strategy.name in SHARED_FILES_STRATEGIES
        and strategy.nodes > 1
        and any(each.arm is not None for each in sources)
    ):
        raise PlanError(
            f"hardware.strategy: with {strategy.name} on several nodes all arms share scripts and data; let them differ only "
            "in ml.benchmark_code, ml.args and env.vars, or use torchrun"
        )
    return Job(
        job=_identity(descriptor, inputs),
        benchmark=replace(
            _benchmark(descriptor, inputs.arguments), inherit_env=not on_ec2, exclusive=inputs.exclusive
        ),
        strategy=strategy,
        limits=_limits(
            descriptor,
            inputs.defaults,
            longest=EC2_MAX_RUNTIME if on_ec2 else None,
            strategy=strategy,
        ),
        sources=sources,
        mounts=tuple(descriptor.mounts),
        metrics=plan_metrics(descriptor),
        results=tuple(descriptor.output.results),
        host_metrics=descriptor.host_metrics,
        repeat=_repeat(descriptor, inputs),
        restart=_restart(descriptor, strategy),
        elastic=_elastic(descriptor, strategy),
        checkpoint=_checkpoint(descriptor, strategy, inputs.store),
        server=_server(descriptor),
        output=Output(
            artifacts=tuple(descriptor.output.artifacts), discard_stdout=descriptor.output.discard_stdout
        ),
        store=inputs.store,
        end=_end(descriptor) if on_ec2 else End(),
        git=inputs.git,
        set=dict(inputs.set),
        **{**inputs.sinks, **{name: table for name, table in descriptor if isinstance(table, SinkTable)}},
    )


def task_name(descriptor: Descriptor) -> str | None:
    """Return the benchmark's name as a label, from the label `task_name` or `[info] task_name`."""
    return descriptor.info.labels.get("task_name") or as_label(descriptor.info.task_name or "") or None


def _sources(descriptor: Descriptor, inputs: PlanInputs) -> tuple[Source, ...]:
    home = inputs.home
    if inputs.where == "ec2" and home is None:
        user = descriptor.env.user or "root"
        home = Path("/root") if user == "root" else Path("/home", user)
    sources = job_sources(
        descriptor,
        scripts=inputs.scripts,
        folder=inputs.folder,
        data_root=inputs.data_root,
        home=home,
        arms=inputs.arms,
    )
    return tuple(moved(each, inputs.uploads) for each in sources) if inputs.where == "ec2" else sources


def _identity(descriptor: Descriptor, inputs: PlanInputs) -> Identity:
    labels = dict(descriptor.info.labels)
    custom = descriptor.custom_params
    for key, value in (
        ("task_name", task_name(descriptor)),
        ("dashboard-name", custom.dashboard if custom else None),
        ("region", custom.region if custom else None),
    ):
        if value:
            labels.setdefault(key, value)
    name = (
        descriptor.info.task_name
        or labels.get("task_name")
        or os.fsencode(inputs.folder.name).decode(errors="replace")
    )
    return Identity(id=inputs.job_id, name=name, client_id=inputs.client_id, labels=labels)


def _benchmark(descriptor: Descriptor, arguments: Sequence[str]) -> Benchmark:
    ml, env = descriptor.ml, descriptor.env
    code, args = ml.benchmark_code or "", ml.args or ""
    if not code.strip():
        raise PlanError(
            'ml.benchmark_code is missing: write [ml] benchmark_code = "…", the command of the benchmark.'
        )
    argv, script = _command("ml.benchmark_code and ml.args", code, args)
    return Benchmark(
        argv=(*argv, *arguments),
        script=script,
        env=dict(env.vars),
        secrets=dict(env.secrets),
        inherit_env=False,
        python=env.python,
        requirements=ml.script.requirements if ml.script else None,
        cwd=ml.cwd,
        user=env.user,
        container=env.container,
        buffering=descriptor.output.buffering,
    )


def _command(keys: str, code: str, args: str) -> tuple[tuple[str, ...], str | None]:
    """Return the words of a command, and None. If the command has several lines, return the words of its
    arguments, and the lines as a script. keys: the descriptor keys that contain the command. Raises
    PlanError."""
    script = code.strip() + "\n" if is_script(code) else None
    try:
        return tuple(shlex.split(args if script else f"{code} {args}")), script
    except ValueError as error:
        raise PlanError(f"{keys} cannot be split into arguments: {error}.") from error


def _server(descriptor: Descriptor) -> Server | None:
    """Return the server of the strategy `inference`. Raises PlanError."""
    if descriptor.hardware.strategy != "inference":
        return None
    if descriptor.server is None:
        raise PlanError("[server] is missing, but the strategy is inference; describe the server there.")
    env = descriptor.server.env
    keys = "server.env.start_command and start_command_args"
    argv, script = _command(keys, env.start_command, env.start_command_args or "")
    if not argv and script is None:
        raise PlanError("server.env.start_command is empty: write the command of the server.")
    return Server(
        ports=tuple(env.ports),
        argv=argv,
        script=script,
        env=dict(env.vars),
        readiness_probe=env.readiness_probe,
    )


def _limits(
    descriptor: Descriptor, defaults: JobLimits, *, longest: timedelta | None, strategy: StrategyTable
) -> Limits:
    """Return the job's limits. A limit that the descriptor sets overrides the configuration, even if it
    equals the default."""
    limits = Limits(
        **{
            each.name: getattr(
                descriptor.limits if each.name in descriptor.limits.written else defaults, each.name
            )
            for each in fields(Limits)
        }
    )
    own = {"peer_silence": ELASTIC_SILENCE} if strategy.min_nodes is not None else {}
    if strategy.is_supervised:
        own |= _ADAPTDL_LIMITS
    written = descriptor.limits.written | defaults.written
    limits = replace(limits, **{name: value for name, value in own.items() if name not in written})
    return limits if limits.max_runtime is not None else replace(limits, max_runtime=longest)


def _elastic(descriptor: Descriptor, strategy: StrategyTable) -> Elastic:
    if strategy.min_nodes is None:
        return Elastic()
    elastic = descriptor.elastic
    is_due = strategy.is_supervised and "pause" not in elastic.written
    return replace(elastic, pause=_ADAPTDL_PAUSE) if is_due else elastic


def _checkpoint(descriptor: Descriptor, strategy: StrategyTable, store: Store | None) -> Checkpoint | None:
    if descriptor.checkpoint is not None:
        return plan_checkpoint(descriptor.checkpoint, store)
    return Checkpoint(path=_ADAPTDL_FOLDER) if strategy.is_supervised else None


def _restart(descriptor: Descriptor, strategy: StrategyTable) -> Restart:
    restart, distributed = descriptor.restart, descriptor.hardware.distributed
    if strategy.name == "torchrun" and distributed is not None:
        restart = replace(restart, max_restarts=restart.max_restarts or distributed.max_restarts)
    return restart


def _check_repeated(descriptor: Descriptor, strategy: StrategyTable) -> None:
    """Raise PlanError if repeated runs of the benchmark would not be comparable."""
    if _restart(descriptor, strategy).max_restarts:
        problem = "max_restarts is not for a benchmark that is run several times, because a restarted run measures nothing."
    elif strategy.min_nodes is not None:
        problem = (
            "hardware.distributed.num_instances: a range is not for a benchmark that is run several times, because its runs might not have "
            "the same number of machines. Write one number."
        )
    elif strategy.name == "ray" and strategy.nodes > 1:
        problem = (
            "hardware.strategy: ray on several machines runs the command once, because the other machines join Ray only once. Write "
            "num_instances = 1, or use another strategy."
        )
    elif descriptor.checkpoint is not None:
        problem = (
            "[checkpoint] is not for a benchmark that is run several times, because a run that continues another one measures "
            "nothing."
        )
    else:
        return
    raise PlanError(problem)


def _repeat(descriptor: Descriptor, inputs: PlanInputs) -> Repeat | None:
    written = descriptor.repeat
    if written is None:
        return None
    metric = None
    if written.until is not None:
        metric = written.metric or next(each.name for each in descriptor.output.every_metric if each.better)
    return as_kind(
        Repeat,
        written,
        runs=written.runs or _MOST_RUNS * max(1, len(written.arms)),
        metric=metric,
        prepare=_words(written.prepare),
        cleanup=_words(written.cleanup),
        arms=tuple(_arm(descriptor, each, inputs) for each in written.arms),
    )


def _arm(descriptor: Descriptor, written: ArmTable, inputs: PlanInputs) -> Arm:
    """Return an arm: the benchmark, with the arm's values in place of the descriptor's values."""
    files = inputs.arms.get(written.name)
    own = {
        name: value
        for name in ("benchmark_code", "args", "script")
        if (value := getattr(written, name, None)) is not None
    }
    variables = descriptor.env.model_copy(update={"vars": {**descriptor.env.vars, **written.vars}})
    whole = descriptor.model_copy(update={"ml": descriptor.ml.model_copy(update=own), "env": variables})
    benchmark = _benchmark(whole, inputs.arguments)
    return Arm(
        name=written.name,
        labels=dict(written.labels),
        prepare=_words(written.prepare),
        cleanup=_words(written.cleanup),
        argv=benchmark.argv,
        script=benchmark.script,
        env=benchmark.env,
        requirements=benchmark.requirements if isinstance(written, FileArm) else None,
        scripts_sha256=files.sha256 if files else None,
        git=files.git if files else None,
    )


def _words(code: str | None) -> tuple[str, ...]:
    """Return a command and its arguments. /bin/sh runs a command of several lines."""
    if code is None:
        return ()
    return ("/bin/sh", "-c", code.strip()) if is_script(code) else tuple(shlex.split(code))


def _end(descriptor: Descriptor) -> End:
    ec2 = descriptor.aws.ec2
    if ec2 is None:
        return End(power=Power.OFF)
    return End(power=Power.OFF, keep_on_failure=ec2.keep_on_failure, keep_after=ec2.keep_after)


def _check_remote(descriptor: Descriptor) -> None:
    """Raise PlanError if a secret would be read from this machine's environment, or if an address would put a
    secret into an instance's user data."""
    references = {f"env.secrets.{name}": value for name, value in descriptor.env.secrets.items()}
    references |= {".".join(path): text for path, text in sink_secrets(descriptor).items()}
    for key, reference in references.items():
        if reference.startswith("env:"):
            raise PlanError(
                f'{key}: "{reference}" is read on this machine, but the benchmark runs on an instance. '
                'Put the secret into AWS and write "ssm:NAME" or "secretsmanager:NAME".'
            )
    own = [source for arm in file_arms(descriptor) for source in arm.sources]
    _check_addresses("data.sources", [*descriptor.data.sources, *own])
    if descriptor.server is not None:
        _check_addresses("server.models", descriptor.server.models)


def _check_addresses(key: str, sources: Sequence[SourceTable]) -> None:
    for index, source in enumerate(sources):
        if grants_access(source.src):
            raise PlanError(
                f"{key}[{index}].src: the address holds a password or a signature, which must not get into user "
                "data. Put the file into a bucket that the instance profile may read."
            )


def plan_metrics(descriptor: Descriptor) -> tuple[Metric, ...]:
    """Return the metrics of a descriptor and of its presets."""
    metrics = [_metric(each, warmup=descriptor.output.warmup) for each in descriptor.output.every_metric]
    metrics += _server_metrics(descriptor)
    named = descriptor.repeat.metric if descriptor.repeat is not None and descriptor.repeat.until else None
    of_run = next((each for each in OfRun if each.value == named), None)
    if of_run is not None and all(each.name != named for each in metrics):
        # `until` may name a resource metric of the runs that no table of metrics contains.
        own = Metric(name=of_run.value, of_run=of_run, units=of_run.units, better=Better.LOWER)
        metrics.append(own)
    return tuple(metrics)


def _server_metrics(descriptor: Descriptor) -> list[Metric]:
    server = descriptor.used_server
    found = server.output.metrics if server is not None else []
    return [replace(_metric(each, warmup=None), server=True) for each in found]


def _metric(written: MetricTable, *, warmup: timedelta | int | None) -> Metric:
    if written.warmup is not None:
        warmup = written.warmup
    if written.of_run is not None:
        warmup = None  # Each run has only one value of a resource metric, which is measured at the run's end.
    return as_kind(
        Metric,
        written,
        units=written.of_run.units if written.of_run is not None else written.units,
        warmup=warmup if isinstance(warmup, timedelta) and warmup else None,
        warmup_values=warmup if isinstance(warmup, int) else 0,
        revision=written.full_revision if isinstance(written, PresetMetric) else None,
    )


def sink_secrets(tables: Descriptor | Job) -> dict[tuple[str, ...], str]:
    """Return the sinks' references to secrets, by their keys."""
    kafka, prometheus = tables.kafka, tables.prometheus
    every = {
        ("kafka", "sasl_password"): kafka.sasl_password if kafka else None,
        ("prometheus", "password"): prometheus.password if prometheus else None,
    }
    return {path: reference for path, reference in every.items() if reference}
