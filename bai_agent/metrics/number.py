"""Turns what a pattern found into a JSON number, and notices a number that the pattern cut in two."""

from __future__ import annotations

import math
import re

_JSON = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,2})?")
json_at = _JSON.match
"""`json_at(text, start)` matches a number that is JSON as it stands, finite, and within what every reader can hold."""
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?").fullmatch
_INTEGER = re.compile(r"[-+]?[0-9]{1,25}").fullmatch
_MANTISSA = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)").fullmatch
_SIGNED_EXPONENT = re.compile(r"[eE][-+][0-9]+").match
_EXPONENT = re.compile(r"[eE][-+]?[0-9]+").match
_WHOLE_EXPONENT = re.compile(r"[eE][0-9]+(?!\w)", re.ASCII).match
_SPACE = " \t\v\f"


def json_number(text: str) -> str | None:
    """Return `text` as a JSON number; None where it is no finite decimal number.

    Whole numbers stay whole up to 64 bits. Underscores, thousands separators, "nan" and "inf" are no numbers.
    """
    if _JSON.fullmatch(text):
        return text
    text = text.strip(_SPACE)
    if not _NUMBER(text):
        return None
    if _INTEGER(text):
        return whole_number(int(text))
    value = float(text)
    return repr(value) if math.isfinite(value) else None


def whole_number(value: int) -> str | None:
    """Return `value` as JSON: whole where 64 bits hold it, else rounded; None where not even a float can."""
    if -(2**63) <= value < 2**63:
        return str(value)
    try:
        return repr(float(value))
    except OverflowError:
        return None


def exponent_end(text: str, start: int, end: int) -> int:
    """Return where the exponent ends that follows the number in `text[start:end]`; `end` where none does.

    The pattern `([-+]?\\d*\\.\\d+|\\d+)` finds "1.5" in "1.5e-05": a value that is wrong by orders of magnitude, and
    looks right. A whole number with an unsigned exponent counts only where nothing follows ("12e5f" is something else).
    """
    if not _MANTISSA(text[start:end]) or (start > 0 and text[start - 1] in "0123456789."):
        return end
    match = _EXPONENT if "." in text[start:end] else _SIGNED_EXPONENT
    found = match(text, end) or _WHOLE_EXPONENT(text, end)
    return found.end() if found else end
