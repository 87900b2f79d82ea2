"""What a benchmark takes away of its own run directory, and what of that can be put back.

It may: it runs as a user who can. A run must end well all the same, with the benchmark ended and with a result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bai_agent.job.events import EventLog
from bai_agent.job.run_directory import RunDir, make_folder, read_json, write_atomic
from bai_agent.run.open_file import OpenFile

log = logging.getLogger(__name__)


class Salvage:
    """Remembers the small files of a run that has begun, and holds the large ones."""

    def __init__(self, rundir: RunDir, events: EventLog) -> None:
        self._rundir = rundir
        self._output = OpenFile(rundir.kept_output)
        self._output.stat()
        records = OpenFile(rundir.kept_metrics)
        records.stat()
        self._ways: dict[Path, Callable[[], None]] = {
            rundir.kept_output: self._output.link_again,
            rundir.kept_metrics: records.link_again,
            rundir.metrics: lambda: rundir.metrics.hardlink_to(rundir.kept_metrics),
            rundir.events: events.restore,
        }
        self._held = (self._output, records)
        self._told: set[Path] = set()
        self.started: Mapping[str, Any] | None = None
        """What started.json said, as soon as there was one."""
        for path in (rundir.job, rundir.ready, rundir.pulled, rundir.environment):
            self._remember(path)

    def remember_start(self) -> None:
        """Read started.json: after it has gone nothing else tells the shim's pid."""
        self.started = read_json(self._rundir.started)
        self._remember(self._rundir.started)

    def output_size(self) -> int:
        """Return the size of the benchmark's output, under whatever name."""
        status = self._output.stat()
        return 0 if status is None else status.st_size

    def put_back(self) -> list[str]:
        """Put back what has gone, as far as that can be; return the names of all that had. Raises OSError where even a folder
        cannot be made any more."""
        gone = [path for path in self._ways if not path.exists()]
        if gone:
            make_folder(self._rundir.path, private=self._rundir.path)
        for path in gone:
            try:
                make_folder(path.parent, private=self._rundir.path)
                self._ways[path]()
            except OSError as error:
                if path not in self._told:
                    log.warning("%s has gone and cannot be put back: %s", path, error)
                self._told.add(path)
        return [path.relative_to(self._rundir.path).as_posix() for path in gone]

    def close(self) -> None:
        for each in self._held:
            each.close()

    def _remember(self, path: Path) -> None:
        try:
            content = path.read_bytes()
        except OSError:
            return  # not every run has it
        self._ways[path] = lambda: write_atomic(path, content)
