"""Checks that look at more than one key, or at the disk. They read the raw table, so that they speak even where other
keys are wrong, and stay silent about what has the wrong type: that has been said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from executor.descriptor.command_checks import command, references, shell_syntax
from executor.descriptor.file_checks import files
from executor.descriptor.findings import Finding
from executor.descriptor.metric_checks import examples, metric_names, metric_units, pattern_groups
from executor.descriptor.raw_table import ERROR, WARNING, Raw, Told, Where, at, text_of
from executor.descriptor.script_checks import script_files
from executor.descriptor.secret_values import looks_secret

_IMAGE = re.compile(r"ami-[0-9a-f]+|ssm:/.+|/aws/service/.+|resolve:ssm:.+")


def check(table: Raw, *, file: str, folder: Path | None, script: Path | None = None) -> list[Finding]:
    """Return what is wrong between the keys of `table`.

    `folder` is the descriptor's own; without one (it came by message) nothing is looked up on this disk.
    `script` is what `--script` names.
    """
    told = [each for one in _CHECKS for each in one(table)]
    if folder is not None:
        told += [*files(table, folder), *script_files(table, folder, script)]
    return [
        Finding(file=file, path=path, problem=problem, fix=fix, severity=severity)
        for path, problem, fix, severity in told
    ]


def _nul_characters(node: Any, path: Where = ()) -> Iterator[Told]:
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


def _labels(table: Raw) -> Iterator[Told]:
    labels = at(table, "info", "labels")
    if len(labels) > 10:
        yield (
            ("info", "labels"),
            f"holds {len(labels)} labels",
            "keep at most 10: CloudWatch takes no more dimensions",
            ERROR,
        )
    for name in ("action-id", "client-id", "parent-action-id"):
        if name in labels:
            yield (
                ("info", "labels", name),
                "is a label that every metric gets by itself",
                "choose another name",
                ERROR,
            )


def _engine(table: Raw) -> Iterator[Told]:
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


def _strategy(table: Raw) -> Iterator[Told]:
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
    availability = "availability_zone", "aws_zone_id"
    if all(text_of(hardware, key) for key in availability):
        yield (
            ("hardware", "aws_zone_id"),
            "is not used: availability_zone wins",
            "keep one of the two",
            WARNING,
        )


def _secrets(table: Raw) -> Iterator[Told]:
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


def _kafka(table: Raw) -> Iterator[Told]:
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


_CHECKS: tuple[Callable[[Raw], Iterator[Told]], ...] = (
    _nul_characters,
    _labels,
    command,
    shell_syntax,
    _engine,
    _strategy,
    _secrets,
    references,
    metric_names,
    metric_units,
    pattern_groups,
    examples,
    _kafka,
)
