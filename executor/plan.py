"""Turns what a user wrote into the job descriptor of one job. Pure: no disk, no network, no clock, no randomness."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bai_agent.errors import BaiError
from bai_agent.job import (
    Benchmark,
    Better,
    Buffering,
    Git,
    HostMetrics,
    Identity,
    Job,
    Kafka,
    Limits,
    Metric,
    Output,
    Source,
    SourceKind,
    Store,
    Unpack,
)
from executor.descriptor.checks import is_script
from executor.descriptor.file_checks import local_path
from executor.descriptor.model import Descriptor
from executor.descriptor.service_tables import Metric as WrittenMetric
from executor.descriptor.service_tables import Source as WrittenSource
from executor.descriptor.values import as_label

_UNPACK = {False: Unpack.NO, True: Unpack.INTO, "into": Unpack.INTO, "in_place": Unpack.IN_PLACE}
_NEEDS = {
    "horovod": "several instances and mpirun",
    "torchrun": "several instances and torchrun",
    "inference": "a server beside the benchmark",
}


class PlanError(BaiError):
    """A valid descriptor that cannot be run in the way that was asked for."""


def plan(
    descriptor: Descriptor,
    *,
    folder: Path,
    job_id: str,
    client_id: str,
    where: Literal["local"] = "local",
    store_url: str | None = None,
    arguments: Sequence[str] = (),
    scripts: Path | None = None,
    data_root: Path | None = None,
    home: Path | None = None,
    git: Git | None = None,
    kafka: Kafka | None = None,
) -> Job:
    """Return the job descriptor with which an agent on this machine runs `descriptor`. Raises PlanError.

    folder: the absolute folder of the descriptor; its relative paths start there.
    arguments: put behind the benchmark's own, as they are.
    scripts: the folder that the agent takes the scripts from: the copy that `copy_scripts` made, or the original.
    data_root: a folder put before the absolute paths of data. home: what `~` in them means.
    kafka: where metrics go when the descriptor does not say.
    """
    strategy = descriptor.hardware.strategy
    if strategy != "single_node":
        raise PlanError(
            f"hardware.strategy: {strategy} needs {_NEEDS[strategy]}; on this machine ({where}) this version runs single_node. "
            'Write strategy = "single_node" to run it here.'
        )
    limits = descriptor.limits
    return Job(
        job=_identity(descriptor, job_id=job_id, client_id=client_id, folder=folder),
        benchmark=_benchmark(descriptor, arguments),
        limits=Limits(
            max_runtime=limits.max_runtime,
            pull_timeout=limits.pull_timeout,
            grace=limits.grace,
            drain=limits.drain,
            no_output=limits.no_output,
        ),
        sources=(
            *_scripts(descriptor, folder=folder, scripts=scripts),
            *(
                _source(each, folder=folder, data_root=data_root, home=home)
                for each in descriptor.data.sources
            ),
        ),
        metrics=tuple(_metric(each) for each in descriptor.output.metrics),
        host_metrics=HostMetrics(
            enabled=descriptor.host_metrics.enabled, interval=descriptor.host_metrics.interval
        ),
        kafka=_kafka(descriptor) or kafka,
        output=Output(artifacts=tuple(descriptor.output.artifacts)),
        store=Store(url=store_url) if store_url else None,
        git=git,
    )


def scripts_folder(descriptor: Descriptor, *, folder: Path) -> Path | None:
    """Return the absolute folder of the benchmark's own files, or None where it brings none."""
    script = descriptor.ml.script if descriptor.ml else None
    return _normal(folder / script.path) if script and script.path is not None else None


def task_name(descriptor: Descriptor) -> str | None:
    """Return the benchmark's name as a label, from either place in which users write it."""
    return descriptor.info.labels.get("task_name") or as_label(descriptor.info.task_name or "") or None


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
    name = descriptor.info.task_name or labels.get("task_name") or folder.name
    return Identity(id=job_id, name=name, client_id=client_id, labels=labels)


def _benchmark(descriptor: Descriptor, arguments: Sequence[str]) -> Benchmark:
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
        inherit_env=True,
        python=env.python,
        requirements=ml.script.requirements if ml and ml.script else None,
        user=env.user,
        buffering=Buffering(descriptor.output.buffering),
    )


def _scripts(descriptor: Descriptor, *, folder: Path, scripts: Path | None) -> tuple[Source, ...]:
    script = descriptor.ml.script if descriptor.ml else None
    taken = scripts or scripts_folder(descriptor, folder=folder)
    if taken is not None:
        return (Source(src=f"{_normal(taken).as_uri()}/", path=".", kind=SourceKind.SCRIPTS, directory=True),)
    if script and script.script:
        archive = _normal(folder / script.script).as_uri()
        return (Source(src=archive, path=".", kind=SourceKind.SCRIPTS, unpack=Unpack.INTO),)
    return ()


def _source(written: WrittenSource, *, folder: Path, data_root: Path | None, home: Path | None) -> Source:
    local = local_path(written.src, folder)
    src = written.src
    if local is not None and not src.startswith("file:"):
        src = _normal(local).as_uri() + ("/" if written.src.endswith("/") else "")
    return Source(
        src=src,
        path=_target(written.path, data_root=data_root, home=home),
        id=written.id,
        directory=src.endswith("/"),
        md5=written.md5,
        sha256=written.sha256,
        unpack=_UNPACK[written.unpack],
        mode=written.mode,
        region=written.region,
        anonymous=written.anonymous,
    )


def _target(path: str, *, data_root: Path | None, home: Path | None) -> str:
    if path.startswith("~/"):
        if home is None:
            raise PlanError(
                f'data.sources: the path "{path}" starts at a home folder, and none is known. Write it absolute.'
            )
        path = str(home / path[2:].lstrip("/"))
    if path.startswith("/") and data_root is not None:
        return str(data_root / path.strip("/")) + ("/" if path.endswith("/") else "")
    return path


def _metric(written: WrittenMetric) -> Metric:
    return Metric(
        name=written.name,
        pattern=written.pattern,
        units=written.units,
        better=Better(written.better) if written.better else None,
        required=written.required,
    )


def _kafka(descriptor: Descriptor) -> Kafka | None:
    written = descriptor.kafka
    if written is None:
        return None
    return Kafka(
        brokers=tuple(written.brokers),
        topic=written.topic,
        security_protocol=written.security_protocol,
        sasl_mechanism=written.sasl_mechanism,
        sasl_username=written.sasl_username,
        sasl_password=written.sasl_password,
        ssl_cafile=written.ssl_cafile,
        ssl_certfile=written.ssl_certfile,
        ssl_keyfile=written.ssl_keyfile,
        host_metrics=written.host_metrics,
    )


def _normal(path: Path) -> Path:
    """Return `path` without "." and ".."; links are not looked at, as that would need the disk."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return Path(*parts)
