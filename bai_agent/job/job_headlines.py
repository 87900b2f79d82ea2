"""Computes the headline of each metric of a job from the metric's values. The agent and all views use only
this module.

- The metric's `headline` selects the headline of one series in one run. Warm-up values do not count.
- The metric's `over_ranks` says how the headlines of a run's ranks are combined. For "each", their mean is used.
- The headline of several runs is the median of the runs that succeeded.
- In a job with generations, only the last generation with a number for the metric and its labels counts.

Labels and arms are dimensions. Numbers with different labels or arms are never combined.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from bai_agent.job.descriptor.metric_tables import Headline, Metric, OverRanks
from bai_agent.job.figures import ExactSum, RunningMedian, mean_of, median_of
from bai_agent.job.record_types import HeadlineValue
from bai_agent.light_dataclass import dataclass

T = TypeVar("T")

ARM = "arm"
"""Name of the label with which views show a run's arm."""

_OVER_RANKS: Mapping[OverRanks, Callable[[Sequence[float]], float]] = {
    OverRanks.EACH: mean_of,
    OverRanks.MEAN: mean_of,
    OverRanks.SUM: sum,
    OverRanks.MIN: min,
    OverRanks.MAX: max,
}


_RATE = re.compile(r"(?:/|\bper )(?:s|secs?|seconds?|min|minutes?|h|hours?)\s*$", re.IGNORECASE)
"""Pattern that matches the end of a rate's units, such as "/s" in "img/s"."""


@dataclass(frozen=True, kw_only=True)
class SeriesNumber:
    """The headline of a single series in a single run. A series has one rank and one set of labels."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    """The series' labels, sorted, without the labels that name the origin of a record."""
    arm: str | None = None
    repeat: int | None = None
    generation: int | None = None
    """None if the job has no generations."""
    value: float
    units: str = ""


@dataclass(frozen=True, kw_only=True)
class JobHeadline:
    """The headline of one metric, set of labels and arm."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    arm: str | None = None
    units: str = ""
    runs: Mapping[int | None, float]
    """Headline of each run that is not excluded, by the number of the run. The key is None in a job without
    `[repeat]`."""
    ranks: int = 1
    """Largest number of ranks that contributed to a run's number."""
    over_ranks: OverRanks = OverRanks.EACH
    generation: int | None = None
    """Number of the generation whose numbers are combined; None if the job has no generations."""

    @property
    def value(self) -> float:
        return over_runs(list(self.runs.values()))

    @property
    def labelled(self) -> str:
        """The metric's name with its labels and arm, such as "latency{threads=4,arm=new}"."""
        return labelled_name(self.name, with_arm(self.labels, self.arm))

    @property
    def title(self) -> str:
        """The metric's name with labels and arm, and the number of ranks if several ranks contributed."""
        return f"{self.labelled}{_of_ranks(self.over_ranks, self.ranks)}"


def labelled_name(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return a metric's name with its labels, if the metric has labels."""
    words = ",".join(f"{key}={value}" for key, value in labels)
    return f"{name}{{{words}}}" if words else name


def with_arm(labels: tuple[tuple[str, str], ...], arm: str | None) -> tuple[tuple[str, str], ...]:
    """Return `labels` with an additional label for the arm; unchanged if `arm` is None."""
    return labels if arm is None else (*labels, (ARM, arm))


def arm_of(repeat: int | None, arms: Sequence[T]) -> T | None:
    """Return the arm of the run `repeat`. arms: the arm of each run, in order; empty if the job has no arms."""
    return arms[repeat] if repeat is not None and repeat < len(arms) else None


def headline_of(how: Headline, values: Sequence[float]) -> float:
    """Return the headline of a series from its values, of which at least one exists."""
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


class RunningHeadline:
    """Computes the headline of values that arrive in pieces. All values must be within `LIMIT`. The result equals the
    result of `headline_of` for all values.

    Only the headline "median" keeps values in memory, with 8 bytes per value. The caller must add all values a second
    time if some of them are no longer in memory.
    """

    def __init__(self, how: Headline) -> None:
        self._how = how
        self.count = 0
        self._least = math.inf
        self._greatest = -math.inf
        self._last = 0.0
        self._sum = ExactSum()
        self._median = RunningMedian()

    @property
    def kept(self) -> int:
        """The number of values in memory."""
        return len(self._median.kept)

    @property
    def all_values(self) -> array[float] | None:
        """All values; None if some values are not in memory."""
        return self._median.kept if self._median.keeps_all else None

    def thin(self) -> None:
        """Drop half of the values in memory."""
        self._median.thin()

    def add(self, values: Sequence[float]) -> None:
        """Add the next values, in their order."""
        if not values:
            return
        self.count += len(values)
        self._last = values[-1]
        if self._how in (Headline.MIN, Headline.MEAN):
            self._least = min(self._least, min(values))
        if self._how in (Headline.MAX, Headline.MEAN):
            self._greatest = max(self._greatest, max(values))
        if self._how is Headline.MEAN:
            self._sum.add(values)
        elif self._how is Headline.MEDIAN:
            self._median.add(values)

    def value(self) -> float | None:
        """Return the headline of all values. If the result is None, the caller must add all values again, to the
        object that `again` returns."""
        match self._how:
            case Headline.MIN:
                return self._least
            case Headline.MAX:
                return self._greatest
            case Headline.MEAN:
                return min(max(self._sum.rounded / self.count, self._least), self._greatest)
            case Headline.MEDIAN:
                return self._median.value(self.count)
            case Headline.LAST:
                return self._last

    def again(self) -> RunningHeadline:
        """Return an object that finds the headline if the same values are added again, possibly several
        times."""
        found = RunningHeadline(self._how)
        found._median = self._median.narrowed(self.count)
        return found


def over_ranks_of(values: Sequence[float], how: OverRanks) -> float:
    """Combine the numbers of one or more ranks into one number."""
    return _OVER_RANKS[how](values)


def mean_or(how: OverRanks) -> OverRanks:
    """Return how to combine the numbers of several ranks into one number. The result is "mean" if `how` is "each"."""
    return OverRanks.MEAN if how is OverRanks.EACH else how


def over_runs(values: Sequence[float]) -> float:
    """Return the headline of one or more runs."""
    return median_of(values)


class LastGenerations:
    """Finds the last generation with a number, for each metric and set of labels. Headlines are computed only from
    the last generation."""

    def __init__(self, numbers: Iterable[tuple[Hashable, int | None]] = ()) -> None:
        """numbers: one pair per number of a series. A pair consists of the metric with its labels, and the number's
        generation."""
        self._last: dict[Hashable, int] = {}
        for group, generation in numbers:
            self.add(group, generation)

    def add(self, group: Hashable, generation: int | None) -> bool:
        """Record that `generation` has a number for `group`. Return whether `generation` is now the last generation
        of `group`, and was not so before."""
        is_later = generation is not None and generation > self._last.get(group, -1)
        if generation is not None and is_later:
            self._last[group] = generation
        return is_later

    def is_past(self, group: Hashable, generation: int | None) -> bool:
        """Return whether a later generation has replaced the given generation."""
        return generation is not None and generation < self._last.get(group, generation)


def job_headlines(
    numbers: Iterable[SeriesNumber],
    metrics: Mapping[str, Metric],
    *,
    failed: Collection[int | None] = (),
) -> list[JobHeadline]:
    """Return the headlines of a job, in the order of their first numbers. failed: repeats that are excluded
    from every headline."""
    found: dict[
        tuple[str, tuple[tuple[str, str], ...], str | None], dict[int | None, list[SeriesNumber]]
    ] = {}
    counted = [each for each in numbers if each.repeat is None or each.repeat not in failed]
    last = LastGenerations(((each.name, each.labels), each.generation) for each in counted)
    for each in counted:
        if not last.is_past((each.name, each.labels), each.generation):
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
                generation=next(iter(runs.values()))[0].generation,
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
    """Return the headlines as in a result, by name with labels.

    with_runs: whether to include the numbers of each run. The result of a job of several nodes is computed from these
    numbers.
    """
    found = {}
    for each in job_headlines(numbers, metrics, failed=failed):
        runs: dict[str, list[float]] = {}
        for one in numbers if with_runs else ():
            if (one.name, one.labels, one.arm, one.generation) == (
                each.name,
                each.labels,
                each.arm,
                each.generation,
            ):
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
            generation=each.generation,
        )
    return found


def generation_headlines(
    numbers: Sequence[SeriesNumber], metrics: Mapping[str, Metric], *, with_runs: bool = False
) -> dict[int, dict[str, HeadlineValue]]:
    """Return the headlines of each generation, by the generation's number. with_runs: as for
    `headline_values`."""
    found: dict[int, list[SeriesNumber]] = {}
    for each in numbers:
        if each.generation is not None:
            found.setdefault(each.generation, []).append(each)
    return {
        generation: headline_values(found[generation], metrics, with_runs=with_runs)
        for generation in sorted(found)
    }


def headlines_of_nodes(
    nodes: Sequence[Mapping[str, HeadlineValue]], *, failed: Collection[int | None]
) -> dict[str, HeadlineValue]:
    """Return the headlines of a job. The job's headlines are computed from the headlines of its nodes, which
    contain the numbers of the nodes' runs."""
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
                generation=each.generation,
                value=value,
                units=each.units,
            )
            for repeat, values in (each.runs or {}).items()
            for value in values
        ]
    return headline_values(numbers, metrics, failed=failed)


def per_node(headline: HeadlineValue, *, members: int, measured: int) -> float | None:
    """Return a single node's share of a headline. The headline is a sum over ranks, or a rate that one rank measured for all
    nodes. None for other headlines.

    members: number of nodes. measured: number of nodes with a number for the metric.
    """
    if headline.over_ranks == OverRanks.SUM.value and headline.ranks > 1:
        return headline.value / measured
    is_rate = headline.ranks == 1 and _RATE.search(headline.units) is not None
    return headline.value / members if is_rate else None


def headline_title(name: str, headline: HeadlineValue) -> str:
    """Return the name of a headline in a result, with the number of ranks if there are several."""
    return f"{name}{_of_ranks(_how(headline), headline.ranks)}"


def _how(headline: HeadlineValue) -> OverRanks:
    """Return how the numbers of several ranks are combined in a headline of a result. A value that only a newer
    version knows is read as "each"."""
    known = {each.value: each for each in OverRanks}
    return known.get(headline.over_ranks or "", OverRanks.EACH)


def _of_ranks(how: OverRanks, ranks: int) -> str:
    return f" ({mean_or(how).value} of {ranks} ranks)" if ranks > 1 else ""
