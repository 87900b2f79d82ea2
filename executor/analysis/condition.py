"""`--fail-if 'throughput < -5%'`: a condition on the change of one metric, read by a grammar of three words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from executor.analysis.baseline import INSIDE, BandedMetric
from executor.analysis.comparison import Comparison
from executor.errors import UsageError

_CONDITION = re.compile(
    r"""\s*(?:"(?P<quoted>[^"]+)"|(?P<name>[^\s<>="][^<>="]*?))\s*(?P<sign><=|>=|<|>)\s*(?P<number>[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(?P<share>%)?\s*"""
)
_LONGEST = 500
EXAMPLE = "'throughput < -5%', or 'loss > 0.1' for a change in the metric's units"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """The change of a metric, from A to B, that is not to be."""

    text: str
    metric: str
    less: bool
    or_equal: bool
    bound: float
    relative: bool

    def holds(self, comparison: Comparison) -> bool | None:
        """Return whether the change is so, and no chance; None where one cannot tell for want of runs. Raises UsageError."""
        found = comparison.find(self.metric)
        if found is None:
            known = ", ".join(each.name for each in comparison.metrics) or "none"
            raise UsageError(
                f'--fail-if "{self.text}": the two sides have no metric "{self.metric}" in common; they have: {known}'
            )
        self._check_share(relative=found.effect.relative)
        if found.effect.p is None:
            return None
        change = found.effect.change
        if found.effect.relative and not self.relative:
            change = found.centre_b - found.centre_a
        return self._is_met(change, is_no_chance=found.effect.excludes_zero)

    def holds_of_band(self, banded: Sequence[BandedMetric]) -> bool | None:
        """Return whether the change from the centre of the band is so, and the run lies outside it; None where there is no band.

        Raises UsageError.
        """
        found = next((each for each in banded if each.name == self.metric), None)
        if found is None:
            known = ", ".join(each.name for each in banded) or "none"
            raise UsageError(
                f'--fail-if "{self.text}": the run and the history have no metric "{self.metric}" in common; they have: {known}'
            )
        self._check_share(relative=found.relative)
        if found.low is None:
            return None
        change = found.value - found.typical if found.relative and not self.relative else found.change
        return self._is_met(change, is_no_chance=found.verdict != INSIDE)

    def _check_share(self, *, relative: bool) -> None:
        if self.relative and not relative:
            raise UsageError(
                f'--fail-if "{self.text}": not all values of {self.metric} are positive, so that its change is no share of them; '
                "write the bound in its units, without %"
            )

    def _is_met(self, change: float, *, is_no_chance: bool) -> bool:
        beyond = change < self.bound if self.less else change > self.bound
        beyond = beyond or (self.or_equal and change == self.bound)
        # A bound of the side where nothing has changed holds for equals as well: what is asked then needs no difference.
        permissive = (self.bound > 0) if self.less else (self.bound < 0)
        return beyond and (permissive or is_no_chance)


def parse_condition(text: str) -> Condition:
    """Return the condition that `text` says. Raises UsageError."""
    match = _CONDITION.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise UsageError(
            f'--fail-if "{text[:_LONGEST]}": expected a metric, one of < <= > >=, and a number; write for example {EXAMPLE}'
        )
    try:
        number = float(match["number"])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(
            f'--fail-if "{text}": "{match["number"]}" is not a number; write for example {EXAMPLE}'
        )
    relative = match["share"] is not None
    return Condition(
        text=text,
        metric=match["quoted"] or match["name"].strip(),
        less=match["sign"].startswith("<"),
        or_equal=match["sign"].endswith("="),
        bound=number / 100 if relative else number,
        relative=relative,
    )
