"""Starts the agent from its bundle with any supported Python: PYTHON start_agent.py run JOB.toml …

The bundle's own packages come before those that the machine has installed, so that a benchmark's packages cannot break the
agent. Packages with native code are chosen by this Python's version. `native/cp312` is for Python 3.12, and
`native/cp311-abi3` for Python 3.11 and later.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def search_path(root: Path, version: tuple[int, int]) -> list[str]:
    """Return the folders of the bundle in `root` from which this version of Python imports, in order."""
    native = []
    for folder in sorted((root / "native").iterdir()):
        found = re.fullmatch(r"cp(\d)(\d+)(-abi3)?", folder.name)
        if not found:
            continue
        made_for = int(found[1]), int(found[2])
        if made_for == version or (found[3] and made_for <= version):
            native.append(folder)
    return [str(each) for each in (root, *native, root / "pure")]


def start() -> None:
    root = Path(__file__).absolute().parent
    ours = search_path(root, sys.version_info[:2])
    sys.path[:] = [*ours, *(each for each in sys.path if each not in ours)]
    from bai_agent.cli import main

    main()


if __name__ == "__main__":
    start()
