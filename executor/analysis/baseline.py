"""A run seen against the history of its kind: whether it lies in the band in which one more such run is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bai_agent.job.descriptor import Better
from executor.analysis.comparison import Verdict
from executor.analysis.effect import ALPHA, bounded, centre, holm, is_relative
from executor.analysis.history import drift, prediction
from executor.analysis.runs import Run

FEWEST = 3
"""Runs of a history that say something of the next one."""
INSIDE = "within the band"
_DRIFTS = 0.01


@dataclass(frozen=True, kw_only=True)
class BandedMetric:
    """One metric of the newest run, or runs, and of the history."""

    name: str
    units: str = ""
    better: Better | None = None
    history: tuple[float, ...]
    """The oldest first."""
    newest: tuple[float, ...]
    low: float | None
    high: float | None
    """The band; None where the history is too short."""
    verdict: str
    """"within the band", or the value of a `Verdict`."""
    change: float
    """From the history's centre: a share, or in units where `relative` is not so."""
    relative: bool
    notes: tuple[str, ...] = ()

    @property
    def typical(self) -> float:
        return centre(self.history, relative=self.relative)

    @property
    def value(self) -> float:
        return centre(self.newest, relative=self.relative)

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "name": self.name,
            "units": self.units,
            "better": self.better.value if self.better is not None else None,
            "verdict": self.verdict,
            "value": self.value,
            "runs": list(self.newest),
            "relative": self.relative,
            "change": self.change,
            "band": [self.low, self.high] if self.low is not None else None,
            "history": list(self.history),
            "notes": list(self.notes),
        }


def against_history(history: Sequence[Run], newest: Sequence[Run]) -> list[BandedMetric]:
    """Return how the newest runs of a kind lie to those before them, which are in order of time, the oldest first."""
    names = {name: None for run in newest for name in run.values}
    banded = [_banded(name, history, newest) for name in names if any(name in run.values for run in history)]
    drifts = [drift(each.history) for each in banded]
    corrected = iter(holm([found[1] for found in drifts if found is not None]))
    return [
        each if found is None else _with_drift(each, found[0], next(corrected))
        for each, found in zip(banded, drifts, strict=True)
    ]


def _banded(name: str, history: Sequence[Run], newest: Sequence[Run]) -> BandedMetric:
    first = next(run.values[name] for run in newest if name in run.values)
    better = first.metric.better if first.metric is not None else None
    tolerance = (first.metric.tolerance if first.metric is not None else None) or 0.0
    before = tuple(run.values[name].value for run in history if name in run.values)
    now = tuple(run.values[name].value for run in newest if name in run.values)
    relative = is_relative(*before, *now)
    typical, value = centre(before, relative=relative), centre(now, relative=relative)
    change = bounded(value / typical - 1 if relative else value - typical)
    notes = []
    low = high = None
    verdict: str = Verdict.UNKNOWN.value
    if len(before) < FEWEST:
        notes.append(
            f"cannot tell: the history has {len(before)} run{'' if len(before) == 1 else 's'} with it; {FEWEST} are the least, ten make a useful band"
        )
    else:
        low, high = prediction(before, len(now))
        if low == high:
            notes.append("all runs of the history gave the same number: its band has no width")
        # The same numbers, another order of additions: no digit beyond the twelfth counts.
        slack = 1e-12 * max(abs(low), abs(high))
        inside = low - slack <= value <= high + slack
        if inside:
            verdict = INSIDE
        elif abs(change) <= tolerance * (1.0 if relative else abs(typical)):
            verdict = Verdict.WITHIN.value
        elif better is None:
            verdict = Verdict.DIFFERENT.value
        else:
            verdict = (Verdict.BETTER if (change > 0) == (better is Better.HIGHER) else Verdict.WORSE).value
    marked = [run for run in newest if name in run.values and run.values[name].unsteady is not None]
    if marked:
        notes.append(f"{marked[0].name}: {marked[0].values[name].unsteady}")
    return BandedMetric(
        name=name, units=first.units, better=better, history=before, newest=now, low=low, high=high,
        verdict=verdict, change=change, relative=relative, notes=tuple(notes),
    )  # fmt: skip


def _with_drift(metric: BandedMetric, slope: float, p: float) -> BandedMetric:
    if p > _DRIFTS:
        return metric
    amount = f"{slope:+.2%}" if metric.relative else f"{slope:+.3g}"
    sentence = (
        f"the history itself drifts, by {amount} from run to run: the band is wider than the runs scatter"
    )
    return BandedMetric(**{**metric.__dict__, "notes": (*metric.notes, sentence)})


METHOD = (
    f"The band is the {(1 - ALPHA) * 100:.0f} % prediction interval for the newest run (Student's t, of logarithms where all values are "
    "positive): of healthy runs one in twenty lies outside, for each metric."
)
"""What is printed below."""
