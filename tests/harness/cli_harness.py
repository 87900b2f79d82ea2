"""Runs `bai` and `bai-agent` as child processes, as a user or a script starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from preloaded_bai import PreloadedBai, can_be_preloaded

BAI = (sys.executable, "-c", "from executor.cli import main; main()")
BAI_AGENT = (sys.executable, "-m", "bai_agent")

_SECONDS = 120
"""Time limit of a command (seconds), far longer than any command of a test takes."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class CliResult:
    """Output and exit code of a program."""

    code: int
    stdout: str
    stderr: str

    @property
    def objects(self) -> list[Any]:
        """The JSON objects that were printed, one on each line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


@dataclass(frozen=True)
class CliHarness:
    """Runs the programs in their own folder and with their own environment.

    `environment` is all that they get. It is read at each start: `os.environ` itself follows what a test sets later.
    """

    folder: Path
    environment: Mapping[str, str]
    bai_program: tuple[str, ...] = BAI
    agent_program: tuple[str, ...] = BAI_AGENT
    preloads: bool = True
    """Whether `bai` may be forked from a process with all imports. If not, each start imports all."""

    def bai(self, *arguments: str | Path, env: Mapping[str, str] = _NOTHING, stdin: str = "") -> CliResult:
        """Run `bai` to its end. env: variables of this call in addition to the environment."""
        with self.start(*arguments, env=env, stdin=subprocess.PIPE) as started:
            try:
                out, err = started.communicate(stdin, timeout=_SECONDS)
            finally:
                started.kill()
        return CliResult(started.returncode, out, err)

    def agent(self, *arguments: str | Path, env: Mapping[str, str] = _NOTHING) -> CliResult:
        """Run `bai-agent` to its end."""
        return self._run((*self.agent_program, *arguments), env, "")

    def start(
        self, *arguments: str | Path, env: Mapping[str, str] = _NOTHING, **options: Any
    ) -> subprocess.Popen[str]:
        """Start `bai`. options: options of Popen; by default each output is a pipe."""
        variables = {**self.environment, **env}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        if (
            self.preloads
            and self.bai_program == BAI
            and can_be_preloaded(arguments, self.folder, variables, options)
        ):
            return PreloadedBai(arguments, text=True, cwd=self.folder, env=variables, **options)
        return subprocess.Popen(
            (*self.bai_program, *arguments), text=True, cwd=self.folder, env=variables, **options
        )

    def _run(self, command: tuple[str | Path, ...], env: Mapping[str, str], stdin: str) -> CliResult:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            cwd=self.folder,
            env={**self.environment, **env},
        )
        return CliResult(done.returncode, done.stdout, done.stderr)
