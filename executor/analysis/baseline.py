"""A run seen against the history of its kind: whether it lies in the band in which one more such run is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bai_agent.job.descriptor import Better
from executor.analysis.compared_metric import Incomparable, Verdict
from executor.analysis.definition import below, converted, why_bounds, why_not_comparable
from executor.analysis.effect import ALPHA, bounded, centre, holm, is_relative
from executor.analysis.history import drift, prediction
from executor.analysis.runs import Run

FEWEST = 3
"""Runs of a history that say something of the next one."""
MANY_METRICS = 5
FEWEST_OF_MANY = 8
"""Runs of a history by which more than so many metrics can be judged together: with fewer nothing would be found."""
INSIDE = "within the band"
_DRIFTS = 0.01


@dataclass(frozen=True, kw_only=True)
class BandedMetric:
    """One metric of the newest run, or runs, and of the history."""

    name: str
    units: str = ""
    better: Better | None = None
    tolerance: float = 0.0
    history: tuple[float, ...]
    """The oldest first."""
    newest: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    """The band; None where the history is too short."""
    p: float | None = None
    """Of the newest, by the t distribution that the band agrees with."""
    p_corrected: float | None = None
    """By Holm, over the metrics with a direction, or those without."""
    corrected_for: int = 1
    """Metrics in that family."""
    verdict: str = Verdict.UNKNOWN.value
    """"within the band", or the value of a `Verdict`."""
    change: float
    """From the history's centre: a share, or in units where `relative` is not so."""
    relative: bool
    notes: tuple[str, ...] = ()

    @property
    def centre_a(self) -> float:
        """The number that stands for the history."""
        return centre(self.history, relative=self.relative)

    @property
    def centre_b(self) -> float:
        """The number that stands for the newest."""
        return centre(self.newest, relative=self.relative)

    @property
    def unknown(self) -> str | None:
        """Why no condition on it can be judged; None if one can."""
        if self.p is None:
            return f"the history is too short for a band; {FEWEST} runs are the least"
        if self._too_short:
            return f"the history is too short for {self.corrected_for} metrics; {FEWEST_OF_MANY} runs are the least"
        return None

    @property
    def verdict_text(self) -> str:
        """The verdict for reading: one of many metrics may lie outside of its band by chance."""
        if self.verdict == Verdict.NONE.value:
            return f"{self.verdict}\n(of {self.corrected_for} metrics, corrected)"
        return self.verdict

    @property
    def _is_inside(self) -> bool:
        if self.low is None or self.high is None:
            return False
        # The same numbers, another order of additions: no digit beyond the twelfth counts.
        slack = 1e-12 * max(abs(self.low), abs(self.high))
        return self.low - slack <= self.centre_b <= self.high + slack

    @property
    def _too_short(self) -> bool:
        return self.corrected_for > MANY_METRICS and len(self.history) < FEWEST_OF_MANY

    def judged(self) -> BandedMetric:
        """Return it with its verdict."""
        if self.unknown is not None:
            note = f"cannot tell: the history has {len(self.history)} run{'' if len(self.history) == 1 else 's'} with it; "
            if self.p is None:
                note += f"{FEWEST} are the least, ten make a useful band"
            else:
                note += f"{FEWEST_OF_MANY} are the least for {self.corrected_for} metrics"
            return replace(self, notes=(note, *self.notes))
        level = 1.0 if self.relative else abs(self.centre_a)
        if self._is_inside:
            verdict = INSIDE
        elif self.p_corrected is None or self.p_corrected > ALPHA:
            verdict = Verdict.NONE.value
        elif abs(self.change) <= self.tolerance * level:
            verdict = Verdict.WITHIN.value
        elif self.better is None:
            verdict = Verdict.DIFFERENT.value
        else:
            worse = (self.change > 0) == (self.better is Better.LOWER)
            verdict = (Verdict.WORSE if worse else Verdict.BETTER).value
        return replace(self, verdict=verdict)

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "name": self.name,
            "units": self.units,
            "better": self.better.value if self.better is not None else None,
            "verdict": self.verdict,
            "value": self.centre_b,
            "runs": list(self.newest),
            "relative": self.relative,
            "change": self.change,
            "band": [self.low, self.high] if self.low is not None else None,
            "p": self.p,
            "p_corrected": self.p_corrected,
            "corrected_for": self.corrected_for,
            "history": list(self.history),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class AgainstHistory:
    """All metrics that the newest run and the history have."""

    metrics: tuple[BandedMetric, ...]
    incomparable: tuple[Incomparable, ...] = ()
    """Those of which no run of the history has the same definition, or some numbers are only bounds."""

    @property
    def every(self) -> tuple[BandedMetric | Incomparable, ...]:
        """The metrics of both, those last that cannot be compared."""
        return (*self.metrics, *self.incomparable)

    @property
    def worse(self) -> bool:
        return any(each.verdict == Verdict.WORSE.value for each in self.metrics)

    @property
    def unjudged(self) -> bool:
        """Whether nobody can say if a metric with a direction is worse, as it is not the same as in the history."""
        return any(each.better is not None and not each.both_below for each in self.incomparable)

    def tables(self) -> list[dict[str, Any]]:
        """Return all metrics as JSON values."""
        return [*(each.as_table() for each in self.metrics), *(each.as_table() for each in self.incomparable)]


def against_history(history: Sequence[Run], newest: Sequence[Run]) -> AgainstHistory:
    """Return how the newest runs of a kind lie to those before them, which are in order of time, the oldest first."""
    names = dict.fromkeys(name for run in newest for name in run.values)
    found = [_banded(name, history, newest) for name in names if any(name in run.values for run in history)]
    banded = [each for each in found if isinstance(each, BandedMetric)]
    for directed in (True, False):
        family = [
            i for i, each in enumerate(banded) if each.p is not None and (each.better is not None) == directed
        ]
        corrected = holm([banded[i].p or 0.0 for i in family])
        for i, p in zip(family, corrected, strict=True):
            banded[i] = replace(banded[i], p_corrected=p, corrected_for=len(family))
    drifts = [drift(each.history) for each in banded]
    ps = iter(holm([each[1] for each in drifts if each is not None]))
    return AgainstHistory(
        metrics=tuple(
            each.judged() if seen is None else _with_drift(each.judged(), seen[0], next(ps))
            for each, seen in zip(banded, drifts, strict=True)
        ),
        incomparable=tuple(each for each in found if isinstance(each, Incomparable)),
    )


def _banded(name: str, history: Sequence[Run], newest: Sequence[Run]) -> BandedMetric | Incomparable:
    now = [run.values[name] for run in newest if name in run.values]
    first = now[0]
    units, metric = first.units, first.metric
    better = metric.better if metric is not None else None
    every = [run.values[name] for run in history if name in run.values]
    reasons = [why_not_comparable([each], now) for each in every]
    before = [each for each, why in zip(every, reasons, strict=True) if why is None]
    others = [why for why in reasons if why is not None]
    if not before:
        level = every[-1]
        return Incomparable(
            name=name, why=others[-1], better=better, a=(level.value, level.units), b=(first.value, units)
        )
    if (why := why_bounds(before, now)) is not None:
        return Incomparable(
            name=name,
            why=why,
            better=better,
            a=(before[-1].value, before[-1].units),
            b=(first.value, units),
            below=(below(before), below(now)),
            differs=False,
        )
    notes = []
    if others:
        notes.append(
            f"{len(others)} run{'' if len(others) == 1 else 's'} of the history left out, as the metric was another one ({others[-1]})"
        )
    numbers, values = ([converted(each, units) or 0.0 for each in side] for side in (before, now))
    relative = is_relative(*numbers, *values)
    typical, value = centre(numbers, relative=relative), centre(values, relative=relative)
    band = prediction(numbers, values) if len(numbers) >= FEWEST else None
    if band is not None and len(set(numbers)) == 1:
        notes.append("all runs of the history gave the same number: its scatter is taken as that of rounding")
    marked = [run for run in newest if name in run.values and run.values[name].unsteady is not None]
    if marked:
        notes.append(f"{marked[0].name}: {marked[0].values[name].unsteady}")
    return BandedMetric(
        name=name,
        units=units,
        better=better,
        tolerance=(metric.tolerance if metric is not None else None) or 0.0,
        history=tuple(numbers),
        newest=tuple(values),
        low=band.low if band is not None else None,
        high=band.high if band is not None else None,
        p=band.p if band is not None else None,
        change=bounded(value / typical - 1 if relative else value - typical),
        relative=relative,
        notes=tuple(notes),
    )


def _with_drift(metric: BandedMetric, slope: float, p: float) -> BandedMetric:
    if p > _DRIFTS:
        return metric
    amount = f"{slope:+.2%}" if metric.relative else f"{slope:+.3g}"
    sentence = (
        f"the history itself drifts, by {amount} from run to run: the band is wider than the runs scatter"
    )
    return replace(metric, notes=(*metric.notes, sentence))


METHOD = (
    f"Each band is the {(1 - ALPHA) * 100:.0f} % prediction interval for the newest run (Student's t, of logarithms where all values are positive). "
    "Of healthy runs one in twenty is called better or worse, over all metrics that name their better direction together, and over all others (Holm)."
)
"""What is printed below."""
