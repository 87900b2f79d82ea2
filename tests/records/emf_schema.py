"""What CloudWatch's specification of the embedded metric format demands of a document.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html, written
down as a JSON Schema, and what no schema can say as a function.
"""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

_BASES = (
    "Bytes",
    "Kilobytes",
    "Megabytes",
    "Gigabytes",
    "Terabytes",
    "Bits",
    "Kilobits",
    "Megabits",
    "Gigabits",
    "Terabits",
    "Count",
)
UNITS = [
    "Seconds",
    "Microseconds",
    "Milliseconds",
    "Percent",
    "None",
    *_BASES,
    *(f"{each}/Second" for each in _BASES),
]


def _text(longest: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": longest}


_METRIC = {
    "type": "object",
    "required": ["Name"],
    "properties": {
        "Name": _text(255),
        "Unit": {"enum": UNITS},
        "StorageResolution": {"enum": [1, 60]},
    },
    "additionalProperties": False,
}
_DIRECTIVE = {
    "type": "object",
    "required": ["Namespace", "Dimensions", "Metrics"],
    "properties": {
        "Namespace": _text(255),
        "Dimensions": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "maxItems": 30, "uniqueItems": True, "items": _text(255)},
        },
        "Metrics": {"type": "array", "minItems": 1, "maxItems": 100, "items": _METRIC},
    },
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "required": ["_aws"],
    "properties": {
        "_aws": {
            "type": "object",
            "required": ["Timestamp", "CloudWatchMetrics"],
            "properties": {
                "Timestamp": {"type": "integer", "minimum": 0},
                "CloudWatchMetrics": {"type": "array", "minItems": 1, "items": _DIRECTIVE},
            },
            "additionalProperties": False,
        }
    },
}


def checked(message: str) -> dict[str, Any]:
    """Return the document in a log event, after all that CloudWatch demands has been asserted."""
    assert len(message.encode()) <= 256 * 1024
    document: dict[str, Any] = json.loads(message)
    Draft202012Validator(SCHEMA).validate(document)
    for directive in document["_aws"]["CloudWatchMetrics"]:
        for name in directive["Dimensions"][0]:
            value = document[name]
            assert isinstance(value, str)
            assert 1 <= len(value) <= 1024
            assert value.isascii()
            assert value.isprintable()
            assert not name.startswith(":")
        for metric in directive["Metrics"]:
            values = values_of(document, metric["Name"])
            assert 1 <= len(values) <= 100
            assert all(each == 0 or 8.5e-109 < abs(each) < 1.2e108 for each in values)
        names = [metric["Name"] for metric in directive["Metrics"]]
        assert len(set(names)) == len(names)
        assert not set(names) & set(directive["Dimensions"][0])
    return document


def values_of(document: dict[str, Any], name: str) -> list[float]:
    """The values of one metric of a document."""
    target = document[name]
    values = target if isinstance(target, list) else [target]
    assert all(type(each) in (int, float) for each in values)
    return values
