"""What CloudWatch calls the units of metrics.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_MetricDatum.html
"""

from __future__ import annotations

import re

_NAMED = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "Seconds"),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), "Milliseconds"),
    **dict.fromkeys(("us", "µs", "usec", "microsecond", "microseconds"), "Microseconds"),
    **dict.fromkeys(("%", "percent", "pct"), "Percent"),
    "count": "Count",
}
_PREFIXES = {"": "", "k": "Kilo", "K": "Kilo", "M": "Mega", "G": "Giga", "T": "Tera"}
_AMOUNT = re.compile(r"(?P<prefix>[kKMGT]?)(?P<kind>B|[bB]ytes?|b|[bB]its?)(?P<rate>/s|/sec|ps)?")
_COUNT_RATE = re.compile(r"(?:1|[A-Za-z_ ]+)?/s(?:ec|econd)?")


def cloudwatch_unit(units: str) -> str | None:
    """Return CloudWatch's word for `units`; None where it has none, such as for KiB, hours and nats."""
    if found := _NAMED.get(units):
        return found
    if amount := _AMOUNT.fullmatch(units):
        is_bytes = amount["kind"] == "B" or amount["kind"].lower().startswith("byte")
        name = (_PREFIXES[amount["prefix"]] + ("bytes" if is_bytes else "bits")).capitalize()
        return f"{name}/Second" if amount["rate"] else name
    return "Count/Second" if _COUNT_RATE.fullmatch(units) and not _is_size(units) else None


def _is_size(units: str) -> bool:
    """Return whether `units` is an amount of data that CloudWatch has no word for: "MiB/s"."""
    return re.match(r"[KMGTPE]i?(?:B|b)", units) is not None
