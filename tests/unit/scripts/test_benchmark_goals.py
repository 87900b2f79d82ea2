"""`benchmarks/goals.py` prints the figure of a goal in one form, and a table of all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def python(*arguments: str | Path) -> str:
    done = subprocess.run(
        (sys.executable, *arguments), cwd=BENCHMARKS, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def printed(call: str) -> str:
    return python("-c", f"from goals import print_figure; print_figure({call})")


def test_a_benchmark_figure_is_printed_with_its_interval_and_verdict() -> None:
    line = printed('"metrics-csv", [4.0, 5.0, 4.5], case="two nodes"')

    assert line.startswith("goal metrics-csv [two nodes]: 4.5 s, 4 to 5; wanted at most 5: met; load ")


def test_every_figure_of_the_table_was_printed(tmp_path: Path) -> None:
    lines = (
        printed('"sparse-plain", 9.9, case="1,500,000 lines"')
        + printed('"sparse-plain", 9.4')
        + printed('"help", 81')
    )
    (tmp_path / "printed").write_text(
        f"## extraction\n| a | b |\n{lines}goal unknown: 1 s; wanted at most 2 s: met; load 0\n"
    )

    table = python("goals.py", tmp_path / "printed").splitlines()

    rows = [row.rpartition("| ")[0] for row in table if "not measured" not in row]
    assert rows[2:] == [
        "| sparse log, 10 patterns, relative to a plain loop | 1,500,000 lines | 9.9 | at least 9.5 × | met ",
        "| sparse log, 10 patterns, relative to a plain loop |  | 9.4 | at least 9.5 × | **not met** ",
        "| `bai --help` |  | 81 | at most 80 ms | **not met** ",
    ]
    assert any("`bai list` with 10,000 jobs" in row and "not measured" in row for row in table)


def test_each_goal_belongs_to_a_benchmark_of_the_suite() -> None:
    names = python("-c", "from goals import GOALS; print(*GOALS)").split()
    run = (BENCHMARKS / "all").read_text()
    texts = [
        each.read_text() for each in BENCHMARKS.glob("*.py") if f" {each.stem} " in run.replace(";", " ;")
    ]

    assert len(names) > 15
    assert [name for name in names if not any(f'"{name}"' in text for text in texts)] == []
