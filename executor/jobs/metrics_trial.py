"""Tries a descriptor's patterns on a log, with the very code that extracts metrics from a run."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from bai_agent.job.descriptor import Metric
from bai_agent.metrics.context import ContextMarkers, LogContext
from bai_agent.metrics.extract import Extraction
from bai_agent.metrics.follow import Block, Follower
from bai_agent.metrics.patterns import (
    Found,
    compile_patterns,
    prefilter_available,
    shape_of,
    wants_last_states,
)
from bai_agent.metrics.reading import LABELS, Doubt
from bai_agent.metrics.repaint import RepaintFollower
from bai_agent.metrics.search_limit import ENDS_WITH, LIMIT_SECONDS, MARK_BYTES, SearchLimit, marked_search
from bai_agent.metrics.sections import SectionMarkers, Sections
from bai_agent.metrics.tally import line_around
from executor.errors import UsageError
from executor.jobs.pattern_result import PatternResult

STDIN = Path("-")
_NEAR_BYTES = 32 * 2**20
"""So much of a log is searched for lines that almost match."""
_EXAMPLES = 3
_SHORTEST_KEY = 3
_SHOWN = 100
_MISSING = 3
"""The child's exit code where a required metric has no value."""


@dataclass
class MetricsTrial:
    """What the patterns of a descriptor take from a log."""

    log: str
    metrics: list[PatternResult]
    lines: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def required_missing(self) -> list[str]:
        return [each.metric.name for each in self.metrics if each.missing]

    @property
    def lines_per_second(self) -> float:
        return self.lines / self.seconds if self.seconds else 0.0

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "log": self.log,
            "lines": self.lines,
            "bytes": self.bytes,
            "lines_per_second": round(self.lines_per_second),
            "required_missing": self.required_missing,
            "metrics": [each.as_table() for each in self.metrics],
        }


def try_metrics(metrics: Sequence[Metric], log: Path, *, show: Callable[[MetricsTrial], None] | None) -> bool:
    """Call `show`, in a child process, with what `metrics` take from the file `log` ("-": standard input).

    Without `show` the records that a run would make are printed, one JSON object a line. Returns False where a required
    metric has no value. Raises UsageError where there is no such file, or where a pattern takes more than a second on a
    line: it is named.
    """
    if log == STDIN:
        return _try_stream(metrics, sys.stdin.buffer, "standard input", show)
    try:
        mode = log.stat().st_mode
    except FileNotFoundError as error:
        raise UsageError(f"{log} does not exist; name a log to try") from error
    except OSError as error:
        raise UsageError(f"{log} cannot be read: {error.strerror}; name a log to try") from error
    if stat.S_ISDIR(mode):
        raise UsageError(f"{log} is a folder; name a log to try")
    if not os.access(log, os.R_OK):
        raise UsageError(f"{log} cannot be read; its permissions forbid it")
    if stat.S_ISREG(mode):
        return _try_file(metrics, log, str(log), show)
    with log.open("rb") as stream:
        return _try_stream(metrics, stream, str(log), show)


def _try_stream(
    metrics: Sequence[Metric], stream: BinaryIO, name: str, show: Callable[[MetricsTrial], None] | None
) -> bool:
    """Try what can be read only once: a copy of it."""
    with tempfile.NamedTemporaryFile(prefix="bai-") as copy:
        shutil.copyfileobj(stream, copy)
        copy.flush()
        return _try_file(metrics, Path(copy.name), name, show)


def _try_file(
    metrics: Sequence[Metric], log: Path, name: str, show: Callable[[MetricsTrial], None] | None
) -> bool:
    def search(mark: mmap.mmap | None = None) -> int:
        limit = SearchLimit(mark)
        trial = _search(metrics, log, name, limit, write=sys.stdout.write if show is None else None)
        if show is not None:
            show(trial)
        return _MISSING if trial.required_missing else 0

    # What has been printed cannot be taken back, so a search for records is careful at once.
    ended = _in_child(search) if show is not None else ENDS_WITH
    if ended == ENDS_WITH:
        # Once more, with the timer set for each search, to learn which one it was.
        mark = mmap.mmap(-1, MARK_BYTES)
        ended = _in_child(lambda: search(mark))
        if ended == ENDS_WITH and (marked := marked_search(mark[:])) is not None:
            raise UsageError(
                f'{name}: the pattern of "{metrics[marked.metric].name}" takes more than {LIMIT_SECONDS:.0f} s on the line at byte '
                f"{marked.offset}, and a run would switch it off there; nested repetitions such as (a+)+ are the usual cause"
            )
    if ended not in (0, _MISSING):
        raise UsageError(f"{name}: the search for metrics did not come to its end ({ended})")
    return ended == 0


def _in_child(work: Callable[[], int]) -> int:
    """Do `work` in a child, since only another process can end a search; return its signal, or what it returned."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            result = work()
            sys.stdout.flush()
            code = result
        except BrokenPipeError:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class TrialFindings:
    """Notes what a person should know about a pattern."""

    def __init__(self, tried: Sequence[PatternResult]) -> None:
        self._tried = tried

    def not_a_number(self, index: int, text: str) -> None:
        self._tried[index].not_number = self._tried[index].not_number or text[:_SHOWN]
        self._tried[index].not_numbers += 1

    def doubtful(self, index: int, doubt: Doubt, taken: str, whole: str, line: str) -> None:
        tried = self._tried[index]
        tried.doubts[doubt.value] = tried.doubts.get(doubt.value, 0) + 1
        tried.doubt_examples.setdefault(
            doubt.value, (taken[:_SHOWN], whole[:_SHOWN], line_around(line, whole))
        )


def _search(
    metrics: Sequence[Metric],
    log: Path,
    name: str,
    limit: SearchLimit,
    *,
    write: Callable[[str], object] | None,
) -> MetricsTrial:
    tried = [PatternResult(each) for each in metrics]
    warmed: Counter[tuple[int, str]] = Counter()
    trial = MetricsTrial(name, tried)
    fast = prefilter_available()
    patterns = compile_patterns(metrics, fast=fast)
    markers = SectionMarkers(metrics, guard=limit, fast=fast)
    sections = Sections(markers)
    context = LogContext(ContextMarkers(metrics, guard=limit, fast=fast))
    findings = TrialFindings(tried)
    extraction = Extraction(patterns, findings=findings, guard=limit)
    near = NearMisses(metrics, tried)
    follower = (RepaintFollower if wants_last_states(metrics) else Follower)([log])
    more = True
    while more:
        more, blocks = follower.read()
        for block in blocks if more else follower.finish():
            begun = time.perf_counter()
            closed = sections.read(block.data, block.offset) if markers else ()
            changes = context.read(block.data, block.offset)
            found = [
                each
                for batch in extraction.find(block.data, block.offset, block.repainted, closed)
                for each in context.apply(batch, changes, findings)
            ]
            trial.seconds += time.perf_counter() - begun
            if write is not None:
                for each in found:
                    write(_record(metrics, each))
            values: dict[tuple[int, str, bool], list[float]] = {}
            for _, index, _, number, extra in found:
                labels = extra.partition(LABELS)[2]  # the last of the members
                is_warm_up = warmed[index, labels] < metrics[index].warmup_values
                warmed[index, labels] += is_warm_up
                values.setdefault((index, labels, is_warm_up), []).append(float(number))
            for (index, labels, is_warm_up), numbers in values.items():
                tried[index].add(labels, numbers, warmup=is_warm_up)
            trial.lines += block.data.count(b"\n")
            trial.bytes += len(block.data)
            if trial.bytes <= _NEAR_BYTES:
                near.observe(block, {(offset, index) for offset, index, *_ in found})
    follower.close()
    return trial


def _record(metrics: Sequence[Metric], found: Found) -> str:
    """Return a line of JSON: the record that a run makes of what was found, but for its number and time."""
    offset, index, k, number, extra = found
    metric = metrics[index]
    return (
        f'{{"src":"log","off":{offset},"i":{index},"k":{k},"name":{json.dumps(metric.name)},"value":{number}'
        f',"units":{json.dumps(metric.units)}{extra}}}\n'
    )


class NearMisses:
    """Finds lines that hold a metric's fixed text, or its name, though its pattern does not match them."""

    def __init__(self, metrics: Sequence[Metric], tried: Sequence[PatternResult]) -> None:
        self._tried = tried
        self._keys: list[list[bytes]] = []
        for metric in metrics:
            keys = {shape_of(metric).literal.strip(), metric.name, metric.name.replace("_", " ")}
            self._keys.append([key.lower().encode() for key in keys if len(key) >= _SHORTEST_KEY])

    def observe(self, block: Block, matched: set[tuple[int, int]]) -> None:
        folded = block.data.lower()
        for index, keys in enumerate(self._keys):
            for key in keys:
                self._look(block, folded, index, key, matched)

    def _look(
        self, block: Block, folded: bytes, index: int, key: bytes, matched: set[tuple[int, int]]
    ) -> None:
        near = self._tried[index].near
        at = folded.find(key)
        while at >= 0 and len(near) < _EXAMPLES:
            start = folded.rfind(b"\n", 0, at) + 1
            end = folded.find(b"\n", at)
            line = block.data[start:end][: 2 * _SHOWN].decode(errors="replace")
            if (block.offset + start, index) not in matched and line not in near:
                near.append(line)
            at = folded.find(key, end)
