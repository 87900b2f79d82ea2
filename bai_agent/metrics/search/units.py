"""Units of time, data, ratios and counts, and the conversion between them.

`docs/extraction.md` lists the units.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

_TIMES = {
    "ps": ("picosecond", "picoseconds"),
    "ns": ("nsec", "nsecs", "nanos", "nanosecond", "nanoseconds"),
    "us": ("µs", "usec", "usecs", "µsec", "micros", "microsecond", "microseconds"),
    "ms": ("msec", "msecs", "millis", "millisecond", "milliseconds"),
    "s": ("sec", "secs", "second", "seconds"),
    "min": ("m", "mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
}
_SECONDS = {
    "ps": Fraction(1, 10**12),
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_LARGE = {
    "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
_WORDS = {
    "kilo": 10**3, "mega": 10**6, "giga": 10**9, "tera": 10**12, "peta": 10**15, "exa": 10**18,
    "kibi": 2**10, "mebi": 2**20, "gibi": 2**30, "tebi": 2**40, "pebi": 2**50, "exbi": 2**60,
}  # fmt: skip
PREFIXES = {
    **{prefix: Fraction(factor) for prefix, factor in _LARGE.items()},
    "m": Fraction(1, 1000),
    "u": Fraction(1, 10**6),
    "µ": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}
"""SI prefixes, and IEC prefixes, which end in i."""
_BITS = {"b": 1, "bit": 1, "bits": 1, "B": 8, "byte": 8, "bytes": 8, "Byte": 8, "Bytes": 8}
_RATIOS = {
    "%": Fraction(1, 100),
    "percent": Fraction(1, 100),
    "pct": Fraction(1, 100),
    "‰": Fraction(1, 1000),
    "ppm": Fraction(1, 10**6),
    "ratio": Fraction(1),
    "fraction": Fraction(1),
}
COUNTED = frozenset((
    "count", "iops", "ops", "op", "flops", "flop", "rps", "qps", "tps", "req", "reqs", "requests",
    "img", "imgs", "images", "tok", "toks", "tokens", "samples", "rows", "records", "msg", "msgs", "messages",
    "pkt", "pkts", "packets", "events", "queries", "transactions", "it", "iter", "iters", "iterations",
    "steps", "items", "calls", "hits", "hz", "w", "wh", "j", "v", "a", "pa",
))  # fmt: skip
"""Words (in lower case) before which a prefix is recognised: "kops", "GFLOPS", "MHz". In other words, such as
"keys" and "TLB", the first letter is possibly not a prefix."""
_CACHED = 4096
_LONGEST = 40
"""Longest unit that is converted (characters). The length is limited, because the unit comes from a log."""
_LONG = 3
"""The case of letters is ignored in units with at least this number of letters, such as "Seconds" and
"Percent"."""


class Conversion(NamedTuple):
    """Converts a value `x` to `x * factor`, or to `factor / x` if `inverse`."""

    factor: Fraction
    inverse: bool = False


SAME = Conversion(Fraction(1))


class _Quantity(NamedTuple):
    """The dimension of a unit without a denominator, and its size."""

    dimension: str
    factor: Fraction


@lru_cache(_CACHED)
def conversion(unit: str, units: str) -> Conversion | None:
    """Return the conversion from `unit` to `units`; None if the units cannot be converted."""
    unit, units = _normal(unit), _normal(units)
    if unit == units:
        return SAME
    if len(unit) > _LONGEST:
        return None
    (top, bottom), (wanted_top, wanted_bottom) = _split(unit), _split(units)
    if not bottom and wanted_bottom and (not top or top in PREFIXES):
        bottom = wanted_bottom  # "15.43M", meaning requests per second
    if bool(bottom) != bool(wanted_bottom):
        return None
    below = _factor(bottom, wanted_bottom) if bottom else Fraction(1)
    above = _factor(top, wanted_top)
    if above is not None and below is not None:
        return Conversion(above / below)
    # Seconds per iteration and iterations per second.
    crossed, other = _factor(bottom, wanted_top), _factor(top, wanted_bottom)
    if (
        bottom
        and crossed is not None
        and other is not None
        and "time" in (_dimension(top), _dimension(bottom))
    ):
        return Conversion(crossed / other, inverse=True)
    return None


@lru_cache(_CACHED)
def is_measured(units: str) -> bool:
    """Return whether the dimension of `units` is known. A unit in the log can only contradict units with a known dimension."""
    top, _ = _split(_normal(units))
    return top != "" and (_quantity(top) is not None or _counted(top)[1].lower() in COUNTED)


@lru_cache(_CACHED)
def is_prefix(unit: str) -> bool:
    """Return whether `unit` is only a prefix, such as "k" or "M/s"."""
    return _split(_normal(unit))[0] in PREFIXES


@lru_cache(_CACHED)
def contradicts(unit: str, units: str, *, apart: bool) -> bool:
    """Return whether a value that is followed by `unit` is certainly not in `units`. apart: whether a space
    separates the value from `unit`."""
    found = conversion(unit, units)
    if apart:
        return found is not None and found != SAME and not is_prefix(unit)
    if found is not None:
        return found != SAME
    return is_measured(units) and is_measured(unit)


def split_unit(units: str) -> str | None:
    """Return the unit of time at the beginning of `units`, if a space and another word follow that unit.
    Return None otherwise.

    "msec onds" gives "msec", but "ms per batch" gives None, because "ms per batch" is a complete unit.
    """
    first, space, rest = units.strip().partition(" ")
    if not space or rest.lstrip().startswith(("/", "per ", "(")) or first.endswith("/"):
        return None
    found = _quantity(first)
    return first if len(first) >= _LONG and found is not None and found.dimension == "time" else None


def is_time(units: str) -> bool:
    """Return whether `units` is a unit of time."""
    return _dimension(_normal(units)) == "time"


def _normal(unit: str) -> str:
    """Return `unit` with one spelling of micro and of "per"."""
    unit = unit.strip().replace("μ", "µ").replace(" per ", "/")
    top, slash, bottom = unit.partition("/")
    return f"{top.strip()}{slash}{bottom.strip()}"


def _split(unit: str) -> tuple[str, str]:
    """Return numerator and denominator, such as "Mb" and "s" for "Mbps"."""
    top, _, bottom = unit.partition("/")
    if not bottom and len(unit) > len("ps") and unit.endswith("ps"):
        data = _quantity(unit[: -len("ps")])
        if data is not None and data.dimension == "data":
            return unit[: -len("ps")], "s"
    return top, bottom


def _factor(unit: str, wanted: str) -> Fraction | None:
    """Return the factor from `unit` to `wanted`."""
    found, aim = _quantity(unit), _quantity(wanted)
    if unit in PREFIXES and aim is not None and aim.dimension == "data":
        found = _Quantity("data", PREFIXES[unit] * _BITS[_data_base(wanted)])
    if found is not None and aim is not None and found.dimension == aim.dimension:
        return found.factor / aim.factor
    if aim is not None:
        return None
    (prefix, word), (wanted_prefix, wanted_word) = _counted(unit), _counted(wanted)
    if word != wanted_word and word:
        return None
    if not word and not wanted_prefix and prefix and wanted_word.startswith(prefix):
        return None  # "15k" for "kfoo": the k may or may not be a prefix
    return PREFIXES.get(prefix, Fraction(1)) / PREFIXES.get(wanted_prefix, Fraction(1))


def _dimension(unit: str) -> str:
    found = _quantity(unit)
    return found.dimension if found else ""


def _quantity(unit: str) -> _Quantity | None:
    found = _QUANTITIES.get(unit)
    return found or (_QUANTITIES.get(unit.lower()) if len(unit) >= _LONG and unit.isalpha() else None)


def _counted(unit: str) -> tuple[str, str]:
    """Return the prefix and the word of a unit that counts something."""
    for length in (2, 1):
        prefix, word = unit[:length], unit[length:]
        if prefix in PREFIXES and (not word or (word.lower() in COUNTED and unit.lower() not in COUNTED)):
            return prefix, word
    return "", unit


def _data_base(unit: str) -> str:
    return "B" if unit.lower().endswith(("byte", "bytes")) or unit.endswith("B") else "b"


def _quantities() -> dict[str, _Quantity]:
    found = {}
    for unit, others in _TIMES.items():
        for name in (unit, *others):
            found[name] = _Quantity("time", _SECONDS[unit])
    for unit, bits in _BITS.items():
        found[unit] = _Quantity("data", Fraction(bits))
        for prefix, factor in _LARGE.items():
            found[prefix + unit] = _Quantity("data", Fraction(bits * factor))
        for word, factor in _WORDS.items() if len(unit) > 1 else ():
            found[word + unit.lower()] = _Quantity("data", Fraction(bits * factor))
    for unit, share in _RATIOS.items():
        found[unit] = _Quantity("ratio", share)
    return found


_QUANTITIES = _quantities()
