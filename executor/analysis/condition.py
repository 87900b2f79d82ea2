"""Parses and judges the conditions of `--fail-if 'throughput < -5%'`. A condition is about the change of one
metric, and consists of three words: metric, comparison operator and bound."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from bai_agent.light_dataclass import dataclass
from executor.analysis.baseline import AgainstHistory, BandedMetric
from executor.analysis.compared_metric import Incomparable, MetricComparison
from executor.analysis.comparison import Comparison
from executor.analysis.effect import ALPHA, holm
from executor.errors import UsageError

_CONDITION = re.compile(
    r"""\s*(?:"(?P<quoted>[^"]+)"|(?P<name>[^\s<>="][^<>="]*?))\s*(?P<sign><=|>=|<|>)\s*(?P<number>[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(?P<share>%)?\s*"""
)
_LONGEST = 500
EXAMPLE = "'throughput < -5%', or 'loss > 0.1' for a change in the metric's units"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition on the change of a metric from A to B. If the condition holds, the command fails."""

    text: str
    metric: str
    less: bool
    or_equal: bool
    bound: float
    relative: bool

    def of(self, compared: Comparison | AgainstHistory) -> MetricComparison | BandedMetric | Incomparable:
        """Return the metric of the comparison that the condition names. Raises UsageError."""
        every: list[MetricComparison | BandedMetric | Incomparable] = [
            *compared.metrics,
            *compared.incomparable,
        ]
        found = next((each for each in every if each.name == self.metric), None)
        if found is None:
            known = ", ".join(each.name for each in every) or "none"
            sides = "the two sides" if isinstance(compared, Comparison) else "the run and the history"
            raise UsageError(
                f'--fail-if "{self.text}": {sides} have no metric "{self.metric}" in common; they have: {known}'
            )
        return found

    def is_met(self, found: MetricComparison | BandedMetric, *, p: float) -> bool:
        """Return whether the change meets the condition. The change must be significant, unless the bound
        also allows no change at all. p: p value, corrected for all conditions. Raises UsageError."""
        if self.relative and not found.relative:
            raise UsageError(
                f'--fail-if "{self.text}": not all values of {self.metric} are positive, so the change is no percentage; '
                "write the bound in the metric's units, without %"
            )
        in_units = found.relative and not self.relative
        change = found.centre_b - found.centre_a if in_units else found.change
        # A condition such as `< 5%` or `> -5%` also holds if nothing has changed, so it needs no significant
        # change. `<= 0` and `>= 0` need one.
        permissive = (self.bound > 0) if self.less else (self.bound < 0)
        return self._is_beyond(change) and (permissive or p <= ALPHA)

    def _is_beyond(self, change: float) -> bool:
        beyond = change < self.bound if self.less else change > self.bound
        return beyond or (self.or_equal and change == self.bound)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The judgement of one condition in one comparison."""

    condition: Condition
    holds: bool | None
    """Whether the condition holds; None if unknown."""
    why: str = ""
    """Reason why it is unknown whether the condition holds."""


def judge(
    conditions: Sequence[Condition], compared: Sequence[Comparison | AgainstHistory]
) -> list[Judgement]:
    """Return whether each condition holds in each comparison. Raises UsageError.

    p values are corrected (Holm) over all metrics that conditions name, in all comparisons together. Many
    conditions therefore fail healthy runs no more often than a single condition.
    """
    cases = [(each, i, each.of(comparison)) for each in conditions for i, comparison in enumerate(compared)]
    ps = {
        (i, found.name): p
        for _, i, found in cases
        if not isinstance(found, Incomparable) and (p := found.p) is not None
    }
    corrected = dict(zip(ps, holm(list(ps.values())), strict=True))
    judged = []
    for condition, i, found in cases:
        if isinstance(found, Incomparable):
            judged.append(Judgement(condition=condition, holds=None, why=found.note))
        elif found.unknown is not None:
            judged.append(Judgement(condition=condition, holds=None, why=found.unknown))
        else:
            holds = condition.is_met(found, p=corrected[i, found.name])
            judged.append(Judgement(condition=condition, holds=holds))
    return judged


def parse_condition(text: str) -> Condition:
    """Return the condition in `text`. Raises UsageError."""
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
