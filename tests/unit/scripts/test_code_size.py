"""`scripts/code-size` counts right, and the product stays within its bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts/code-size"
MODULE = '''"""A docstring
of two lines."""

import os  # a comment behind code

# a comment

LIMIT = 1
"""What it limits."""
TEXT = """one
two
"""


def choose(a, b):
    """Return one of them."""
    if a and b or os.sep:
        return [each for each in a if each]
    return "text" if b else None
'''


def code_size(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, SCRIPT, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_code_is_counted_without_comments_and_docstrings(tmp_path: Path) -> None:
    folder = tmp_path / "executor/report"
    (folder / "vendor").mkdir(parents=True)
    (tmp_path / "bai_agent").mkdir()
    (folder / "choice.py").write_text(MODULE)
    (folder / "page.css").write_text("a { }\n\nb { }\n")
    (folder / "vendor/plot.js").write_text("1;\n" * 1000)
    (tmp_path / "executor/choice.py").write_text("")
    for number in range(21):
        (tmp_path / f"bai_agent/part{number}.py").write_text("")

    size = json.loads(code_size("--json", tmp_path).stdout)

    # import, LIMIT, TEXT (3 lines), def, if, return, return; and two of the style sheet
    assert size["code_lines"] == 9 + 2
    assert size["files"] == 24
    assert size["functions"] == 1
    assert size["same_names"] == ["executor/…/choice.py"]
    assert size["large_rooms"] == ["bai_agent (21)"]


def test_each_branch_of_a_function_counts_towards_its_complexity(tmp_path: Path) -> None:
    (tmp_path / "executor").mkdir()
    # 1 for the function, 20 ifs, 2 for each "and … or", 1 for the loop, 2 for the comprehension with its condition
    ways = "    if a and b or c:\n        pass\n" * 1 + "    if a:\n        pass\n" * 20
    body = f"def f(a, b, c):\n{ways}    for each in a:\n        [x for x in each if x]\n"
    (tmp_path / "executor/ways.py").write_text(body)

    size = json.loads(code_size("--json", tmp_path).stdout)

    assert size["too_complex"] == ["executor/ways.py f (27)"]
    assert size["complex_percent"] == 100


def test_an_exceeded_bound_is_reported(tmp_path: Path) -> None:
    (tmp_path / "executor").mkdir()
    # A style sheet's lines are counted without the tokens and the tree that Python's need.
    (tmp_path / "executor/long.css").write_text("a { }\n" * 100_000)

    done = code_size("--check", tmp_path)

    assert done.returncode == 1
    assert "code-size: code_lines is 100,000, and the bound is" in done.stderr


def test_the_product_is_within_its_bounds() -> None:
    done = code_size("--check")

    assert (done.returncode, done.stderr) == (0, "")
