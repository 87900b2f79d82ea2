"""Runs patterns on example lines the way the extractor does, in a process of their own: a pattern may backtrack for ever.

This file is also that process.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_CPU_SECONDS = 1.0
"""For one pattern on one line; the extractor switches a pattern off that takes longer."""
_WALL_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a pattern made of a line."""

    numbers: tuple[str, ...] = ()
    """The values that were found, as JSON numbers."""
    others: tuple[str, ...] = ()
    """What it took for a value though it is no finite number; "" where the group took no part."""
    too_slow: bool = False
    """It took more than one second of CPU and was ended."""


def try_patterns(pairs: Sequence[tuple[str, str]]) -> list[Trial]:
    """Return what each (pattern, line) gives. The patterns must compile.

    Takes at most a second of CPU for each pair and 20 s in all; what is left then counts as too slow.
    """
    trials: list[Trial] = []
    while len(trials) < len(pairs):
        told, ended = _run(pairs[len(trials) :])
        trials += told
        if len(trials) < len(pairs):
            rest = 1 if ended == -signal.SIGPROF else len(pairs) - len(trials)
            trials += [Trial(too_slow=True)] * rest
    return trials


def _run(pairs: Sequence[tuple[str, str]]) -> tuple[list[Trial], int]:
    # -I: neither the current folder nor the user's settings decide which modules it finds.
    child = subprocess.Popen([sys.executable, "-I", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        try:
            answer, _ = child.communicate(json.dumps(list(pairs)).encode(), timeout=_WALL_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            answer, _ = child.communicate()
    lines = [json.loads(line) for line in answer.splitlines(keepends=True) if line.endswith(b"\n")]
    return [
        Trial(numbers=tuple(numbers), others=tuple(others)) for numbers, others in lines
    ], child.returncode


@dataclass
class _Listener:
    """Both what the extraction tells, and the guard that it asks: here the kernel's timer is the guard."""

    others: list[str] = field(default_factory=list)
    careful = False

    def not_a_number(self, index: int, text: str) -> None:
        self.others.append(text)

    def cut_number(self, index: int, text: str, whole: str) -> None:
        pass

    def lines(self) -> None:
        pass

    def search(self, index: int, offset: int) -> None:
        pass

    def rest(self) -> None:
        pass

    def resume(self) -> None:
        pass


def _child() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from bai_agent.job import Metric
    from bai_agent.metrics.extract import Extraction
    from bai_agent.metrics.patterns import compile_patterns

    for pattern, line in json.load(sys.stdin):
        listener = _Listener()
        patterns = compile_patterns([Metric(name="tried", pattern=pattern)], fast=False)
        extraction = Extraction(patterns, findings=listener, guard=listener)
        data = line.replace("\r", "\n").encode("utf-8", "replace") + b"\n"
        # Without a handler the kernel ends the process, in the midst of a match too.
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
        numbers = [number for found in extraction.find(data, 0) for _, _, _, number, _ in found]
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps([numbers, listener.others]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _child()
