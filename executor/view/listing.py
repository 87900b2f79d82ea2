"""Jobs in a list, and one job's state, for a terminal or a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Job
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import JobResult
from bai_agent.job.run_directory import now_ms
from executor.jobs.jobs import ListedJob
from executor.program import command
from executor.quantities import aligned, clock, seconds
from executor.records.environments import MachineWarning, NodeEnvironment
from executor.records.job_status import DIED, JobStatus, NodeStatus, is_over
from executor.records.over_ranks import last_over_ranks
from executor.records.statistics import Measurements
from executor.view.environment import environment_lines, warning_lines
from executor.view.headlines import headlines_table
from executor.view.job_table import job_table
from executor.view.metrics import between_text
from executor.view.own_usage import usage_sentence, usage_words
from executor.view.summary import (
    print_last_lines,
    result_notes,
    runs_table,
    transport_sentence,
    unseen_notes,
)
from executor.view.text import plain_text, speaks_unicode

if TYPE_CHECKING:
    from executor.analysis.runs import OverRuns

_COLOURS = {
    "SUCCEEDED": "green",
    "RUNNING": "cyan",
    "INITIALIZING": "cyan",
    "PENDING": "cyan",
    "CANCELED": "yellow",
}
_PIPE_WIDTH = 160
_VALUES = 40
_VALUE_SHARE = 3
"""A metric's name leaves this part of the width to its value, which is what was asked for."""


def print_listing(jobs: Sequence[ListedJob]) -> None:
    """Print jobs, the newest last."""
    show(job_table(jobs, width=screen_width(), status_style=_COLOURS, unicode=speaks_unicode()))


def print_status(
    job: Job,
    job_status: JobStatus,
    values: Mapping[str, Mapping[str, Any]],
    command: Callable[..., str] = command,
    *,
    result: JobResult | None = None,
    machine_warnings: Sequence[MachineWarning] = (),
    measured: Measurements | None = None,
    over_runs: Sequence[OverRuns] = (),
) -> None:
    """Print how one job stands, with the last value of each metric, and what to do where its agent has died.

    result, measured, over_runs: of a job that has ended, which is told by its headlines instead; measured: None where there are too many values.
    """
    heading = Text(plain_text(job_status.job_id), style="bold").append("  ")
    heading.append_text(_status(job_status))
    show(heading)
    lines: list[tuple[str, str]] = []
    if job_status.sentence:
        outcome = f"{job_status.sentence} (bai's exit code is {job_status.exit_code})"
        lines.append(("outcome", outcome if job_status.exit_code else job_status.sentence))
    if job_status.status == DIED:
        since = f"; its last sign was {_ago(job_status.since)}" if job_status.since else ""
        lines.append(("agent", f"gone, without a result{since}"))
        if job_status.last_words:
            lines.append(("", f'its log ends with "{job_status.last_words}"'))
        if job_status.benchmark_alive is not None:
            lines.append(("benchmark", _benchmark(job_status)))
        lines.append(("to do", f"{command('resume', job_status.job_id)}{_resumed(job_status)}"))
        if job_status.benchmark_alive:
            lines.append(("", f"{command('cancel', job_status.job_id)}  ends it"))
    elif not is_over(job_status):
        phase = job_status.phase or "starting"
        lines.append(
            ("phase", phase + (f", since {_ago(job_status.since, ago=False)}" if job_status.since else ""))
        )
        if job_status.cancelling:
            lines.append(("", "cancelling"))
        if job_status.agent_alive:
            lines.append(("agent", "alive"))
    if job_status.machine and job_status.machine != job_status.sentence:
        lines.append(("machine", job_status.machine))
    if (step := job_status.next_step) is not None:
        lines.append(("to do", f"{command(*step.words)}  {step.effect}"))
    if job_status.started:
        span = f", took {seconds(job_status.seconds or 0)}" if is_over(job_status) else ""
        lines.append(("started", clock(job_status.started) + span))
    if result is not None:
        lines += [(label, text) for label, text, _ in result_notes(result)]
    lines += [("warning", text) for text in job_status.warnings if result is None]
    more = command("status", "-v", job_status.job_id)
    lines += warning_lines(machine_warnings, more=more)
    if result is not None:
        lines.append(("log", command("logs", job_status.job_id)))
    for label, value in lines:
        show(Text(f"{label:<9} ", style="dim").append(plain_text(value), style="default"))
    if result is not None and job_status.exit_code:
        print_last_lines(screen(), result, unicode=speaks_unicode())
    for label, text in unseen_notes(_unseen(job, result), result):
        show(Text(f"{label:<9} ", style="dim").append(plain_text(text), style="yellow"))
    if result is not None and measured is not None:
        table = headlines_table(measured, width=screen_width(), name_share=_VALUE_SHARE)
        if table is not None:
            show(Text())
            show(table)
    else:
        _print_values(job, values)
        if result is not None and values:
            more = command("metrics", job_status.job_id)
            show(Text(f"the last values: there are too many for a glance; all: {more}", style="dim"))
    if over_runs:
        show(Text())
        show(runs_table(over_runs[:_VALUES], unicode=speaks_unicode()))


def print_nodes(nodes: Sequence[NodeStatus], *, is_over: bool) -> None:
    """Print how each of several nodes stands. is_over: the job has ended."""
    if not nodes:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    # An id is there to be copied: where the screen is narrow, only what a node says of its end is wrapped.
    for heading in ("node", "instance", "address", "phase", "last sign"):
        table.add_column(heading, no_wrap=True)
    table.add_column("end", overflow="fold")
    for node in nodes:
        table.add_row(*_place(node, is_over=is_over), _end(node, is_over=is_over))
    show(Text())
    show(table)


def print_transports(nodes: Sequence[NodeStatus]) -> None:
    """Print what moves data between several nodes, each with the nodes that said so."""
    ranks: dict[str, list[str]] = {}
    for node in nodes:
        for library, uses in (node.transports or {}).items():
            ranks.setdefault(transport_sentence(library, uses), []).append(str(node.rank))
    if ranks:
        show(Text())
    for sentence, found in ranks.items():
        some = "" if len(found) == len(nodes) else f" (node {', '.join(found)})"
        show(Text(f"{'transport':<9} ", style="dim").append(plain_text(f"{sentence}{some}"), style="default"))


def _place(node: NodeStatus, *, is_over: bool) -> tuple[Text, ...]:
    """Return which node it is, where, and how it stands now."""
    here = "here" if node.address is not None else ""
    phase = "" if node.outcome is not None or is_over else node.phase or "starting"
    has_sign = node.last_sign is not None and node.outcome is None
    return (
        Text(str(node.rank), style="bold"),
        Text(plain_text(node.instance_id or here)),
        Text(plain_text(node.address or "")),
        Text(plain_text(phase)),
        Text(_ago(node.last_sign) if has_sign else ""),
    )


def _end(node: NodeStatus, *, is_over: bool) -> Text:
    """Return how a node's part ended, and what is wrong with its record."""
    if node.outcome is not None:
        is_good = node.outcome == Outcome.SUCCEEDED.value
        end = Text(plain_text(node.outcome if is_good else f"{node.outcome}: {node.sentence}"))
        end.stylize("green" if is_good else "red")
    else:
        end = Text("did not say how it ended" if is_over else "", style="red")
    if node.trouble is not None:
        end.append(f"{'; ' if end else ''}{plain_text(node.trouble)}", style="yellow")
    return end


def print_set(job: Job) -> None:
    """Print what was set in place of what the descriptor says."""
    if job.set:
        show(Text())
    for index, (key, value) in enumerate(job.set.items()):
        show(
            Text(f"{'' if index else 'set':<9} ", style="dim").append(
                plain_text(f"{key}={value}"), style="default"
            )
        )


def print_own_usage(result: JobResult | None, *, one_machine: bool = False) -> None:
    """Print what our own programs took of the job's machines. one_machine: its nodes share one."""
    nodes = (result.own_usage if result is not None else None) or []
    if not nodes:
        return
    lines = [usage_sentence(nodes, one_machine=one_machine)]
    for node in nodes:
        which = f"node {node.rank}: " if len(nodes) > 1 else ""
        lines.append(which + "; ".join(f"{name} {taken}" for name, taken in usage_words(node)))
    show(Text())
    for index, each in enumerate(lines):
        show(Text(f"{'' if index else 'bai':<9} ", style="dim").append(each, style="default"))


def print_environments(nodes: Sequence[NodeEnvironment]) -> None:
    """Print what each node ran on."""
    for node in nodes:
        show(Text())
        if len(nodes) > 1:
            show(Text(f"node {node.rank}", style="bold"))
        for label, value in environment_lines(node):
            style = "yellow" if label == "warning" else "default"
            show(Text(f"{label:<9} ", style="dim").append(plain_text(value), style=style))


def _status(job_status: JobStatus) -> Text:
    word = "AGENT DIED" if job_status.status == DIED else plain_text(job_status.status)
    return Text(word, style=_COLOURS.get(job_status.status, "red"))


def _benchmark(job_status: JobStatus) -> str:
    """Return what becomes of the benchmark of a dead agent."""
    if not job_status.benchmark_alive:
        return "does not run"
    if job_status.benchmark_watched:
        return "still running"
    return "still running, but its shim is gone too: nobody will see how it ends"


def _resumed(job_status: JobStatus) -> str:
    if job_status.benchmark_alive and not job_status.benchmark_watched:
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


def _unseen(job: Job, result: JobResult | None) -> list[str]:
    """Return the metrics that have no value after the end."""
    if result is None or result.metrics is None:
        return []
    return [each.name for each in job.metrics if result.metrics.per_metric.get(each.name) == 0]


def _print_values(job: Job, values: Mapping[str, Mapping[str, Any]]) -> None:
    rows: dict[str, list[Mapping[str, Any]]] = {metric.name: [] for metric in job.named_metrics()}
    for value in values.values():
        if value["name"] in rows or value["src"] in ("emit", "file"):
            rows.setdefault(value["name"], []).append(value)
    shown = [
        row
        for metric in rows.values()
        for row in last_over_ranks(metric, {each.name: each.over_ranks for each in job.named_metrics()})
    ]
    if not shown:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    width = screen_width()
    table.add_column(no_wrap=True, max_width=max(8, width - width // _VALUE_SHARE))
    table.add_column(no_wrap=True, justify="right", min_width=8)
    for _ in range(2):
        table.add_column(no_wrap=True)
    unicode = speaks_unicode()
    quantities = [between_text(row.between, row.units, unicode=unicode) for row in shown[:_VALUES]]
    numbers = aligned([number for number, _ in quantities])
    for row, number, (_, units) in zip(shown, numbers, quantities, strict=False):
        table.add_row(
            Text(plain_text(row.name), style="bold"),
            number,
            Text(plain_text(units), style="dim"),
            Text(_ago(row.timestamp), style="dim"),
        )
    show(Text())
    show(table)


def _ago(time_ms: int | None, *, ago: bool = True) -> str:
    span = seconds(max(0, now_ms() - (time_ms or 0)) / 1000)
    return f"{span} ago" if ago else span
