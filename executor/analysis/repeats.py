"""What the runs of one job say together: the mean of each metric, and how well it is known."""

from __future__ import annotations

from dataclasses import dataclass

from bai_agent.job.interval import half_width, mean_of
from executor.analysis.runs import JobRuns


@dataclass(frozen=True, kw_only=True)
class OverRuns:
    """One metric over the runs that succeeded and have a value of it."""

    name: str
    units: str
    values: tuple[float, ...]
    """One for each run, in their order."""

    @property
    def mean(self) -> float:
        return mean_of(self.values)

    @property
    def half_width(self) -> float:
        """How far the 95 % confidence interval of the mean reaches to either side; infinite of one run."""
        return half_width(self.values)


def over_runs(runs: JobRuns) -> list[OverRuns]:
    """Return the metrics of a job that did several runs, in the order in which a run has them."""
    names = dict.fromkeys(name for run in runs.runs for name in run.values)
    found = []
    for name in names:
        values = [run.values[name] for run in runs.runs if name in run.values]
        found.append(OverRuns(name=name, units=values[0].units, values=tuple(each.value for each in values)))
    return found
