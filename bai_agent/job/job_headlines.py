"""The one number of each metric that stands for a job, made from all its values: here alone, for the agent and every view.

- Of one series in one run it is what the metric's `headline` asks for, without the warm-up.
- Of a run's ranks it is what `over_ranks` asks for; their mean, where that is "each".
- Of several runs it is the median over those that succeeded.

Labels and arms are dimensions: numbers with different ones are never put together.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bai_agent.job.descriptor import Headline, Metric, OverRanks
from bai_agent.job.interval import mean_of, median_of
from bai_agent.job.record_types import HeadlineValue

ARM = "arm"
"""The label under which views show the arm."""

_OVER_RANKS: Mapping[OverRanks, Callable[[Sequence[float]], float]] = {
    OverRanks.EACH: mean_of,
    OverRanks.MEAN: mean_of,
    OverRanks.SUM: lambda values: _finite(sum(values)),
    OverRanks.MIN: min,
    OverRanks.MAX: max,
}


@dataclass(frozen=True, kw_only=True)
class SeriesNumber:
    """The number of one series in one run: of one rank, with one set of labels."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted, without those that say where a record comes from."""
    arm: str | None = None
    repeat: int | None = None
    value: float
    units: str = ""


@dataclass(frozen=True, kw_only=True)
class JobHeadline:
    """The number of one metric, set of labels and arm that stands for a job."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    arm: str | None = None
    units: str = ""
    runs: Mapping[int | None, float]
    """The number of each run that counts, by repeat; None: the only run."""
    ranks: int = 1
    """Of how many ranks a run's number is made, at most."""
    over_ranks: OverRanks = OverRanks.EACH

    @property
    def value(self) -> float:
        return over_runs(list(self.runs.values()))

    @property
    def labelled(self) -> str:
        """The metric's name with its labels and arm: "latency{threads=4,arm=new}"."""
        return labelled_name(self.name, with_arm(self.labels, self.arm))

    @property
    def title(self) -> str:
        """The same, with the number of ranks if there are several."""
        return f"{self.labelled}{_of_ranks(self.over_ranks, self.ranks)}"


def labelled_name(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return a metric's name with its labels, if it has any."""
    words = ",".join(f"{key}={value}" for key, value in labels)
    return f"{name}{{{words}}}" if words else name


def with_arm(labels: tuple[tuple[str, str], ...], arm: str | None) -> tuple[tuple[str, str], ...]:
    """Return the labels with that of the arm, if there is one."""
    return labels if arm is None else (*labels, (ARM, arm))


def headline_of(how: Headline, values: Sequence[float]) -> float:
    """Return which of one or more values of a series stands for all."""
    match how:
        case Headline.MIN:
            return min(values)
        case Headline.MAX:
            return max(values)
        case Headline.MEAN:
            return mean_of(values)
        case Headline.MEDIAN:
            return median_of(values)
        case Headline.LAST:
            return values[-1]


def over_ranks_of(values: Sequence[float], how: OverRanks) -> float:
    """Return one number for those of one or more ranks."""
    return _OVER_RANKS[how](values)


def mean_or(how: OverRanks) -> OverRanks:
    """Return what one number over ranks is: the mean, if the descriptor wants each rank shown."""
    return OverRanks.MEAN if how is OverRanks.EACH else how


def over_runs(values: Sequence[float]) -> float:
    """Return the number that stands for one or more runs."""
    return median_of(values)


def job_headlines(
    numbers: Iterable[SeriesNumber],
    metrics: Mapping[str, Metric],
    *,
    failed: Collection[int | None] = (),
) -> list[JobHeadline]:
    """Return the headlines of a job, in the order of their first numbers. failed: repeats that count in none."""
    found: dict[
        tuple[str, tuple[tuple[str, str], ...], str | None], dict[int | None, list[SeriesNumber]]
    ] = {}
    for each in numbers:
        if each.repeat is None or each.repeat not in failed:
            runs = found.setdefault((each.name, each.labels, each.arm), {})
            runs.setdefault(each.repeat, []).append(each)
    headlines = []
    for (name, labels, arm), runs in found.items():
        how = metrics[name].over_ranks if name in metrics else OverRanks.EACH
        headlines.append(
            JobHeadline(
                name=name,
                labels=labels,
                arm=arm,
                units=next(iter(runs.values()))[0].units,
                runs={
                    repeat: over_ranks_of([each.value for each in ranks], how)
                    for repeat, ranks in runs.items()
                },
                ranks=max(map(len, runs.values())),
                over_ranks=how,
            )
        )
    return headlines


def headline_values(
    numbers: Sequence[SeriesNumber],
    metrics: Mapping[str, Metric],
    *,
    failed: Collection[int | None] = (),
    with_runs: bool = False,
) -> dict[str, HeadlineValue]:
    """Return the headlines as a result has them, by name with labels. with_runs: with what those of several nodes are made of."""
    found = {}
    for each in job_headlines(numbers, metrics, failed=failed):
        runs: dict[str, list[float]] = {}
        for one in numbers if with_runs else ():
            if (one.name, one.labels, one.arm) == (each.name, each.labels, each.arm):
                runs.setdefault("" if one.repeat is None else str(one.repeat), []).append(one.value)
        found[each.labelled] = HeadlineValue(
            value=each.value,
            units=each.units,
            name=each.name,
            labels=dict(each.labels),
            arm=each.arm,
            ranks=each.ranks,
            over_ranks=each.over_ranks.value,
            runs=runs or None,
        )
    return found


def headlines_of_nodes(
    nodes: Sequence[Mapping[str, HeadlineValue]], *, failed: Collection[int | None]
) -> dict[str, HeadlineValue]:
    """Return the headlines of a job from those of its nodes, which have the numbers of their runs."""
    numbers = []
    metrics = {}
    for each in (each for node in nodes for each in node.values()):
        if each.name is None:
            continue
        metrics[each.name] = Metric(name=each.name, pattern="", over_ranks=_how(each))
        numbers += [
            SeriesNumber(
                name=each.name,
                labels=tuple((each.labels or {}).items()),
                arm=each.arm,
                repeat=int(repeat) if repeat else None,
                value=value,
                units=each.units,
            )
            for repeat, values in (each.runs or {}).items()
            for value in values
        ]
    return headline_values(numbers, metrics, failed=failed)


def headline_title(name: str, headline: HeadlineValue) -> str:
    """Return the name of a headline in a result, with the number of ranks if there are several."""
    return f"{name}{_of_ranks(_how(headline), headline.ranks)}"


def _how(headline: HeadlineValue) -> OverRanks:
    """Return what a result says; a word that only a newer version knows is like "each"."""
    known = {each.value: each for each in OverRanks}
    return known.get(headline.over_ranks or "", OverRanks.EACH)


def _of_ranks(how: OverRanks, ranks: int) -> str:
    return f" ({mean_or(how).value} of {ranks} ranks)" if ranks > 1 else ""


def _finite(value: float) -> float:
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value
