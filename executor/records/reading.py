"""Records that others wrote, validated before anything is taken from them: a bucket is written by many, of many versions.

What is wrong is a sentence that names the object and the key. In the streams, of which one line more or less is no end,
what is not an event or a metric record is passed over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bai_agent.job.attempt import AttemptRecord, StopOrder
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.record_types import EVENTS, JobResult, MetricRecord, RunEvent, UnknownEvent
from bai_agent.job.store import RecordError
from bai_agent.job.tables import shown_value

_SHOWN = 40
"""Characters of a wrong value that are shown."""
_LATEST = 2**47
_UNITS = (str, type(None))
"""What the units of a metric may be; None where they are missing, too."""
_WHY = "the file is corrupt or was written by another tool"
_EXPECTED = {
    "dataclass_type": "a table",
    "typed_dict_type": "a table",
    "dict_type": "a table",
    "list_type": "a list",
}


def validated(kind: Any, table: Any, *, where: str) -> Any:
    """Return `table`, which stands in the object `where`, as a `kind`: a dataclass, or a TypedDict of checked keys.

    Raises RecordError, which names the first wrong key.
    """
    try:
        return _adapter(kind).validate_python(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    place = f"{where}: {key}" if (key := _dotted(first["loc"])) else where
    if first["type"] == "missing":
        raise RecordError(f"{place} is missing; {_WHY}")
    expected = _EXPECTED.get(first["type"])
    problem = f"expected {expected}" if expected else f"{first['msg'][0].lower()}{first['msg'][1:]}"
    raise wrong_value(place, problem, first["input"])


def wrong_value(place: str, expected: str, value: Any) -> RecordError:
    """Return the error for a value that somebody else wrote at `place`. expected: "expected a text"."""
    return RecordError(f"{place}: {expected}, got {shown_value(value, limit=_SHOWN)}; {_WHY}")


def result_of(record: JobRecord) -> JobResult | None:
    """Return how the job ended; also where only its node could write that down. Raises StoreError, RecordError."""
    return _result(record, record.key("result.json")) or node_result(record.node())


def node_result(node: NodeRecord) -> JobResult | None:
    """Return how the job ended as one of its nodes saw it, or None. Raises StoreError, RecordError."""
    return _result(node.job, node.key("result.json"))


def stop_order(attempt: AttemptRecord) -> StopOrder | None:
    """Return the word of the coordinator of several nodes that the job is over, once it is there. Raises StoreError, RecordError."""
    return attempt.stop_order() if attempt.control().stop else None


def events_in(content: bytes) -> list[RunEvent]:
    """Return the events in whole lines of `events.jsonl`."""
    found = (_event(each) for each in _objects(content))
    return [each for each in found if each is not None]


def records_in(content: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the metric records in whole lines of `metrics.jsonl`."""
    for each in _objects(content):
        # By hand, and not as a `MetricRecord`: a million of them come by.
        if (
            type(each) is dict
            and type(each.get("name")) is str
            and type(each.get("src")) is str
            and type(each.get("units")) in _UNITS
            and is_number(each.get("value"))
            and type(each.get("timestamp")) is int
            and 0 <= each["timestamp"] < _LATEST
            and ("labels" not in each or each["labels"] is None or _are_labels(each["labels"]))
            and ("repeat" not in each or each["repeat"] is None or _is_repeat(each["repeat"]))
        ):
            yield each


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number as JSON has it."""
    if type(value) is int:
        return -(10**308) < value < 10**308
    return type(value) is float and math.isfinite(value)


@dataclass
class MalformedLines:
    """Lines of `metrics.jsonl` that are not metric records."""

    count: int = 0
    first: bytes = b""

    def add(self, content: bytes, *, taken: int) -> None:
        """Take note that of the whole lines in `content` so many were records."""
        if (lost := content.count(b"\n") - taken) > 0:
            self.count += lost
            lines = () if self.first else content.splitlines()
            self.first = self.first or next((line for line in lines if _why_no_record(line, where="x")), b"")

    def sentence(self, where: str) -> str:
        """Say how many there were, and what the first one lacks. where: starts the sentence."""
        why = _why_no_record(self.first, where=where)
        return f"{why} ({self.count:,} line{'' if self.count == 1 else 's'} passed over)"


def _why_no_record(line: bytes, *, where: str) -> str:
    """Return why a line is not a metric record; "" where it is one."""
    try:
        validated(MetricRecord, json.loads(line), where=where)
    except RecordError as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"{where}: a line is not JSON: {error}"
    return ""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _result(record: JobRecord, key: str) -> JobResult | None:
    found = record.read_object(key)
    if found is None:
        return None
    result: JobResult = validated(JobResult, found, where=f"{record.store.url}/{key}")
    return result


def _event(table: Any) -> RunEvent | None:
    if not isinstance(table, dict) or type(table.get("type")) is not str or "time" not in table:
        return None
    kind: Any = EVENTS.get(table["type"])
    value = table if kind is not None else {"time": table["time"], "table": table}
    try:
        event: RunEvent = _adapter(UnknownEvent if kind is None else kind).validate_python(value)
    except ValidationError:
        return None
    return event


def _dotted(path: Sequence[str | int]) -> str:
    """Return where in an object something stands: ("candidates", 0, "subnet") → "candidates[0].subnet"."""
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
    return text.removeprefix(".")


def _is_repeat(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_labels(value: Any) -> bool:
    return type(value) is dict and all(type(each) is str for each in value.values())


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
