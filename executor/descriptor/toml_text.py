"""Keys and values as TOML text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date, time
from typing import Any


def key_text(path: Sequence[str | int]) -> str:
    """Return `path` as a dotted key of TOML, with list positions in brackets, counted from 0."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if re.fullmatch(r"[A-Za-z0-9_-]+", step) else '"' + step.replace('"', '\\"') + '"'
            text += f".{name}" if text else name
    return text


def toml_value(value: Any) -> str:
    """Return `value` in TOML. A text with backslashes has single quotes, in which they keep their meaning."""
    if isinstance(value, str) and "\\" in value and "'" not in value:
        return f"'{value}'"
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{key_text([key])} = {toml_value(each)}" for key, each in value.items()) + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
