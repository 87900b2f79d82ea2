"""Reads all result files into the values journal, within a deadline.

A separate thread reads the files, because reading from a hanging file system cannot be interrupted.
"""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from bai_agent.errors import WrongFormatError
from bai_agent.files.globs import matching_files
from bai_agent.files.user_rights import User, user_rights
from bai_agent.job.descriptor.metric_tables import Results
from bai_agent.job.schema.pattern_groups import RESERVED
from bai_agent.light_dataclass import dataclass
from bai_agent.metrics.emit import NAME_LIMIT
from bai_agent.metrics.records import wait_for_room
from bai_agent.metrics.results.documents import Measured, Problem, size_limit, values_in
from bai_agent.metrics.results.values_journal import FileBatch, Item, NoteWriter, Total
from bai_agent.metrics.search.number import finite_number, json_number

MOST_FILES = 1000
"""Maximum number of files per `[[results]]` table. Further files are not read."""
_OLDER_MS = 20
"""Largest time by which a file system's clock is expected to be slow (ms)."""


class UnfitFileError(Exception):
    """A result file cannot be used. The message is the end of a sentence about the file."""


@dataclass(frozen=True)
class Matches:
    """Files that match the path of one `[[results]]` table, sorted by name."""

    paths: list[Path]
    more: bool
    """Whether more files match than `MOST_FILES`."""


def find_files(folder: Path, table: Results) -> Matches:
    """Return the files that match the path of a `[[results]]` table. Raises OSError."""
    found = list(islice(matching_files(folder, table.path), MOST_FILES + 1))
    return Matches(sorted(set(found[:MOST_FILES])), len(found) > MOST_FILES)


def open_result(path: Path, *, folder: Path, table: Results, since_ms: int) -> io.BufferedReader:
    """Open a result file. Raises OSError.

    Raises UnfitFileError if the path is not a file, the file is not below `folder`, is too large, or is older
    than `since_ms`.
    """
    # The file is first opened with O_PATH, because opening a pipe or a device could block or have side
    # effects.
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    opened = Path(f"/proc/self/fd/{place}")
    try:
        seen = os.fstat(place)
        if not stat.S_ISREG(seen.st_mode):
            raise UnfitFileError("is not a file")
        # The path is checked after opening, because a link may have replaced the file since the search.
        if not opened.readlink().is_relative_to(folder.resolve()):
            raise UnfitFileError("leads out of the benchmark's folder")
        if seen.st_size > (limit := size_limit(table)):
            raise UnfitFileError(f"has {seen.st_size:,} bytes; at most {limit:,} are read")
        if seen.st_ctime_ns < (since_ms - _OLDER_MS) * 1_000_000:
            raise UnfitFileError("was there before the benchmark began, and has not changed since")
        return opened.open("rb")
    finally:
        os.close(place)


log = logging.getLogger(__name__)

SECONDS = 60.0
"""Time limit for all files together (seconds)."""
MOST_VALUES = 1_000_000
"""Maximum number of values per `[[results]]` table."""
_BATCH = 500
_TEXT_LIMIT = 256
_MOST_LABELS = 20
_UNITS_LIMIT = 64
_EXAMPLE = 80
_WARNINGS = 20
"""Maximum number of files per `[[results]]` table about which the user is warned."""
_TICK = 0.05


class WarmupFileError(Exception):
    """A result file was written by a warm-up run, so its values are not recorded."""


@dataclass(frozen=True, kw_only=True)
class ResultFolder:
    """Folders of the result files, and the time before which a file counts as too old."""

    paths: Sequence[Path]
    """One folder, or the folders of all arms if arms have separate folders."""
    since_ms: int
    """Start of the benchmark (ms UTC)."""
    until_ms: int
    """Current time (ms UTC)."""
    warn_of_nothing: bool
    """Whether to warn if no file matches a `[[results]]` table. If another node may write the files for all nodes, this node does
    not warn."""
    user: User | None = None
    """User with whose rights the files are read. None means the agent's user."""
    runs: Sequence[tuple[int, int | None]] = ()
    """Start and number of each run of a `[repeat]` job. The number is None for a warm-up run."""

    def run_of(self, changed_ms: int) -> int | None:
        """Return the run during which a result file was last changed. Raises WarmupFileError."""
        # No tolerance for slow clocks is added, because a run writes its results at its end and the next run
        # may begin immediately.
        began = [number for time_ms, number in self.runs if time_ms <= changed_ms]
        if began and began[-1] is None:
            raise WarmupFileError
        return began[-1] if began else None


@dataclass(frozen=True)
class _Done:
    table: int


_Told = FileBatch | _Done | str


def gather_results(
    tables: Sequence[Results],
    folder: ResultFolder,
    note: Path,
    *,
    quote: Callable[[str], str],
    stopping: Callable[[], bool],
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write the values in the result files of all `tables` to the journal `note`, with warnings about the
    files.

    quote: function that removes secrets from the benchmark's texts. Reading ends after `seconds`, or when
    `stopping()` returns True.
    """
    total = Total(time=folder.until_ms, found=[0] * len(tables))
    unread = dict.fromkeys(range(len(tables)))
    told: queue.Queue[_Told] = queue.Queue(maxsize=20)
    given_up = threading.Event()
    reader = _Reader(tables, folder, quote=quote, told=told, given_up=given_up)
    thread = threading.Thread(target=reader.run, name="results", daemon=True)
    thread.start()
    deadline = clock() + seconds
    with closing(NoteWriter(note)) as writer:
        while unread and clock() < deadline and not stopping():
            ended = not thread.is_alive()
            try:
                each = told.get(timeout=_TICK)
            except queue.Empty:
                if ended:
                    break
                continue
            if isinstance(each, str):
                total.warnings.append(each)
            elif isinstance(each, _Done):
                del unread[each.table]
            else:
                total.found[each.table] += len(each.values)
                wait_for_room(partial(writer.add, each), path=note, sleep=sleep)
        given_up.set()
        total.unread = list(unread)
        total.warnings += [
            f"{_named(tables[index])} was not read to its end: {'agent.log tells why' if index in reader.failed else 'there was no time left'}"
            for index in unread
        ]
        wait_for_room(lambda: writer.publish(total), path=note, sleep=sleep)


class _GivenUpError(Exception):
    """Reading is stopped, because nobody needs the values any more."""


class _Reader:
    """Reads the result files one after the other, and yields the values."""

    def __init__(
        self,
        tables: Sequence[Results],
        folder: ResultFolder,
        *,
        quote: Callable[[str], str],
        told: queue.Queue[_Told],
        given_up: threading.Event,
    ) -> None:
        self._tables = tables
        self._folder = folder
        self._quote = quote
        self._shown = lru_cache(maxsize=10_000)(self._show)
        self._told = told
        self._given_up = given_up
        self._files = 0
        self.failed: set[int] = set()
        """Indexes of tables that were not read completely because of an unexpected error."""

    def run(self) -> None:
        try:
            for index, table in enumerate(self._tables):
                self._try_table(index, table)
        except _GivenUpError:
            return

    def _try_table(self, index: int, table: Results) -> None:
        try:
            self._read_table(index, table)
        except _GivenUpError:
            raise
        except Exception:
            # After an unexpected error in one file, the values before the error and the values of the other
            # tables are still recorded.
            log.exception("%s cannot be read", _named(table))
            self.failed.add(index)
            self._files += 1
        else:
            self._tell(_Done(index))

    def _read_table(self, index: int, table: Results) -> None:
        left = MOST_VALUES
        for folder in self._folder.paths:
            left -= self._read_folder(index, table, folder, most=left)

    def _read_folder(self, index: int, table: Results, folder: Path, *, most: int) -> int:
        """Read the files of one folder; return the number of values."""
        try:
            with user_rights(self._folder.user):
                matches = find_files(folder, table)
        except OSError as error:
            self._tell(f"{_named(table)} cannot be looked for in {folder}: {error.strerror}")
            return 0
        if not matches.paths and self._folder.warn_of_nothing:
            self._tell(f"No file matched {_named(table)} in {folder}")
        if matches.more:
            self._tell(
                f"{_named(table)} matches more than {MOST_FILES:,} files; only the first files are read"
            )
        left, silent = most, 0
        for count, path in enumerate(matches.paths):
            values, warnings = self._read_file(index, table, path, folder=folder, most=left)
            left -= values
            silent += len(warnings) if count >= _WARNINGS else 0
            for warning in warnings if count < _WARNINGS else ():
                self._tell(f"{self._shown(path.relative_to(folder).as_posix())} ({_named(table)}) {warning}")
        if silent:
            self._tell(f"{_named(table)}: {silent} more warnings, about other files")
        return most - left

    def _read_file(
        self, index: int, table: Results, path: Path, *, folder: Path, most: int
    ) -> tuple[int, list[str]]:
        """Read a file; return the number of values, and its warnings."""
        batch: list[Item] = []
        told, repeat = 0, None
        warnings: list[str] = []
        unfit: Counter[str] = Counter()
        examples: dict[str, str] = {}
        try:
            with user_rights(self._folder.user):
                opened = open_result(path, folder=folder, table=table, since_ms=self._folder.since_ms)
            with opened as file:
                repeat = self._folder.run_of(os.fstat(file.fileno()).st_ctime_ns // 1_000_000)
                for found in values_in(file, table):
                    if isinstance(found, Problem):
                        warnings.append(self._of_problem(found))
                        continue
                    name = self._text(found.name)
                    if table.metrics and name not in table.metrics:
                        continue
                    if told + len(batch) >= most:
                        warnings.append(f"has more values than the limit of {MOST_VALUES:,} for one table")
                        break
                    number = _number(found.value)
                    if number is None or not name:
                        unfit[name] += 1
                        examples.setdefault(name, _example(found.value))
                        continue
                    batch.append((name, number, *self._rest_of(found)))
                    if len(batch) == _BATCH:
                        self._tell(FileBatch(index, self._files, repeat, told, batch))
                        told += len(batch)
                        batch = []
        except WarmupFileError:
            return 0, []
        except (UnfitFileError, WrongFormatError) as error:
            sentence = (
                str(error)
                if isinstance(error, UnfitFileError)
                else f"cannot be read as {table.format.value}: {error}"
            )
            warnings.append(sentence)
        except OSError as error:
            warnings.append(f"cannot be read: {error.strerror}")
        if batch:
            self._tell(FileBatch(index, self._files, repeat, told, batch))
            told += len(batch)
        self._files += bool(told)
        warnings += [
            f'has {count} values of "{name}" that are not finite numbers and were left out, the first was "{self._shown(examples[name])}"'
            for name, count in list(unfit.items())[:_WARNINGS]
        ]
        if not told and not warnings:
            warnings.append("holds no value" + (" of the metrics in `metrics`" if table.metrics else ""))
        return told, warnings

    def _of_problem(self, found: Problem) -> str:
        return f"{found.text}: {self._shown(found.quoted)}" if found.quoted else found.text

    def _rest_of(self, found: Measured) -> tuple[str, str, int]:
        """Return the value's units, the further members of its record, and the time at which the value was
        measured or read."""
        units = self._text(found.units)[:_UNITS_LIMIT]
        step = _number(found.step) if found.step is not None else None
        labels = {}
        for name, value in list(found.labels.items())[:_MOST_LABELS]:
            if value is not None and (text := self._text(value)):
                own = self._text(name)
                labels[f"{own}_" if own in RESERVED else own] = text
        more = f',"step":{step}' if step is not None else ""
        if labels:
            more += f',"labels":{json.dumps(labels, separators=(",", ":"))}'
        time_ms = found.time
        known = type(time_ms) is int and self._folder.since_ms <= time_ms <= self._folder.until_ms
        return units, more, time_ms if known else self._folder.until_ms

    def _text(self, value: object) -> str:
        """Return a value of the file as text for a name, a unit or a label."""
        if value is None or isinstance(value, (list, dict)):
            return ""
        text = value if isinstance(value, str) else json.dumps(value)
        return self._shown(text[: 16 * NAME_LIMIT])

    def _show(self, text: str) -> str:
        # Secrets are removed before the text is truncated, because a truncated secret would not be recognised.
        shown = self._quote(text).encode(errors="replace").decode()
        return " ".join(shown.split())[:_TEXT_LIMIT]

    def _tell(self, what: _Told) -> None:
        while not self._given_up.is_set():
            try:
                self._told.put(what, timeout=_TICK)
            except queue.Full:
                continue
            return
        raise _GivenUpError


def _number(value: Any) -> str | None:
    """Return a finite number as JSON; None if the value is not a finite number."""
    return json_number(value) if isinstance(value, str) else finite_number(value)


def _example(value: object) -> str:
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return str(value)[:_EXAMPLE]


def _named(table: Results) -> str:
    return f'output.results "{table.path}"'
