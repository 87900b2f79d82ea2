"""What the table of a comparison says of a metric, in words: for a screen, a page and a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bai_agent.job.descriptor import Better
from executor.analysis.baseline import BandedMetric
from executor.analysis.compared_metric import Incomparable, MetricComparison
from executor.quantities import quantity
from executor.view.text import plain_text


class Cells(NamedTuple):
    """A row. What others wrote is plain text in it."""

    name: str
    better: Better | None
    a: str
    b: str
    units: str
    """Units of both sides' numbers; empty if the numbers name theirs."""
    change: str
    interval: str
    verdict: str
    """Of one line, or of two."""

    @property
    def with_units(self) -> tuple[str, str]:
        """The numbers of A and B with their units."""
        a, b = (" ".join(filter(None, (each, self.units))) for each in (self.a, self.b))
        return a, b


def comparison_cells(each: MetricComparison | Incomparable, *, unicode: bool = True) -> Cells:
    """Return the row of a metric of two sides."""
    if isinstance(each, Incomparable):
        return _bare(each)
    return Cells(
        plain_text(each.name),
        each.better,
        *_numbers(each.centre_a, each.centre_b, each.units),
        change_text(each.effect.change, relative=each.effect.relative, units=each.units),
        interval_text(each, unicode=unicode),
        each.verdict_text,
    )


def band_cells(each: BandedMetric | Incomparable, *, unicode: bool = True) -> Cells:
    """Return the row of a metric of a run and its history: A is the history."""
    if isinstance(each, Incomparable):
        return _bare(each)
    return Cells(
        plain_text(each.name),
        each.better,
        *_numbers(each.centre_a, each.centre_b, each.units),
        change_text(each.change, relative=each.relative, units=each.units),
        band_text(each, unicode=unicode),
        each.verdict_text,
    )


def change_text(change: float, *, relative: bool, units: str = "") -> str:
    """Return a change for reading: "-20.1 %", or with its sign in the metric's units."""
    if not relative:
        text = quantity(abs(change), units)[0]
        return f"{'-' if change < 0 else '+'}{text}"
    if abs(change) >= 10:
        return f"x {change + 1:,.3g}"
    digits = 1 if abs(change) >= 0.0095 else 2
    return f"{change * 100:+.{digits}f} %"


def interval_text(each: MetricComparison, *, unicode: bool = True) -> str:
    """Return the interval of a change for reading, or nothing."""
    low, high = each.effect.low, each.effect.high
    if low is None or high is None:
        return "-"
    ends = [change_text(end, relative=each.effect.relative, units=each.units) for end in (low, high)]
    return _joined(ends, unicode=unicode)


def band_text(each: BandedMetric, *, unicode: bool = True) -> str:
    """Return the ends of a band for reading."""
    if each.low is None or each.high is None:
        return "-"
    return _joined([quantity(end, each.units)[0] for end in (each.low, each.high)], unicode=unicode)


def _joined(ends: Sequence[str], *, unicode: bool) -> str:
    if all(end.endswith(" %") for end in ends):
        ends = [ends[0].removesuffix(" %"), ends[1]]
    return (" … " if unicode else " to ").join(ends)


def _numbers(a: float, b: float, units: str) -> tuple[str, str, str]:
    """Return both numbers, and the units that are still to be named."""
    (text_a, rest_a), (text_b, rest_b) = quantity(a, units), quantity(b, units)
    if rest_a == rest_b:
        return text_a, text_b, plain_text(rest_a)
    return plain_text(f"{text_a} {rest_a}".strip()), plain_text(f"{text_b} {rest_b}".strip()), ""


def _bare(each: Incomparable) -> Cells:
    sides = zip((each.a, each.b), each.below, strict=True)
    a, b = (plain_text(" ".join(filter(None, quantity(*side, floor=below)))) for side, below in sides)
    return Cells(plain_text(each.name), None, a, b, "", "-", "-", "not comparable")
