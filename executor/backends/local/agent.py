"""Jobs on this machine: where their run directory is, and their agent, which outlives every `bai`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bai_agent.benchmark.orphans import find_remains
from bai_agent.errors import BaiError, BusyError
from bai_agent.job.agent_start import NotStartedError, start_agent
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir, is_locked, locked, make_folder
from bai_agent.job.store.directory import DirectoryStore

_LAST_BYTES = 65536
_LAST_WORDS = 300
"""Characters."""
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ \S+ ")
"""What stands before each message of an agent's log: time, level, who says it."""


class AgentError(BaiError):
    """The agent of a local job cannot be started."""


@dataclass(frozen=True)
class LocalAgent:
    """The agent of a job whose record is a folder of this machine."""

    record: JobRecord
    rundir: RunDir
    descriptor: Path
    folder: Path
    """The job store's."""

    def alive(self) -> bool:
        return is_locked(self.rundir.agent_lock)

    def benchmark_alive(self) -> bool:
        """Return whether the benchmark, or what ends it, still runs; it may without an agent, and even without its shim."""
        return self.benchmark_watched() or bool(find_remains(self.rundir))

    def benchmark_watched(self) -> bool:
        """Return whether the benchmark's shim runs, which ends it when it is asked to, and knows how it ends."""
        return is_locked(self.rundir.shim_lock)

    def last_words(self) -> str:
        """Return the last line of the agent's log that says something, without its time; "" where there is none.

        Whoever shows it takes out what a terminal would obey.
        """
        try:
            with self.rundir.agent_log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _LAST_BYTES))
                content = file.read()
        except OSError:
            return ""
        lines = (line.strip() for line in reversed(content.decode(errors="replace").splitlines()))
        last = next((line for line in lines if line), "")
        return _LOGGED.sub("", last).removeprefix("bai-agent: ")[:_LAST_WORDS]

    def start(self) -> None:
        """Start the agent in a session of its own and return when it runs. Raises AgentError.

        Started again it goes on where the last one died; where one lives already, nothing happens.
        """
        make_folder(self.rundir.path, private=self.folder)
        try:
            start_agent(self.descriptor, self.rundir)
        except NotStartedError as error:
            if not self.alive():
                raise AgentError(f"the agent of {self.record.job_id} did not start: {error}") from error

    @contextmanager
    def kept_away(self) -> Iterator[bool]:
        """Hold the job's locks, so that no agent can start meanwhile; yield False where anything of the job lives."""
        if not self.rundir.path.is_dir():
            yield True
            return
        with ExitStack() as stack:
            try:
                for lock in (self.rundir.agent_lock, self.rundir.shim_lock):
                    stack.enter_context(locked(lock))
            except BusyError:
                yield False
                return
            yield not find_remains(self.rundir)


def local_agent(record: JobRecord) -> LocalAgent | None:
    """Return the agent of a job on this machine; None where the record is not a folder here."""
    if not isinstance(record.store, DirectoryStore):
        return None
    folder = record.store.folder
    return LocalAgent(record, RunDir(folder / record.node().place), folder / record.key("job.toml"), folder)
