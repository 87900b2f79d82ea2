"""Types for the values of a benchmark descriptor's keys, for which TOML's own types are not enough. Each
check reports a problem and a fix. Messages never repeat a text that is possibly a secret.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from bai_agent.job.schema.declared import Check, Mistake, WrittenAs, wrong
from bai_agent.job.schema.field_types import inside, no_tilde, shown, written_duration
from bai_agent.job.schema.source_schemes import SCHEMES, scheme_of, schemes_text
from bai_agent.light_dataclass import dataclass
from executor.descriptor.job_reference import FORMS, artifact_mistake, job_mistake, refers_to_job


class DescriptorTable(BaseModel):
    """A table of the descriptor. Unknown keys, and types other than the declared ones, are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


LAUNCH_LIMIT = 1000
"""Maximum number of machines of one job. One call launches all of them or none, and EC2 launches at most a
thousand instances in one call.
https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html#throttling-limits-resource-based"""


@dataclass(frozen=True, kw_only=True)
class NodeRange:
    """The number of machines of a job, or its range."""

    most: int
    least: int | None = None
    """Minimum number of machines of an elastic job; None if the number is fixed."""

    def __str__(self) -> str:
        return str(self.most) if self.least is None else f"{self.least}:{self.most}"


_RANGE_FIX = 'write for example num_instances = 2, or num_instances = "2:4" for the least and the most'


def read_node_range(value: object) -> NodeRange:
    """Return the requested number of machines from a value such as `4`, "4" or "2:4". Raises MistakeError."""
    if isinstance(value, NodeRange):  # the value is the default
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked_range(value, None)
    if not isinstance(value, str):
        raise wrong("must be a number of machines", _RANGE_FIX)
    if re.fullmatch("[0-9]{1,9}(:[0-9]{1,9})?", value) is None:
        raise wrong(f"{shown(value)} is not a number of machines", _RANGE_FIX)
    *least, most = map(int, value.split(":"))
    return _checked_range(most, least[0] if least else None)


def _checked_range(most: int, least: int | None) -> NodeRange:
    lowest = most if least is None else min(least, most)
    if lowest < 1:
        raise wrong(f"must be at least 1, not the number {lowest}", _RANGE_FIX)
    if most > LAUNCH_LIMIT:
        raise wrong(
            f"{most:,} machines are more than EC2 starts in one launch",
            f"write at most {LAUNCH_LIMIT}, or run several jobs",
        )
    if least is not None and least > most:
        raise wrong(f'the minimum of "{least}:{most}" is greater than the maximum', f'write "{most}:{least}"')
    return NodeRange(most=most, least=least)


def _warmup(value: Any) -> Any:
    """Return a warm-up. A number may also be a text of digits, because `--set` passes it as text."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
        value = int(value)
    if type(value) is not int:
        if not isinstance(value, str):
            raise wrong("must be a duration or a number of values", 'write for example "30s", or 100')
        return written_duration(value)
    if not 0 <= value < 2**63:
        raise wrong("must be an integer from 0 that fits into 64 bits", 'write for example "30s", or 100')
    return value


Warmup = Annotated[timedelta | int, WrittenAs(_warmup, {"type": ["string", "integer"], "minimum": 0})]


def _variable(value: Any) -> Any:
    """Return an integer as its text. Floats and booleans remain errors, because a float or a boolean has several
    spellings."""
    return str(value) if type(value) is int else value


VariableText = Annotated[str, BeforeValidator(_variable), WithJsonSchema({"type": ["string", "integer"]})]


_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"


def _label(text: str) -> Mistake | None:
    if re.fullmatch(_LABEL, text):
        return None
    return (
        f"{shown(text)} is not allowed in a label",
        "use 1 to 63 of A-Z a-z 0-9 - _ . with a letter or digit at both ends, "
        f'for example "{as_label(text) or "my-benchmark"}"',
    )


def as_label(text: str) -> str:
    """Return the label that is closest to `text`; "" if none of its characters is allowed."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.-")[:63].strip("_.-")


Label = Annotated[str, Check(_label, {"pattern": f"^{_LABEL}$"})]


NodeCount = Annotated[
    NodeRange,
    WrittenAs(
        read_node_range,
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": LAUNCH_LIMIT},
                {"type": "string", "pattern": "^[0-9]+(:[0-9]+)?$"},
            ]
        },
    ),
    PlainSerializer(str),
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


def _source(text: str) -> Mistake | None:
    name, separator, _ = text.partition("://")
    if not text.strip():
        return "is empty", 'write for example "s3://bucket/key" or "https://host/file"'
    if refers_to_job(text):
        return artifact_mistake(text)
    if not separator:
        return no_tilde(text)
    scheme = SCHEMES.get(name)
    if scheme is None:
        return f'"{name}://" is not a supported scheme', f"use {schemes_text()} or a path"
    return scheme.mistake(text)


SourceText = Annotated[
    str,
    Check(
        _source,
        {
            "description": f"{', '.join(each.forms for each in SCHEMES.values())}, {FORMS}, or a path relative to this file."
        },
    ),
]


def _git_address(text: str) -> Mistake | None:
    example = 'write for example "https://host/group/repository"'
    if scheme_of(text) != "https" or not text.startswith("https://"):
        return f"{shown(text)} is not an https address", example
    if not text.isascii() or not text.isprintable() or " " in text:
        return f"{shown(text)} has a character that no address has", example
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return f"{shown(text)} has an invalid host or port", example
    if "@" in parts.netloc or parts.query or parts.fragment:
        # The address is not repeated, because the whole address may be a secret.
        return (
            "has a user, a token or parameters, but the address is saved with the job",
            f"{example}, without them",
        )
    return None if has_host and parts.path.strip("/") else (f"{shown(text)} names no repository", example)


_REF = re.compile(r"(?![-+.])(?!.*(\.\.|@\{|//|\.lock$))[^\x00-\x20\x7f~^:?*\[\\]+")
"""Names of branches and tags, and commits: https://git-scm.com/docs/git-check-ref-format."""


def _git_ref(text: str) -> Mistake | None:
    if _REF.fullmatch(text) and text.isprintable() and text != "@":
        return None
    return f"{shown(text)} is not the name of a branch, a tag or a commit", 'write for example "v1.2"'


GitAddress = Annotated[str, Check(_git_address)]
GitRef = Annotated[str, Check(_git_ref)]
JobText = Annotated[str, Check(job_mistake)]


def _target(text: str) -> Mistake | None:
    if text.startswith("~") and not text.startswith("~/"):
        return f"{shown(text)} names another user's home", "write an absolute path, or ~/… for your own"
    return inside(text)


TargetPath = Annotated[str, Check(_target)]
FolderPath = Annotated[str, Check(no_tilde)]
