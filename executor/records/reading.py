"""Records as others wrote them, checked before anything is taken from them: a bucket is written by many, of many versions.

What is wrong is a sentence that names the object and the key. In the streams, of which one line more or less is no end,
what is no event or no metric record is passed over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.store import RecordError
from bai_agent.job.tables import shown_value

_LATEST = 2**47
"""ms: beyond it (the year 6429) no calendar of ours is asked."""
_SHOWN = 40
"""Characters of a wrong value that are shown."""
_UNITS = (str, type(None))
"""What the units of a metric may be; None where they are missing, too."""


@dataclass(frozen=True)
class Kind:
    """What a value must be."""

    words: str
    fits: Callable[[Any], bool]
    inside: Mapping[str, Kind] | None = None
    """Of a table: its keys. Others may stand beside them."""


def or_null(kind: Kind) -> Kind:
    """Return `kind`, which may also be null or missing."""
    return Kind(f"{kind.words}, or null", lambda value: value is None or kind.fits(value), inside=kind.inside)


def table_of(**inside: Kind) -> Kind:
    """Return a table with these keys."""
    return Kind("a table", lambda value: isinstance(value, dict), inside=inside)


def list_of(kind: Kind) -> Kind:
    return Kind(
        f"a list, each {kind.words}", lambda value: type(value) is list and all(map(kind.fits, value))
    )


def one_of(*choices: object) -> Kind:
    words = " or ".join(json.dumps(each) for each in choices)
    return Kind(words, lambda value: any(type(value) is type(each) and value == each for each in choices))


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number as JSON has it."""
    if type(value) is int:
        return -(10**308) < value < 10**308
    return type(value) is float and math.isfinite(value)


TEXT = Kind("a text", lambda value: type(value) is str)
TRUTH = Kind("true or false", lambda value: type(value) is bool)
NUMBER = Kind("a number", is_number)
COUNT = Kind("a count", lambda value: type(value) is int and 0 <= value < 2**63)
MOMENT = Kind("milliseconds since the epoch", lambda value: type(value) is int and 0 <= value < _LATEST)
_SPAN = Kind("a time in seconds", lambda value: is_number(value) and 0 <= value < _LATEST)
_LABELS = Kind(
    "a table of texts",
    lambda value: type(value) is dict and all(type(each) is str for each in value.values()),
)
_SPANS = Kind(
    "a table of seconds", lambda value: isinstance(value, dict) and all(map(_SPAN.fits, value.values()))
)

_NEVER_NUMBERS = Kind(
    "a table of count and first",
    lambda value: (
        isinstance(value, dict)
        and all(
            isinstance(each, dict) and COUNT.fits(each.get("count")) and TEXT.fits(each.get("first"))
            for each in value.values()
        )
    ),
)

_RESULT = table_of(
    outcome=TEXT,
    status=TEXT,
    exit_code=Kind(
        "an exit code from 0 to 6", lambda value: type(value) is int and value in set(map(int, ExitCode))
    ),
    sentence=TEXT,
    started=or_null(MOMENT),
    ended=or_null(MOMENT),
    phases=or_null(_SPANS),
    last_lines=or_null(list_of(TEXT)),
    warnings=or_null(list_of(TEXT)),
    benchmark=or_null(
        table_of(
            code=or_null(COUNT),
            signal=or_null(COUNT),
            wall_seconds=or_null(_SPAN),
            user_seconds=or_null(_SPAN),
            system_seconds=or_null(_SPAN),
            peak_memory_bytes=or_null(COUNT),
        )
    ),
    metrics=or_null(table_of(never_numbers=or_null(_NEVER_NUMBERS))),
    kafka=or_null(table_of(delivered=or_null(COUNT), undelivered=or_null(COUNT))),
    artifacts=or_null(table_of(files=COUNT, bytes=COUNT)),
    git=or_null(table_of(commit=TEXT, branch=or_null(TEXT), dirty=or_null(TRUTH))),
)
_EVENT = table_of(
    time=MOMENT,
    type=TEXT,
    seconds=or_null(_SPAN),
    bytes=or_null(COUNT),
    total_bytes=or_null(COUNT),
    objects=or_null(COUNT),
    total_objects=or_null(COUNT),
)
_METRIC = table_of(
    name=TEXT, src=TEXT, value=NUMBER, units=or_null(TEXT), timestamp=MOMENT, labels=or_null(_LABELS)
)


def check(value: Any, kind: Kind, *, where: str, key: str = "") -> None:
    """Raise RecordError where `value`, found at `key` of the object `where`, is not of this kind."""
    if not kind.fits(value):
        place = f"{where}: {key}" if key else where
        raise RecordError(
            f"{place}: expected {kind.words}, got {shown_value(value, limit=_SHOWN)}; the file is corrupt or was written by another tool"
        )
    for name, inner in (kind.inside or {}).items() if value is not None else ():
        check(value.get(name), inner, where=where, key=f"{key}.{name}" if key else name)


def read_checked(record: JobRecord, key: str, kind: Kind) -> dict[str, Any] | None:
    """Return the JSON object at `key` of the store, or None where there is none. Raises StoreError, RecordError."""
    found = record.read_object(key)
    if found is not None:
        check(found, kind, where=f"{record.store.url}/{key}")
    return found


def result_of(record: JobRecord) -> dict[str, Any] | None:
    """Return how the job ended; also where only its node could write that down. Raises StoreError, RecordError."""
    found = read_checked(record, record.key("result.json"), _RESULT)
    return found or read_checked(record, record.node().key("result.json"), _RESULT)


def events_in(content: bytes) -> list[dict[str, Any]]:
    """Return the events in whole lines of `events.jsonl`."""
    return [each for each in _objects(content) if _fits(each, _EVENT)]


def records_in(content: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the metric records in whole lines of `metrics.jsonl`."""
    for each in _objects(content):
        # By hand, and not by `_METRIC`: a million of them come by.
        if (
            type(each) is dict
            and type(each.get("name")) is str
            and type(each.get("src")) is str
            and type(each.get("units")) in _UNITS
            and is_number(each.get("value"))
            and MOMENT.fits(each.get("timestamp"))
            and ("labels" not in each or each["labels"] is None or _LABELS.fits(each["labels"]))
        ):
            yield each


@dataclass
class MalformedLines:
    """Lines of `metrics.jsonl` that are no metric records."""

    count: int = 0
    first: bytes = b""

    def add(self, content: bytes, *, taken: int) -> None:
        """Take note that of the whole lines in `content` so many were records."""
        if (lost := content.count(b"\n") - taken) > 0:
            self.count += lost
            lines = () if self.first else content.splitlines()
            self.first = self.first or next((line for line in lines if _why_no_record(line, where="x")), b"")

    def sentence(self, node: NodeRecord) -> str:
        """Say how many of the node's there were, and what the first one lacks."""
        why = _why_no_record(self.first, where=node.url("metrics"))
        return f"{why} ({self.count:,} line{'' if self.count == 1 else 's'} passed over)"


def _why_no_record(line: bytes, *, where: str) -> str:
    """Return why a line is no metric record; "" where it is one."""
    try:
        check(json.loads(line), _METRIC, where=where)
    except RecordError as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"{where}: a line is no JSON: {error}"
    return ""


def _fits(value: Any, kind: Kind) -> bool:
    try:
        check(value, kind, where="")
    except RecordError:
        return False
    return True


def _objects(content: bytes) -> Iterator[Any]:
    lines = content.splitlines()
    try:
        # One call for all lines is a third faster than one for each.
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        found = None
    if found is not None:
        yield from found
        return
    for line in lines:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue
