"""Verdicts: of runs, with the threshold that the descriptor names, and never more sure than the numbers are."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from bai_agent.job.descriptor.metric_tables import Better, Headline, Metric, OverRanks
from bai_agent.job.figures import LIMIT
from executor.analysis.baseline import against_history
from executor.analysis.compared_metric import Verdict
from executor.analysis.comparison import Comparison, compare, compare_sides
from executor.analysis.differences import Difference
from executor.analysis.measured_runs import Run, RunValue
from executor.documents.comparison_document import comparison_blocks, history_blocks
from executor.documents.document import Block
from executor.documents.screen import Screen
from executor.report.html import html_page

ANY = st.lists(st.floats(-LIMIT, LIMIT), min_size=1, max_size=7)

SLOW, EVEN, FAST = [80.0, 81, 79, 80.5, 79.5], [100.0, 101, 99, 100.5, 99.5], [120.0, 121, 119, 120.5, 119.5]


def runs(name: str = "throughput", /, *values: float, **described: Any) -> list[Run]:
    metric = Metric(name=name, pattern="x", **described)
    return [
        Run(job_id=f"job-{i}", values={name: RunValue(value=value, count=1, metric=metric)})
        for i, value in enumerate(values)
    ]


def verdict(a: list[float], b: list[float], **described: Any) -> Verdict:
    (found,) = compare(runs("m", *a, **described), runs("m", *b, **described)).metrics
    return found.verdict


HIGHER, LOWER = {"better": Better.HIGHER}, {"better": Better.LOWER}


@pytest.mark.parametrize(
    ("a", "b", "described", "expected"),
    [
        (EVEN, SLOW, HIGHER, Verdict.WORSE),
        (EVEN, SLOW, LOWER, Verdict.BETTER),
        (EVEN, FAST, HIGHER, Verdict.BETTER),
        (EVEN, SLOW, {}, Verdict.DIFFERENT),
        (EVEN, list(reversed(EVEN)), HIGHER, Verdict.NONE),
        (EVEN, [value * 1.02 for value in EVEN], {**HIGHER, "tolerance": 0.05}, Verdict.WITHIN),
        (EVEN, list(reversed(EVEN)), {**HIGHER, "tolerance": 0.05}, Verdict.WITHIN),
        # More than the tolerance is neither shown nor excluded
        (EVEN, [90.0, 100, 110], {**HIGHER, "tolerance": 0.01}, Verdict.UNKNOWN),
        (EVEN, [value * 1.02 for value in EVEN], {**HIGHER, "tolerance": 0.02}, Verdict.UNKNOWN),
        (EVEN, SLOW, {**HIGHER, "tolerance": 0.05}, Verdict.WORSE),
        # Of numbers that are not positive the direction is still right
        ([-value for value in EVEN], [-value for value in SLOW], HIGHER, Verdict.BETTER),
        ([-value for value in EVEN], [-value for value in SLOW], LOWER, Verdict.WORSE),
    ],
)  # fmt: skip
def test_the_verdict_follows_interval_direction_and_tolerance(
    a: list[float], b: list[float], described: dict[str, Any], expected: Verdict
) -> None:
    assert verdict(a, b, **described) is expected


def test_with_one_run_a_side_the_needed_number_of_runs_is_reported() -> None:
    (assumed,) = compare(runs("m", 100, better=Better.HIGHER), runs("m", 20, better=Better.HIGHER)).metrics
    assert assumed.verdict is Verdict.UNKNOWN
    assert assumed.more_runs == 16
    assert "an assumption" in assumed.notes[0]

    (known,) = compare(runs("m", 100), runs("m", 20), earlier_scatter={"m": 0.01}).metrics
    assert known.more_runs is not None
    assert known.more_runs < 4
    assert "given that earlier runs scatter by 1 %" in known.notes[0]

    # A tolerance is what is to be found
    (fine,) = compare(runs("m", 100, tolerance=0.01), runs("m", 20)).metrics
    assert fine.more_runs is not None
    assert fine.more_runs > 300
    assert "1 %, its tolerance" in fine.notes[0]


def test_a_chance_finding_in_one_of_many_metrics_gives_no_verdict() -> None:
    # Given a metric whose difference alone would be one, among nine others
    a = [100.0, 103, 97, 101, 99]
    b = [104.5, 107, 101, 105, 103]
    alone = compare(runs("m", *a, better=Better.HIGHER), runs("m", *b, better=Better.HIGHER)).metrics[0]
    assert alone.effect.p is not None
    assert 0.01 < alone.effect.p < 0.05
    assert alone.verdict is Verdict.BETTER

    chance = random.Random(3)
    sides = []
    for values in (a, b):
        side = []
        for i, value in enumerate(values):
            own = {
                "m": RunValue(
                    value=value, count=1, metric=Metric(name="m", pattern="x", better=Better.HIGHER)
                )
            }
            for k in range(9):
                metric = Metric(name=f"n{k}", pattern="x", better=Better.LOWER)
                own[f"n{k}"] = RunValue(value=chance.gauss(100, 3), count=1, metric=metric)
            side.append(Run(job_id=str(i), values=own))
        sides.append(side)
    compared = compare(*sides)

    found = compared.find("m")
    assert found is not None
    assert (compared.corrected_for, found.verdict) == (10, Verdict.NONE)
    assert any("among 10 metrics" in note for note in found.notes)


def test_among_five_equal_metrics_the_rate_of_false_alarms_is_as_stated() -> None:
    names = [f"m{k}" for k in range(5)]
    metrics = {name: Metric(name=name, pattern="x", better=Better.LOWER) for name in names}

    def side(chance: random.Random) -> list[Run]:
        return [
            Run(
                job_id=str(i),
                values={
                    name: RunValue(value=chance.gauss(100, 5), count=1, metric=metrics[name])
                    for name in names
                },
            )
            for i in range(4)
        ]

    alarms = 0
    for seed in range(500):
        chance = random.Random(seed)
        found = compare(side(chance), side(chance))
        alarms += any(each.verdict in (Verdict.BETTER, Verdict.WORSE) for each in found.metrics)

    assert alarms <= stats.binom.ppf(0.9995, 500, 0.05)


def test_a_significant_interval_among_many_metrics_has_a_note() -> None:
    a = {"m": [100.0, 103, 97, 101, 99]} | {f"n{k}": EVEN for k in range(4)}
    b = {"m": [104.5, 107, 101, 105, 103]} | {f"n{k}": EVEN[::-1] for k in range(4)}

    compared = compare(several(a), several(b))

    found = compared.find("m")
    assert found is not None
    assert found.effect.excludes_zero
    for shown in on_screen(compared), on_page(compared):
        assert "no difference found" in shown
        assert "(of 5 metrics, corrected)" in shown


def several(values: dict[str, list[float]], arm: str | None = None, **described: Any) -> list[Run]:
    """Return the runs of a side, with several metrics; of an arm its runs of each block."""
    described = {"better": Better.HIGHER} | described
    metrics = {name: Metric(name=name, pattern="x", **described) for name in values}
    return [
        Run(
            job_id="ab" if arm else f"job-{i}",
            arm=arm,
            block=i if arm else None,
            values={
                name: RunValue(value=each, count=1, metric=metrics[name])
                for name, each in zip(values, numbers, strict=True)
            },
        )
        for i, numbers in enumerate(zip(*values.values(), strict=True))
    ]


def on_screen(compared: Comparison, width: int = 100) -> str:
    return drawn(comparison_blocks(compared, names=("a", "b"), counts=(5, 5)), width)


def on_page(compared: Comparison) -> str:
    return html_page("", comparison_blocks(compared, names=("a", "b"), counts=(5, 5)))


def drawn(blocks: Iterable[Block], width: int = 100) -> str:
    console = Console(width=width)
    with console.capture() as said:
        Screen(width=width).show(console, blocks)
    return said.get()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_narrow_screen_names_are_shortened_before_numbers(width: int) -> None:
    def side(values: list[float]) -> list[Run]:
        found = runs("", *values, **LOWER)
        names = ("seconds_of_an_epoch_of_training_of_the_first_stage", "t")
        return [
            replace(run, values={name: replace(run.values[""], units="ms/row") for name in names})
            for run in found
        ]

    shown = on_screen(compare(side(EVEN), side(SLOW)), width)

    assert max(map(len, shown.splitlines())) <= width
    rows = [line for line in shown.splitlines() if line.rstrip().endswith("  better")]
    assert len(rows) == 2
    assert all("99.997" in row and "79.997" in row and "-20.0 %" in row for row in rows)
    assert shown.count("ms/row") == 2
    assert "_stage ↓" in shown


def test_missing_common_metrics_are_reported_before_differences() -> None:
    compared, banded = (
        compare(runs("x", *EVEN), runs("y", *SLOW)),
        against_history(runs("x", *EVEN), runs("y", *SLOW)),
    )
    differences = [Difference(what="command", a="one", b="two")]
    for blocks in (
        list(comparison_blocks(compared, names=("a", "b"), counts=(5, 5), differences=differences)),
        list(history_blocks(banded, name="b", history="a", differences=differences)),
    ):
        for each in (drawn(blocks, 80), html_page("", blocks)):
            assert 0 < each.index("no metric in common") < each.index("command")


def test_metrics_without_a_direction_are_corrected_separately() -> None:
    # Given one metric with a direction among nineteen without one
    chance = random.Random(5)
    names = [f"n{k}" for k in range(19)]
    a = several({name: [chance.gauss(100, 3) for _ in range(5)] for name in names}, better=None)
    b = several({name: [chance.gauss(100, 3) for _ in range(5)] for name in names}, better=None)
    with_m = [several({"m": values}) for values in (EVEN, [value * 1.02 for value in EVEN])]
    a, b = (
        [replace(run, values={**run.values, **own.values}) for run, own in zip(side, owns, strict=True)]
        for side, owns in zip((a, b), with_m, strict=True)
    )

    compared = compare(a, b)

    found, other = compared.find("m"), compared.find("n0")
    assert found is not None
    assert other is not None
    assert (found.verdict, found.corrected_for, other.corrected_for) == (Verdict.BETTER, 1, 19)


def test_arms_of_one_job_are_compared_within_their_blocks() -> None:
    drifting = [100.0, 104, 108, 112, 116, 120]
    chance = random.Random(2)
    a = several({"m": drifting}, "old")
    b = several({"m": [value * 1.03 * math.exp(chance.gauss(0, 0.002)) for value in drifting]}, "new")

    (apart,) = compare([replace(run, block=None) for run in a], b).metrics
    compared = compare(a, b)

    assert apart.verdict is Verdict.NONE
    assert compared.metrics[0].verdict is Verdict.BETTER
    assert compared.notes == ("compared within 6 blocks, each with one run of both sides",)
    # A block with a failed run is left out
    fewer = compare(a[1:], b)
    assert len(fewer.metrics[0].b) == 5
    assert "1 left out, because a run failed" in fewer.notes[0]
    assert "1 left out" in on_screen(fewer)
    # Runs of which no two were side by side tell nothing
    assert compare(a[:3], b[3:]).metrics[0].verdict is Verdict.UNKNOWN


def test_verdicts_of_several_arms_are_corrected_for_multiple_comparisons() -> None:
    base = [100.0, 101, 99, 100.5, 99.5]
    sides = [several({"m": base}, "a")]
    for k in range(3):
        sides.append(
            several({"m": [x * f for x, f in zip(base, (1.03, 1.01, 1.02, 1.04, 1.0), strict=True)]}, f"b{k}")
        )

    alone = compare(sides[0], sides[1]).metrics[0]
    together = compare_sides(sides[0], sides[1:])

    assert alone.verdict is Verdict.BETTER
    assert alone.p_corrected is not None
    assert together[0].metrics[0].p_corrected == pytest.approx(3 * alone.p_corrected)
    assert [each.metrics[0].verdict for each in together] == [Verdict.NONE] * 3


def test_the_advised_number_of_runs_does_not_assume_zero_scatter() -> None:
    (found,) = compare(
        runs("m", 5.0, 5.0, better=Better.LOWER, tolerance=0.01),
        runs("m", 5.1, 5.1, better=Better.LOWER, tolerance=0.01),
    ).metrics

    assert found.verdict is Verdict.UNKNOWN
    assert found.more_runs is not None
    assert found.more_runs > 100
    assert any("an assumption, because these do not scatter" in note for note in found.notes)


def test_units_that_convert_are_converted() -> None:
    a = [
        replace(run, values={"t": replace(run.values["t"], units="s")})
        for run in runs("t", 1.0, 1.01, 0.99, **LOWER)
    ]
    b = [
        replace(run, values={"t": replace(run.values["t"], units="ms")})
        for run in runs("t", 1002, 1011, 989, **LOWER)
    ]

    (found,) = compare(a, b).metrics

    assert (found.verdict, found.units) == (Verdict.NONE, "s")
    assert found.b == (1.002, 1.011, 0.989)


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ({"units": "ms"}, {"units": "MB"}, "units: ms and MB"),
        ({"units": "s/it"}, {"units": "it/s"}, "units: s/it and it/s"),
        ({"units": "ms"}, {}, "units: ms and none"),
        ({"headline": Headline.MEDIAN}, {"headline": Headline.MAX}, "headline: median and max"),
        ({"warmup": timedelta(seconds=3)}, {}, "warmup: 3 s and 0 values"),
        ({"warmup_values": 2}, {"warmup_values": 3}, "warmup: 2 values and 3 values"),
        ({"over_ranks": OverRanks.SUM}, {}, "over_ranks: sum and each"),
        (LOWER, HIGHER, "better: lower and higher"),
        ({}, {"revision": "fio/2"}, "preset: revision 1 and revision fio/2"),
        ({"revision": "fio/3"}, {"revision": "fio/2"}, "preset: revision fio/3 and revision fio/2"),
    ],
)  # fmt: skip
def test_metrics_with_different_definitions_are_not_comparable(
    a: dict[str, Any], b: dict[str, Any], why: str
) -> None:
    def side(values: list[float], described: dict[str, Any]) -> list[Run]:
        described = {**described}
        units = described.pop("units", "")
        return [
            replace(run, values={"t": replace(run.values["t"], units=units)})
            for run in runs("t", *values, **described)
        ]

    found = compare(side(EVEN, a), side(SLOW, b))

    assert found.metrics == ()
    (incomparable,) = found.incomparable
    assert incomparable.why == why
    assert found.tables()[0]["verdict"] == "not comparable"
    assert "not comparable" in on_screen(found)
    assert why in on_page(found)
    assert found.unjudged == ("better" in {**a, **b})


def test_an_added_revision_or_direction_keeps_metrics_comparable() -> None:
    old = runs("t", *EVEN)
    new = runs("t", *SLOW, better=Better.HIGHER, revision="fio/1")

    (found,) = compare(old, new).metrics

    assert found.verdict is Verdict.WORSE


def timed(values: list[float], start: int, **described: Any) -> list[Run]:
    """Return runs that started one minute after the other."""
    return [
        replace(run, started=60_000 * (start + i)) for i, run in enumerate(runs("t", *values, **described))
    ]


def drifting(seed: int, count: int) -> list[float]:
    """Return runs of one program on a machine that becomes 1.5 % slower with each."""
    chance = random.Random(seed)
    return [100 * 1.015**i * math.exp(chance.gauss(0, 0.01)) for i in range(count)]


def test_equal_programs_on_a_drifting_machine_show_no_difference() -> None:
    values = drifting(1, 14)

    found = compare(timed(values[:7], 1, **LOWER), timed(values[7:], 8, **LOWER))

    (metric,) = found.metrics
    assert metric.effect.excludes_zero
    assert (metric.verdict, metric.drifts, found.unjudged) == (Verdict.UNKNOWN, True, True)
    assert "both sides drift" in metric.notes[0]
    assert "use `bai ab`" in on_screen(found)


def test_a_difference_much_larger_than_the_drift_is_still_found() -> None:
    values = drifting(1, 14)

    found = compare(timed(values[:7], 1, **LOWER), timed([2 * each for each in values[7:]], 8, **LOWER))

    assert found.metrics[0].verdict is Verdict.WORSE


def test_interleaved_runs_have_no_drift() -> None:
    values = drifting(1, 14)
    a = [replace(run, started=1 + 2 * i) for i, run in enumerate(timed(values[::2], 0, **LOWER))]
    b = [replace(run, started=2 + 2 * i) for i, run in enumerate(timed(values[1::2], 0, **LOWER))]

    (found,) = compare(a, b).metrics

    assert (found.drifts, found.verdict) == (False, Verdict.NONE)


def test_a_note_is_given_if_only_one_side_drifts() -> None:
    values = drifting(1, 8)

    (found,) = compare(
        timed(values, 1, **LOWER), timed([120.0, 121, 119, 120.5, 119.5, 121, 119, 120], 9, **LOWER)
    ).metrics

    assert not found.drifts
    assert any("the runs of A drift" in note for note in found.notes)


def test_a_comparison_of_few_runs_warns_that_drift_cannot_be_detected() -> None:
    few, enough = compare(timed(EVEN[:4], 1), timed(EVEN[:4], 5)), compare(timed(EVEN, 1), timed(EVEN, 6))

    assert "a drift of the machine cannot be detected" in few.notes[0]
    assert enough.notes == ()


def test_metrics_of_one_side_and_missing_runs_are_named() -> None:
    a = [*runs("m", 1, 2), *runs("old", 3)]
    b = [*runs("m", 1, 2), *runs("new", 3)]

    found = compare(a, b)

    assert (found.only_a, found.only_b) == (("old",), ("new",))
    assert any("only 2 of 3 runs of A" in note for note in found.metrics[0].notes)


def test_a_note_names_runs_whose_values_had_not_settled() -> None:
    metric = Metric(name="m", pattern="x")
    value = RunValue(value=1.0, count=9, metric=metric, unsteady="not steady: still rises")

    (found,) = compare([Run(job_id="job-7", values={"m": value})], runs("m", 1, 2)).metrics

    assert any("A: 1 of 1 not steady; job-7" in note for note in found.notes)


@given(ANY, ANY, st.sampled_from([None, 0.02]))
@example([1.0], [0.0, 3.8e152], 0.02)
@example([0.0, 1.0], [1e178, 1e178], None)
@example([1e300], [-1e284], None)
def test_runs_with_any_values_are_compared_and_shown_without_an_error(
    a: list[float], b: list[float], tolerance: float | None
) -> None:
    described = {**HIGHER, "tolerance": tolerance}
    before, after = runs("m", *a, **described), runs("m", *b, **described)

    compared = compare(before, after)
    banded = against_history(before, after)

    blocks = [
        *comparison_blocks(compared, names=("a", "b"), counts=(len(a), len(b))),
        *history_blocks(banded, name="b", history="a"),
    ]
    assert compared.metrics[0].verdict.value in drawn(blocks)
    assert compared.metrics[0].verdict.value in html_page("", blocks)


@pytest.mark.parametrize(
    ("a", "b", "unjudged"),
    [
        ([8, 9, 9], [9, 10, 9], False),
        ([8, 9, 9], [9, 50, 60], True),
        ([8, 9, 9], [50, 60, 70], True),
        ([50, 60, 9], [8, 9, 9], True),
    ],
    ids=["both", "some of B", "none of B", "some of A"],
)
def test_memory_peaks_known_only_as_bounds_are_reported_as_not_comparable(
    a: list[int], b: list[int], unjudged: bool
) -> None:
    def side(values: list[int]) -> list[Run]:
        # 10 MiB is what cannot be told from our own.
        return [
            replace(run, values={"m": replace(value, units="bytes", below=10 * mib if value.value <= 10 * mib else None)})
            for run in runs("m", *(mib * each for each in values), **LOWER)
            for value in run.values.values()
        ]  # fmt: skip

    mib = 2**20
    compared, banded = compare(side(a), side(b)), against_history(side(a), side(b))
    for found in (compared, banded):
        assert found.metrics == ()
        assert (found.worse, found.unjudged) == (False, unjudged)
        assert found.tables()[0]["verdict"] == "not comparable"
    assert "a peak below 10.0 MiB cannot be distinguished from the peak of bai" in on_page(compared)
