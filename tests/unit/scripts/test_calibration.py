"""docs/compare.md quotes what `benchmarks/calibration.py` finds with the code of today."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
_NAMES = {
    "normal": "normal",
    "lognormal, 20 %": "lognormal",
    "heavy-tailed": "heavy_tailed",
    "one slow run in ten": "one_slow_in_ten",
    "two levels, 10 % apart": "bimodal",
    "correlation of 0.6 with the previous run": "autocorrelated",
    "rounded to 0.1, a noise of 0.05": "quantised",
}


@pytest.fixture(scope="module")
def calibration() -> Any:
    spec = importlib.util.spec_from_file_location("calibration", ROOT / "benchmarks" / "calibration.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _quoted() -> list[list[str]]:
    page = (ROOT / "docs" / "compare.md").read_text()
    return [
        cells
        for line in page.splitlines()
        if len(cells := [each.strip() for each in line.strip("|").split("|")]) == 7
        and re.fullmatch(r"\d+ v \d+", cells[1])
    ]


@pytest.mark.slow
def test_the_page_quotes_the_calibrations_results(calibration: Any) -> None:
    quoted = _quoted()
    assert {cells[0] for cells in quoted} == set(_NAMES)
    (rounds,) = set(re.findall(r"calibration\.py --rounds (\d+)", (ROOT / "docs/compare.md").read_text()))
    for name, sizes, *shares in quoted:
        few, many = map(int, sizes.split(" v "))
        draw = getattr(calibration, _NAMES[name])

        assert calibration.judged_sides(draw, few, many, rounds=int(rounds)) == shares, (name, sizes)
