"""Converts the text of a match to a JSON number, and detects that a pattern took only a part of a number."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache

from bai_agent.job.descriptor.metric_tables import NumberForm
from bai_agent.metrics.search.units import COUNTED, PREFIXES, Conversion

_WHOLE_JSON = r"-?(?:0|[1-9][0-9]{0,14})"
_FRACTION_JSON = r"\.[0-9]{1,20}"
_MANTISSA_JSON = f"{_WHOLE_JSON}(?:{_FRACTION_JSON})?"
_EXPONENT_JSON = r"[eE][-+]?[0-9]{1,2}"
JSON = f"{_MANTISSA_JSON}(?:{_EXPONENT_JSON})?"
"""Matches a finite JSON number that every JSON reader can represent."""
_is_json = re.compile(JSON).fullmatch
# Matches a text of many lines with one JSON number in each line. The expression lists alternatives, because
# they take half the time of optional parts.
_json_lines = re.compile(
    rf"(?:{_WHOLE_JSON}(?:\n|{_FRACTION_JSON}(?:\n|{_EXPONENT_JSON}\n)|{_EXPONENT_JSON}\n))*"
).fullmatch
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_PLAIN = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(_PLAIN).fullmatch
_INTEGER = re.compile(r"[-+]?[0-9]{1,25}").fullmatch
_MANTISSA = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)").fullmatch
_SIGNED_EXPONENT = re.compile(r"[eE][-+][0-9]+").match
_EXPONENT = re.compile(r"[eE][-+]?[0-9]+").match
_WHOLE_EXPONENT = re.compile(r"[eE][0-9]+(?!\w)", re.ASCII).match
_SPACE = " \t\v\f"
_GROUPED = r"[-+]?[0-9]{1,3}(?:(?P<separator>[,_'])[0-9]{3})(?:(?P=separator)[0-9]{3})*(?:\.[0-9]+)?(?![0-9])"
_MICRO = "µ|\N{LATIN CAPITAL LETTER A WITH CIRCUMFLEX}µ"
"""The micro sign. The micro sign is one character of decoded text, but two characters in a line that is
searched as bytes."""
_COUNTED = "|".join(sorted(map(re.escape, COUNTED), key=len, reverse=True))
_PREFIX = (
    rf"(?P<prefix>[kKMGTPE]i?(?=(?:[bB]|[bB]its?|[bB]ytes?|[bB]ps|(?i:{_COUNTED}))?(?![A-Za-z]))"
    rf"|(?:[mun]|{_MICRO})(?![A-Za-z]))"
)
_FORMS = {
    NumberForm.PLAIN: _PLAIN,
    NumberForm.THOUSANDS: rf"(?P<number>{_GROUPED}|{_PLAIN})",
    NumberForm.SI: rf"(?P<number>{_PLAIN}){_PREFIX}?",
    NumberForm.AUTO: rf"(?P<number>{_GROUPED}|{_PLAIN}){_PREFIX}?",
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
"""Maximum length of a number that is parsed as a Decimal (characters). Longer numbers are parsed as
floats."""
_GOES_ON = re.compile(r"[0-9]|:[0-5][0-9](?![0-9])").match
_FRACTION = re.compile(r"\.[0-9]").match
_THOUSANDS = re.compile(r"[,_'][0-9]{3}(?![0-9])").match
_SHORT = re.compile(r"[-+]?[0-9]{1,3}").fullmatch
_REST_BEFORE = re.compile(r"[0-9dhm]*$").search
_MOST_BEFORE = 40
"""Maximum number of characters that are examined before a part of a duration."""
_REST = re.compile(r"[0-9.,_':]*[A-Za-z%]*(?:/[A-Za-z]+)?").match


@cache
def _form(form: NumberForm) -> re.Pattern[str]:
    """Return the expression that matches numbers of a form. The expression is compiled on demand, because
    expressions with prefixes take long to compile and few metrics need them."""
    return re.compile(_FORMS[form])


def are_json(texts: Sequence[str]) -> bool:
    """Return whether each of `texts` is a number that `JSON` matches. The texts contain no newlines."""
    lines = "\n".join([*texts, ""])
    return _have_one_form(texts, lines) or _json_lines(lines) is not None


def _have_one_form(texts: Sequence[str], lines: str) -> bool:
    """Return whether one text is a JSON number and the other texts differ from this text only in digits.
    lines: all texts, joined.

    Checking the joined texts takes a fifth of the time of checking each text.
    """
    if not texts or not _is_json(texts[0]):
        return False
    sign = "-" if texts[0].startswith("-") else ""
    if texts[0][len(sign) + 1 :][:1].isdecimal() and f"\n{sign}0" in lines:
        return False
    one = f"{texts[0]}\n".encode().translate(_DIGITS_AS_ZERO)
    return lines.encode("utf-8", "replace").translate(_DIGITS_AS_ZERO) == one * len(texts)


def json_number(text: str) -> str | None:
    """Return `text` as a JSON number; None if `text` is not a finite decimal number.

    Integers that fit into 64 bits, signed or unsigned, stay integers. Underscores, thousands separators,
    "nan" and "inf" are not numbers.
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
    """Return a number as JSON. Return None for values that are not numbers, and for numbers beyond the range
    of a float."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    return whole_number(value) if isinstance(value, int) and not isinstance(value, bool) else None


def whole_number(value: int) -> str | None:
    """Return the whole number `value` as JSON. The number is written as an integer if it fits into 64 bits,
    and as a rounded float otherwise. None if the value is beyond the range of a float."""
    if -(2**63) <= value < 2**64:
        return str(value)
    try:
        return repr(float(value))
    except OverflowError:
        return None


def form_number(text: str, form: NumberForm) -> str | None:
    """Return `text` as a JSON number, if `text` is a number of the form `form`. Return None otherwise."""
    number = json_number(text)
    if number is not None or form is NumberForm.PLAIN:
        return number
    match = _form(form).fullmatch(text.strip(_SPACE))
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
    """Return the end of the number that begins with `text[start:end]`. Return `end` if the number ends at
    `end`."""
    if form is NumberForm.PLAIN:
        return exponent_end(text, start, end)
    if _begins_within(text, start) or not _MANTISSA(text[start:end].translate(_SEPARATORS)):
        return end
    match = _form(form).match(text, start)
    return max(end, match.end()) if match else end


def scaled(text: str, conversion: Conversion) -> str | None:
    """Convert the decimal number `text` to other units, and return the result as a JSON number. Return None
    if the result is not a JSON number."""
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
    """Return the seconds of `text` as a decimal number; None if `text` has neither the form "1:02:03" nor
    "1h2m3s"."""
    match = (_CLOCK(text) or _SPANS(text)) if len(text) <= _LONGEST else None
    if match is None:
        return None
    days, hours, minutes, seconds = (Decimal(part or 0) for part in match.groups())
    return str(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def span_end(text: str, start: int, end: int) -> int:
    """Return the end of the duration that begins with the part `text[start:end]`, which includes its unit ("1m" in
    "1m2.5s"). If the duration has only this part, return `end`.

    Go prints durations as "1m2.5s". If only the first part were read, a pattern for a number and a unit would
    read "1m2.5s" as one minute instead of 62.5 seconds.
    """
    found = _SPAN(text, start)
    return max(end, found.end()) if found else end


def begins_within_span(text: str, start: int) -> bool:
    """Return whether the number at `start` is a later part of a duration, such as "2.5" in "1m2.5s"."""
    return _SPAN_BEFORE(text, max(0, start - 2), start) is not None


def exponent_end(text: str, start: int, end: int) -> int:
    r"""Return the end of the exponent after the number in `text[start:end]`; `end` if the number has no
    exponent.

    The pattern `([-+]?\d*\.\d+|\d+)` finds "1.5" in "1.5e-05", which looks plausible but is wrong by orders
    of magnitude. After an integer, an exponent without a sign is only recognised if nothing follows the
    exponent ("12e5f" is not a number).
    """
    if not _MANTISSA(text[start:end]) or _begins_within(text, start):
        return end
    match = _EXPONENT if "." in text[start:end] else _SIGNED_EXPONENT
    found = match(text, end) or _WHOLE_EXPONENT(text, end)
    return found.end() if found else end


def _begins_within(text: str, start: int) -> bool:
    """Return whether the match of a pattern began in the middle of a number."""
    return start > 0 and text[start - 1] in "0123456789."


def goes_on(text: str, start: int, end: int) -> bool:
    """Return whether the number in `text[start:end]` is only the beginning of a number such as "12,345",
    "0.5" or "1:02"."""
    return bool(
        _GOES_ON(text, end)
        or (_FRACTION(text, end) and "." not in text[start:end])
        or (_THOUSANDS(text, end) and _SHORT(text, start, end))
    )


def rest_end(text: str, end: int) -> int:
    """Return the end of the digits, separators and unit that follow the position `end`."""
    found = _REST(text, end)
    return found.end() if found else end


def rest_start(text: str, start: int) -> int:
    """Return the beginning of a duration whose later part begins at `start`."""
    return start - len(_REST_BEFORE(text[max(0, start - _MOST_BEFORE) : start])[0])  # type: ignore[index]


def fast_number(spelled: str, *, open_end: bool, with_units: bool, decodes: bool) -> str:
    """Return the expression of a number that can be recorded without a second check, because only the
    metric's units (`spelled`) follow the number.

    open_end: whether any text can follow the value. with_units: whether a word after the value can be another
    unit. decodes: whether the pattern searches characters instead of bytes.
    """
    if not open_end and not with_units:
        return JSON
    ends = f"(?!{_going_on(open_end=open_end, with_units=with_units, decodes=decodes)})"
    units = f"|{_own_units(spelled)}" if spelled else ""
    # The most frequent case comes first, because testing the text after the number is cheap but testing an
    # optional exponent is not.
    return f"{_MANTISSA_JSON}(?:{ends}|{_EXPONENT_JSON}{ends}{units})"


def needs_look(spelled: str, *, open_end: bool, with_units: bool) -> str:
    """Return the expression that, directly after a JSON number, prevents a match of `fast_number`.

    The expression is for lines that are searched as bytes. If `spelled` is not empty, the expression is only valid for numbers
    without an exponent.
    """
    continued = r"[0-9]|\.[0-9]|[eE][-+]?[0-9]"
    if not open_end and not with_units:
        return f"(?=[0-9.eE])(?:{continued})"
    others = _going_on(open_end=open_end, with_units=with_units, decodes=False)
    if spelled:
        others = f"(?!{_own_units(spelled)})(?:{others})"
    # The expression first excludes most characters, because that takes half the time of trying all
    # alternatives.
    begins = rf"0-9.A-Za-z%\x80-\xff{' ' if with_units else ''}" + (",_':" if open_end else "")
    return f"(?=[{begins}])(?:{continued}|{others})"


def _going_on(*, open_end: bool, with_units: bool, decodes: bool) -> str:
    """Return an expression for text after a number that may be a continuation of the number or another unit."""
    digits = "0-9" if open_end else ""
    letters = rf"A-Za-z%\x80-{chr(sys.maxunicode) if decodes else chr(0xFF)}"
    more = [f"[{digits}{letters}]"]
    if open_end:
        more.append("[.,_':][0-9]")
    if with_units:
        more.append(f" [{letters}]")
    return "|".join(more)


def _own_units(spelled: str) -> str:
    return rf"(?= ?{re.escape(spelled)}(?![0-9A-Za-z%/]))"
