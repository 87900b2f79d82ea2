"""A running job at a glance: phases, nodes, and the last value of each metric with its trend; fits any screen
size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table as Grid
from rich.text import Text

from bai_agent.job.descriptor import Repeat
from bai_agent.job.run_directory import now_ms
from executor.documents.document import Column, Phrase, Table
from executor.documents.job_view import phase_words
from executor.documents.machines import USAGE, by_node, usage_cells
from executor.documents.metrics import metric_table
from executor.documents.screen import Screen
from executor.documents.status import generation_sentence
from executor.documents.text import plain_text
from executor.quantities import listed, seconds
from executor.records.newest import NODES, JobGlance
from executor.records.over_ranks import current_rows, over_ranks
from executor.view.stage import cropped

_WARNINGS = 3
_END = "end"
"""The phase in which a node reports the end of its part of the job."""
_SILENT_MS = 60_000
"""Smallest silence that the view shows (ms)."""


class TopScreen:
    """Draws one job."""

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
        """Return the screen. trouble: why the last look failed. hint: the keys that can be pressed."""
        head = [self._cropped(each, width) for each in self._head(glance, trouble)]
        foot = [self._cropped(Text(each, style="dim"), width) for each in self._foot(hint)]
        nodes = self._nodes(glance, width)
        # The cursor and the heading take a row each, and so do the headings of two tables.
        room = max(1, height - 2 - len(head) - len(foot) - (nodes.row_count + 1) - 1)
        return Group(self._heading(glance), *head, nodes, *self._metrics(glance, width, room), *foot)

    def _cropped(self, text: Text, width: int) -> Text:
        return cropped(text, width, unicode=self._unicode)

    def _head(self, glance: JobGlance, trouble: str | None) -> Iterator[Text]:
        yield self._phases(glance)
        if glance.generation is not None and glance.result is None:
            yield Text(plain_text(generation_sentence(glance.generation)))
        yield from (Text(plain_text(each), style="yellow") for each in glance.state.cautions[-_WARNINGS:])
        heard = glance.last_heard
        if glance.result is not None:
            style = "bold red" if glance.result.exit_code else "bold green"
            yield Text(plain_text(glance.result.sentence), style=style)
        elif heard is not None and now_ms() - heard > _SILENT_MS:
            ago = seconds((now_ms() - heard) / 1000)
            yield Text(f"nothing has been heard of it for {ago}", style="yellow")
        if trouble is not None:
            yield Text(plain_text(trouble), style="yellow")

    def _foot(self, hint: str | None) -> Iterator[str]:
        if self._others:
            yield f"also running: {listed([*map(plain_text, self._others)], 3)}"
        if hint is not None:
            yield hint

    def _heading(self, glance: JobGlance) -> Rule:
        state = glance.state
        word = plain_text(glance.result.status if glance.result is not None else state.phase or "starting")
        title = Text.assemble((plain_text(self._job_id), "bold"), "  ", (word, "bold cyan"))
        if glance.result is None and state.since is not None:
            title.append(f" {seconds(max(0, now_ms() - state.since) / 1000)}")
        if glance.repeat is not None:
            title.append(f"  run {glance.repeat + 1}{_of(glance.job.repeat)}")
        return Rule(title, align="left", style="dim", characters="─" if self._unicode else "-")

    def _phases(self, glance: JobGlance) -> Text:
        done = phase_words(glance.state.finished) or "nothing has finished yet"
        return Screen(width=len(done), unicode=self._unicode).text(done, "soft")

    def _nodes(self, glance: JobGlance, width: int) -> Grid:
        last = by_node(glance.measurements.host, lambda series: series.last)
        rows = []
        for rank in glance.states:
            figures = last.get(str(rank) if glance.job.strategy.nodes > 1 else "", {})
            rows.append([Phrase(str(rank)), Phrase(_stage(glance, rank)), *usage_cells(figures)])
        if glance.node_count > NODES:
            more = Phrase(f"+{glance.node_count - NODES}", "soft")
            rows.append([more, *[Phrase("")] * (len(USAGE) + 1)])
        columns = [Column("node"), Column("phase", number=False), *USAGE]
        return Screen(width=width, unicode=self._unicode).grid(Table(columns, rows))

    def _metrics(self, glance: JobGlance, width: int, room: int) -> list[RenderableType]:
        measured = glance.measurements
        every = current_rows(over_ranks(measured.benchmark.values(), measured.over_ranks))
        seen = [each for each in every if each.count] + [each for each in every if not each.count]
        if not seen:
            return []
        shown = seen[: max(1, room - 1) if len(seen) > room else room]
        table = metric_table(shown, columns=("last", "units", "trend"))
        more = [Text(f"and {len(seen) - len(shown):,} more", style="dim")] if len(seen) > len(shown) else []
        return [Screen(width=width, unicode=self._unicode).grid(table), *more]


def glance_table(job_id: str, glance: JobGlance, *, others: Sequence[str] = ()) -> dict[str, Any]:
    """Return one look at a job as JSON values: times in seconds, values in each metric's units.

    others: other running jobs, oldest first.
    """
    host = by_node(glance.measurements.host, lambda series: series.last)
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
                "host": host.get(str(rank) if glance.job.strategy.nodes > 1 else "", {}),
            }
            for rank, state in glance.states.items()
        ],
        "metrics": [
            {"name": each.name, "units": each.units, "last": each.last}
            for each in over_ranks(glance.measurements.benchmark.values(), glance.measurements.over_ranks)
            if each.count
        ],
        "other_jobs": list(others),
    }


def _stage(glance: JobGlance, node: int) -> str:
    """Return the activity of a node; for a node that left an elastic job without a report, what happened to
    it."""
    phase = glance.states[node].phase or ""
    left = glance.generation.left.get(node) if glance.generation is not None else None
    return left if left is not None and phase != _END else phase


def _of(repeat: Repeat | None) -> str:
    """Return the planned number of runs in words."""
    if repeat is None:
        return ""
    return f" of {'at most ' if repeat.until is not None else ''}{repeat.runs}"
