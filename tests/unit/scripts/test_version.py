"""The version is the same in each place that states it."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from bai_agent import __version__

ROOT = Path(__file__).parents[3]


def test_package_program_and_changelog_say_the_same_version() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    newest = re.findall(r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)

    assert setup["metadata"]["version"] == __version__ == newest[0]
