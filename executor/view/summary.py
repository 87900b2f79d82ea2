"""How a run ended, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from bai_agent.job.outcome import ExitCode, signal_name
from bai_agent.metrics.tally import never_a_number
from executor.quantities import seconds, size
from executor.records.run_state import PHASES
from executor.view.job_view import JobView
from executor.view.metrics import metric_table
from executor.view.text import plain_text, safe_line

_ROWS = 30
_LAST_LINES = 10
_UNSEEN = 10


def print_summary(console: Console, job_view: JobView, *, unicode: bool = True) -> None:
    """Print the outcome, the last lines of what failed, timings, metrics, and where the files are."""
    result: Mapping[str, Any] = job_view.result or {}
    dot = " · " if unicode else " | "
    code = int(result.get("exit_code", ExitCode.OURS))
    benchmark: Mapping[str, Any] = result.get("benchmark") or {}

    def line(label: str, value: str, style: str = "default", *, copied: bool = False) -> None:
        _print_line(console, label, Text(plain_text(value), style=style), copied=copied)

    characters = "─" if unicode else "-"
    console.print(Rule(Text(job_view.job_id, style="bold"), align="left", style="dim", characters=characters))
    if code != ExitCode.SUCCEEDED:
        print_last_lines(console, result, unicode=unicode)
    style = "bold green" if code == ExitCode.SUCCEEDED else "bold red"
    console.print(
        Text(plain_text(str(result.get("sentence", ""))), style=style).append(
            plain_text(f"  ({result.get('outcome')}: bai's exit code is {code})") if code else "", style="dim"
        ),
        soft_wrap=True,
    )
    phases = {**(result.get("phases") or {}), **job_view.state.finished}
    line("phases", dot.join(f"{name} {seconds(phases[name])}" for name in PHASES if name in phases))
    if facts := _facts(benchmark):
        line("benchmark", dot.join(facts))
    if git := result.get("git"):
        dirty = ", with uncommitted changes" if git.get("dirty") else ""
        branch = f" ({git['branch']})" if git.get("branch") else ""
        line("git", f"{git.get('commit', '')[:12]}{branch}{dirty}")
    for label, text, style in result_notes(result):
        line(label, text, style)
    if foreign := job_view.measurements.foreign.count:
        line(
            "warning",
            f"{foreign:,} lines of its metrics are no metric records and were passed over",
            "yellow",
        )
    _print_metrics(console, job_view, unicode=unicode)
    line("files", job_view.place, copied=True)
    if (artifacts := result.get("artifacts")) and artifacts.get("files"):
        count = artifacts["files"]
        files = f"{count:,} file{'' if count == 1 else 's'}, {size(artifacts['bytes'])}"
        line(
            "artifacts",
            f"{files}, kept in {job_view.artifacts}" if job_view.artifacts else files,
            copied=True,
        )
    more = (job_view.command(word, job_view.job_id) for word in ("logs", "metrics"))
    line("more", dot.join(more), copied=True)


def result_notes(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what a result says beyond its outcome: label, text, style."""
    if (kafka := result.get("kafka")) is not None:
        lost = f", {kafka.get('undelivered'):,} not delivered" if kafka.get("undelivered") else ""
        why = f" ({kafka['error']})" if lost and kafka.get("error") else ""
        yield (
            "kafka",
            f"{kafka.get('delivered') or 0:,} messages delivered{lost}{why}",
            "yellow" if lost else "default",
        )
    for warning in result.get("warnings") or ():
        yield "warning", str(warning), "yellow"


def unseen_notes(names: Sequence[str], result: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield what is known of metrics without a value: label and text. Those that were no numbers differ from those never seen."""
    matched = ((result or {}).get("metrics") or {}).get("never_numbers") or {}
    for name in [name for name in names if name in matched][:_UNSEEN]:
        yield name, never_a_number(matched[name]["count"], matched[name]["first"])
    never = [name for name in names if name not in matched]
    if never:
        more = f" and {len(never) - _UNSEEN:,} more" if len(never) > _UNSEEN else ""
        yield "never seen", ", ".join(never[:_UNSEEN]) + more


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
    seen = [series for series in job_view.measurements.benchmark.values() if series.count]
    unseen = [series.name for series in job_view.measurements.benchmark.values() if not series.count]
    if not seen and not unseen:
        return
    console.print()
    more = job_view.command("metrics", job_view.job_id)
    if seen:
        table = metric_table(seen, width=console.width - 2, rows=_ROWS, summary=True, unicode=unicode)
        console.print(Padding(table, (0, 0, 0, 2)))
    if len(seen) > _ROWS:
        console.print(Text(f"  and {len(seen) - _ROWS:,} more: {more}", style="dim"))
    for label, text in unseen_notes(unseen, job_view.result):
        console.print(Text(f"  {plain_text(f'{label}: {text}')}", style="yellow"), soft_wrap=True)
    if job_view.partial:
        console.print(
            Text(f"  of the first {job_view.measurements.records:,} records; all: {more}", style="dim")
        )
    console.print()


def print_last_lines(console: Console, result: Mapping[str, Any], *, unicode: bool) -> None:
    lines = [safe_line(str(each)) for each in result.get("last_lines") or ()][-_LAST_LINES:]
    if not lines:
        return
    console.print(Text("the benchmark's last lines", style="dim"))
    bar = "│" if unicode else "|"
    for each in lines:
        console.print(Text(f"{bar} ", style="dim").append_text(Text.from_ansi(each)), soft_wrap=True)


def _facts(benchmark: Mapping[str, Any]) -> list[str]:
    facts = []
    if benchmark.get("exec_error"):
        facts.append("never ran")
    elif benchmark.get("signal") is not None:
        facts.append(signal_name(int(benchmark["signal"])))
    elif benchmark.get("code"):
        facts.append(f"exit code {benchmark['code']}")
    for key, label in (("wall_seconds", "wall"), ("user_seconds", "user"), ("system_seconds", "system")):
        if benchmark.get(key) is not None:
            facts.append(f"{label} {seconds(float(benchmark[key]))}")
    if benchmark.get("peak_memory_bytes"):
        facts.append(f"peak memory {size(benchmark['peak_memory_bytes'])}")
    return facts
