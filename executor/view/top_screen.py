"""The screen of `bai top`: an overview of a running job that fits any screen size. The screen shows phases,
nodes, and the last value and trend of each metric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table as Grid
from rich.text import Text

from bai_agent.job.descriptor.benchmark_tables import Repeat
from bai_agent.job.run_directory import now_ms
from executor.documents.document import Column, Phrase, Table
from executor.documents.job_view import phase_words
from executor.documents.machines import USAGE, by_node, usage_cells
from executor.documents.metrics import metric_table, span_since
from executor.documents.screen import Screen
from executor.documents.status import generation_sentence
from executor.quantities import listed
from executor.records.newest import NODES, JobGlance
from executor.records.over_ranks import current_rows, seen_first
from executor.view.stage import cropped

_WARNINGS = 3
_OTHERS = 3
"""Largest number of other running jobs that the screen names."""
_END = "end"
"""Name of the phase in which a node reports that its part of the job has ended."""
_SILENT_MS = 60_000
"""Time without a write of the job after which the screen shows how long the job has written nothing (ms)."""


class TopScreen:
    """Draws the overview of one job."""

    def __init__(self, job_id: str, *, others: Sequence[str] = (), unicode: bool = True) -> None:
        """others: other running jobs."""
        self._job_id = job_id
        self._others = others
        self._unicode = unicode

    def draw(
        self,
        glance: JobGlance,
        *,
        width: int,
        height: int,
        trouble: str | None = None,
        hint: str | None = None,
    ) -> RenderableType:
        """Return the screen with the job's current state. trouble: reason why the job's state could not be
        read last time. hint: text about the keys that can be pressed."""
        screen = Screen(width=width, unicode=self._unicode)

        def line(phrase: Phrase) -> Text:
            return cropped(screen.text(phrase.text, phrase.tone), width, unicode=self._unicode)

        head = [*map(line, self._head(glance, trouble))]
        foot = [line(Phrase(each, "soft")) for each in self._foot(hint)]
        nodes = _nodes(glance, screen)
        # One row each is needed for the cursor, the screen's heading, and the headings of two tables.
        room = max(1, height - 2 - len(head) - len(foot) - (nodes.row_count + 1) - 1)
        return Group(self._heading(glance, screen), *head, nodes, *_metrics(glance, screen, room), *foot)

    def _head(self, glance: JobGlance, trouble: str | None) -> Iterator[Phrase]:
        yield Phrase(phase_words(glance.state.finished) or "nothing has finished yet", "soft")
        if glance.generation is not None and glance.result is None:
            yield Phrase(generation_sentence(glance.generation))
        yield from (Phrase(each, "caution") for each in glance.state.cautions[-_WARNINGS:])
        heard = glance.last_heard
        if glance.result is not None:
            yield Phrase(glance.result.sentence, "bad" if glance.result.exit_code else "good")
        elif heard is not None and now_ms() - heard > _SILENT_MS:
            yield Phrase(f"the job has written nothing for {span_since(heard)}", "caution")
        if trouble is not None:
            yield Phrase(trouble, "caution")

    def _foot(self, hint: str | None) -> Iterator[str]:
        if self._others:
            yield f"also running: {listed(self._others, _OTHERS)}"
        if hint is not None:
            yield hint

    def _heading(self, glance: JobGlance, screen: Screen) -> Rule:
        state = glance.state
        word = glance.result.status if glance.result is not None else state.phase or "starting"
        title = screen.text(self._job_id, "strong")
        title.append("  ", style="not bold").append_text(screen.text(word, "live"))
        if glance.result is None and state.since is not None:
            title.append(f" {span_since(state.since)}", style="not bold")
        if glance.repeat is not None:
            title.append(f"  run {glance.repeat + 1}{_of(glance.job.repeat)}", style="not bold")
        return screen.rule(title)


def _nodes(glance: JobGlance, screen: Screen) -> Grid:
    rows = [
        [Phrase(str(rank)), Phrase(_stage(glance, rank)), *usage_cells(figures)]
        for rank, figures in _usage(glance).items()
    ]
    if glance.node_count > NODES:
        more = Phrase(f"+{glance.node_count - NODES}", "soft")
        rows.append([more, *[Phrase("")] * (len(USAGE) + 1)])
    return screen.grid(Table([Column("node"), Column("phase", number=False), *USAGE], rows))


def _metrics(glance: JobGlance, screen: Screen, room: int) -> Iterator[RenderableType]:
    every = seen_first(current_rows(glance.measurements.rows))
    if not every:
        return
    shown = every[: max(1, room - 1) if len(every) > room else room]
    yield screen.grid(metric_table(shown, columns=("last", "units", "trend")))
    if len(every) > len(shown):
        yield screen.text(f"and {len(every) - len(shown):,} more", "soft")


def _usage(glance: JobGlance) -> dict[int, Mapping[str, float]]:
    """Return the latest usage samples of each node's machine, by node number."""
    last = by_node(glance.measurements.host, lambda series: series.last)
    several = glance.job.strategy.nodes > 1
    return {rank: last.get(str(rank) if several else "", {}) for rank in glance.states}


def glance_table(job_id: str, glance: JobGlance, *, others: Sequence[str] = ()) -> dict[str, Any]:
    """Return the current overview of a job as JSON values. Times are in seconds, and values are in the units
    of their metric. others: other running jobs, the oldest first.
    """
    usage = _usage(glance)
    return {
        "job_id": job_id,
        "status": glance.result.status if glance.result is not None else "running",
        "phase": glance.state.phase,
        "repeat": glance.repeat,
        "generation": glance.generation.as_table() if glance.generation is not None else None,
        "warnings": list(glance.state.cautions),
        "result": glance.result.sentence if glance.result is not None else None,
        "nodes": [
            {
                "rank": rank,
                "phase": state.phase,
                "left": glance.generation.left.get(rank) if glance.generation is not None else None,
                "finished_phases": dict(state.finished),
                "host": usage[rank],
            }
            for rank, state in glance.states.items()
        ],
        "metrics": [
            {"name": each.name, "units": each.units, "last": each.last}
            for each in glance.measurements.rows
            if each.count
        ],
        "other_jobs": list(others),
    }


def _stage(glance: JobGlance, node: int) -> str:
    """Return what a node is doing at present. For a node that left an elastic job without a report, return
    what happened to it."""
    phase = glance.states[node].phase or ""
    left = glance.generation.left.get(node) if glance.generation is not None else None
    return left if left is not None and phase != _END else phase


def _of(repeat: Repeat | None) -> str:
    """Return the planned number of runs as text."""
    if repeat is None:
        return ""
    return f" of {'at most ' if repeat.until is not None else ''}{repeat.runs}"
