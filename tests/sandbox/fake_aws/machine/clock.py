"""A time of day of a machine's own, for all of its services: the kernel has only one for all namespaces."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from datetime import datetime, timezone
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_LIBRARY = "/usr/local/lib/sandbox-clock.so"
_FILE = "/etc/sandbox-clock"

ENVIRONMENT = {"LD_PRELOAD": _LIBRARY}
"""For the services that are to believe in it."""


def install(root: Path) -> None:
    """Give the machine whose files are at `root` a clock that can be set; it is right until then."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "clock.so"
        options = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", f'-DCLOCK_FILE="{_FILE}"']
        subprocess.run(["gcc", *options, "-o", made, _SOURCE], check=True, timeout=60)
        library = root / _LIBRARY.lstrip("/")
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(made.read_bytes())
    (root / _FILE.lstrip("/")).write_bytes(struct.pack("=q", 0))


def move(root: Path, time: datetime) -> None:
    """Let the machine's services believe that it is `time`; from there their clock runs on."""
    ahead = time - datetime.now(timezone.utc)
    # In place: running programs have the file mapped.
    with (root / _FILE.lstrip("/")).open("r+b", buffering=0) as file:
        file.write(struct.pack("=q", round(ahead.total_seconds() * 1e9)))
