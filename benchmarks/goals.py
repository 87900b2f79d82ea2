"""The goals of all benchmarks, the line that a benchmark prints for each figure, and the table of all goals.

    from goals import print_figure
    print_figure("sparse-plain", ratios, case="1,500,000 lines, 28 MiB of records")

These lines print the median of the values, the 95 % interval of the median, and the load of the machine:

    goal sparse-plain [1,500,000 lines, 28 MiB of records]: 9.9 ×, 9.2 to 10.4; wanted at least 9.5: met; load 0.4

    python benchmarks/goals.py FILE…

This command reads the `goal` lines in the output of benchmarks, and prints a table of all goals. Each row has a figure and
whether the goal is met, or "not measured".
"""

from __future__ import annotations

import os
import random
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Goal:
    """A minimum or maximum for a figure, for any size of the input."""

    what: str
    bound: float
    units: str
    at_least: bool = False
    """Whether a larger figure is better."""

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"at {'least' if self.at_least else 'most'} {self.bound:g}"

    def is_met(self, figure: float) -> bool:
        """Return whether `figure` meets the goal."""
        return figure >= self.bound if self.at_least else figure <= self.bound


GOALS = {
    "sparse-plain": Goal("sparse log, 10 patterns, relative to a plain loop", 9.5, "×", at_least=True),
    "sparse-mtail": Goal("sparse log, 10 patterns, relative to mtail", 6.5, "×", at_least=True),
    "dense-plain": Goal("dense log, 3 values a line, relative to a plain loop", 6, "×", at_least=True),
    "wide-plain": Goal("8 values a line, relative to a plain loop", 5, "×", at_least=True),
    "wide-mtail": Goal("8 values a line, relative to mtail", 1.2, "×", at_least=True),
    "agent-start": Goal("`bai-agent run` to the first instruction, nothing to pull", 150, "ms"),
    "run-start": Goal("`bai run` to the first instruction", 500, "ms"),
    "list-two": Goal("`bai list` with 2 jobs", 120, "ms"),
    "status-two": Goal("`bai status` with 2 jobs", 120, "ms"),
    "help": Goal("`bai --help`", 80, "ms"),
    "kafka-p99": Goal("line to Kafka, 99th percentile", 100, "ms"),
    "metrics-table": Goal("`bai metrics` of 1,000,000 points, table", 3, "s"),
    "metrics-jsonl": Goal("`bai metrics` of 1,000,000 points, jsonl", 1.5, "s"),
    "metrics-csv": Goal("`bai metrics` of 1,000,000 points, csv", 5, "s"),
    "join": Goal("1,000 nodes join", 30, "s"),
    "elastic-kill": Goal("standstill after `kill -9` of one of three nodes, relative to c10d", 1, "×"),
    "service-requests": Goal("requests for 300 open jobs of the service", 2, "USD/h"),
    "list-many": Goal("`bai list` with 10,000 jobs", 0.5, "s"),
    "status-last-many": Goal("`bai status last` with 10,000 jobs", 0.5, "s"),
    "top-many": Goal("first picture of `bai top` with 10,000 jobs", 0.5, "s"),
}
_LINE = re.compile(
    r"^goal (?P<name>[\w-]+)(?: \[(?P<case>.*?)\])?: (?P<figure>\S+) .*; wanted .*?: (?:not )?met; load (?P<load>\S+)$"
)


def print_figure(name: str, values: float | Sequence[float], *, case: str = "") -> None:
    """Print a goal's figure and whether the goal is met. values: a single value, or the values of all rounds, whose median is the
    figure. case: the size of the input."""
    goal = GOALS[name]
    every = [values] if isinstance(values, (int, float)) else list(values)
    figure = statistics.median(every)
    between = ""
    if len(every) > 1:
        low, high = interval(every)
        between = f", {low:.4g} to {high:.4g}"
    print(
        f"goal {name}{f' [{case}]' if case else ''}: {figure:.4g} {goal.units}{between}; "
        f"wanted {goal.wanted}: {'met' if goal.is_met(figure) else 'not met'}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by bootstrap with a fixed seed."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(4000))
    return medians[100], medians[3899]


def goal_table(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the table of all goals. lines: output of benchmarks."""
    found: dict[str, list[re.Match[str]]] = {name: [] for name in GOALS}
    for line in lines:
        match = _LINE.match(line.strip())
        if match is not None and match["name"] in found:
            found[match["name"]].append(match)
    yield "| | measured with | figure | wanted | | load |"
    yield "|---|---|---:|---:|---|---:|"
    for name, goal in GOALS.items():
        wanted = f"{goal.wanted} {goal.units}"
        for each in found[name]:
            figure = float(each["figure"])
            verdict = "met" if goal.is_met(figure) else "**not met**"
            yield f"| {goal.what} | {each['case'] or ''} | {figure:g} | {wanted} | {verdict} | {each['load']} |"
        if not found[name]:
            yield f"| {goal.what} | | | {wanted} | not measured | |"


if __name__ == "__main__":
    for row in goal_table(line for name in sys.argv[1:] for line in Path(name).read_text().splitlines()):
        print(row)
