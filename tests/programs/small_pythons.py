"""Makes a Python with only pip. pip reads all installed packages, and a developer's Python has a hundred."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path


def small_python(folder: Path) -> str:
    """Make a venv of this Python in `folder`; return the path of its interpreter."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, timeout=60)
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = distribution("pip")
    for part in {Path(each.parts[0]) for each in pip.files or () if each.parts[0].startswith("pip")}:
        (packages / part.name).symlink_to(str(pip.locate_file(part)))
    return str(folder / "bin" / "python")
