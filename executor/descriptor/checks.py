"""Checks that look at more than one key, or at the disk. They read the raw table, so that they speak even where other
keys are wrong, and stay silent about what has the wrong type: that has been said."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from executor.descriptor.file_checks import files
from executor.descriptor.findings import Finding
from executor.descriptor.metric_checks import examples, metric_names
from executor.descriptor.raw_table import ERROR, WARNING, Raw, Told, at, text_of
from executor.descriptor.secret_values import known_secret, looks_secret

_IMAGE = re.compile(r"ami-[0-9a-f]+|ssm:/.+|/aws/service/.+|resolve:ssm:.+")
_REFERENCE = re.compile(r"(?<!\$)\$\(([^()]*)\)")
_PROVIDED = re.compile(r"BENCHMARK_AI\w*|BAI_\w+|HOME|PATH|USER|LOGNAME|SHELL|LANG|TMPDIR|PWD|HOSTNAME")


def check(table: Raw, *, file: str, folder: Path | None) -> list[Finding]:
    """Return what is wrong between the keys of `table`.

    `folder` is the descriptor's own; without one (it came by message) nothing is looked up on this disk.
    """
    told = [each for one in _CHECKS for each in one(table)]
    if folder is not None:
        told += files(table, folder)
    return [
        Finding(file=file, path=path, problem=problem, fix=fix, severity=severity)
        for path, problem, fix, severity in told
    ]


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


def _command(table: Raw) -> Iterator[Told]:
    ml = at(table, "ml")
    code, args = text_of(ml, "benchmark_code"), text_of(ml, "args")
    where = ("ml", "benchmark_code")
    engine = text_of(at(table, "info"), "execution_engine") or "default"
    if not code.strip() and not isinstance(ml.get("benchmark_code"), (bool, int, float, list, dict)):
        if text_of(at(table, "hardware"), "strategy") != "inference" and engine in (
            "default",
            "local",
            "aws.ec2",
        ):
            what = "is empty" if "benchmark_code" in ml else "is missing: nothing says what to run"
            yield (
                where,
                what,
                'write [ml] benchmark_code = "python3 train.py", the command of the benchmark',
                ERROR,
            )
        return
    several = is_script(code)
    for key, text in (("args", args),) if several else (("benchmark_code", code), ("args", args)):
        try:
            shlex.split(text)
        except ValueError as error:
            odd = (
                "a quote is never closed" if "quotation" in str(error) else "it ends with a single backslash"
            )
            fix = "close it, or write \\' or \\\" for a quote that is meant as text (in TOML's single or triple quotes)"
            yield ("ml", key), f"cannot be split into arguments: {odd}", fix, ERROR
    for key, text in (("benchmark_code", code), ("args", args)):
        kind = known_secret(text)
        if kind:
            fix = 'put it into [env.secrets], for example TOKEN = "env:TOKEN", and write $(TOKEN) here'
            yield ("ml", key), f"holds what looks like {kind}", fix, ERROR
    if not several and re.search(r"(^|\s)(\|\|?|&&|;|>>?|2>&1|<)(\s|$)", _unquoted(code)):
        fix = "write it in several lines, between three quotes ''', to have /bin/sh run it"
        yield where, "uses shell syntax, but no shell runs a one-line command", fix, WARNING


def is_script(code: str) -> bool:
    """Whether `benchmark_code` is the text of a script rather than a command."""
    return "\n" in code.strip() or code.strip().startswith("#!")


def _unquoted(text: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"", "Q", text)


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
        fix = 'write strategy = "torchrun" or "horovod" to use them, or remove it'
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


def _references(table: Raw) -> Iterator[Told]:
    if text_of(at(table, "hardware"), "strategy") == "inference":
        return
    known = {*at(table, "env", "vars"), *at(table, "env", "secrets")}
    script = at(table, "ml", "script")
    for key in ("benchmark_code", "args"):
        text = text_of(at(table, "ml"), key)
        for name in dict.fromkeys(_REFERENCE.findall("" if is_script(text) else text)):
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                fix = "$(NAME) is the value of an environment variable; a script of several lines may run commands"
                yield ("ml", key), f"$({name}) runs no command", fix, WARNING
            elif name == "BAI_SCRIPTS_PATH" and not script:
                fix = 'add [ml.script] path = "." to bring this folder along; the benchmark service brings its own'
                yield ("ml", key), "uses $(BAI_SCRIPTS_PATH), but no scripts are named", fix, WARNING
            elif name not in known and not _PROVIDED.fullmatch(name):
                fix = f"set {name} under [env.vars]; otherwise it must be in the environment where it runs"
                yield ("ml", key), f"$({name}) is set by nothing in this file", fix, WARNING


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
    _labels,
    _command,
    _engine,
    _strategy,
    _secrets,
    _references,
    metric_names,
    examples,
    _kafka,
)
