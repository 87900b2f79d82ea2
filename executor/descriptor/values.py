"""The values that a key of a benchmark descriptor may have, where TOML's own types say too little.

Each check speaks through `wrong`: what is wrong, and what to write instead. None of them repeats a text that may be
a secret.
"""

from __future__ import annotations

import re
import warnings
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from bai_agent.aws.secrets import KINDS
from bai_agent.job.durations import parse_duration
from executor.descriptor.cron import cron_problem

SAID = "said"
"""The type of the errors that `wrong` makes: their context holds `problem` and `fix`, ready to be shown."""


class Table(BaseModel):
    """A table of the descriptor: unknown keys and other types than the declared ones are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


def wrong(problem: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError(SAID, "{problem}", {"problem": problem, "fix": fix})


def _duration(value: Any) -> timedelta:
    if not isinstance(value, str):
        number = type(value) in (int, float)
        raise wrong(
            "a duration is a text with a unit",
            f'write "{value}s" for seconds, or "15m", "2h"'
            if number
            else 'write for example "90s", "15m" or "2h"',
        )
    try:
        return parse_duration(value)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise wrong(problem, fix or 'write for example "90s", "15m" or "2h"') from None


def _positive(duration: timedelta) -> timedelta:
    if duration <= timedelta(0):
        raise wrong("must be longer than 0", "leave the key out for the default")
    return duration


def _at_least_100ms(duration: timedelta) -> timedelta:
    if duration < timedelta(milliseconds=100):
        raise wrong(
            "must be at least 100ms",
            'write "100ms" or more; [host_metrics] enabled = false switches them off',
        )
    return duration


_DURATION = WithJsonSchema({"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*(ms|d|h|m|s)\s*)+$"})
Duration = Annotated[timedelta, BeforeValidator(_duration), _DURATION]
PositiveDuration = Annotated[timedelta, AfterValidator(_positive), BeforeValidator(_duration), _DURATION]
SamplingInterval = Annotated[
    timedelta, AfterValidator(_at_least_100ms), BeforeValidator(_duration), _DURATION
]


def no_nul(text: str) -> str:
    """Return `text`, or refuse what no system call can take."""
    if "\0" in text:
        raise wrong(
            "holds a NUL character, which cannot be passed to a process", "remove \\u0000 from the text"
        )
    return text


CommandText = Annotated[str, AfterValidator(no_nul)]


def _variable(value: Any) -> Any:
    """A whole number has one text only; a float or a boolean has several, so the user says which."""
    return str(value) if type(value) is int else value


VariableText = Annotated[
    str, AfterValidator(no_nul), BeforeValidator(_variable), WithJsonSchema({"type": ["string", "integer"]})
]


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise wrong(
            f'"{name}" is no name of an environment variable',
            "use letters, digits and _ only, and no digit at the start",
        )
    return name


VariableName = Annotated[str, AfterValidator(_variable_name)]


def _reference(text: str) -> str:
    kind, _, name = text.partition(":")
    if kind not in KINDS or not name:
        raise wrong(
            "is no reference to a secret",
            'never write the secret itself: "env:NAME" (this machine\'s environment), "ssm:NAME" or "secretsmanager:NAME"',
        )
    return text


SecretReference = Annotated[
    str, AfterValidator(_reference), Field(json_schema_extra={"pattern": f"^({'|'.join(KINDS)}):.+$"})
]

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"


def _label(text: str) -> str:
    if not re.fullmatch(_LABEL, text):
        raise wrong(
            f"{shown(text)} is not allowed in a label",
            "use 1 to 63 of A-Z a-z 0-9 - _ . with a letter or digit at both ends, "
            f'for example "{as_label(text) or "my-benchmark"}"',
        )
    return text


def as_label(text: str) -> str:
    """Return the label that comes closest to `text`; "" where nothing of it can stay."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.-")[:63].strip("_.-")


Label = Annotated[str, AfterValidator(_label), Field(json_schema_extra={"pattern": f"^{_LABEL}$"})]


def _pattern(text: str) -> str:
    if not text:
        raise wrong("is empty", "write a regular expression, for example 'loss=(\\d+\\.\\d+)'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise wrong(
            f"{shown(text)} is no regular expression{where}: {error.msg}", _pattern_fix(error.msg)
        ) from None
    except (RecursionError, OverflowError, MemoryError) as error:
        raise wrong(f"the regular expression is too large: {error}", "make it shorter") from None
    except ValueError as error:  # flags that exclude each other, a number of thousands of digits
        raise wrong(f"{shown(text)} is no regular expression: {error}", _pattern_fix("")) from None
    return text


def _pattern_fix(message: str) -> str:
    if "unterminated" in message or "unbalanced" in message:
        return "every ( needs its ), every [ its ]; a bracket that is meant as text is written \\( or \\["
    if "repeat" in message:
        return "a * + ? or { that is meant as text is written \\* \\+ \\? \\{"
    return "it is Python's syntax (https://docs.python.org/3/library/re.html#regular-expression-syntax)"


Pattern = Annotated[str, AfterValidator(_pattern), Field(json_schema_extra={"format": "regex"})]


def _hexadecimal(digits: int) -> Any:
    def check(text: str) -> str:
        if not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", text):
            raise wrong(
                f"must be {digits} hexadecimal digits, not {shown(text)}",
                f"`{'md5sum' if digits == 32 else 'sha256sum'} FILE` prints them",
            )
        return text

    return AfterValidator(check)


Md5 = Annotated[str, _hexadecimal(32), Field(json_schema_extra={"pattern": "^[0-9a-fA-F]{32}$"})]
Sha256 = Annotated[str, _hexadecimal(64), Field(json_schema_extra={"pattern": "^[0-9a-fA-F]{64}$"})]


def _mode(value: Any) -> Any:
    if type(value) is int or (isinstance(value, str) and not re.fullmatch(r"0?[0-7]{3}", value)):
        raise wrong(
            f"{value!r} is no file permission", 'write octal digits in quotes, for example "0644" or "0755"'
        )
    return value


Mode = Annotated[str, BeforeValidator(_mode), Field(json_schema_extra={"pattern": "^0?[0-7]{3}$"})]


def _scheduling(text: str) -> str:
    problem = cron_problem(text)
    if text != "single_run" and problem:
        raise wrong(
            problem, 'write "single_run", or minute hour day month weekday, for example "0 3 * * 1-5"'
        )
    return text


Scheduling = Annotated[str, AfterValidator(_scheduling)]


def _metric_name(text: str) -> str:
    if not text.strip() or len(text) > 255 or not text.isprintable():
        raise wrong(f"{shown(text)} is no name", "use 1 to 255 printable characters")
    if text.startswith(("bai_host_", "bai_run_")):
        raise wrong(
            "begins like the metrics that we measure ourselves",
            'choose a name without "bai_host_" or "bai_run_"',
        )
    return text


MetricName = Annotated[str, AfterValidator(_metric_name)]


def _processes(value: Any) -> Any:
    text = str(value) if type(value) is int else value
    if isinstance(text, str) and text != "gpus" and not (re.fullmatch(r"\d{1,6}", text) and int(text) >= 1):
        raise wrong(
            f'"{text}" is no number of processes', 'write a whole number from 1, or "gpus" for one per GPU'
        )
    return text


Processes = Annotated[
    str,
    BeforeValidator(_processes),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^(\d+|gpus)$"}]}
    ),
]


def shown(text: str) -> str:
    """Return `text` in quotes, shortened for a sentence."""
    return f'"{text}"' if len(text) <= 60 else f'"{text[:57]}…"'
