"""Decides whether the runs of a `[repeat]` job with `until` are enough. The runs are enough if the confidence
interval was narrow enough after the last two runs or blocks, and the runs show no trend.

The decision depends only on the headlines, so each agent of the job makes the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bai_agent.job.figures import half_width, mean_of, relative_half_width, trend_p
from bai_agent.light_dataclass import dataclass

_TREND = 0.05
"""Significance level of Kendall's test. If the test's p value is below this level, the runs have a trend, and
their mean does not predict the next run."""

Headlines = Mapping[tuple[str | None, str], Mapping[int, float]]
"""The main value (headline) of each successful run, by arm and series, then by the number of the block. In a
job without arms, each run is a block."""


@dataclass(frozen=True, kw_only=True)
class Enough:
    """Evaluation of all completed runs."""

    interval: float | None
    """Half the width of the widest 95 % confidence interval, as a share of the mean; None if unknown."""
    narrow_before: bool
    """Whether all confidence intervals were already narrow enough before the last run or block."""
    trend: bool
    """Whether the headlines of at least one series rise or fall from run to run."""
    enough: bool

    def as_table(self) -> dict[str, Any]:
        """Return the fields of the evaluation as JSON values."""
        return dict(self.__dict__)


def enough_runs(headlines: Headlines, *, arms: Sequence[str], until: float, least: int) -> Enough:
    """Evaluate all completed runs. arms: names of the job's arms; each is compared with the first.

    In a job with arms, the confidence interval is about the difference between an arm and the first arm. The
    interval is computed from the differences within blocks. least: minimum number of runs or blocks of each
    series.
    """
    every = _differences(headlines, arms) if arms else _means(headlines)
    widths = [width(values) for values, width in every]
    before = [width(values[:-1]) for values, width in every]
    widest = max(widths, default=math.inf)
    few = any(len(values) < least for values, _ in every)
    narrow_before = max(before, default=math.inf) <= until
    trend = any(trend_p(values) <= _TREND for values, _ in every)
    return Enough(
        interval=widest if math.isfinite(widest) else None,
        narrow_before=narrow_before,
        trend=trend,
        enough=not few and widest <= until and narrow_before and not trend,
    )


def _means(headlines: Headlines) -> list[tuple[list[float], Any]]:
    return [(list(values.values()), relative_half_width) for values in headlines.values()]


def _differences(headlines: Headlines, arms: Sequence[str]) -> list[tuple[list[float], Any]]:
    """Return one item for each series and each arm except the first: the differences from the first arm
    within blocks, and the function that computes the half width of the differences' interval."""
    found: list[tuple[list[float], Any]] = []
    first, *others = arms
    for series in dict.fromkeys(series for _, series in headlines):
        a = headlines.get((first, series), {})
        for other in others:
            b = headlines.get((other, series), {})
            both = [(a[block], b[block]) for block in a if block in b]
            if all(x > 0 and y > 0 for x, y in both):
                found.append(([math.log(y) - math.log(x) for x, y in both], half_width))
            else:
                level = abs(mean_of([x for x, _ in both])) or math.nan
                found.append(([(y - x) / level for x, y in both], _finite_half_width))
    return found


def _finite_half_width(values: Sequence[float]) -> float:
    width = half_width(values)
    return width if math.isfinite(width) else math.inf
