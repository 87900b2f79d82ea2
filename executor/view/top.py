"""A running job at a glance: phases, nodes, and the last value of each metric with its trend; fits any screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Repeat
from bai_agent.job.record_types import JobResult
from bai_agent.job.run_directory import now_ms
from executor.quantities import aligned, quantity, seconds, size
from executor.records.newest import NODES, JobGlance
from executor.records.over_ranks import over_ranks
from executor.records.run_state import PHASES
from executor.records.statistics import Series
from executor.view.block import cropped
from executor.view.host import by_node, gpu_loads
from executor.view.metrics import name_text
from executor.view.text import plain_text, sparkline

_WARNINGS = 3
_SILENT_MS = 60_000
"""After so long without a word it is told when the last one came."""
_TREND = (6, 48)
_RECEIVED, _SENT = "network_receive_bytes_per_second", "network_send_bytes_per_second"
_COLUMNS = ("node", "phase", "cpu", "memory", "gpu", "in", "out")


class TopPicture:
    """Draws one job."""

    def __init__(self, job_id: str, *, others: Sequence[str] = (), unicode: bool = True) -> None:
        """others: jobs that run as well."""
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
        """Return the picture. trouble: why the last look failed. hint: what can be pressed."""
        lines: list[Text] = [self._phases(glance)]
        lines += [Text(plain_text(each), style="yellow") for each in glance.state.cautions[-_WARNINGS:]]
        if glance.result is not None:
            style = "bold red" if glance.result.exit_code else "bold green"
            lines.append(Text(plain_text(glance.result.sentence), style=style))
        elif (heard := glance.last_heard) is not None and now_ms() - heard > _SILENT_MS:
            ago = seconds((now_ms() - heard) / 1000)
            lines.append(Text(f"nothing has been heard of it for {ago}", style="yellow"))
        if trouble is not None:
            lines.append(Text(plain_text(trouble), style="yellow"))
        foot = [cropped(Text(hint, style="dim"), width, unicode=self._unicode)] if hint is not None else []
        if self._others:
            named = ", ".join(map(plain_text, self._others[:3]))
            more = f" and {len(self._others) - 3} more" if len(self._others) > 3 else ""
            text = Text(f"also running: {named}{more}", style="dim")
            foot.insert(0, cropped(text, width, unicode=self._unicode))
        head = [cropped(each, width, unicode=self._unicode) for each in lines]
        nodes = self._nodes(glance, width)
        # One row is the cursor's, one the heading's, and two tables have headings of their own.
        room = max(1, height - 2 - len(head) - len(foot) - (nodes.row_count + 1 if nodes else 0) - 1)
        return Group(
            self._heading(glance),
            *head,
            *([nodes] if nodes is not None else []),
            *self._metrics(glance, width, room),
            *foot,
        )

    def _heading(self, glance: JobGlance) -> Rule:
        state = glance.state
        word = _status(glance.result) if glance.result is not None else plain_text(state.phase or "starting")
        title = Text.assemble((plain_text(self._job_id), "bold"), "  ", (word, "bold cyan"))
        if glance.result is None and state.since is not None:
            title.append(f" {seconds(max(0, now_ms() - state.since) / 1000)}")
        if glance.repeat is not None:
            title.append(f"  run {glance.repeat + 1}{_of(glance.job.repeat)}")
        return Rule(title, align="left", style="dim", characters="─" if self._unicode else "-")

    def _phases(self, glance: JobGlance) -> Text:
        finished = glance.state.finished
        dot = " · " if self._unicode else " | "
        done = dot.join(f"{name} {seconds(finished[name])}" for name in PHASES if name in finished)
        return Text(done or "nothing has finished yet", style="dim")

    def _nodes(self, glance: JobGlance, width: int) -> Table | None:
        last = by_node(glance.measurements.host, lambda series: series.last)
        rows = []
        for rank, state in glance.states.items():
            figures = last.get(str(rank) if glance.node_count > 1 else "", {})
            gpus = gpu_loads(figures)
            rows.append(
                [
                    str(rank),
                    plain_text(state.phase or ""),
                    f"{figures['cpu_percent']:.0f} %" if "cpu_percent" in figures else "",
                    size(figures["memory_used_bytes"]) if "memory_used_bytes" in figures else "",
                    f"{sum(gpus) / len(gpus):.0f} %" if gpus else "",
                    *(f"{size(figures[name])}/s" if name in figures else "" for name in (_RECEIVED, _SENT)),
                ]
            )
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
        left = width
        shown = []
        for index, name in enumerate(_COLUMNS):
            needed = max(len(name), *(cell_len(row[index]) for row in rows)) + 2
            # A machine without GPUs has no column of them.
            if (index < 2 or any(row[index] for row in rows)) and needed - 2 <= left:
                left -= needed
                shown.append(index)
                table.add_column(
                    name, no_wrap=True, justify="left" if index < 2 else "right", width=needed - 2
                )
        for row in rows:
            table.add_row(*(Text(row[index]) for index in shown))
        if glance.node_count > NODES:
            table.add_row(Text(f"+{glance.node_count - NODES}", style="dim"))
        return table

    def _metrics(self, glance: JobGlance, width: int, room: int) -> list[RenderableType]:
        measured = glance.measurements
        every = over_ranks(measured.benchmark.values(), measured.over_ranks)
        seen = [each for each in every if each.count] + [each for each in every if not each.count]
        if not seen:
            return []
        rows = seen[: max(1, room - 1) if len(seen) > room else room]
        names = [name_text(each, max(6, width // 3 - 2), unicode=self._unicode) for each in rows]
        last = [quantity(each.last, each.units) if each.count else ("-", "") for each in rows]
        numbers = aligned([number for number, _ in last])
        units = [plain_text(unit) for _, unit in last]
        widths = [max(map(cell_len, column), default=0) for column in (names, numbers, units)]
        widths[0] = min(max(widths[0], 6), max(8, width // 3))
        widths[1] = max(widths[1], 6)
        left = width - widths[0] - widths[1] - 4
        with_units = 0 < widths[2] <= left - 2
        left -= widths[2] + 2 if with_units else 0
        trend = min(_TREND[1], left) if left >= _TREND[0] else 0
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
        overflow = "ellipsis" if self._unicode else "crop"
        table.add_column("metric", no_wrap=True, width=widths[0], overflow=overflow)  # type: ignore[arg-type]
        table.add_column("last", no_wrap=True, width=widths[1], justify="right")
        if with_units:
            table.add_column("units", no_wrap=True, width=max(widths[2], 1), overflow="crop")
        if trend:
            table.add_column("trend", no_wrap=True, width=trend, overflow="crop")
        for each, name, number, unit in zip(rows, names, numbers, units, strict=True):
            table.add_row(
                Text(name, style="bold" if each.count else "dim"),
                Text(number),
                *([Text(unit, style="dim")] if with_units else []),
                *([Text(self._trend(each, trend), style="cyan")] if trend else []),
            )
        more = len(seen) - len(rows)
        return [table, *([Text(f"and {more:,} more", style="dim")] if more else [])]

    def _trend(self, series: Series, width: int) -> str:
        return sparkline(series.trend.points, width, unicode=self._unicode)


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
        "warnings": list(glance.state.cautions),
        "result": glance.result.sentence if glance.result is not None else None,
        "nodes": [
            {
                "rank": rank,
                "phase": state.phase,
                "finished_phases": dict(state.finished),
                "host": host.get(str(rank) if glance.node_count > 1 else "", {}),
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


def _of(repeat: Repeat | None) -> str:
    """Return how many runs there will be."""
    if repeat is None:
        return ""
    return f" of {'at most ' if repeat.until is not None else ''}{repeat.runs}"


def _status(result: JobResult) -> str:
    return plain_text(result.status)
