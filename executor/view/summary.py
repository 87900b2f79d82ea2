"""How a run ended, on one screen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from bai_agent.job.job_result import never_a_number
from bai_agent.job.outcome import ExitCode, signal_name
from bai_agent.job.record_types import JobResult
from executor.quantities import quantity, seconds, size
from executor.records.over_ranks import over_ranks, spreads
from executor.records.run_state import PHASES
from executor.view.environment import warning_lines
from executor.view.host import node_table
from executor.view.metrics import metric_notes, metric_table, spread_table
from executor.view.own_usage import peak_words
from executor.view.text import plain_text, safe_line
from executor.view.watch import JobView

if TYPE_CHECKING:
    from executor.analysis.runs import OverRuns

_ROWS = 30
_LAST_LINES = 10
_UNSEEN = 10


def print_summary(console: Console, job_view: JobView, *, unicode: bool = True) -> None:
    """Print the outcome, the last lines of what failed, timings, metrics, and where the files are."""
    result = job_view.result
    dot = " · " if unicode else " | "
    code = result.exit_code if result is not None else ExitCode.OURS

    def line(label: str, value: str, style: str = "default", *, copied: bool = False) -> None:
        _print_line(console, label, Text(plain_text(value), style=style), copied=copied)

    characters = "─" if unicode else "-"
    console.print(Rule(Text(job_view.job_id, style="bold"), align="left", style="dim", characters=characters))
    if result is not None and code != ExitCode.SUCCEEDED:
        print_last_lines(console, result, unicode=unicode)
    style = "bold green" if code == ExitCode.SUCCEEDED else "bold red"
    console.print(
        Text(plain_text(result.sentence if result is not None else ""), style=style).append(
            plain_text(f"  ({result.outcome}: bai's exit code is {code})")
            if result is not None and code
            else "",
            style="dim",
        ),
        soft_wrap=True,
    )
    phases = {**((result and result.phases) or {}), **job_view.state.finished}
    line("phases", dot.join(f"{name} {seconds(phases[name])}" for name in PHASES if name in phases))
    if result is not None and (facts := _facts(result)):
        line("benchmark", dot.join(facts))
    if result is not None and (git := result.git) is not None:
        dirty = ", with uncommitted changes" if git.dirty else ""
        branch = f" ({git.branch})" if git.branch else ""
        line("git", f"{git.commit[:12]}{branch}{dirty}")
    for label, text, style in result_notes(result) if result is not None else ():
        line(label, text, style)
    more_of_machines = job_view.command("status", "-v", job_view.job_id)
    for label, text in warning_lines(job_view.machine_warnings, more=more_of_machines):
        line(label, text, "yellow")
    if malformed := job_view.measurements.malformed.count:
        line(
            "warning",
            f"{malformed:,} lines of its metrics are not metric records and were passed over",
            "yellow",
        )
    _print_metrics(console, job_view, unicode=unicode)
    line("files", job_view.place, copied=True)
    if result is not None and (kept := result.artifacts) is not None and kept.files:
        files = f"{kept.files:,} file{'' if kept.files == 1 else 's'}, {size(kept.bytes)}"
        line(
            "artifacts",
            f"{files}, kept in {job_view.artifacts}" if job_view.artifacts else files,
            copied=True,
        )
    more = (job_view.command(word, job_view.job_id) for word in ("logs", "metrics"))
    line("more", dot.join(more), copied=True)


def result_notes(result: JobResult) -> Iterator[tuple[str, str, str]]:
    """Yield what a result says beyond its outcome: label, text, style."""
    if (kafka := result.kafka) is not None:
        lost = f", {kafka.undelivered:,} not delivered" if kafka.undelivered else ""
        why = f" ({kafka.error})" if lost and kafka.error else ""
        style = "yellow" if lost else "default"
        yield "kafka", f"{kafka.delivered or 0:,} messages delivered{lost}{why}", style
    for library, uses in (result.transports or {}).items():
        yield "transport", transport_sentence(library, uses), "default"
    for warning in result.warnings or ():
        yield "warning", warning, "yellow"


def transport_sentence(library: str, uses: Sequence[str]) -> str:
    """Return what a library said that it moves data with."""
    return f"{library}: {', '.join(uses)}"


def unseen_notes(names: Sequence[str], result: JobResult | None) -> Iterator[tuple[str, str]]:
    """Yield what is known of metrics without a value: label and text. Those that were no numbers differ from those never seen."""
    extracted = result.metrics if result is not None else None
    matched = (extracted.never_numbers if extracted is not None else None) or {}
    for name in [name for name in names if name in matched][:_UNSEEN]:
        yield name, never_a_number(matched[name].count, matched[name].first)
    never = [name for name in names if name not in matched]
    if never:
        more = f" and {len(never) - _UNSEEN:,} more" if len(never) > _UNSEEN else ""
        yield "never seen", ", ".join(never[:_UNSEEN]) + more


def runs_table(metrics: Sequence[OverRuns], *, unicode: bool = True) -> Table:
    """Return a row for each metric: of how many runs, their mean, and how far its 95 % confidence interval reaches."""
    sign = "±" if unicode else "+-"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    table.add_column("over runs", no_wrap=True, overflow="ellipsis", style="bold")
    for heading in ("runs", "mean", f"{sign} 95 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in metrics:
        half, mean = each.half_width, each.mean
        reach = "" if math.isinf(half) else f"{sign}{' '.join(quantity(half, each.units)).strip()}"
        if reach and mean:
            reach += f" ({half / abs(mean):.1%})"
        table.add_row(
            Text(plain_text(each.name)),
            f"{len(each.values):,}",
            plain_text(" ".join(quantity(mean, each.units, floor=each.below)).strip()),
            plain_text(reach),
        )
    return table


def _print_line(console: Console, label: str, value: Text, *, copied: bool) -> None:
    """Print a labelled value, wrapped between words; what somebody may want to copy is wrapped by the terminal alone."""
    if copied:
        console.print(Text(f"{label:<9} ", style="dim").append_text(value), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=9, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row(label, value)
    console.print(grid)


def _print_metrics(console: Console, job_view: JobView, *, unicode: bool) -> None:
    measured = job_view.measurements
    empty = [each for each in measured.benchmark.values() if not each.count]
    unseen = [each.name for each in empty if not (each.left_out or each.of_failed)]
    all_failed = [each for each in empty if each.of_failed]
    all_warm = [each for each in empty if each.left_out and not each.of_failed]
    every = over_ranks((each for each in measured.benchmark.values() if each.count), measured.over_ranks)
    seen, apart = spreads(every)
    if not seen and not apart and not empty:
        return
    console.print()
    more = job_view.command("metrics", job_view.job_id)
    if seen:
        table = metric_table(seen, width=console.width - 2, rows=_ROWS, summary=True, unicode=unicode)
        console.print(Padding(table, (0, 0, 0, 2)))
    if apart:
        console.print(Padding(spread_table(apart[:_ROWS], unicode=unicode), (0, 0, 0, 2)))
    if (nodes := node_table(measured.host)) is not None:
        console.print(Padding(nodes, (1, 0, 0, 2)))
    if len(seen) > _ROWS:
        console.print(Text(f"  and {len(seen) - _ROWS:,} more: {more}", style="dim"))
    if job_view.over_runs:
        console.print(Padding(runs_table(job_view.over_runs[:_ROWS], unicode=unicode), (1, 0, 0, 2)))
    for text, style in metric_notes(seen[:_ROWS]):
        _print_note(console, text, style)
    for series in all_warm:
        _print_note(console, f"{series.name}: all its values ({series.left_out:,}) are warm-up", "yellow")
    for series in all_failed:
        _print_note(
            console, f"{series.name}: all its values ({series.of_failed:,}) are of runs that failed", "yellow"
        )
    for label, text in unseen_notes(unseen, job_view.result):
        console.print(Text(f"  {plain_text(f'{label}: {text}')}", style="yellow"), soft_wrap=True)
    if job_view.partial:
        console.print(
            Text(f"  of the first {job_view.measurements.records:,} records; all: {more}", style="dim")
        )
    console.print()


def _print_note(console: Console, text: str, style: str) -> None:
    console.print(Padding(Text(plain_text(text), style=style), (0, 0, 0, 2)))


def print_last_lines(console: Console, result: JobResult, *, unicode: bool) -> None:
    lines = [safe_line(each) for each in result.last_lines or ()][-_LAST_LINES:]
    if not lines:
        return
    console.print(Text("the benchmark's last lines", style="dim"))
    bar = "│" if unicode else "|"
    for each in lines:
        console.print(Text(f"{bar} ", style="dim").append_text(Text.from_ansi(each)), soft_wrap=True)


def _facts(result: JobResult) -> list[str]:
    benchmark = result.benchmark
    if benchmark is None:
        return []
    facts = []
    if benchmark.exec_error:
        facts.append("never ran")
    elif benchmark.signal is not None:
        facts.append(signal_name(benchmark.signal))
    elif benchmark.code:
        facts.append(f"exit code {benchmark.code}")
    times = (
        ("wall", benchmark.wall_seconds),
        ("user", benchmark.user_seconds),
        ("system", benchmark.system_seconds),
    )
    facts += [f"{label} {seconds(time)}" for label, time in times if time is not None]
    if benchmark.peak_memory_bytes:
        facts.append(
            f"peak memory {peak_words(benchmark.peak_memory_bytes, result.own_usage or ())} (largest process)"
        )
    return facts
