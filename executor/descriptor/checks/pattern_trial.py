"""Runs patterns on example lines as the extractor does, in a child process, because a pattern may backtrack
forever. The child process runs this file as its program.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # With -I this process would find only installed packages, which may be other versions.
    sys.path.insert(0, str(Path(__file__).parents[3]))

from bai_agent.light_dataclass import asdict, dataclass, field

if TYPE_CHECKING:
    from bai_agent.metrics.search.reading import Doubt

_WALL_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class PatternExample:
    """A metric, and a line in which the metric is searched."""

    metric: Mapping[str, Any]
    """Keys of the metric as in a job descriptor: the name, the keys with the mark `About.LINE`, and `units`. `units`
    is missing if another line contains the unit."""
    line: str


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of a pattern on a line."""

    values: tuple[Mapping[str, Any], ...] = ()
    """Found values. Each value is a table with `value`, and possibly with `step` and `labels`."""
    others: tuple[str, ...] = ()
    """Matched texts that are not finite numbers; "" for a match without the value's group."""
    doubts: tuple[tuple[str, str, str], ...] = ()
    """Values that may be wrong. Each item consists of the doubt, the matched text, and the whole text."""
    too_slow: bool = False
    """Whether the pattern needed more CPU time than a run allows, and was stopped."""


def try_patterns(
    examples: Sequence[PatternExample], *, clock: Callable[[], float] = time.monotonic
) -> list[Trial]:
    """Return the result of each example.

    The trial of a pattern takes at most one second of CPU time, and all trials together 20 s. After the 20 s,
    the remaining examples count as too slow.
    """
    from bai_agent.metrics.search_limit import ENDS_WITH  # imported here because only a trial needs it

    trials: list[Trial] = []
    deadline = clock() + _WALL_SECONDS
    while len(trials) < len(examples):
        # Each slow example ends its child process, and there may be thousands of such examples.
        if (left := deadline - clock()) <= 0:
            return trials + [Trial(too_slow=True)] * (len(examples) - len(trials))
        finished, ended = _run(examples[len(trials) :], timeout_s=left)
        trials += finished
        if len(trials) < len(examples):
            rest = 1 if ended == -ENDS_WITH else len(examples) - len(trials)
            trials += [Trial(too_slow=True)] * rest
    return trials


def _run(examples: Sequence[PatternExample], *, timeout_s: float) -> tuple[list[Trial], int]:
    # With -I, neither the current folder nor the user's settings change which modules the process finds.
    child = subprocess.Popen([sys.executable, "-I", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        try:
            question = json.dumps([asdict(each) for each in examples]).encode()
            answer, _ = child.communicate(question, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            answer, _ = child.communicate()
    lines = [json.loads(line) for line in answer.splitlines(keepends=True) if line.endswith(b"\n")]
    return [
        Trial(values=tuple(values), others=tuple(others), doubts=tuple(map(tuple, doubts)))
        for values, others, doubts in lines
    ], child.returncode


@dataclass
class _Findings:
    others: list[str] = field(default_factory=list)
    doubts: list[tuple[str, str, str]] = field(default_factory=list)

    def not_a_number(self, index: int, text: str) -> None:
        self.others.append(text)

    def doubtful(self, index: int, doubt: Doubt, taken: str, whole: str, line: str) -> None:
        self.doubts.append((doubt.value, taken, whole))


def _child() -> None:
    # Imported here because only this process needs these modules.
    from bai_agent.job.descriptor.metric_tables import Metric
    from bai_agent.job.schema.tables import read_table
    from bai_agent.metrics.repaint import repainted_states
    from bai_agent.metrics.search.extract import Extraction
    from bai_agent.metrics.search.patterns import compile_patterns
    from bai_agent.metrics.search_limit import SearchLimit

    for each in json.load(sys.stdin):
        findings = _Findings()
        metric = read_table(Metric, each["metric"], where="")
        extraction = Extraction(
            compile_patterns([metric], fast=False), findings=findings, guard=SearchLimit()
        )
        line = each["line"].encode("utf-8", "replace")
        repainted = frozenset(repainted_states(line))
        data = line.replace(b"\r", b"\n") + b"\n"
        values = [
            json.loads(f'{{"value":{number}{extra}}}')
            for found in extraction.find(data, 0, repainted)
            for _, _, _, number, extra in found
        ]
        sys.stdout.write(json.dumps([values, findings.others, findings.doubts]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _child()
