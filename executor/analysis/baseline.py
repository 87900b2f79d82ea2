"""Compares a run with the history of similar runs: checks whether the run is inside the band that the history
predicts for the next run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bai_agent.job.descriptor.metric_tables import Better
from bai_agent.job.figures import LIMIT
from bai_agent.light_dataclass import dataclass, replace
from executor.analysis.compared_metric import ComparedMetrics, Incomparable, Verdict
from executor.analysis.effect import ALPHA, centre, holm_in_families, holm_of, is_relative
from executor.analysis.history import drift, prediction
from executor.analysis.matching import below, converted, why_bounds, why_not_comparable
from executor.analysis.measured_runs import Run, RunValue
from executor.quantities import counted

FEWEST = 3
"""Minimum number of runs in a history from which a band can be predicted."""
MANY_METRICS = 5
FEWEST_OF_MANY = 8
"""Minimum number of runs in a history if more than `MANY_METRICS` metrics are judged together. With a shorter
history, the correction for the number of metrics leaves no difference significant."""
INSIDE = "within the band"
_DRIFTS = 0.01


@dataclass(frozen=True, kw_only=True)
class BandedMetric:
    """One metric, with its values in the history and in the newest run or runs."""

    name: str
    units: str = ""
    better: Better | None = None
    tolerance: float = 0.0
    history: tuple[float, ...]
    """Values of the history, the oldest first."""
    newest: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    """Ends of the band; None if the history is too short."""
    p: float | None = None
    """p value of the newest value, from the same t distribution as the band."""
    p_corrected: float | None = None
    """p value corrected (Holm) within the metric's family, which is all metrics with `better`, or all metrics
    without `better`."""
    corrected_for: int = 1
    """Number of metrics in the family for which `p_corrected` is corrected."""
    verdict: str = Verdict.UNKNOWN.value
    """"within the band", or the value of a `Verdict`."""
    change: float
    """Change from the history's centre: relative, or in units if `relative` is false."""
    relative: bool
    notes: tuple[str, ...] = ()

    @property
    def centre_a(self) -> float:
        """Headline of the history."""
        return centre(self.history, relative=self.relative)

    @property
    def centre_b(self) -> float:
        """Headline of the newest run, or runs."""
        return centre(self.newest, relative=self.relative)

    @property
    def unknown(self) -> str | None:
        """Reason why a condition on this metric cannot be judged; None if the condition can be judged."""
        if self.p is None:
            return f"the history is too short for a band, which needs at least {FEWEST} runs"
        if self._too_short:
            return f"the history is too short for {self.corrected_for} metrics, which need at least {FEWEST_OF_MANY} runs"
        return None

    @property
    def verdict_text(self) -> str:
        """The verdict as text for the user. If only the correction for many metrics makes the verdict `no
        difference found`, the text says so. One of many metrics may be outside of its band by chance."""
        if self.verdict == Verdict.NONE.value:
            return f"{self.verdict}\n(of {self.corrected_for} metrics, corrected)"
        return self.verdict

    @property
    def _is_inside(self) -> bool:
        if self.low is None or self.high is None:
            return False
        # Digits beyond the twelfth are ignored, because sums of the same numbers in another order may differ
        # there.
        slack = 1e-12 * max(abs(self.low), abs(self.high))
        return self.low - slack <= self.centre_b <= self.high + slack

    @property
    def _too_short(self) -> bool:
        return self.corrected_for > MANY_METRICS and len(self.history) < FEWEST_OF_MANY

    def judged(self) -> BandedMetric:
        """Return the metric with its verdict."""
        if self.unknown is not None:
            return replace(self, notes=(self._too_few, *self.notes))
        return replace(self, verdict=self._verdict)

    @property
    def _too_few(self) -> str:
        """Return the note for the user that a history is too short."""
        runs = counted(len(self.history), "run")
        if self.p is None:
            least = f"a band needs at least {FEWEST} runs, and is useful from ten runs on"
        else:
            least = f"{self.corrected_for} metrics need a minimum number of runs of {FEWEST_OF_MANY}"
        return f"cannot tell: the history has {runs} of this metric; {least}"

    @property
    def _verdict(self) -> str:
        if self._is_inside:
            return INSIDE
        if self.p_corrected is None or self.p_corrected > ALPHA:
            return Verdict.NONE.value
        if abs(self.change) <= self.tolerance * (1.0 if self.relative else abs(self.centre_a)):
            return Verdict.WITHIN.value
        return Verdict.of_change(self.change, self.better).value

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
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


class AgainstHistory(ComparedMetrics[BandedMetric]):
    """The comparison of the newest run with the history, for all metrics that both have."""


def against_history(history: Sequence[Run], newest: Sequence[Run]) -> AgainstHistory:
    """Compare the newest runs with the earlier runs of the same kind. history: the earlier runs, the oldest
    first."""
    common = {name: None for run in newest for name in run.values if _values(name, history)}
    found = {name: _banded(name, history, newest) for name in common}
    banded = {name: each for name, each in found.items() if isinstance(each, BandedMetric)}
    return AgainstHistory(
        metrics=tuple(_judged_together(banded).values()),
        incomparable=tuple(each for each in found.values() if isinstance(each, Incomparable)),
    )


def _judged_together(banded: Mapping[str, BandedMetric]) -> dict[str, BandedMetric]:
    """Return the metrics with their verdicts and with notes about drifts. The verdicts are corrected for the
    number of metrics."""
    tested = {
        name: (p, each.better is not None) for name, each in banded.items() if (p := each.p) is not None
    }
    corrected = holm_in_families(tested)
    slopes = {name: seen for name, each in banded.items() if (seen := drift(each.history)) is not None}
    drifting = holm_of({name: p for name, (_, p) in slopes.items()})
    judged = {}
    for name, each in banded.items():
        p, size = corrected.get(name, (None, 1))
        judged[name] = replace(each, p_corrected=p, corrected_for=size).judged()
        if drifting.get(name, 1.0) <= _DRIFTS:
            judged[name] = _with_drift(judged[name], slopes[name][0])
    return judged


def _banded(name: str, history: Sequence[Run], newest: Sequence[Run]) -> BandedMetric | Incomparable:
    now, every = _values(name, newest), _values(name, history)
    reasons = [why_not_comparable([each], now) for each in every]
    before = [each for each, why in zip(every, reasons, strict=True) if why is None]
    others = [why for why in reasons if why is not None]
    if (why := why_bounds(before, now) if before else others[-1]) is not None:
        level = (before or every)[-1]
        return Incomparable(
            name=name,
            why=why,
            better=now[0].better,
            a=(level.value, level.units),
            b=(now[0].value, now[0].units),
            below=(below(before), below(now)) if before else (None, None),
            differs=not before,
        )
    notes = [*_left_out_notes(others), *_unsteady_notes(name, newest)]
    return _in_band(name, before, now, notes)


def _in_band(
    name: str, before: Sequence[RunValue], now: Sequence[RunValue], notes: Sequence[str]
) -> BandedMetric:
    """Return a metric with its band. before, now: the numbers of the history and of the newest runs, for the
    same definition of the metric."""
    units = now[0].units
    numbers, values = ([converted(each, units) or 0.0 for each in side] for side in (before, now))
    relative = is_relative(*numbers, *values)
    typical, value = centre(numbers, relative=relative), centre(values, relative=relative)
    metric = BandedMetric(
        name=name,
        units=units,
        better=now[0].better,
        tolerance=now[0].tolerance or 0.0,
        history=tuple(numbers),
        newest=tuple(values),
        change=min(value / typical - 1, LIMIT) if relative else value - typical,
        relative=relative,
        notes=tuple(notes),
    )
    if len(numbers) < FEWEST:
        return metric
    if len(set(numbers)) == 1:
        same = "all runs of the history gave the same number: their scatter is assumed to be the scatter of rounding"
        metric = replace(metric, notes=(same, *metric.notes))
    band = prediction(numbers, values)
    return replace(metric, low=band.low, high=band.high, p=band.p)


def _values(name: str, runs: Sequence[Run]) -> list[RunValue]:
    return [run.values[name] for run in runs if name in run.values]


def _left_out_notes(reasons: Sequence[str]) -> list[str]:
    if not reasons:
        return []
    runs = counted(len(reasons), "run")
    return [f"{runs} of the history left out, because the metric's definition was different ({reasons[-1]})"]


def _unsteady_notes(name: str, runs: Sequence[Run]) -> list[str]:
    marked = [run for run in runs if name in run.values and run.values[name].unsteady is not None]
    return [f"{run.name}: {run.values[name].unsteady}" for run in marked[:1]]


def _with_drift(metric: BandedMetric, slope: float) -> BandedMetric:
    amount = f"{slope:+.2%}" if metric.relative else f"{slope:+.3g}"
    sentence = (
        f"the history itself drifts, by {amount} from run to run: the band is wider than the runs scatter"
    )
    return replace(metric, notes=(*metric.notes, sentence))


METHOD = (
    f"Each band is the {(1 - ALPHA) * 100:.0f} % prediction interval for the newest run (Student's t, of logarithms where all values are positive). "
    "One in twenty healthy runs is called better or worse by chance. This rate holds over "
    "all metrics that name their better direction together, and again over all other metrics together (Holm)."
)
"""Explanation below the table."""
