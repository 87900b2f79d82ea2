"""`--fail-if 'throughput < -5%'`: a condition on the change of one metric, read by a grammar of three words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from executor.analysis.comparison import Comparison
from executor.errors import UsageError

_CONDITION = re.compile(
    r"""\s*(?:"(?P<quoted>[^"]+)"|(?P<name>[^<>="]+?))\s*(?P<sign><=|>=|<|>)\s*(?P<number>[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(?P<share>%)?\s*"""
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
        if self.relative and not found.effect.relative:
            raise UsageError(
                f'--fail-if "{self.text}": not all values of {self.metric} are positive, so that its change is no share of them; '
                "write the bound in its units, without %"
            )
        if found.effect.p is None:
            return None
        change = found.effect.change
        if found.effect.relative and not self.relative:
            change = found.centre_b - found.centre_a
        beyond = change < self.bound if self.less else change > self.bound
        beyond = beyond or (self.or_equal and change == self.bound)
        # A bound of the side where nothing has changed holds for equals as well: what is asked then needs no difference.
        permissive = (self.bound > 0) if self.less else (self.bound < 0)
        return beyond and (permissive or found.effect.excludes_zero)


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
