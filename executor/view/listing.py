"""Jobs in a list, and one job's state, for a terminal or a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import now_ms
from executor.program import command
from executor.quantities import aligned, clock, quantity, seconds
from executor.records.environments import NodeEnvironment
from executor.records.job_status import DIED, JobStatus, is_over
from executor.view.environment import environment_lines
from executor.view.summary import print_last_lines, result_notes, unseen_notes
from executor.view.text import plain_text, speaks_unicode

_COLOURS = {
    "SUCCEEDED": "green",
    "RUNNING": "cyan",
    "INITIALIZING": "cyan",
    "PENDING": "cyan",
    "CANCELED": "yellow",
}
_PIPE_WIDTH = 160
_VALUES = 40
_NAMES_FROM = 100
_TIMES_FROM, _OUTCOMES_FROM = 78, 56
"""Columns from which on there is room for them."""
_VALUE_SHARE = 3
"""A metric's name leaves this part of the width to its value, which is what was asked for."""


def print_listing(jobs: Sequence[tuple[JobStatus, str]]) -> None:
    """Print jobs with their names."""
    # An id is there to be copied, and a status is what was asked for: where the screen is narrow the others go.
    width = screen_width()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(
        "job", no_wrap=True, overflow="fold", min_width=max(len(each.job_id) for each, _ in jobs)
    )
    # Where all are here, nobody asks where.
    with_places = any(each.where != "local" for each, _ in jobs)
    wanted = {
        "name": width >= _NAMES_FROM,
        "where": with_places,
        "status": True,
        "outcome": width >= _OUTCOMES_FROM,
        "started": width >= _TIMES_FROM,
        "duration": width >= _TIMES_FROM,
    }
    headings = [heading for heading, there in wanted.items() if there]
    for heading in headings:
        side: JustifyMethod = "right" if heading == "duration" else "left"
        table.add_column(heading, no_wrap=True, overflow="ellipsis", justify=side)
    for standing, name in jobs:
        span = standing.seconds if standing.status != DIED else None
        cells: dict[str, RenderableType] = {
            "name": Text(plain_text(name)),
            "where": standing.where,
            "status": _status(standing),
            "outcome": Text(plain_text(standing.outcome or standing.phase or "")),
            "started": clock(standing.started)[:16] if standing.started else "",
            "duration": seconds(span) if span is not None else "",
        }
        table.add_row(
            Text(plain_text(standing.job_id), style="bold"), *(cells[heading] for heading in headings)
        )
    show(table)


def print_status(
    job: Job,
    standing: JobStatus,
    values: Mapping[str, Mapping[str, Any]],
    command: Callable[..., str] = command,
    *,
    result: Mapping[str, Any] | None = None,
) -> None:
    """Print how one job stands, with the last value of each metric, and what to do where its agent has died.

    result: of a job that has ended.
    """
    heading = Text(plain_text(standing.job_id), style="bold").append("  ")
    heading.append_text(_status(standing))
    show(heading)
    lines: list[tuple[str, str]] = []
    if standing.sentence:
        outcome = f"{standing.sentence} (bai's exit code is {standing.exit_code})"
        lines.append(("outcome", outcome if standing.exit_code else standing.sentence))
    if standing.status == DIED:
        since = f"; its last sign was {_ago(standing.since)}" if standing.since else ""
        lines.append(("agent", f"gone, without a result{since}"))
        if standing.last_words:
            lines.append(("", f'its log ends with "{standing.last_words}"'))
        if standing.benchmark_alive is not None:
            lines.append(("benchmark", _benchmark(standing)))
        lines.append(("to do", f"{command('resume', standing.job_id)}{_resumed(standing)}"))
        if standing.benchmark_alive:
            lines.append(("", f"{command('cancel', standing.job_id)}  ends it"))
    elif not is_over(standing):
        phase = standing.phase or "starting"
        lines.append(
            ("phase", phase + (f", since {_ago(standing.since, ago=False)}" if standing.since else ""))
        )
        if standing.cancelling:
            lines.append(("", "cancelling"))
        if standing.agent_alive:
            lines.append(("agent", "alive"))
    if standing.machine and standing.machine != standing.sentence:
        lines.append(("machine", standing.machine))
    if (step := standing.next_step) is not None:
        lines.append(("to do", f"{command(*step.words)}  {step.effect}"))
    if standing.started:
        span = f", took {seconds(standing.seconds or 0)}" if is_over(standing) else ""
        lines.append(("started", clock(standing.started) + span))
    lines += [(label, text) for label, text, _ in result_notes(result or {"warnings": standing.warnings})]
    if result is not None:
        lines.append(("log", command("logs", standing.job_id)))
    for label, value in lines:
        show(Text(f"{label:<9} ", style="dim").append(plain_text(value), style="default"))
    if result is not None and standing.exit_code:
        print_last_lines(screen(), result, unicode=speaks_unicode())
    for label, text in unseen_notes(_unseen(job, result), result):
        show(Text(f"{label:<9} ", style="dim").append(plain_text(text), style="yellow"))
    _print_values(job, values)


def print_environments(nodes: Sequence[NodeEnvironment]) -> None:
    """Print what each node ran on."""
    for node in nodes:
        show(Text())
        if len(nodes) > 1:
            show(Text(f"node {node.rank}", style="bold"))
        for label, value in environment_lines(node):
            style = "yellow" if label == "warning" else "default"
            show(Text(f"{label:<9} ", style="dim").append(plain_text(value), style=style))


def _status(standing: JobStatus) -> Text:
    word = "AGENT DIED" if standing.status == DIED else plain_text(standing.status)
    return Text(word, style=_COLOURS.get(standing.status, "red"))


def _benchmark(standing: JobStatus) -> str:
    """Return what becomes of the benchmark of a dead agent."""
    if not standing.benchmark_alive:
        return "does not run"
    if standing.benchmark_watched:
        return "still running"
    return "still running, but its shim is gone too: nobody will see how it ends"


def _resumed(standing: JobStatus) -> str:
    if standing.benchmark_alive and not standing.benchmark_watched:
        return "  ends it as well, and writes the result"
    return ""


def screen_width() -> int:
    """Return the columns of standard output: the terminal's, else plenty."""
    return Console().width if sys.stdout.isatty() else _PIPE_WIDTH


def screen() -> Console:
    """Return standard output as a screen."""
    return Console(highlight=False, no_color=not sys.stdout.isatty(), width=screen_width())


def show(what: RenderableType) -> None:
    """Print to standard output: with colours on a terminal, as plain lines elsewhere."""
    if sys.stdout.isatty():
        Console(highlight=False).print(what, soft_wrap=isinstance(what, Text))
        return
    drawn = io.StringIO()
    Console(file=drawn, width=_PIPE_WIDTH, no_color=True, force_terminal=False, highlight=False).print(
        what, soft_wrap=isinstance(what, Text)
    )
    for line in drawn.getvalue().splitlines():
        print(line.rstrip())


def _unseen(job: Job, result: Mapping[str, Any] | None) -> list[str]:
    """Return the metrics that have no value after the end."""
    found = ((result or {}).get("metrics") or {}).get("per_metric")
    return [each.name for each in job.metrics if found.get(each.name) == 0] if isinstance(found, dict) else []


def _print_values(job: Job, values: Mapping[str, Mapping[str, Any]]) -> None:
    rows: dict[str, list[str]] = {metric.name: [] for metric in job.metrics}
    for row, value in values.items():
        if value["name"] in rows or value["src"] == "emit":
            rows.setdefault(value["name"], []).append(row)
    shown = [row for found in rows.values() for row in found]
    if not shown:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    width = screen_width()
    table.add_column(no_wrap=True, max_width=max(8, width - width // _VALUE_SHARE))
    table.add_column(no_wrap=True, justify="right", min_width=8)
    for _ in range(2):
        table.add_column(no_wrap=True)
    quantities = [quantity(values[row]["value"], values[row].get("units") or "") for row in shown[:_VALUES]]
    numbers = aligned([number for number, _ in quantities])
    for row, number, (_, units) in zip(shown, numbers, quantities, strict=False):
        value = values[row]
        table.add_row(
            Text(plain_text(row), style="bold"),
            number,
            Text(plain_text(units), style="dim"),
            Text(_ago(value["timestamp"]), style="dim"),
        )
    show(Text())
    show(table)


def _ago(moment: int | None, *, ago: bool = True) -> str:
    span = seconds(max(0, now_ms() - (moment or 0)) / 1000)
    return f"{span} ago" if ago else span
