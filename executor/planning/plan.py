"""Turns what a user wrote into the job descriptor of one job. Pure: no disk, no network, no clock, no randomness."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

from bai_agent.job.descriptor import (
    EC2_MAX_RUNTIME,
    Arm,
    Benchmark,
    Better,
    Buffering,
    End,
    Git,
    Headline,
    HostMetrics,
    Identity,
    Job,
    Limits,
    Metric,
    MpiLaunch,
    NumberForm,
    OfRun,
    Output,
    OverRanks,
    Power,
    Repaint,
    Repeat,
    ResultFormat,
    Results,
    Store,
    StrategyTable,
)
from bai_agent.job.source_schemes import grants_access
from executor.config import LimitSettings as DefaultLimits
from executor.descriptor.command_checks import is_script
from executor.descriptor.ec2_table import efa_interfaces
from executor.descriptor.model import NOT_STARTED, ArmTable, Descriptor, Distributed, Ml, Strategy
from executor.descriptor.overrides import Override, recorded
from executor.descriptor.presets import PresetMetric
from executor.descriptor.results_table import ResultsTable as WrittenResults
from executor.descriptor.service_tables import MetricTable as WrittenMetric
from executor.descriptor.sink_tables import SinkTable
from executor.descriptor.values import as_label
from executor.planning.arms import ArmFiles, FileArm, file_arms
from executor.planning.job_sources import PlanError, Uploaded, job_sources, moved
from executor.planning.scripts_folder import ScriptsOrigin

_NO_DEFAULTS = DefaultLimits()

_MOST_RUNS = 50
"""With `[repeat] until` and without `runs`."""

_MPI = ("horovod", "mpi")
"""Strategies whose nodes are reached from one of them, by mpirun."""


def plan(
    descriptor: Descriptor,
    *,
    folder: Path,
    job_id: str,
    client_id: str,
    where: Literal["local", "ec2"] = "local",
    store: Store | None = None,
    arguments: Sequence[str] = (),
    scripts: ScriptsOrigin | None = None,
    data_root: Path | None = None,
    home: Path | None = None,
    git: Git | None = None,
    sinks: Mapping[str, Any] = MappingProxyType({}),
    defaults: DefaultLimits = _NO_DEFAULTS,
    uploads: Mapping[Path, Uploaded] = MappingProxyType({}),
    overrides: Sequence[Override] = (),
    exclusive: bool = False,
    arms: Mapping[str, ArmFiles] = MappingProxyType({}),
) -> Job:
    """Return the job descriptor with which an agent runs `descriptor`, here or on an instance. Raises PlanError.

    folder: the absolute folder of the descriptor; its relative paths start there.
    arguments: put behind the benchmark's own, as they are.
    scripts: what the agent takes the scripts from: the copy that `copy_scripts` made, or the original.
    data_root: a folder put before the absolute paths of data. home: what `~` in them means.
    sinks: where records and output go when the descriptor does not say, by the tables' names.
    uploads: on EC2, what each local file or folder (its absolute path) is in the staging bucket.
    overrides: what was set in place of what the file says; `descriptor` has it already, and the job's record tells it.
    exclusive: it waits until no other job runs on its machine.
    arms: the files of each of its arms that has its own.
    """
    if where == "ec2":
        _check_remote(descriptor)
    strategy = descriptor.hardware.strategy
    if strategy in NOT_STARTED:
        started = ", ".join(each for each in get_args(Strategy) if each not in NOT_STARTED)
        raise PlanError(
            f"hardware.strategy: {strategy} needs {NOT_STARTED[strategy]}, which this version does not start; "
            f"it runs {started}. With single_node the command itself runs on one machine."
        )
    if where == "ec2" and home is None:
        home = (
            Path("/home", descriptor.env.user) if descriptor.env.user not in (None, "root") else Path("/root")
        )
    strategy_table = _strategy(descriptor, where)
    if where == "ec2" and descriptor.aws.ec2 is not None:
        ec2 = descriptor.aws.ec2
        efa = ec2.efa is not None or efa_interfaces(ec2.run_instances) > 0
        strategy_table = replace(strategy_table, efa=efa)
    sources = job_sources(
        descriptor, scripts=scripts, folder=folder, data_root=data_root, home=home, arms=arms
    )
    if strategy in _MPI and strategy_table.nodes > 1 and any(each.arm is not None for each in sources):
        raise PlanError(
            f"hardware.strategy: with {strategy} on several nodes the two that are compared share scripts and data; let them differ in "
            "ml.benchmark_code, ml.args and env.vars alone, or use torchrun"
        )
    return Job(
        job=_identity(descriptor, job_id=job_id, client_id=client_id, folder=folder),
        benchmark=_benchmark(descriptor, arguments, inherit_env=where == "local", exclusive=exclusive),
        strategy=strategy_table,
        limits=_limits(descriptor, defaults, longest=EC2_MAX_RUNTIME if where == "ec2" else None),
        sources=tuple(moved(each, uploads) for each in sources) if where == "ec2" else sources,
        metrics=metrics_of(descriptor),
        results=tuple(map(_results, descriptor.output.results)),
        host_metrics=HostMetrics(
            enabled=descriptor.host_metrics.enabled, interval=descriptor.host_metrics.interval
        ),
        repeat=_repeat(descriptor, arguments, arms),
        output=Output(
            artifacts=tuple(descriptor.output.artifacts), discard_stdout=descriptor.output.discard_stdout
        ),
        store=store,
        end=_end(descriptor) if where == "ec2" else End(),
        git=git,
        set=recorded(overrides),
        **{**sinks, **_sinks(descriptor)},
    )


def task_name(descriptor: Descriptor) -> str | None:
    """Return the benchmark's name as a label, from either place in which users write it."""
    return descriptor.info.labels.get("task_name") or as_label(descriptor.info.task_name or "") or None


def one_node_note(descriptor: Descriptor) -> str | None:
    """Return what to say where this machine stands for several nodes that one mpirun starts; None where it does not."""
    hardware = descriptor.hardware
    distributed = hardware.distributed
    if hardware.strategy not in _MPI or distributed is None or distributed.num_instances == 1:
        return None
    processes = _on_one_node(distributed)
    many = "one process for each of its GPUs" if processes == "gpus" else f"{processes} processes"
    return f"{hardware.strategy}: this machine stands for {distributed.num_instances} nodes, as one node with {many}"


def nodes_on_this_machine(descriptor: Descriptor) -> int:
    """Return how many nodes, each with an agent, `descriptor` runs as here."""
    return _strategy(descriptor, "local").nodes


def _strategy(descriptor: Descriptor, where: Literal["local", "ec2"]) -> StrategyTable:
    hardware = descriptor.hardware
    distributed = hardware.distributed
    if hardware.strategy == "single_node" or distributed is None:
        return StrategyTable(name=hardware.strategy)
    table = StrategyTable(
        name=hardware.strategy,
        nodes=distributed.num_instances,
        processes_per_node=distributed.processes_per_instance,
        cpus_per_process=distributed.cpus_per_process,
    )
    if hardware.strategy not in _MPI:
        return replace(table, max_restarts=distributed.max_restarts)
    if where == "local":
        table = replace(table, nodes=1, processes_per_node=_on_one_node(distributed))
    return replace(
        table, launch=MpiLaunch(distributed.launch), mpirun_options=tuple(distributed.mpirun_options)
    )


def _on_one_node(distributed: Distributed) -> str:
    """Return how many processes all nodes have together. GPUs are there once, however many nodes share them."""
    each = distributed.processes_per_instance
    return each if each == "gpus" else str(distributed.num_instances * int(each))


def _identity(descriptor: Descriptor, *, job_id: str, client_id: str, folder: Path) -> Identity:
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
        or os.fsencode(folder.name).decode(errors="replace")
    )
    return Identity(id=job_id, name=name, client_id=client_id, labels=labels)


def _benchmark(
    descriptor: Descriptor, arguments: Sequence[str], *, inherit_env: bool, exclusive: bool
) -> Benchmark:
    ml, env = descriptor.ml, descriptor.env
    code = (ml.benchmark_code if ml else None) or ""
    args = (ml.args if ml else None) or ""
    if not code.strip():
        raise PlanError(
            'ml.benchmark_code is missing: write [ml] benchmark_code = "…", the command of the benchmark.'
        )
    script = code.lstrip().rstrip() + "\n" if is_script(code) else None
    try:
        argv = shlex.split(args if script else f"{code} {args}")
    except ValueError as error:
        raise PlanError(f"ml.benchmark_code and ml.args cannot be split into arguments: {error}.") from error
    return Benchmark(
        argv=(*argv, *arguments),
        script=script,
        env=dict(env.vars),
        secrets=dict(env.secrets),
        inherit_env=inherit_env,
        python=env.python,
        requirements=ml.script.requirements if ml and ml.script else None,
        cwd=ml.cwd if ml else None,
        user=env.user,
        buffering=Buffering(descriptor.output.buffering),
        exclusive=exclusive,
    )


def _limits(descriptor: Descriptor, defaults: DefaultLimits, *, longest: timedelta | None) -> Limits:
    written = descriptor.limits

    def of(name: str) -> timedelta | None:
        default: timedelta | None = getattr(defaults, name)
        value: timedelta | None = getattr(written, name)
        return value if name in written.model_fields_set or default is None else default

    return Limits(
        max_runtime=of("max_runtime") or longest,
        pull_timeout=_first(of("pull_timeout"), written.pull_timeout),
        grace=_first(of("grace"), written.grace),
        extract_timeout=_first(of("extract_timeout"), written.extract_timeout),
        join=_first(of("join"), written.join),
        peer_silence=_first(of("peer_silence"), written.peer_silence),
        store_away=_first(of("store_away"), written.store_away),
        drain=_first(of("drain"), written.drain),
        no_output=of("no_output"),
    )


def _repeat(descriptor: Descriptor, arguments: Sequence[str], files: Mapping[str, ArmFiles]) -> Repeat | None:
    written = descriptor.repeat
    if written is None:
        return None
    metric = None
    if written.until is not None:
        metric = written.metric or next(each.name for each in descriptor.output.every_metric if each.better)
    return Repeat(
        runs=written.runs or _MOST_RUNS * max(1, len(written.arms)),
        warmup_runs=written.warmup_runs,
        until=written.until,
        metric=metric,
        max_time=written.max_time,
        prepare=_words(written.prepare),
        cleanup=_words(written.cleanup),
        min_runs=written.min_runs,
        keep_going=written.keep_going,
        ignore_failure=written.ignore_failure,
        arms=tuple(_arm(descriptor, each, arguments, files.get(each.name)) for each in written.arms),
        seed=written.seed,
    )


def _arm(descriptor: Descriptor, written: ArmTable, arguments: Sequence[str], files: ArmFiles | None) -> Arm:
    """Return an arm: the benchmark with what is its own in place of what the descriptor says."""
    ml = descriptor.ml or Ml()
    own = {
        name: value
        for name in ("benchmark_code", "args", "script")
        if (value := getattr(written, name, None)) is not None
    }
    variables = descriptor.env.model_copy(update={"vars": {**descriptor.env.vars, **written.vars}})
    whole = descriptor.model_copy(update={"ml": ml.model_copy(update=own), "env": variables})
    benchmark = _benchmark(whole, arguments, inherit_env=False, exclusive=False)
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
    """Return a command and its arguments; several lines are for /bin/sh."""
    if code is None:
        return ()
    return ("/bin/sh", "-c", code.strip()) if is_script(code) else tuple(shlex.split(code))


def _first(value: timedelta | None, otherwise: timedelta) -> timedelta:
    return otherwise if value is None else value


def _end(descriptor: Descriptor) -> End:
    ec2 = descriptor.aws.ec2
    return End(power=Power.OFF, keep_on_failure=ec2.keep_on_failure if ec2 else None)


def _check_remote(descriptor: Descriptor) -> None:
    """Refuse what only this machine knows, and what would carry a secret into user data."""
    references = {f"env.secrets.{name}": value for name, value in descriptor.env.secrets.items()}
    references |= {".".join(path): text for path, text in sink_secrets(descriptor).items()}
    for key, reference in references.items():
        if reference.startswith("env:"):
            raise PlanError(
                f'{key}: "{reference}" is read on this machine, and the benchmark runs on an instance. '
                'Put the secret into AWS and write "ssm:NAME" or "secretsmanager:NAME".'
            )
    own = [source for arm in file_arms(descriptor) for source in arm.sources]
    for index, source in enumerate([*descriptor.data.sources, *own]):
        if grants_access(source.src):
            raise PlanError(
                f"data.sources[{index}].src: the address holds a password or a signature, which must not get into user "
                "data. Put the file into a bucket that the instance profile may read."
            )


def metrics_of(descriptor: Descriptor) -> tuple[Metric, ...]:
    """Return the metrics that a descriptor asks for, itself and by its presets."""
    metrics = [_metric(each, warmup=descriptor.output.warmup) for each in descriptor.output.every_metric]
    named = descriptor.repeat.metric if descriptor.repeat is not None and descriptor.repeat.until else None
    of_run = next((each for each in OfRun if each.value == named), None)
    if of_run is not None and all(each.name != named for each in metrics):
        # What every run takes needs no table of its own for `until`.
        own = Metric(name=of_run.value, of_run=of_run, units=of_run.units, better=Better.LOWER)
        metrics.append(own)
    return tuple(metrics)


def _metric(written: WrittenMetric, *, warmup: timedelta | int | None) -> Metric:
    if written.warmup is not None:
        warmup = written.warmup
    of_run = OfRun(written.of_run) if written.of_run is not None else None
    if of_run is not None:
        warmup = None  # one value of a run, at its end: there is nothing to leave out
    return Metric(
        name=written.name,
        pattern=written.pattern or "",
        of_run=of_run,
        json=written.json_key,
        after=written.after,
        until=written.until,
        context=tuple(written.context),
        json_step=written.json_step,
        json_labels=tuple(written.json_labels),
        units=of_run.units if of_run is not None else written.units,
        better=Better(written.better) if written.better else None,
        required=written.required,
        number=NumberForm(written.number),
        repaint=Repaint(written.repaint),
        over_ranks=OverRanks(written.over_ranks),
        headline=Headline(written.headline),
        tolerance=written.tolerance,
        warmup=warmup if isinstance(warmup, timedelta) and warmup else None,
        warmup_values=warmup if isinstance(warmup, int) else 0,
        revision=written.full_revision if isinstance(written, PresetMetric) else None,
    )


def sink_secrets(tables: Descriptor | Job) -> dict[tuple[str, ...], str]:
    """Return the references to secrets of the places that records go to, by their keys."""
    kafka, prometheus = tables.kafka, tables.prometheus
    every = {
        ("kafka", "sasl_password"): kafka.sasl_password if kafka else None,
        ("prometheus", "password"): prometheus.password if prometheus else None,
    }
    return {path: reference for path, reference in every.items() if reference}


def _results(written: WrittenResults) -> Results:
    return Results(
        path=written.path,
        format=ResultFormat(written.format),
        metrics=tuple(written.metrics),
        required=written.required,
        better=Better(written.better) if written.better else None,
        over_ranks=OverRanks(written.over_ranks),
        headline=Headline(written.headline),
        tolerance=written.tolerance,
        values=tuple(written.values),
        name=written.name,
        name_from=written.name_from,
        units=written.units,
        units_from=written.units_from,
        step=written.step,
        labels=written.labels,
        delimiter=written.delimiter,
        header=written.header,
    )


def _sinks(descriptor: Descriptor) -> dict[str, Any]:
    """Return the job's tables of the places that `descriptor` sends records to, by their names."""
    kinds = get_type_hints(Job)
    return {
        name: get_args(kinds[name])[0](
            **{key: tuple(value) if isinstance(value, list) else value for key, value in table}
        )
        for name, table in descriptor
        if isinstance(table, SinkTable)
    }
