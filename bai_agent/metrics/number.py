"""Turns what a pattern found into a JSON number, and notices a number of which the pattern took only a part."""

from __future__ import annotations

import math
import re
import string
import sys
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction

from bai_agent.job.descriptor import NumberForm
from bai_agent.metrics.units import COUNTED, PREFIXES, Conversion

_WHOLE_JSON = r"-?(?:0|[1-9][0-9]{0,14})"
_FRACTION_JSON = r"\.[0-9]{1,20}"
_MANTISSA_JSON = f"{_WHOLE_JSON}(?:{_FRACTION_JSON})?"
_EXPONENT_JSON = r"[eE][-+]?[0-9]{1,2}"
JSON = f"{_MANTISSA_JSON}(?:{_EXPONENT_JSON})?"
"""Matches a number that is JSON as it stands, finite, and within what every reader can hold."""
_is_json = re.compile(JSON).fullmatch
# The same once for each line; alternatives take half the time of optional parts.
_json_lines = re.compile(
    rf"(?:{_WHOLE_JSON}(?:\n|{_FRACTION_JSON}(?:\n|{_EXPONENT_JSON}\n)|{_EXPONENT_JSON}\n))*"
).fullmatch
_PLAIN = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(_PLAIN).fullmatch
_INTEGER = re.compile(r"[-+]?[0-9]{1,25}").fullmatch
_MANTISSA = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)").fullmatch
_SIGNED_EXPONENT = re.compile(r"[eE][-+][0-9]+").match
_EXPONENT = re.compile(r"[eE][-+]?[0-9]+").match
_WHOLE_EXPONENT = re.compile(r"[eE][0-9]+(?!\w)", re.ASCII).match
_SPACE = " \t\v\f"
_DIGITS_AND_EXPONENT = frozenset(string.digits + "eE")

_GROUPED = r"[-+]?[0-9]{1,3}(?:(?P<separator>[,_'])[0-9]{3})(?:(?P=separator)[0-9]{3})*(?:\.[0-9]+)?(?![0-9])"
_MICRO = "µ|\N{LATIN CAPITAL LETTER A WITH CIRCUMFLEX}µ"
"""As a character, and as its two bytes in a line that is searched as bytes."""
_COUNTED = "|".join(sorted(map(re.escape, COUNTED), key=len, reverse=True))
_PREFIX = (
    rf"(?P<prefix>[kKMGTPE]i?(?=(?:[bB]|[bB]its?|[bB]ytes?|[bB]ps|(?i:{_COUNTED}))?(?![A-Za-z]))"
    rf"|(?:[mun]|{_MICRO})(?![A-Za-z]))"
)
_FORMS = {
    NumberForm.PLAIN: re.compile(_PLAIN),
    NumberForm.THOUSANDS: re.compile(rf"(?P<number>{_GROUPED}|{_PLAIN})"),
    NumberForm.SI: re.compile(rf"(?P<number>{_PLAIN}){_PREFIX}?"),
    NumberForm.AUTO: re.compile(rf"(?P<number>{_GROUPED}|{_PLAIN}){_PREFIX}?"),
}
_SEPARATORS = str.maketrans("", "", ",_'")
_CLOCK = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):([0-5]\d(?:\.\d+)?)", re.ASCII).fullmatch
_SPANS = re.compile(
    r"(?=.*\d[dhm] ?\d)(?:(\d+)d ?)?(?:(\d+)h ?)?(?:(\d+)m ?)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII
).fullmatch
_SPAN = re.compile(r"(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+(?:\.\d+)?s)?(?!\w)", re.ASCII).match
_SPAN_BEFORE = re.compile(r"\d[dhm]$", re.ASCII).search
_EXACT = Context(prec=60, traps=[])
_LONGEST = 1000
"""Characters of a number that is read as a decimal; what is longer is read as a float."""
_GOES_ON = re.compile(r"[0-9]|:[0-5][0-9](?![0-9])").match
_FRACTION = re.compile(r"\.[0-9]").match
_THOUSANDS = re.compile(r"[,_'][0-9]{3}(?![0-9])").match
_SHORT = re.compile(r"[-+]?[0-9]{1,3}").fullmatch
_REST_BEFORE = re.compile(r"[0-9dhm]*$").search
_MOST_BEFORE = 40
"""Characters of a duration in front of one of its parts."""
_REST = re.compile(r"[0-9.,_':]*[A-Za-z%]*(?:/[A-Za-z]+)?").match


def are_json(texts: Sequence[str]) -> bool:
    """Return whether each of `texts`, which hold no newlines, is what `JSON` matches."""
    return _json_lines("\n".join([*texts, ""])) is not None


def json_number(text: str) -> str | None:
    """Return `text` as a JSON number; None where it is not a finite decimal number.

    Whole numbers stay whole up to 64 bits, signed or unsigned. Underscores, thousands separators, "nan" and "inf" are no
    numbers.
    """
    if _is_json(text):
        return text
    text = text.strip(_SPACE)
    if not _NUMBER(text):
        return None
    if _INTEGER(text):
        return whole_number(int(text))
    value = float(text)
    return repr(value) if math.isfinite(value) else None


def finite_number(value: object) -> str | None:
    """Return a number as JSON; None for anything else, and where no float can hold it."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    return whole_number(value) if isinstance(value, int) and not isinstance(value, bool) else None


def whole_number(value: int) -> str | None:
    """Return `value` as JSON: whole where 64 bits hold it, else rounded; None where not even a float can."""
    if -(2**63) <= value < 2**64:
        return str(value)
    try:
        return repr(float(value))
    except OverflowError:
        return None


def form_number(text: str, form: NumberForm) -> str | None:
    """Return `text`, written in this form, as a JSON number; None where it is none."""
    number = json_number(text)
    if number is not None or form is NumberForm.PLAIN:
        return number
    match = _FORMS[form].fullmatch(text.strip(_SPACE))
    if match is None:
        return None
    digits = match["number"].translate(_SEPARATORS)
    prefix = match["prefix"] if form is not NumberForm.THOUSANDS else None
    return (
        scaled(digits, Conversion(PREFIXES[prefix[-1] if "µ" in prefix else prefix]))
        if prefix
        else json_number(digits)
    )


def form_end(text: str, start: int, end: int, form: NumberForm) -> int:
    """Return where the number ends that `text[start:end]` is the beginning of; `end` where it is not a beginning."""
    if form is NumberForm.PLAIN:
        return exponent_end(text, start, end)
    if _begins_within(text, start) or not _MANTISSA(text[start:end].translate(_SEPARATORS)):
        return end
    match = _FORMS[form].match(text, start)
    return max(end, match.end()) if match else end


def scaled(text: str, conversion: Conversion) -> str | None:
    """Return the decimal number `text`, converted, as a JSON number; None where none comes out."""
    if len(text) > _LONGEST:
        text = repr(float(text))
    value = _EXACT.create_decimal(text)
    factor: Fraction = conversion.factor
    above, below = Decimal(factor.numerator), Decimal(factor.denominator)
    if conversion.inverse:
        value = _EXACT.divide(above, _EXACT.multiply(value, below))
    else:
        value = _EXACT.divide(_EXACT.multiply(value, above), below)
    if not value.is_finite():
        return None
    if abs(value) < 2**64 and value == value.to_integral_value():
        return whole_number(int(value))
    number = float(value)
    return repr(number) if math.isfinite(number) else None


def clock_seconds(text: str) -> str | None:
    """Return how many seconds `text` stands for, as a decimal number; None where it is neither "1:02:03" nor "1h2m3s"."""
    match = (_CLOCK(text) or _SPANS(text)) if len(text) <= _LONGEST else None
    if match is None:
        return None
    days, hours, minutes, seconds = (Decimal(part or 0) for part in match.groups())
    return str(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def span_end(text: str, start: int, end: int) -> int:
    """Return where the duration ends whose first part, with its unit, is `text[start:end]`: of "1m2.5s" the "1m"; `end` if it has one part.

    Go prints durations so: a pattern that takes a number and a unit would take a minute for 62.5 seconds.
    """
    found = _SPAN(text, start)
    return max(end, found.end()) if found else end


def begins_within_span(text: str, start: int) -> bool:
    """True when the number at `start` is a later part of a duration: of "1m2.5s" the "2.5"."""
    return _SPAN_BEFORE(text, max(0, start - 2), start) is not None


def exponent_end(text: str, start: int, end: int) -> int:
    """Return where the exponent ends that follows the number in `text[start:end]`; `end` where none does.

    The pattern `([-+]?\\d*\\.\\d+|\\d+)` finds "1.5" in "1.5e-05": a value that is wrong by orders of magnitude, and
    looks right. A whole number with an unsigned exponent counts only where nothing follows ("12e5f" is something else).
    """
    if not _MANTISSA(text[start:end]) or _begins_within(text, start):
        return end
    match = _EXPONENT if "." in text[start:end] else _SIGNED_EXPONENT
    found = match(text, end) or _WHOLE_EXPONENT(text, end)
    return found.end() if found else end


def _begins_within(text: str, start: int) -> bool:
    """True when the pattern began to read in the middle of a number."""
    return start > 0 and text[start - 1] in "0123456789."


def goes_on(text: str, start: int, end: int) -> bool:
    """True when the number in `text[start:end]` is only the beginning of what stands there: of "12,345", "0.5", "1:02"."""
    return bool(
        _GOES_ON(text, end)
        or (_FRACTION(text, end) and "." not in text[start:end])
        or (_THOUSANDS(text, end) and _SHORT(text, start, end))
    )


def rest_end(text: str, end: int) -> int:
    """Return where that ends which goes on at `end`: digits, separators, a unit."""
    found = _REST(text, end)
    return found.end() if found else end


def rest_start(text: str, start: int) -> int:
    """Return where that begins which goes on at `start`: the first part of a duration."""
    return start - len(_REST_BEFORE(text[max(0, start - _MOST_BEFORE) : start])[0])  # type: ignore[index]


def fast_number(spelled: str, *, open_end: bool, with_units: bool, decodes: bool) -> str:
    """Return the expression of a number that needs no second look: nothing stands behind it but `spelled`, the metric's units.

    With `open_end` the pattern does not say what follows the value; with `with_units` a word behind it may be another unit.
    With `decodes` it searches characters, else bytes.
    """
    if not open_end and not with_units:
        return JSON
    digits = "0-9" if open_end else ""
    letters = rf"A-Za-z%\x80-{chr(sys.maxunicode) if decodes else chr(0xFF)}"
    more = [f"[{digits}{letters}]"]
    if open_end:
        more.append("[.,_':][0-9]")
    if with_units:
        more.append(f" [{letters}]")
    ends = f"(?!{'|'.join(more)})"
    spelled = rf"|(?= ?{re.escape(spelled)}(?![0-9A-Za-z%/]))" if spelled else ""
    # The most frequent case comes first: a look behind the number costs next to nothing, an optional exponent does not.
    return f"{_MANTISSA_JSON}(?:{ends}|{_EXPONENT_JSON}{ends}{spelled})"


def needs_look(behind: str, *, open_end: bool, with_units: bool) -> bool:
    """Return whether what stands `behind` a JSON number may keep `fast_number` from matching it.

    That is two characters of Latin-1; of one alone the answer is that of the worst one that could follow.
    """
    first, second = behind[:1], behind[1:]
    if first in _DIGITS_AND_EXPONENT:
        return True
    if first in ".,_':":
        return second in string.digits
    if first == " ":
        return with_units and _is_letter(second)
    return (open_end or with_units) and _is_letter(first)


def _is_letter(character: str) -> bool:
    return character in string.ascii_letters or character == "%" or character >= "\x80"
