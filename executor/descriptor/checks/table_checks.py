"""Checks of a descriptor that involve several keys, or files on this disk. The checks read the raw table, so that they also
work if other keys are invalid. The checks ignore values of a wrong type, because the model reports such
values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bai_agent.job.descriptor.source_tables import overlapping_target
from bai_agent.job.descriptor.strategy_tables import CONTAINER_STRATEGIES
from executor.descriptor.checks.command_checks import (
    OUR_ENGINES,
    command_given,
    command_words,
    plain_secrets,
    references,
    shell_syntax,
    variable_references,
)
from executor.descriptor.checks.file_checks import data_files, script_files, script_table
from executor.descriptor.checks.machine_checks import (
    adaptdl,
    checkpoints,
    distributed_table,
    elastic,
    restarts,
    server,
    size_policy,
)
from executor.descriptor.checks.metric_checks import (
    examples,
    metric_context,
    metric_names,
    metric_sources,
    metric_units,
    pattern_groups,
    presets,
    result_labels,
    section_marks,
)
from executor.descriptor.checks.repeat_checks import repeats
from executor.descriptor.checks.secret_values import looks_secret, secret_fix
from executor.descriptor.ec2_table import CAPACITY_BLOCK, ON_DEMAND, read_market
from executor.descriptor.findings import Finding
from executor.descriptor.matrix_table import matrix
from executor.descriptor.raw_table import (
    Raw,
    RawFinding,
    Where,
    at,
    error,
    items,
    text_at,
    warning,
    written_engine,
    written_strategy,
)

_IMAGE = re.compile(r"auto|ami-[0-9a-f]+|ssm:/.+|/aws/service/.+|resolve:ssm:.+")
_LABELS_OF_ALL = ("action-id", "client-id", "parent-action-id", "rank", "process_rank", "repeat")
"""Names of labels that bai itself may add to every metric."""
_MOST_LABELS = 10
_MARKETS = {ON_DEMAND: "on demand anyway", CAPACITY_BLOCK: "in a capacity block"}
_BURSTS = ("gp2", "st1", "sc1")
"""Types of volumes that are fast only as long as they have credits:
https://docs.aws.amazon.com/ebs/latest/userguide/ebs-volume-types.html"""


def check(table: Raw, *, file: str, folder: Path | None, script: Path | None = None) -> list[Finding]:
    """Return the mistakes that involve several keys of `table`. folder: folder of the descriptor; None if the
    descriptor came in a message, so that no file on this disk belongs to it. script: value of `--script`.
    """
    found = [each for one in _CHECKS for each in one(table)]
    if folder is not None:
        found += [*data_files(table, folder), *script_table(table, folder)]
        found += script_files(table, folder, script)
    return [
        Finding(file=file, path=path, problem=problem, fix=fix, severity=severity)
        for path, problem, fix, severity in found
    ]


def _nul_characters(node: Any, path: Where = ()) -> Iterator[RawFinding]:
    """Check for NUL characters, because neither system calls nor readers of the job descriptor accept
    them."""
    if isinstance(node, str) and "\0" in node:
        yield error(path, "holds a NUL character", "remove \\u0000 from the text")
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _nul_characters(key, (*path, key))
            yield from _nul_characters(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _nul_characters(value, (*path, index))


def _labels(table: Raw) -> Iterator[RawFinding]:
    labels = at(table, "info", "labels")
    if len(labels) > _MOST_LABELS:
        fix = f"keep at most {_MOST_LABELS} labels, because CloudWatch takes no more dimensions"
        yield error(("info", "labels"), f"holds {len(labels)} labels", fix)
    for name in _LABELS_OF_ALL:
        if name in labels:
            problem = "is a label that bai adds to every metric"
            yield error(("info", "labels", name), problem, "choose another name")


def _container(table: Raw) -> Iterator[RawFinding]:
    env, script = at(table, "env"), at(table, "ml", "script")
    if not text_at(env, "container"):
        return
    strategy = written_strategy(table)
    if strategy not in CONTAINER_STRATEGIES:
        problem = f"is only for {', '.join(CONTAINER_STRATEGIES)}, but the strategy is {strategy}"
        yield error(("env", "container"), problem, "remove it, or use one of these strategies")
    own = "the image has its own Python and packages"
    if text_at(env, "python"):
        fix = "remove it; name the Python of the image in [ml] benchmark_code"
        yield error(("env", "python"), f"cannot be used with a container: {own}", fix)
    if text_at(script, "requirements"):
        fix = "remove it, and install the packages in the image"
        yield error(("ml", "script", "requirements"), f"cannot be used with a container: {own}", fix)


def _image(table: Raw) -> Iterator[RawFinding]:
    env, ec2 = at(table, "env"), at(table, "aws", "ec2")
    image = text_at(env, "docker_image")
    engine = written_engine(table)
    if (
        engine == "aws.ec2"
        and image
        and not (ec2.get("image") or env.get("image") or _IMAGE.fullmatch(image))
    ):
        fix = 'add image = "auto" or an AMI to [aws.ec2] before the benchmark runs on EC2'
        yield warning(("aws", "ec2", "image"), f'"{image}" is not an AMI', fix)
    if env.get("container"):
        return
    if engine in ("default", "local") and image and not _IMAGE.fullmatch(image):
        problem = "starts no container, so the benchmark runs with the software of this machine"
        fix = "install the software on this machine, or write the image as [env] container"
        yield warning(("env", "docker_image"), problem, fix)


def _scheduling(table: Raw) -> Iterator[RawFinding]:
    scheduling = text_at(at(table, "info"), "scheduling")
    if scheduling not in ("", "single_run") and written_engine(table) in OUR_ENGINES:
        problem = f'"{scheduling}" has an effect only in the benchmark service; `bai run` and `bai submit` run a job once'
        yield warning(("info", "scheduling"), problem, 'write "single_run", or leave it to the service')


def _market(table: Raw) -> Iterator[RawFinding]:
    ec2 = at(table, "aws", "ec2")
    market = read_market(at(ec2, "run_instances"))
    if ec2.get("spot") is True and market == ON_DEMAND:
        market = "spot"
    if ec2.get("on_demand_after_spot") is True and market != "spot":
        yield error(
            ("aws", "ec2", "on_demand_after_spot"),
            f"needs spot machines, but the machines are {_MARKETS.get(market, f'on the market {market}')}",
            "add spot = true, or remove it",
        )


def _network(table: Raw) -> Iterator[RawFinding]:
    ec2 = at(table, "aws", "ec2")
    if "efa" in ec2 and at(ec2, "run_instances").get("NetworkInterfaces"):
        problem = "requests network interfaces, but run_instances has NetworkInterfaces of its own"
        yield error(("aws", "ec2", "efa"), problem, "remove one of them")


def _zone(table: Raw) -> Iterator[RawFinding]:
    hardware = at(table, "hardware")
    if text_at(hardware, "availability_zone") and text_at(hardware, "aws_zone_id"):
        problem = "is not used: availability_zone wins"
        yield warning(("hardware", "aws_zone_id"), problem, "keep one of the two")


def _volumes(table: Raw) -> Iterator[RawFinding]:
    for where, device in items(table, "aws", "ec2", "run_instances", "BlockDeviceMappings"):
        kind = text_at(at(device, "Ebs"), "VolumeType")
        if kind in _BURSTS:
            problem = (
                f"{kind} is slower after its burst credits are used up, perhaps in the middle of a benchmark"
            )
            yield warning(
                (*where, "Ebs", "VolumeType"), problem, 'write VolumeType = "gp3", which keeps its throughput'
            )


def _mounts(table: Raw) -> Iterator[RawFinding]:
    """Check that the targets of `[[mounts]]` do not overlap."""
    found = [(where, text_at(mount, "target")) for where, mount in items(table, "mounts")]
    written = [(where, target) for where, target in found if target]
    if (overlap := overlapping_target([target for _, target in written])) is not None:
        where, target = written[overlap[0]]
        yield error((*where, "target"), f'"{target}" overlaps with "{overlap[1]}"', "write separate folders")


def _secrets(table: Raw) -> Iterator[RawFinding]:
    for where in (("env", "vars"), ("server", "env", "vars")):
        for name, value in at(table, *where).items():
            if (why := looks_secret(name, value)) is not None:
                problem = f"its value {why}, and would be written to disk and to user data"
                yield error((*where, name), problem, secret_fix(name))
    for name in at(table, "env", "secrets"):
        if name in at(table, "env", "vars"):
            yield error(("env", "secrets", name), "is also set in [env.vars]", "keep one of the two")


def _prometheus(table: Raw) -> Iterator[RawFinding]:
    prometheus = at(table, "prometheus")
    for key in ("username", "delete_on_end"):
        if prometheus.get(key) and "pushgateway" not in prometheus:
            yield warning(("prometheus", key), "has no effect without pushgateway", "remove it")


_CHECKS: tuple[Callable[[Raw], Iterator[RawFinding]], ...] = (
    _nul_characters,
    _labels,
    command_given,
    command_words,
    plain_secrets,
    shell_syntax,
    _container,
    _image,
    _scheduling,
    server,
    distributed_table,
    _zone,
    _market,
    _network,
    _volumes,
    _mounts,
    _secrets,
    references,
    variable_references,
    metric_names,
    metric_sources,
    metric_units,
    pattern_groups,
    metric_context,
    section_marks,
    presets,
    result_labels,
    examples,
    repeats,
    matrix,
    restarts,
    elastic,
    adaptdl,
    size_policy,
    checkpoints,
    _prometheus,
)
