"""Pulls all sources of a job, several at a time. Each source is pulled only once."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bai_agent.errors import PullError, PullStopped
from bai_agent.files.user_rights import User
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.run_directory import read_json, write_json
from bai_agent.job.schema.source_schemes import source_name
from bai_agent.light_dataclass import replace
from bai_agent.pull.bring import Pulled, PullTask, bring
from bai_agent.pull.progress import PullEndedError, PullProgress, PullWatch

log = logging.getLogger(__name__)

AT_A_TIME = 4
_TICK_S = 0.1
_REPORT_EVERY_S = 1.0
_LAST_WAIT_S = 5.0
"""Longest wait for the threads to end (seconds). A thread that hangs in a DNS query for longer does no
further work."""


def pull(
    sources: Sequence[Source],
    *,
    folders: Mapping[SourceKind, Path],
    manifest: Path,
    deadline: float,
    report: Callable[[PullProgress], None],
    stopping: Callable[[], bool],
    user: User | None = None,
) -> None:
    """Bring every source to its target path, verified and, if requested, unpacked. The user's own files are
    never replaced.

    Relative paths are below `folders[kind]`. `manifest`: file in which finished sources are recorded for a
    restarted agent. `deadline` is a time of `time.monotonic()`. `report` is called at most once per second
    and source, and after a source is finished. `report` and `stopping` are called only on the caller's
    thread. `user`: the benchmark's user, if it differs from the agent's. In folders to which this user can
    write, files are accessed only with this user's rights.

    Raises PullError for the first source that fails, or when the deadline passes; content that has arrived is
    kept for the next attempt. Raises NoSpaceError if there is not enough space, and PullStopped once
    `stopping()` is true.
    """
    tasks = [_task(source, folders, user) for source in sources]
    _refuse_conflicts(tasks)
    before = (read_json(manifest) or {}).get("sources", {})
    run = _Run(tasks, before if isinstance(before, dict) else {})
    reported: dict[int, float] = {}
    if stopping():
        raise PullStopped("the pull was stopped before it began")
    for thread in run.threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in run.threads):
            run.news.wait(_TICK_S)
            run.news.clear()
            _save(manifest, run)
            _report(run, reported, report, time.monotonic())
            if run.failures:
                break
            if stopping():
                raise PullStopped("the pull was stopped; received data is kept")
            if time.monotonic() >= deadline:
                raise PullError(
                    f"limits.pull_timeout passed before all data had arrived; unfinished: {run.unfinished()}"
                )
    finally:
        run.end()
        _save(manifest, run)
    _report(run, reported, report, time.monotonic())
    if run.failures:
        raise run.failures[0]


class _Run:
    """The threads that pull the sources, and the sources that these threads have finished."""

    def __init__(self, tasks: Sequence[PullTask], before: Mapping[str, object]) -> None:
        self.tasks = tasks
        self.news = threading.Event()
        self.failures: list[BaseException] = []
        self.pulled: dict[str, Pulled] = {}
        self.saved = 0
        self._before = before
        self._watch = PullWatch()
        self._groups: queue.SimpleQueue[list[PullTask]] = queue.SimpleQueue()
        # Sources with the same target folder share the folder's lock, so one thread pulls them one after the
        # other.
        groups: dict[Path, list[PullTask]] = {}
        for task in tasks:
            groups.setdefault(task.group, []).append(task)
        for group in groups.values():
            self._groups.put(group)
        self.threads = [
            threading.Thread(target=self._work, name=f"pull-{number}", daemon=True)
            for number in range(min(AT_A_TIME, len(groups)))
        ]

    def end(self) -> None:
        """End all threads, within a time limit."""
        self._watch.end()
        last = time.monotonic() + _LAST_WAIT_S
        for thread in self.threads:
            thread.join(max(0.0, last - time.monotonic()))
            if thread.is_alive():
                log.warning("%s hangs in a system call; the agent does not wait for this thread", thread.name)

    def unfinished(self) -> str:
        return ", ".join(source_name(task.source.src) for task in self.tasks if not task.tally.done)

    def _work(self) -> None:
        try:
            while True:
                try:
                    group = self._groups.get_nowait()
                except queue.Empty:
                    return
                for task in group:
                    self.pulled[task.key] = bring(task, self._watch, before=self._before.get(task.key))
                    self.news.set()
        except PullEndedError:
            return
        except BaseException as error:
            # The caller's thread raises the error again, because the benchmark must not run without its data.
            # BaseException is caught because of obstore's panics.
            self.failures.append(error)
        finally:
            self.news.set()


def _task(source: Source, folders: Mapping[SourceKind, Path], user: User | None) -> PullTask:
    path = Path(source.path)
    if "\0" in source.path or ".." in path.parts:
        raise PullError(
            f'{source_name(source.src)}: the path "{source.path}" has a ".." part; write a path without ".."'
        )
    target = folders[source.kind] / path
    return PullTask(
        source=source,
        target=target,
        tally=PullProgress(src=source_name(source.src), path=str(target)),
        user=user,
    )


def _refuse_conflicts(tasks: Sequence[PullTask]) -> None:
    seen: dict[Path, PullTask] = {}
    for task in tasks:
        if not task.lands_as_file:
            continue
        other = seen.setdefault(task.target, task)
        if other is not task:
            raise PullError(
                f"{task.tally.src} and {other.tally.src} would both be written to {task.target}; give one of the two another path"
            )


def _save(manifest: Path, run: _Run) -> None:
    pulled = dict(run.pulled)
    if len(pulled) > run.saved:
        write_json(manifest, {"version": 1, "sources": {key: vars(facts) for key, facts in pulled.items()}})
        run.saved = len(pulled)


def _report(
    run: _Run, reported: dict[int, float], report: Callable[[PullProgress], None], now: float
) -> None:
    for index, task in enumerate(run.tasks):
        progress = replace(task.tally)
        last = reported.get(index)
        if last == float("inf"):
            continue
        if progress.done:
            reported[index] = float("inf")
        elif progress.total_objects is None or (last is not None and now - last < _REPORT_EVERY_S):
            continue
        else:
            reported[index] = now
        report(progress)
