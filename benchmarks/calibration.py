"""Error rates and power of `bai compare`, `bai ab` and `until`, compared with a rank test on simulated runs with a fixed seed.

    python benchmarks/calibration.py [--rounds 600]

Equal sides show the share of false alarms. Sides with a known difference show the power. The intervals of all sides show the
coverage. The rank test is `mannwhitneyu` of scipy, the same test that benchstat uses. If benchstat is installed, benchstat also
compares some of the sides. docs/compare.md and docs/repeats.md quote these tables.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from scipy import stats

from bai_agent.job.descriptor.metric_tables import Better, Metric
from bai_agent.phases.enough import Headlines, enough_runs
from executor.analysis.compared_metric import Verdict
from executor.analysis.comparison import compare
from executor.analysis.effect import ALPHA, Effect, effect, paired_effect
from executor.analysis.measured_runs import Run, RunValue
from executor.analysis.steady import unsteady

Draw = Callable[[random.Random, int], list[float]]
NOISE = 0.03


def normal(chance: random.Random, runs: int) -> list[float]:
    return [100 * (1 + chance.gauss(0, NOISE)) for _ in range(runs)]


def lognormal(chance: random.Random, runs: int) -> list[float]:
    return [100 * math.exp(chance.gauss(0, 0.2)) for _ in range(runs)]


def heavy_tailed(chance: random.Random, runs: int) -> list[float]:
    """Noise of Student's t with three degrees of freedom."""
    return [
        100 * math.exp(NOISE * chance.gauss(0, 1) / math.sqrt(chance.gammavariate(1.5, 2) / 3))
        for _ in range(runs)
    ]


def one_slow_in_ten(chance: random.Random, runs: int) -> list[float]:
    return [
        100 * math.exp(chance.gauss(0, 0.01)) * (1.3 if chance.random() < 0.1 else 1) for _ in range(runs)
    ]


def bimodal(chance: random.Random, runs: int) -> list[float]:
    return [100 * math.exp(chance.gauss(0, 0.01)) * chance.choice((1, 1.1)) for _ in range(runs)]


def autocorrelated(chance: random.Random, runs: int) -> list[float]:
    """Noise in which each run has a correlation of 0.6 with the previous run."""
    value, found = chance.gauss(0, 1), []
    for _ in range(runs):
        found.append(100 * (1 + NOISE * value))
        value = 0.6 * value + 0.8 * chance.gauss(0, 1)
    return found


def quantised(chance: random.Random, runs: int) -> list[float]:
    """Values rounded to 0.1, which is twice the standard deviation."""
    return [round(chance.gauss(10.03, 0.05), 1) for _ in range(runs)]


def drifting(chance: random.Random, runs: int) -> list[float]:
    return [100 * (1 + 0.1 * i / max(1, runs - 1)) * (1 + chance.gauss(0, 0.01)) for i in range(runs)]


DRAWS: tuple[Draw, ...] = (
    normal, lognormal, heavy_tailed, one_slow_in_ten, bimodal, autocorrelated, quantised, drifting,
)  # fmt: skip
SIZES = ((2, 2), (3, 3), (5, 5), (10, 10), (20, 20), (2, 20), (3, 10))


def table(*heads: str) -> None:
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def percent(count: float, of: int) -> str:
    return f"{100 * count / of:.1f} %"


def rank_test(a: list[float], b: list[float]) -> bool:
    return bool(stats.mannwhitneyu(a, b).pvalue < ALPHA)


def holds(found: Effect, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def sides(rounds: int) -> None:
    print("\n### Two sides: false alarms, coverage, power for 5 %, and the rank test's results")
    table("runs", "of A and B", "false alarms", "rank test", "coverage", "+5 % found", "rank test")
    for draw in DRAWS:
        for few, many in SIZES:
            row(draw.__name__, f"{few} v {many}", *judged_sides(draw, few, many, rounds=rounds))


def judged_sides(draw: Draw, few: int, many: int, *, rounds: int) -> list[str]:
    """Return five shares: false alarms of `bai` and of the rank test, intervals that contain the true difference, and differences
    of 5 % that `bai` and the rank test found."""
    counts = [0] * 5
    for seed in range(rounds):
        chance = random.Random(f"{draw.__name__} {few} {many} {seed}")
        a, b = draw(chance, few), draw(chance, many)
        faster = [value * 1.05 for value in b]
        equal, other = (effect(a, each, permutation=False) for each in (b, faster))
        # A true difference of nothing, or of 5 %.
        found = (
            equal.excludes_zero,
            rank_test(a, b),
            holds(other, 0.05),
            other.excludes_zero,
            rank_test(a, faster),
        )
        counts = [count + each for count, each in zip(counts, found, strict=True)]
    return [percent(each, rounds) for each in counts]


def blocks(rounds: int) -> None:
    print("\n### `bai ab`: differences within blocks beside Welch's test of the same runs")
    table("machine", "noise", "blocks", "true", "within blocks", "Welch")
    for drift, noise, runs, true in (
        (0.0, 0.03, 5, 0.0), (0.1, 0.01, 10, 0.0), (0.0, 0.03, 5, 0.05), (0.0, 0.03, 10, 0.05),
        (0.1, 0.01, 10, 0.02), (0.1, 0.01, 10, 0.03), (0.1, 0.01, 5, 0.03),
    ):  # fmt: skip
        counts = [0, 0]
        for seed in range(rounds):
            chance = random.Random(f"blocks {drift} {noise} {runs} {true} {seed}")
            a, b = [], []
            for i in range(runs):
                levels = [1 + drift * (2 * i + k) / (2 * runs - 1) for k in (0, 1)]
                chance.shuffle(levels)
                a.append(100 * levels[0] * math.exp(chance.gauss(0, noise)))
                b.append(100 * (1 + true) * levels[1] * math.exp(chance.gauss(0, noise)))
            counts[0] += paired_effect(a, b, permutation=False).excludes_zero
            counts[1] += effect(a, b, permutation=False).excludes_zero
        machine = f"drifts by {drift:.0%}" if drift else "steady"
        row(machine, f"{noise:.0%}", str(runs), f"{true:+.0%}", *(percent(each, rounds) for each in counts))


def as_runs(values: list[list[float]], started: int = 0) -> list[Run]:
    """Return the runs of a side: a list of numbers for each metric."""
    metrics = [Metric(name=f"m{k}", pattern="x", better=Better.LOWER) for k in range(len(values))]
    return [
        Run(
            job_id=f"{started}-{i}",
            started=(started + i) * 60_000,
            values={
                each.name: RunValue(value=value, count=1, metric=each)
                for each, value in zip(metrics, numbers, strict=True)
            },
        )
        for i, numbers in enumerate(zip(*values, strict=True))
    ]


def many_metrics(rounds: int) -> None:
    print("\n### Many metrics of equal sides, five runs each: comparisons with a false alarm")
    table("metrics", "better or worse", "an interval without zero", "a rank test below 5 %")
    for metrics in (1, 5, 20):
        counts = [0, 0, 0]
        tries = max(60, rounds // max(1, metrics // 2))
        for seed in range(tries):
            chance = random.Random(f"metrics {metrics} {seed}")
            a, b = ([normal(chance, 5) for _ in range(metrics)] for _ in "ab")
            found = compare(as_runs(a), as_runs(b)).metrics
            counts[0] += any(each.verdict in (Verdict.BETTER, Verdict.WORSE) for each in found)
            counts[1] += any(each.effect.excludes_zero for each in found)
            counts[2] += any(rank_test(x, y) for x, y in zip(a, b, strict=True))
        row(str(metrics), *(percent(each, tries) for each in counts))


def drifts(rounds: int) -> None:
    print("\n### Equal programs one after the other, noise of 1 %")
    table("machine", "runs a side", "cannot tell: drift", "better or worse", "without that check")
    for drift in (0.0, 0.1):
        for runs in (3, 5, 7, 10):
            counts = [0, 0, 0]
            tries = max(60, rounds // 2)
            for seed in range(tries):
                chance = random.Random(f"drift {drift} {runs} {seed}")
                every = [
                    100 * (1 + drift * i / (2 * runs - 1)) * math.exp(chance.gauss(0, 0.01))
                    for i in range(2 * runs)
                ]
                (found,) = compare(as_runs([every[:runs]], 1), as_runs([every[runs:]], runs + 1)).metrics
                counts[0] += found.drifts
                counts[1] += found.verdict in (Verdict.BETTER, Verdict.WORSE)
                counts[2] += found.effect.excludes_zero
            machine = f"drifts by {drift:.0%}" if drift else "steady"
            row(machine, str(runs), *(percent(each, tries) for each in counts))


def until(rounds: int) -> None:
    print('\n### `until = "2%"`, at most 50 runs: how often the last interval contains the true mean')
    table(
        "runs",
        "enough",
        "runs done, the median",
        "coverage where enough",
        "coverage if the first narrow interval from 5 runs on ended the job",
    )
    for draw in (normal, lognormal, heavy_tailed, one_slow_in_ten, bimodal, autocorrelated, drifting):
        truth_of = random.Random(0)
        truth = (
            math.fsum(
                draw(truth_of, 50)[-1] if draw is drifting else value for value in draw(truth_of, 20_000)
            )
            / 20_000
        )
        done, held, old = [], 0, [0, 0]
        tries = max(60, rounds // 4)
        for seed in range(tries):
            every = draw(random.Random(f"until {draw.__name__} {seed}"), 50)
            counts = range(10, 51)
            ended = next((n for n in counts if _enough(every[:n])), None)
            if ended is not None:
                done.append(ended)
                held += _covers(every[:ended], truth)
            first = next((n for n in range(5, 51) if _width(every[:n]) <= 0.02), None)
            if first is not None:
                old[0] += 1
                old[1] += _covers(every[:first], truth)
        middle = str(sorted(done)[len(done) // 2]) if done else "-"
        row(
            draw.__name__, percent(len(done), tries), middle,
            percent(held, len(done)) if done else "-", percent(old[1], old[0]) if old[0] else "-",
        )  # fmt: skip


def _enough(values: list[float]) -> bool:
    headlines: Headlines = {(None, "m"): dict(enumerate(values))}
    return enough_runs(headlines, arms=(), until=0.02, least=10).enough


def _width(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    return float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1) / mean)


def _covers(values: list[float], truth: float) -> bool:
    mean = math.fsum(values) / len(values)
    return abs(mean - truth) <= _width(values) * mean


def spiky(chance: random.Random, values: int) -> list[float]:
    """Independent noise, of which three values in a hundred are twice as large."""
    return [value * (2 if chance.random() < 0.03 else 1) for value in normal(chance, values)]


def late_step(chance: random.Random, values: int) -> list[float]:
    """Values that are 10 % larger in the last quarter."""
    return [value * (1.1 if 4 * i >= 3 * values else 1) for i, value in enumerate(normal(chance, values))]


def rising(chance: random.Random, values: int) -> list[float]:
    """Values that rise by 10 % from the first value to the last."""
    return [value * (1 + 0.1 * i / values) for i, value in enumerate(normal(chance, values))]


def not_steady(rounds: int) -> None:
    print('\n### "Not steady": how often the values of one run are marked')
    table("values", "100", "250")
    tries = max(60, rounds // 3)
    for draw in (normal, spiky, autocorrelated, late_step, rising):
        cells = []
        for values in (100, 250):
            marks = (
                unsteady(draw(random.Random(f"{draw.__name__} {seed}"), values)) for seed in range(tries)
            )
            cells.append(percent(sum(mark is not None for mark in marks), tries))
        row(draw.__name__, *cells)


def benchstat(rounds: int) -> None:
    program = shutil.which("benchstat")
    if program is None:
        print("\nbenchstat is not installed: it is left out")
        return
    print("\n### benchstat's verdict on equal normal sides")
    table("runs a side", "false alarms")
    for runs in (5, 10):
        alarms = 0
        tries = max(20, rounds // 20)
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(tries):
                chance = random.Random(f"benchstat {runs} {seed}")
                files = [Path(folder, side) for side in "ab"]
                for file in files:
                    file.write_text(
                        "".join(f"BenchmarkX 1 {value} ns/op\n" for value in normal(chance, runs))
                    )
                done = subprocess.run(
                    [program, *files], capture_output=True, text=True, check=True, timeout=60
                )
                alarms += "~" not in done.stdout
        row(str(runs), percent(alarms, tries))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=600, help="comparisons of each kind")
    rounds = parser.parse_args().rounds
    # Of sides that do not scatter the rank test says what it cannot do.
    warnings.simplefilter("ignore")
    for part in (sides, blocks, many_metrics, drifts, until, not_steady, benchstat):
        part(rounds)


if __name__ == "__main__":
    main()
