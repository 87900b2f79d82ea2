"""Types of fields in the tables of both descriptors. Each type has constraints of its values."""

from __future__ import annotations

import math
import re
import warnings
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

from bai_agent.aws.secrets import KINDS
from bai_agent.job.schema.declared import Check, Mistake, MistakeError, WrittenAs, WrittenCheck, wrong
from bai_agent.job.schema.durations import format_duration, parse_duration
from bai_agent.job.schema.json_path import read_json_path

MOST_DIMENSIONS = 30
"""Largest number of dimensions of a metric in CloudWatch:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_MetricDatum.html"""

_DURATION = r"(\d+(\.\d+)?\s*(ms|d|h|m|s)\s*)+"
_DURATION_EXAMPLES = 'write for example "90s", "15m" or "2h"'


def shown(text: str) -> str:
    """Return `text` in quotes, shortened for use in a sentence."""
    return f'"{text}"' if len(text) <= 60 else f'"{text[:57]}…"'


def in_range(least: int, most: int | None = None) -> Check:
    """Return the check that an integer is within a range."""
    bounds = {"minimum": least} if most is None else {"minimum": least, "maximum": most}

    def mistake(number: int | None) -> Mistake | None:
        if number is None or (least <= number and (most is None or number <= most)):
            return None
        if number < least:
            return f"must be at least {least}, not the number {number}", f"write {least} or more"
        return f"must be at most {most}, not the number {number}", f"write {most} or less"

    return Check(mistake, bounds)


ExitStatus = Annotated[int, in_range(1, 255)]
"""Exit code of a program that failed. If a signal ended the program, the exit code is 128 plus the signal's
number."""

Port = Annotated[int, in_range(1, 65535)]


def written_duration(value: object) -> timedelta:
    """Return the duration in a descriptor's text. Raises MistakeError."""
    if not isinstance(value, str):
        number = type(value) in (int, float)
        fix = f'write "{value}s" for seconds, or "15m", "2h"' if number else _DURATION_EXAMPLES
        raise wrong("a duration is a text with a unit", fix)
    try:
        return parse_duration(value)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise wrong(problem, fix or _DURATION_EXAMPLES) from None


def at_least(least: timedelta, fix: str) -> Check:
    """Return a check for durations of at least `least`."""
    mistake = (f"must be at least {format_duration(least)}", fix)
    return Check(lambda duration: mistake if duration < least else None)


def _positive(duration: timedelta) -> Mistake | None:
    if duration > timedelta():
        return None
    return "must be longer than 0", "leave the key out for the default"


Duration = Annotated[
    timedelta,
    WrittenAs(written_duration, {"type": "string", "pattern": rf"^\s*{_DURATION}$"}),
]
PositiveDuration = Annotated[Duration, Check(_positive)]


def _written_duration_or_off(value: object) -> timedelta | None:
    if value == OFF:
        return None
    try:
        return written_duration(value)
    except MistakeError as error:
        [(_, (problem, fix))] = error.mistakes
        raise wrong(problem, f'{fix}, or "{OFF}"') from None


OFF = "off"
"""The word for "no limit" in a key whose default is a duration."""
DurationOrOff = Annotated[
    timedelta | None,
    WrittenAs(
        _written_duration_or_off,
        {"type": "string", "pattern": rf"^\s*({_DURATION}|{OFF})$"},
    ),
]


def _word(text: str) -> Mistake | None:
    if not text:
        return "is empty", "remove the empty text"
    if text.startswith("-") and re.search(r"\s", text):
        option, rest = text.split(maxsplit=1)
        return (
            f"{shown(text)} contains more than one word",
            f'write each word as a separate text: "{option}", "{rest}"',
        )
    return None


Word = Annotated[str, Check(_word)]

FilledText = Annotated[
    str,
    Check(
        lambda text: None if text else ("is empty", "write a text, or leave the key out"), {"minLength": 1}
    ),
]


def _secret_reference(text: str) -> Mistake | None:
    kind, _, name = text.partition(":")
    if kind in KINDS and name:
        return None
    return (
        "is not a reference to a secret",
        'never write the secret itself: "env:NAME" (this machine\'s environment), "ssm:NAME" or "secretsmanager:NAME"',
    )


SecretReference = Annotated[str, Check(_secret_reference, {"pattern": f"^({'|'.join(KINDS)}):.+$"})]


def is_broker(text: str) -> bool:
    """Return whether `text` has the form host:port with a valid port."""
    found = re.fullmatch(r"(?:[^\s:/,]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})", text)
    return found is not None and 0 < int(found[1]) < 65536


def _broker(text: str) -> Mistake | None:
    if is_broker(text):
        return None
    return f"{shown(text)} is not a broker's address", 'write host:port, for example "broker-1:9092"'


def _at_least_one(brokers: tuple[str, ...]) -> Mistake | None:
    return None if brokers else ("is an empty list", 'name at least one, for example ["broker-1:9092"]')


Brokers = Annotated[tuple[Annotated[str, Check(_broker)], ...], Check(_at_least_one)]


def _web_address(text: str) -> Mistake | None:
    try:
        parts = urlsplit(text)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_ok = urlsplit(""), False
    clean = not (parts.query or parts.fragment or "@" in parts.netloc or re.search(r"[\s\x00-\x1f]", text))
    if parts.scheme in ("http", "https") and parts.hostname and port_ok and clean and text.isascii():
        return None
    return (
        f"{shown(text)} is not a web server's address",
        'write for example "http://pushgateway:9091"; user and password have keys of their own',
    )


WebAddress = Annotated[str, Check(_web_address)]


def _request_path(text: str) -> Mistake | None:
    if text and text.isascii() and text.isprintable() and " " not in text:
        return None
    return (
        f"{shown(text)} is not the path of a URL",
        'write for example "/ping", and other characters as %20',
    )


RequestPath = Annotated[str, Check(_request_path, {"pattern": "^[!-~]+$"})]


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of "host:port". Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host) or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError(f'"{text}" is not an address such as "127.0.0.1:9109"')
    if int(port) > 65535:
        raise ValueError(f'"{text}" has a port above 65535')
    return host.strip("[]"), int(port)


def _listen_address(text: str) -> Mistake | None:
    try:
        split_address(text)
    except ValueError:
        fix = 'write host:port, for example "127.0.0.1:9109"'
        return f"{shown(text)} is not an address at which a program can listen", fix
    return None


ListenAddress = Annotated[str, Check(_listen_address)]


def _log_group(text: str) -> Mistake | None:
    if re.fullmatch(r"[A-Za-z0-9._/#-]{1,512}", text):
        return None
    return (
        f"{shown(text)} is not the name of a log group",
        'write up to 512 of A-Z a-z 0-9 . - _ / #, for example "/bai/metrics"',
    )


LogGroup = Annotated[str, Check(_log_group)]


def _namespace(text: str) -> Mistake | None:
    legal = re.fullmatch(r"[A-Za-z0-9._/#: -]{1,255}", text) is not None and text.strip() != ""
    if legal and not text.startswith((":", "AWS/")):
        return None
    return (
        f"{shown(text)} is not a namespace that CloudWatch accepts",
        'write up to 255 letters, digits, spaces and . - _ / # :, with neither ":" nor "AWS/" at the beginning',
    )


Namespace = Annotated[str, Check(_namespace)]


def _dimensions(names: tuple[str, ...]) -> Mistake | None:
    if len(names) <= MOST_DIMENSIONS:
        return None
    return f"holds {len(names)} names", f"keep at most {MOST_DIMENSIONS}: CloudWatch takes no more"


Dimensions = Annotated[tuple[Word, ...], Check(_dimensions)]


def no_tilde(text: str) -> Mistake | None:
    """Return the mistake in a path that begins with `~`; None for other paths."""
    if not text.startswith("~"):
        return None
    return '"~" is not expanded', "write an absolute path, or a relative one without ~"


def inside(text: str) -> Mistake | None:
    """Return the mistake in a path that is empty or leads out of its folder; None for other paths."""
    if not text.strip():
        return "is empty", 'write a path, for example "data/train.npz"'
    return (
        (f"{shown(text)} leads out of its folder", "write a path without ..")
        if ".." in PurePosixPath(text).parts
        else None
    )


def _relative(text: str) -> Mistake | None:
    if text.startswith("/"):
        return f"{shown(text)} is absolute", "write it relative to the folder in which the benchmark runs"
    return no_tilde(text) or inside(text)


RelativePath = Annotated[str, Check(_relative)]


def _folder_of_its_own(text: str) -> Mistake | None:
    if mistake := no_tilde(text) or inside(text):
        return mistake
    if PurePosixPath(text).name:
        return None
    whole = "the whole disk" if text.startswith("/") else "the working folder itself"
    return f"{shown(text)} is {whole}", 'write a folder of its own, for example "checkpoints"'


OwnFolder = Annotated[str, Check(_folder_of_its_own)]
"""Path of a folder. It is absolute or leads into the working folder, but is neither the working folder itself
nor the root."""


def is_glob_below(text: str) -> bool:
    """Return whether `text` is a valid relative glob in every supported Python version, and does not match the
    folder itself."""
    if text.startswith("/") or "\0" in text:
        return False
    parts = PurePosixPath(text).parts
    return bool(parts) and not any("**" in part and part != "**" for part in parts)


def _glob(text: str) -> Mistake | None:
    if is_glob_below(text):
        return None
    return f"{shown(text)} is not a glob", 'let ** stand alone between slashes, for example "runs/**"'


RelativeGlob = Annotated[RelativePath, Check(_glob)]


def _absolute(text: str) -> Mistake | None:
    if text.startswith("/"):
        return None
    return f"{shown(text)} is not absolute", 'write the whole path, for example "/opt/pytorch/bin/python"'


AbsolutePath = Annotated[str, Check(_absolute)]

_IMAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)


def _image(text: str) -> Mistake | None:
    if _IMAGE.fullmatch(text) and len(text) <= 512:
        return None
    return f"{shown(text)} is not the name of an image", 'write for example "registry.example/train:1"'


ImageName = Annotated[str, Check(_image)]


_SYSTEM_FOLDERS = re.compile(
    r"/(bin|boot|dev|etc|lib(32|64|x32)?|proc|run|sbin|sys|usr)(/.*)?|/(home|opt|root|tmp|var)|/var/(lib|log|tmp)"
)
"""Folders of the operating system, and the subfolders of most of these folders."""


def _mount_target(text: str) -> Mistake | None:
    fix = 'write an absolute path of letters, digits, ".", "_" and "-", for example "/efs"'
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", text):
        return f"{shown(text)} is not the path of a folder to mount at", fix
    if {".", ".."} & set(text.split("/")):
        return f'{shown(text)} has a "." or ".." part', fix
    if _SYSTEM_FOLDERS.fullmatch(text):
        return f"{shown(text)} is a folder of the system", 'write a folder of its own, for example "/efs"'
    return None


MountTarget = Annotated[str, Check(_mount_target, {"pattern": r"^(/[A-Za-z0-9._-]+)+$"})]


def _percentage(value: object) -> float:
    """Return a text such as "2%" as a share such as 0.02."""
    found = (
        re.fullmatch(r"\s*([0-9]{1,6}(?:\.[0-9]{1,12})?)\s*%\s*", value) if isinstance(value, str) else None
    )
    if found is None:
        raise wrong("must be a text with a percentage", 'write for example "2%" or "0.5%"')
    # The share is parsed from the text, because arithmetic with floats is not exact. For example, 0.07 * 100
    # is not 7.
    return float(f"{found[1]}e-2")


def _share(share: float) -> Mistake | None:
    if 0 <= share < math.inf:
        return None
    return "is not a finite number ≥ 0", "write for example 0.02 for two percent"


def _positive_share(share: float) -> Mistake | None:
    return None if share > 0 else ("must be more than 0%", 'write for example "2%" or "0.5%"')


Percentage = Annotated[
    float,
    WrittenAs(_percentage, {"type": "string", "pattern": r"^\s*\d{1,6}(\.\d{1,12})?\s*%\s*$"}),
    Check(_share),
]
PositivePercentage = Annotated[Percentage, Check(_positive_share)]


_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
ID_RULE = "must be 1 to 128 of A-Z a-z 0-9 . _ - and start with a letter or digit"


def is_job_id(text: str) -> bool:
    """Return whether a job can have this id."""
    return re.fullmatch(_ID, text) is not None


def _job_id(text: str) -> Mistake | None:
    return None if is_job_id(text) else (f"{shown(text)} {ID_RULE}", 'write for example "train-1"')


JobId = Annotated[str, Check(_job_id, {"pattern": f"^{_ID}$"})]
"""A job's id, or an arm's name."""


def _variable_name(text: str) -> Mistake | None:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        return None
    return (
        f'"{text}" is not a name of an environment variable',
        "use letters, digits and _ only, and no digit at the start",
    )


VariableName = Annotated[str, Check(_variable_name)]


def _metric_name(text: str) -> Mistake | None:
    if not text.strip() or len(text) > 255 or not text.isprintable():
        return f"{shown(text)} is not a name", "use 1 to 255 printable characters"
    if text.startswith(("bai_host_", "bai_run_")):
        return (
            "begins like the names of bai's own metrics",
            'choose a name without "bai_host_" or "bai_run_"',
        )
    return None


MetricName = Annotated[str, Check(_metric_name)]


def _label_name(text: str) -> Mistake | None:
    if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", text):
        return None
    return f"{shown(text)} is not the name of a label", "use letters, digits and _, and no digit at the start"


LabelName = Annotated[str, Check(_label_name, {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})]


def _json_path(text: str) -> Mistake | None:
    try:
        read_json_path(text)
    except ValueError as error:
        return (
            f"{shown(text)} is not a path to a value: {error}",
            'separate keys by dots, as in "train.loss"; put a key that contains dots in quotes, as in \'"a.b".c\'',
        )
    return None


JsonPathText = Annotated[str, Check(_json_path)]


def hexadecimal(digits: int) -> Check:
    """Return the check of a checksum with this number of hexadecimal digits."""

    def mistake(text: str) -> Mistake | None:
        if re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", text):
            return None
        return (
            f"must be {digits} hexadecimal digits, not {shown(text)}",
            f"`{'md5sum' if digits == 32 else 'sha256sum'} FILE` prints the digits",
        )

    return Check(mistake, {"pattern": f"^[0-9a-fA-F]{{{digits}}}$"})


Md5 = Annotated[str, hexadecimal(32)]
Sha256 = Annotated[str, hexadecimal(64)]


def _mode(value: object) -> Mistake | None:
    if isinstance(value, str) and re.fullmatch(r"0?[0-7]{3}", value):
        return None
    return f"{value!r} is not a file permission", 'write octal digits in quotes, for example "0644" or "0755"'


def _written_mode(value: object) -> object:
    if (mistake := _mode(value)) is not None:
        raise wrong(*mistake)
    return value


Mode = Annotated[str, WrittenAs(_written_mode, {"type": "string", "pattern": "^0?[0-7]{3}$"}), Check(_mode)]


def _pattern(text: str) -> Mistake | None:
    if not text:
        return "is empty", "write a regular expression, for example 'loss=(\\d+\\.\\d+)'"
    try:
        compile_pattern(text)
    except ValueError as error:
        return f"{shown(text)} is not a regular expression: {error}", _pattern_fix(str(error))
    return None


def _pattern_fix(message: str) -> str:
    if "too large" in message:
        return "make it shorter"
    if "unterminated" in message or "unbalanced" in message:
        return "close every ( and every [; write \\( or \\[ for a bracket that is meant as text"
    if "repeat" in message:
        return "write \\* \\+ \\? or \\{ for a * + ? or { that is meant as text"
    return "it is Python's syntax (https://docs.python.org/3/library/re.html#regular-expression-syntax)"


Pattern = Annotated[str, WrittenCheck(_pattern, {"format": "regex"})]
"""A regular expression. The agent does not apply this type's check, because `check_patterns` of
`metric_tables.py` compiles patterns and checks their groups."""


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile the regular expression `text`. Raises ValueError with the mistake in `text`.

    Python's warnings about the expression are suppressed, because they are meant for programmers.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error
    except (RecursionError, OverflowError, MemoryError) as error:
        raise ValueError("it is too large") from error
