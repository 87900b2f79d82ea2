"""Turns what a user wrote into the job descriptor of one job. Pure: no disk, no network, no clock, no randomness."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

from bai_agent.job.descriptor import (
    EC2_MAX_RUNTIME,
    Benchmark,
    Better,
    Buffering,
    End,
    Git,
    HostMetrics,
    Identity,
    Job,
    Kafka,
    Limits,
    Metric,
    NumberForm,
    Output,
    Power,
    Repaint,
    Store,
    StrategyTable,
)
from bai_agent.job.source_schemes import grants_access
from executor.config import LimitSettings as DefaultLimits
from executor.descriptor.command_checks import is_script
from executor.descriptor.model import NOT_STARTED, Descriptor, SinkTable, Strategy
from executor.descriptor.service_tables import MetricTable as WrittenMetric
from executor.descriptor.values import as_label
from executor.planning.job_sources import PlanError, Uploaded, job_sources, moved
from executor.planning.scripts_folder import ScriptsOrigin

_NO_DEFAULTS = DefaultLimits()


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
    kafka: Kafka | None = None,
    defaults: DefaultLimits = _NO_DEFAULTS,
    uploads: Mapping[Path, Uploaded] = MappingProxyType({}),
) -> Job:
    """Return the job descriptor with which an agent runs `descriptor`, here or on an instance. Raises PlanError.

    folder: the absolute folder of the descriptor; its relative paths start there.
    arguments: put behind the benchmark's own, as they are.
    scripts: what the agent takes the scripts from: the copy that `copy_scripts` made, or the original.
    data_root: a folder put before the absolute paths of data. home: what `~` in them means.
    kafka: where metrics go when the descriptor does not say.
    uploads: on EC2, what each local file or folder (its absolute path) is in the exchange bucket.
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
    sources = job_sources(descriptor, scripts=scripts, folder=folder, data_root=data_root, home=home)
    return Job(
        job=_identity(descriptor, job_id=job_id, client_id=client_id, folder=folder),
        benchmark=_benchmark(descriptor, arguments, inherit_env=where == "local"),
        strategy=_strategy(descriptor),
        limits=_limits(descriptor, defaults, longest=EC2_MAX_RUNTIME if where == "ec2" else None),
        sources=tuple(moved(each, uploads) for each in sources) if where == "ec2" else sources,
        metrics=metrics_of(descriptor),
        host_metrics=HostMetrics(
            enabled=descriptor.host_metrics.enabled, interval=descriptor.host_metrics.interval
        ),
        output=Output(artifacts=tuple(descriptor.output.artifacts)),
        store=store,
        end=_end(descriptor) if where == "ec2" else End(),
        git=git,
        **{"kafka": kafka, **_sinks(descriptor)},
    )


def task_name(descriptor: Descriptor) -> str | None:
    """Return the benchmark's name as a label, from either place in which users write it."""
    return descriptor.info.labels.get("task_name") or as_label(descriptor.info.task_name or "") or None


def _strategy(descriptor: Descriptor) -> StrategyTable:
    hardware = descriptor.hardware
    if hardware.strategy == "single_node" or hardware.distributed is None:
        return StrategyTable(name=hardware.strategy)
    return StrategyTable(
        name=hardware.strategy,
        nodes=hardware.distributed.num_instances,
        processes_per_node=hardware.distributed.processes_per_instance,
    )


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


def _benchmark(descriptor: Descriptor, arguments: Sequence[str], *, inherit_env: bool) -> Benchmark:
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
        user=env.user,
        buffering=Buffering(descriptor.output.buffering),
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
        drain=_first(of("drain"), written.drain),
        no_output=of("no_output"),
    )


def _first(value: timedelta | None, otherwise: timedelta) -> timedelta:
    return otherwise if value is None else value


def _end(descriptor: Descriptor) -> End:
    ec2 = descriptor.aws.ec2
    return End(power=Power.OFF, keep_on_failure=ec2.keep_on_failure if ec2 else None)


def _check_remote(descriptor: Descriptor) -> None:
    """Refuse what only this machine knows, and what would carry a secret into user data."""
    references = {f"env.secrets.{name}": value for name, value in descriptor.env.secrets.items()}
    if descriptor.kafka and descriptor.kafka.sasl_password:
        references["kafka.sasl_password"] = descriptor.kafka.sasl_password
    for key, reference in references.items():
        if reference.startswith("env:"):
            raise PlanError(
                f'{key}: "{reference}" is read on this machine, and the benchmark runs on an instance. '
                'Put the secret into AWS and write "ssm:NAME" or "secretsmanager:NAME".'
            )
    for index, source in enumerate(descriptor.data.sources):
        if grants_access(source.src):
            raise PlanError(
                f"data.sources[{index}].src: the address holds a password or a signature, which must not get into user "
                "data. Put the file into a bucket that the instance profile may read."
            )


def metrics_of(descriptor: Descriptor) -> tuple[Metric, ...]:
    """Return the metrics that a descriptor asks for."""
    return tuple(map(_metric, descriptor.output.metrics))


def _metric(written: WrittenMetric) -> Metric:
    return Metric(
        name=written.name,
        pattern=written.pattern,
        units=written.units,
        better=Better(written.better) if written.better else None,
        required=written.required,
        number=NumberForm(written.number),
        repaint=Repaint(written.repaint),
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
