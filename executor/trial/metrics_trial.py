"""Tries a descriptor's patterns on a log, with the same code that extracts metrics during a run."""

from __future__ import annotations

import json
import mmap
import os
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.figures import LIMIT
from bai_agent.light_dataclass import dataclass, field
from bai_agent.metrics.context import ContextMarkers, LogContext
from bai_agent.metrics.follow import Follower, LineBlock
from bai_agent.metrics.repaint import RepaintFollower
from bai_agent.metrics.search.extract import Extraction
from bai_agent.metrics.search.patterns import (
    Found,
    compile_patterns,
    prefilter_available,
    shape_of,
    wants_last_states,
)
from bai_agent.metrics.search.reading import LABELS, Doubt
from bai_agent.metrics.search_limit import ENDS_WITH, LIMIT_SECONDS, MARK_BYTES, SearchLimit, marked_search
from bai_agent.metrics.sections import SectionMarkers, Sections
from bai_agent.metrics.tally import line_around
from executor.errors import UsageError
from executor.records.series import Series, labelled_name
from executor.records.statistics import LABEL_SETS, OTHERS


@dataclass
class PatternResult:
    """The values that a trial found for one metric."""

    metric: Metric
    series: dict[str, Series] = field(default_factory=dict)
    """Series by their labels, which are JSON. Each set of labels is a series."""
    not_numbers: int = 0
    not_number: str = ""
    """The first matched text that was not a finite number."""
    doubts: dict[str, int] = field(default_factory=dict)
    """Kind of doubt about the metric's values → number of occurrences."""
    doubt_examples: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """First example of each kind of doubt: the matched text, the whole text, and the line."""
    near: list[str] = field(default_factory=list)
    """Lines without a match that contain the pattern's fixed text, or the metric's name."""

    _warmed: Counter[str] = field(default_factory=Counter)
    """Number of values of the warm-up, by labels."""

    @property
    def rows(self) -> list[Series]:
        """The series in order of appearance; a single empty series if nothing was found."""
        return list(self.series.values()) or [self._new({})]

    @property
    def count(self) -> int:
        """Number of values; the warm-up is not counted."""
        return sum(each.count for each in self.series.values())

    @property
    def has_values(self) -> bool:
        """Whether the metric has any value, even if all values are in the warm-up."""
        return any(each.seen for each in self.series.values())

    def add(self, labels: str, values: Sequence[float]) -> None:
        """Add values, in their order, to the series with these labels. labels: the labels as JSON."""
        series = self._series_with(labels)
        counted = [value for value in values if abs(value) <= LIMIT]
        series.beyond += len(values) - len(counted)
        warm_up = counted[: max(0, self.metric.warmup_values - self._warmed[labels])]
        self._warmed[labels] += len(warm_up)
        if warm_up:
            series.leave_out(warm_up)
        series.add_all(counted[len(warm_up) :])

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        rows = self.rows
        if len(rows) > 1 or rows[0].labels:
            own: dict[str, Any] = {"name": self.metric.name, "units": self.metric.units, "count": self.count}
            own["series"] = [each.as_table() for each in rows]
        else:
            own = rows[0].as_table()
        return {
            **own,
            "not_numbers": self.not_numbers,
            "not_number": self.not_number,
            "doubts": self.doubts,
            "doubt_examples": self.doubt_examples,
            "near": self.near,
        }

    @property
    def matched(self) -> bool:
        """Whether the metric's pattern matched any part of the log, even if no match gave a usable value."""
        return bool(self.has_values or self.not_numbers)

    @property
    def missing(self) -> bool:
        """Whether a run with this log would fail because the required metric is missing."""
        return self.metric.required and not self.has_values

    def _series_with(self, labels: str) -> Series:
        is_known = labels in self.series or len(self.series) < LABEL_SETS
        key = labels if is_known else OTHERS
        if key not in self.series:
            self.series[key] = self._new(
                json.loads(labels) if labels and is_known else {}, shared=not is_known
            )
        return self.series[key]

    def _new(self, labels: dict[str, str], *, shared: bool = False) -> Series:
        metric = self.metric
        name = metric.name + OTHERS if shared else labelled_name({"name": metric.name, "labels": labels})
        # A row of many series has no headline.
        how = None if shared else metric.headline
        return Series(name, metric.units, metric.better, metric=metric.name, labels=labels, headline_is=how)


STDIN = Path("-")
_NEAR_BYTES = 32 * 2**20
"""Number of bytes of a log that are searched for lines that almost match."""
_COPIED_BYTES = 2**16
"""Largest number of bytes that are copied from a stream at a time."""
_EXAMPLES = 3
_SHORTEST_KEY = 3
_SHOWN = 100
_MISSING = 3
"""Exit code of the child process if a required metric has no value."""


@dataclass
class MetricsTrial:
    """The values that the patterns of a descriptor find in a log."""

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

    def add(self, block: LineBlock, found: Sequence[Found]) -> None:
        """Add the values that were found in a block of the log."""
        values: dict[tuple[int, str], list[float]] = {}
        for _, index, _, number, extra in found:
            labels = extra.partition(LABELS)[2]  # The labels are the last element of `extra`.
            values.setdefault((index, labels), []).append(float(number))
        for (index, labels), numbers in values.items():
            self.metrics[index].add(labels, numbers)
        self.lines += block.data.count(b"\n")
        self.bytes += len(block.data)

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "log": self.log,
            "lines": self.lines,
            "bytes": self.bytes,
            "lines_per_second": round(self.lines_per_second),
            "required_missing": self.required_missing,
            "metrics": [each.as_table() for each in self.metrics],
        }


def try_metrics(metrics: Sequence[Metric], log: Path, *, show: Callable[[MetricsTrial], None] | None) -> bool:
    """Call `show`, in a child process, with the values that `metrics` find in the file `log` ("-": standard
    input). Without `show`, print the records that a run would make, one JSON object per line. Returns False
    if a required metric has no value. Raises UsageError if the file `log` cannot be read, or if a pattern
    takes more than a second on a line.
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
        raise UsageError(f"{log} cannot be read; its permissions forbid reading")
    if stat.S_ISREG(mode):
        return _try_file(metrics, log, str(log), show)
    with log.open("rb") as stream:
        return _try_stream(metrics, stream, str(log), show)


def _try_stream(
    metrics: Sequence[Metric], stream: BinaryIO, name: str, show: Callable[[MetricsTrial], None] | None
) -> bool:
    """Try the patterns on a copy of a stream, because a stream can be read only once."""
    with tempfile.NamedTemporaryFile(prefix="bai-") as copy:
        # An unbuffered read returns to Python after each piece of input, so that a Ctrl-C is handled. A
        # buffered read may wait for more input first.
        while block := os.read(stream.fileno(), _COPIED_BYTES):
            copy.write(block)
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

    # If records are printed, each search is timed from the start, because the trial cannot be repeated after
    # records were printed.
    ended = _in_child(search) if show is not None else ENDS_WITH
    if ended == ENDS_WITH:
        # The trial is repeated with a timer for each search, to find the slow pattern.
        mark = mmap.mmap(-1, MARK_BYTES)
        ended = _in_child(lambda: search(mark))
        if ended == ENDS_WITH and (marked := marked_search(mark[:])) is not None:
            raise UsageError(
                f'{name}: the pattern of "{metrics[marked.metric].name}" takes more than {LIMIT_SECONDS:.0f} s on the line at byte '
                f"{marked.offset}, and a run would stop using the pattern from this line on; nested repetitions such as (a+)+ are the usual cause"
            )
    if ended not in (0, _MISSING):
        raise UsageError(f"{name}: the search for metrics was cut short ({ended})")
    return ended == 0


def _in_child(work: Callable[[], int]) -> int:
    """Do `work` in a child process, because only a process can be killed during a search. Return the signal
    that ended the process, or the result of `work`."""
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
    """Collects doubts about the values that patterns find."""

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
    """Return the values of `metrics` in a log. write: called with the records that a run would make."""
    trial = MetricsTrial(name, [PatternResult(each) for each in metrics])
    extractor = _Extractor(metrics, trial.metrics, limit)
    near = NearMisses(metrics, trial.metrics)
    follower = (RepaintFollower if wants_last_states(metrics) else Follower)([log])
    more = True
    while more:
        more, blocks = follower.read()
        for block in blocks if more else follower.finish():
            begun = time.perf_counter()
            found = extractor.find(block)
            trial.seconds += time.perf_counter() - begun
            if write is not None:
                for each in found:
                    write(_record(metrics, each))
            trial.add(block, found)
            if trial.bytes <= _NEAR_BYTES:
                near.observe(block, {(offset, index) for offset, index, *_ in found})
    follower.close()
    return trial


class _Extractor:
    """Finds values in blocks of a log as a run does."""

    def __init__(self, metrics: Sequence[Metric], tried: Sequence[PatternResult], limit: SearchLimit) -> None:
        fast = prefilter_available()
        self._findings = TrialFindings(tried)
        self._markers = SectionMarkers(metrics, guard=limit, fast=fast)
        self._sections = Sections(self._markers)
        self._context = LogContext(ContextMarkers(metrics, guard=limit, fast=fast))
        patterns = compile_patterns(metrics, fast=fast)
        self._extraction = Extraction(patterns, findings=self._findings, guard=limit)

    def find(self, block: LineBlock) -> list[Found]:
        closed = self._sections.read(block.data, block.offset) if self._markers else ()
        changes = self._context.read(block.data, block.offset)
        return [
            each
            for batch in self._extraction.find(block.data, block.offset, block.repainted, closed)
            for each in self._context.apply(batch, changes, self._findings)
        ]


def _record(metrics: Sequence[Metric], found: Found) -> str:
    """Return the record that a run would make, without its number and time, as a line of JSON."""
    offset, index, k, number, extra = found
    metric = metrics[index]
    return (
        f'{{"src":"log","off":{offset},"i":{index},"k":{k},"name":{json.dumps(metric.name)},"value":{number}'
        f',"units":{json.dumps(metric.units)}{extra}}}\n'
    )


class NearMisses:
    """Finds lines that contain a metric's fixed text or name, although the metric's pattern does not match
    these lines."""

    def __init__(self, metrics: Sequence[Metric], tried: Sequence[PatternResult]) -> None:
        self._tried = tried
        self._keys: list[list[bytes]] = []
        for metric in metrics:
            keys = {shape_of(metric).literal.strip(), metric.name, metric.name.replace("_", " ")}
            self._keys.append([key.lower().encode() for key in keys if len(key) >= _SHORTEST_KEY])

    def observe(self, block: LineBlock, matched: set[tuple[int, int]]) -> None:
        folded = block.data.lower()
        for index, keys in enumerate(self._keys):
            for key in keys:
                self._look(block, folded, index, key, matched)

    def _look(
        self, block: LineBlock, folded: bytes, index: int, key: bytes, matched: set[tuple[int, int]]
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
