"""A run against its history: its own definition of the metric only, and no more false alarms for many metrics."""

from __future__ import annotations

import random
from typing import Any

import pytest
from rich.console import Console
from scipy import stats

from bai_agent.job.descriptor.metric_tables import Better, Headline, Metric
from executor.analysis.baseline import AgainstHistory, against_history
from executor.analysis.measured_runs import Run, RunValue
from executor.documents.comparison_document import history_blocks
from executor.documents.screen import Screen
from executor.report.html import html_page


def history(values: dict[str, list[float]], units: str = "", **described: Any) -> list[Run]:
    described = {"better": Better.LOWER} | described
    return [
        Run(
            job_id=f"job-{i}",
            values={
                name: RunValue(
                    value=each, count=1, units=units, metric=Metric(name=name, pattern="x", **described)
                )
                for name, each in zip(values, numbers, strict=True)
            },
        )
        for i, numbers in enumerate(zip(*values.values(), strict=True))
    ]


def shown(banded: AgainstHistory) -> str:
    blocks = list(history_blocks(banded, name="b", history="a"))
    console = Console(width=110)
    with console.capture() as said:
        Screen(width=110).show(console, blocks)
    return said.get() + html_page("", blocks)


BEFORE = [100.0, 101, 99, 100.5, 99.5]


def test_units_that_convert_are_converted() -> None:
    banded = against_history(history({"t": BEFORE}, "ms"), history({"t": [0.2]}, "s"))

    (found,) = banded.metrics
    assert (found.verdict, found.units) == ("worse", "s")
    assert found.centre_a == pytest.approx(0.1, rel=0.01)


def test_runs_with_another_metric_definition_are_left_out_of_the_history() -> None:
    newest = history({"t": [100.0]}, headline=Headline.MEDIAN)
    other = history({"t": BEFORE}, headline=Headline.MAX)

    (found,) = against_history(other + history({"t": BEFORE}, headline=Headline.MEDIAN), newest).metrics
    assert len(found.history) == 5
    assert "5 runs of the history left out" in found.notes[0]
    assert "headline: max and median" in found.notes[0]

    banded = against_history(other, newest)
    assert (banded.metrics, banded.worse, banded.unjudged) == ((), False, True)
    assert "not comparable" in shown(banded)
    assert banded.tables()[0]["verdict"] == "not comparable"


def test_with_more_than_five_metrics_verdicts_need_eight_earlier_runs() -> None:
    def verdicts(metrics: int, runs: int) -> set[str]:
        names = [f"m{k}" for k in range(metrics)]
        before = history(dict.fromkeys(names, (BEFORE * 2)[:runs]))
        return {
            each.verdict
            for each in against_history(before, history({name: [300.0] for name in names})).metrics
        }

    assert verdicts(5, 5) == {"worse"}
    assert verdicts(6, 7) == {"cannot tell"}
    assert verdicts(6, 8) == {"worse"}


def test_among_twenty_metrics_the_rate_of_false_alarms_is_as_stated() -> None:
    names = [f"m{k}" for k in range(20)]
    alarms = alone = 0
    for seed in range(200):
        chance = random.Random(seed)

        def runs(count: int, chance: random.Random = chance) -> list[Run]:
            return history({name: [chance.gauss(100, 3) for _ in range(count)] for name in names})

        banded = against_history(runs(10), runs(1))
        alarms += banded.worse
        alone += any(each.p is not None and each.p < 0.05 for each in banded.metrics)

    assert alone > 0.4 * 200
    assert alarms <= stats.binom.ppf(0.9995, 200, 0.05)


def test_a_chance_outlier_among_many_metrics_has_a_note() -> None:
    names = [f"m{k}" for k in range(5)]
    before = history(dict.fromkeys(names, BEFORE * 2))
    now = history({name: [102.0 if name == "m0" else 100.0] for name in names})

    banded = against_history(before, now)

    first = banded.metrics[0]
    assert first.high is not None
    assert first.high < 102
    assert first.verdict == "no difference found"
    assert "(of 5 metrics, corrected)" in shown(banded)
