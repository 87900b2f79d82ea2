"""`bai` as a process, as a person or a script starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = (sys.executable, "-c", "from executor.cli import main; main()")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def run_bai(
    *arguments: str | Path, folder: Path, environment: Mapping[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `bai` in `folder`, with no other environment, to its end."""
    return subprocess.run(
        (*PROGRAM, *arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env=dict(environment),
    )


def ask_bai(*arguments: str | Path, folder: Path, environment: Mapping[str, str], stdin: str = "") -> Answer:
    """Run `bai` as above; return what it answered."""
    done = run_bai(*arguments, folder=folder, environment=environment, stdin=stdin)
    return Answer(done.returncode, done.stdout, done.stderr)
