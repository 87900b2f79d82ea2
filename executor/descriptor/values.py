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
from bai_agent.job.descriptor import LEAST_PEER_SILENCE, MOST_DIMENSIONS, is_log_group, is_namespace
from bai_agent.job.durations import parse_duration
from bai_agent.job.json_path import read_json_path
from executor.descriptor.cron import cron_problem

OWN_SENTENCE = "own_sentence"
"""The type of the errors that `wrong` makes: their context holds `problem` and `fix`, ready to be shown."""


class Table(BaseModel):
    """A table of the descriptor: unknown keys and other types than the declared ones are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


def wrong(problem: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError(OWN_SENTENCE, "{problem}", {"problem": problem, "fix": fix})


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


LAUNCH_LIMIT = 1000
"""Machines of one job: one call launches them, or none, and EC2 gives an account a thousand instances in one call.
https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html#throttling-limits-resource-based"""


def _launchable(nodes: int) -> int:
    if nodes > LAUNCH_LIMIT:
        raise wrong(
            f"{nodes:,} machines are more than one launch starts, and a job is one launch",
            f"write at most {LAUNCH_LIMIT}, or make several jobs of it",
        )
    return nodes


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


def _at_least_20s(duration: timedelta) -> timedelta:
    if duration < LEAST_PEER_SILENCE:
        raise wrong(
            "must be at least 20s",
            "nodes give signs of life every 5 s, and a healthy one may have a slow request to the store",
        )
    return duration


_DURATION = WithJsonSchema({"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*(ms|d|h|m|s)\s*)+$"})
Duration = Annotated[timedelta, BeforeValidator(_duration), _DURATION]
PositiveDuration = Annotated[timedelta, AfterValidator(_positive), BeforeValidator(_duration), _DURATION]
PeerSilence = Annotated[timedelta, AfterValidator(_at_least_20s), BeforeValidator(_duration), _DURATION]
SamplingInterval = Annotated[
    timedelta, AfterValidator(_at_least_100ms), BeforeValidator(_duration), _DURATION
]


def _warmup(value: Any) -> Any:
    """A number of values may be a text of digits: `--set` gives one."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
        value = int(value)
    if type(value) is not int:
        if not isinstance(value, str):
            raise wrong("must be a duration or a number of values", 'write for example "30s", or 100')
        return _duration(value)
    if not 0 <= value < 2**63:
        raise wrong("must be at least 0 values, and fit into 64 bits", 'write for example "30s", or 100')
    return value


Warmup = Annotated[
    timedelta | int, BeforeValidator(_warmup), WithJsonSchema({"type": ["string", "integer"], "minimum": 0})
]


def _percentage(value: Any) -> float:
    """Return a text such as "2%" as a share, 0.02."""
    found = (
        re.fullmatch(r"\s*([0-9]{1,6}(?:\.[0-9]{1,12})?)\s*%\s*", value) if isinstance(value, str) else None
    )
    if found is None:
        raise wrong("must be a percentage, as a text", 'write for example "2%" or "0.5%"')
    # As the text has it: 7 / 100 of a float is 0.07, and 0.07 * 100 is not 7.
    return float(f"{found[1]}e-2")


Percentage = Annotated[
    float,
    BeforeValidator(_percentage),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d{1,6}(\.\d{1,12})?\s*%\s*$"}),
]


ArmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


def _positive_share(share: float) -> float:
    if share <= 0:
        raise wrong("must be more than 0%", 'write for example "2%" or "0.5%"')
    return share


Share = Annotated[
    float,
    AfterValidator(_positive_share),
    BeforeValidator(_percentage),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d{1,6}(\.\d{1,12})?\s*%\s*$"}),
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
    """An integer has one text only; a float or a boolean has several, so the user says which."""
    return str(value) if type(value) is int else value


VariableText = Annotated[
    str, AfterValidator(no_nul), BeforeValidator(_variable), WithJsonSchema({"type": ["string", "integer"]})
]


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise wrong(
            f'"{name}" is not a name of an environment variable',
            "use letters, digits and _ only, and no digit at the start",
        )
    return name


VariableName = Annotated[str, AfterValidator(_variable_name)]


def _reference(text: str) -> str:
    kind, _, name = text.partition(":")
    if kind not in KINDS or not name:
        raise wrong(
            "is not a reference to a secret",
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
            f"{shown(text)} is not a regular expression{where}: {error.msg}", _pattern_fix(error.msg)
        ) from None
    except (RecursionError, OverflowError, MemoryError) as error:
        raise wrong(f"the regular expression is too large: {error}", "make it shorter") from None
    except ValueError as error:  # flags that exclude each other, a number of thousands of digits
        raise wrong(f"{shown(text)} is not a regular expression: {error}", _pattern_fix("")) from None
    return text


def _pattern_fix(message: str) -> str:
    if "unterminated" in message or "unbalanced" in message:
        return "every ( needs its ), every [ its ]; a bracket that is meant as text is written \\( or \\["
    if "repeat" in message:
        return "a * + ? or { that is meant as text is written \\* \\+ \\? \\{"
    return "it is Python's syntax (https://docs.python.org/3/library/re.html#regular-expression-syntax)"


Pattern = Annotated[str, AfterValidator(_pattern), Field(json_schema_extra={"format": "regex"})]


def _json_path(text: str) -> str:
    try:
        read_json_path(text)
    except ValueError as error:
        raise wrong(
            f"{shown(text)} is not the way to a value: {error}",
            'write keys with dots between, for example "train.loss"; \'"a.b".c\' where a key has dots itself',
        ) from None
    return text


JsonPathText = Annotated[str, AfterValidator(_json_path)]


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
            f"{value!r} is not a file permission",
            'write octal digits in quotes, for example "0644" or "0755"',
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
        raise wrong(f"{shown(text)} is not a name", "use 1 to 255 printable characters")
    if text.startswith(("bai_host_", "bai_run_")):
        raise wrong(
            "begins like the metrics that we measure ourselves",
            'choose a name without "bai_host_" or "bai_run_"',
        )
    return text


MetricName = Annotated[str, AfterValidator(_metric_name)]


NodeCount = Annotated[
    int,
    Field(ge=1),
    AfterValidator(_launchable),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": LAUNCH_LIMIT}),
]


def _processes(value: Any) -> Any:
    text = str(value) if type(value) is int else value
    if isinstance(text, str) and text != "gpus" and not (re.fullmatch(r"\d{1,6}", text) and int(text) >= 1):
        raise wrong(
            f'"{text}" is not a number of processes', 'write an integer from 1, or "gpus" for one per GPU'
        )
    return text


Processes = Annotated[
    str,
    BeforeValidator(_processes),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^(\d+|gpus)$"}]}
    ),
]


def _word(text: str) -> str:
    if not text:
        raise wrong("an empty text is not an option", "remove it")
    if text.startswith("-") and re.search(r"\s", text):
        option, rest = text.split(maxsplit=1)
        raise wrong(
            f"{shown(text)} is more than one word", f'write each as a text of its own: "{option}", "{rest}"'
        )
    return no_nul(text)


Word = Annotated[str, AfterValidator(_word)]


def shown(text: str) -> str:
    """Return `text` in quotes, shortened for a sentence."""
    return f'"{text}"' if len(text) <= 60 else f'"{text[:57]}…"'


def _log_group(text: str) -> str:
    if not is_log_group(text):
        raise wrong(
            f"{shown(text)} is not the name of a log group",
            'write up to 512 of A-Z a-z 0-9 . - _ / #, for example "/bai/metrics"',
        )
    return text


LogGroup = Annotated[str, AfterValidator(_log_group)]


def _namespace(text: str) -> str:
    if not is_namespace(text):
        raise wrong(
            f"{shown(text)} is not a namespace that CloudWatch takes",
            'write up to 255 letters, digits, spaces and . - _ / # :, with neither ":" nor "AWS/" at the beginning',
        )
    return text


Namespace = Annotated[str, AfterValidator(_namespace)]


def _dimensions(names: list[str]) -> list[str]:
    if len(names) > MOST_DIMENSIONS:
        raise wrong(f"holds {len(names)} names", f"keep at most {MOST_DIMENSIONS}: CloudWatch takes no more")
    return names


Dimensions = Annotated[list[Word], AfterValidator(_dimensions)]
