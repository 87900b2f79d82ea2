"""Checks that look at more than one key, or at the disk. They read the raw table, so that they speak even where other
keys are wrong, and stay silent about what has the wrong type: that has been said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from executor.descriptor.command_checks import command, references, shell_syntax
from executor.descriptor.ec2_table import CAPACITY_BLOCK, ON_DEMAND, market_of
from executor.descriptor.file_checks import files
from executor.descriptor.findings import Finding
from executor.descriptor.metric_checks import (
    examples,
    metric_context,
    metric_names,
    metric_sources,
    metric_units,
    pattern_groups,
    section_marks,
)
from executor.descriptor.preset_checks import presets
from executor.descriptor.raw_table import ERROR, WARNING, Raw, RawFinding, Where, at, items, text_of
from executor.descriptor.repeat_checks import repeats
from executor.descriptor.results_table import result_files
from executor.descriptor.script_checks import script_files
from executor.descriptor.secret_values import looks_secret

_IMAGE = re.compile(r"ami-[0-9a-f]+|ssm:/.+|/aws/service/.+|resolve:ssm:.+")


def check(table: Raw, *, file: str, folder: Path | None, script: Path | None = None) -> list[Finding]:
    """Return what is wrong between the keys of `table`.

    `folder` is the descriptor's own; without one (it came by message) nothing is looked up on this disk.
    `script` is what `--script` names.
    """
    found = [each for one in _CHECKS for each in one(table)]
    if folder is not None:
        found += [*files(table, folder), *script_files(table, folder, script)]
    return [
        Finding(file=file, path=path, problem=problem, fix=fix, severity=severity)
        for path, problem, fix, severity in found
    ]


def _nul_characters(node: Any, path: Where = ()) -> Iterator[RawFinding]:
    """No text of a job may hold what no system call, and no reader of the job descriptor, takes."""
    if isinstance(node, str) and "\0" in node:
        yield path, "holds a NUL character", "remove \\u0000 from the text", ERROR
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _nul_characters(key, (*path, key))
            yield from _nul_characters(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _nul_characters(value, (*path, index))


def _labels(table: Raw) -> Iterator[RawFinding]:
    labels = at(table, "info", "labels")
    if len(labels) > 10:
        yield (
            ("info", "labels"),
            f"holds {len(labels)} labels",
            "keep at most 10: CloudWatch takes no more dimensions",
            ERROR,
        )
    for name in ("action-id", "client-id", "parent-action-id", "rank", "process_rank", "repeat"):
        if name in labels:
            yield (
                ("info", "labels", name),
                "is a label that every metric gets by itself",
                "choose another name",
                ERROR,
            )


def _engine(table: Raw) -> Iterator[RawFinding]:
    engine = text_of(at(table, "info"), "execution_engine") or "default"
    env, ec2 = at(table, "env"), at(table, "aws", "ec2")
    image = text_of(env, "docker_image")
    if engine == "aws.ec2" and not (ec2.get("image") or env.get("image") or _IMAGE.fullmatch(image)):
        yield (
            ("aws", "ec2", "image"),
            "no AMI is named",
            'add image = "ami-…" to [aws.ec2] before it runs on EC2',
            WARNING,
        )
    scheduling = text_of(at(table, "info"), "scheduling")
    if scheduling not in ("", "single_run") and engine in ("default", "local", "aws.ec2"):
        problem = f'"{scheduling}" is for the benchmark service, which repeats it; `bai run` and `bai submit` run it once'
        yield ("info", "scheduling"), problem, 'write "single_run", or leave it to the service', WARNING
    if engine in ("default", "local") and image and not _IMAGE.fullmatch(image):
        problem = "no container is started here: the benchmark runs with this machine's own software"
        yield (
            ("env", "docker_image"),
            problem,
            "install what it needs; [env] python names a Python to use",
            WARNING,
        )


def _market(table: Raw) -> Iterator[RawFinding]:
    ec2 = at(table, "aws", "ec2")
    market = market_of(at(ec2, "run_instances"))
    if ec2.get("on_demand_after_spot") is True and market != "spot":
        yield (
            ("aws", "ec2", "on_demand_after_spot"),
            f"is for machines on spot, and these are {_MARKETS.get(market, f'on the market {market}')}",
            'add run_instances = { InstanceMarketOptions = { MarketType = "spot" } }, or remove it',
            ERROR,
        )


def _network(table: Raw) -> Iterator[RawFinding]:
    ec2 = at(table, "aws", "ec2")
    if "efa" in ec2 and at(ec2, "run_instances").get("NetworkInterfaces"):
        yield (
            ("aws", "ec2", "efa"),
            "writes the network interfaces of the type, and run_instances has NetworkInterfaces of its own",
            "remove one of them",
            ERROR,
        )


_MARKETS = {ON_DEMAND: "on demand anyway", CAPACITY_BLOCK: "in a capacity block"}

_OF_STRATEGIES = {
    "launch": ("horovod", "mpi"),
    "mpirun_options": ("horovod", "mpi"),
    "max_restarts": ("torchrun",),
    "cpus_per_process": ("horovod", "mpi", "torchrun"),
}
"""Keys of `[hardware.distributed]` that other strategies do not look at."""


def _strategy(table: Raw) -> Iterator[RawFinding]:
    hardware = at(table, "hardware")
    strategy = text_of(hardware, "strategy") or "single_node"
    if strategy == "inference" and not at(table, "server"):
        yield (
            ("server",),
            "is missing, and the strategy is inference",
            "describe the server under [server] and [server.env]",
            ERROR,
        )
    many = at(hardware, "distributed").get("num_instances")
    if strategy == "single_node" and isinstance(many, int) and many > 1:
        fix = "remove it"
        yield (
            ("hardware", "distributed", "num_instances"),
            f"single_node uses one machine, not {many}",
            fix,
            WARNING,
        )
    for key, users in _OF_STRATEGIES.items():
        if key in at(hardware, "distributed") and strategy not in users:
            problem = f"is for {' or '.join(users)}, and the strategy is {strategy}"
            yield ("hardware", "distributed", key), problem, "remove it", WARNING
    if text_of(at(hardware, "distributed"), "launch") == "user" and "mpirun_options" in at(
        hardware, "distributed"
    ):
        problem = 'is for an mpirun that is started here, and launch = "user" leaves that to the command'
        yield ("hardware", "distributed", "mpirun_options"), problem, "remove it", WARNING
    availability = "availability_zone", "aws_zone_id"
    if all(text_of(hardware, key) for key in availability):
        yield (
            ("hardware", "aws_zone_id"),
            "is not used: availability_zone wins",
            "keep one of the two",
            WARNING,
        )


_BURSTS = ("gp2", "st1", "sc1")
"""Volumes that are fast as long as they have credits: https://docs.aws.amazon.com/ebs/latest/userguide/ebs-volume-types.html"""


def _volumes(table: Raw) -> Iterator[RawFinding]:
    for where, device in items(table, "aws", "ec2", "run_instances", "BlockDeviceMappings"):
        kind = text_of(at(device, "Ebs"), "VolumeType")
        if kind in _BURSTS:
            problem = (
                f"{kind} is slower once its burst credits are spent, in the middle of a benchmark perhaps"
            )
            fix = 'write VolumeType = "gp3", whose throughput stays'
            yield (*where, "Ebs", "VolumeType"), problem, fix, WARNING


def _secrets(table: Raw) -> Iterator[RawFinding]:
    for where in (("env", "vars"), ("server", "env", "vars")):
        for name, value in at(table, *where).items():
            why = looks_secret(name, value) if isinstance(value, str) else None
            if why:
                fix = f'put it into [env.secrets]: {name} = "env:{name}" takes it from your environment where it runs'
                yield (
                    (*where, name),
                    f"its value {why}, and would be written to disk and to user data",
                    fix,
                    ERROR,
                )
    for name in at(table, "env", "secrets"):
        if name in at(table, "env", "vars"):
            yield ("env", "secrets", name), "stands in [env.vars] as well", "keep one of the two", ERROR


def _kafka(table: Raw) -> Iterator[RawFinding]:
    kafka = at(table, "kafka")
    protocol, mechanism = text_of(kafka, "security_protocol"), text_of(kafka, "sasl_mechanism")
    if not protocol.startswith("SASL"):
        return
    if "sasl_mechanism" not in kafka:
        fix = 'add sasl_mechanism, for example "SCRAM-SHA-512", with sasl_username and sasl_password'
        yield ("kafka", "sasl_mechanism"), f"is missing, and security_protocol is {protocol}", fix, ERROR
    elif mechanism != "AWS_MSK_IAM":
        for key, example in (("sasl_username", "metrics"), ("sasl_password", "env:KAFKA_PASSWORD")):
            if key not in kafka:
                yield (
                    ("kafka", key),
                    f"is missing, and {mechanism} needs it",
                    f'add {key} = "{example}"',
                    ERROR,
                )


def _prometheus(table: Raw) -> Iterator[RawFinding]:
    if "prometheus" not in table:
        return
    prometheus = at(table, "prometheus")
    if not {"pushgateway", "listen"} & prometheus.keys():
        fix = 'add pushgateway = "http://pushgateway:9091", or listen = "127.0.0.1:9109"'
        yield ("prometheus",), "names no address", fix, ERROR
    for key, other in (("username", "password"), ("password", "username")):
        if key in prometheus and other not in prometheus:
            example = "ssm:/bai/pushgateway-password" if other == "password" else "metrics"
            fix = f'add {other} = "{example}", or remove {key}'
            yield ("prometheus", other), f"is missing, and {key} is there", fix, ERROR
    for key in ("username", "delete_on_end"):
        if prometheus.get(key) and "pushgateway" not in prometheus:
            yield ("prometheus", key), "is for a Pushgateway, and none is named", "remove it", WARNING


_CHECKS: tuple[Callable[[Raw], Iterator[RawFinding]], ...] = (
    _nul_characters,
    _labels,
    command,
    shell_syntax,
    _engine,
    _strategy,
    _market,
    _network,
    _volumes,
    _secrets,
    references,
    metric_names,
    metric_sources,
    metric_units,
    pattern_groups,
    metric_context,
    section_marks,
    presets,
    result_files,
    examples,
    repeats,
    _kafka,
    _prometheus,
)
