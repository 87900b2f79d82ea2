"""`bai time` on a screen: one line while the runs go on, then a table of the commands and what it allows to say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bai_agent.job.interval import half_width, mean_of
from bai_agent.job.record_types import RunEvent, SinkEvent, StopEvent, WaitEvent, WarningEvent
from executor.analysis.compared_metric import MetricComparison, Verdict
from executor.analysis.timing import CommandTimes, duration
from executor.quantities import size
from executor.records.follower import News
from executor.records.reading import records_in
from executor.view.block import cropped
from executor.view.stage import DrawnTerminal
from executor.view.text import plain_text, speaks_unicode
from executor.view.watch import JobView

_REFRESH = 0.2
_LAST_LINES = 10
_WIDE = 110
"""Columns from which on there is a table; below, each command has lines of its own."""
_LARGE = 1.0
"""A change from which on it is said as a factor: twice as long."""


class TimeView:
    """Draws one line about the runs so far on a terminal; elsewhere it is silent until the end."""

    def __init__(self, console: Console, *, metric: str, drawn: bool) -> None:
        """metric: whose records are the wall times. drawn: the console is a terminal on which what stands there can be drawn again."""
        self._console = console
        self._metric = metric
        self._unicode = speaks_unicode(console.file)
        self._stage = DrawnTerminal(console, self._draw) if drawn else None
        self._picture: JobView | None = None
        self._walls: dict[str, list[float]] = {}
        self._turns: list[str] = []
        """The arm of each run that counts."""
        self._next = 0.0

    def begin(self, job_view: JobView) -> None:
        self._picture = job_view
        if (repeat := job_view.job.repeat) is not None:
            names = [each.name for each in repeat.arms] or [""]
            self._turns = [names[each] for each in repeat.sequence[repeat.warmup_runs :]]
        if self._stage is not None:
            self._stage.open()

    def notice(self, sentence: str) -> None:
        text = Text(f"[bai] {plain_text(sentence)}", style="cyan")
        if self._stage is None:
            self._console.print(text, soft_wrap=True)
            return
        with self._stage.above():
            self._console.print(text, soft_wrap=True)

    def show(self, job_view: JobView, news: News) -> None:
        for record in records_in(news.records):
            number = record.get("repeat")
            if record["name"] == self._metric and number is not None and number < len(self._turns):
                self._walls.setdefault(self._turns[number], []).append(record["value"])
        for event in (*news.before, *news.after):
            self._tell(job_view, event)

    def refresh(self, job_view: JobView) -> None:
        if self._stage is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _REFRESH
            self._stage.refresh()

    def end(self, job_view: JobView) -> None:
        self.close()
        result = job_view.result
        if result is not None and result.exit_code != 0:
            self._console.print(Text(plain_text(result.sentence), style="bold red"), soft_wrap=True)
            said = [line for line in result.last_lines or () if line and not line.startswith("[bai] ")]
            for line in said[-_LAST_LINES:]:
                self._console.print(Text(f"  {plain_text(line)}"), soft_wrap=True)
            more = job_view.command("logs", job_view.job_id)
            self._console.print(Text(f"all that was printed: {more}", style="dim"), soft_wrap=True)

    def close(self) -> None:
        if self._stage is not None:
            self._stage.close()

    def _tell(self, job_view: JobView, event: RunEvent) -> None:
        told = isinstance(event, (WarningEvent, SinkEvent, StopEvent)) and not job_view.is_last_word(event)
        if told or isinstance(event, WaitEvent):
            assert isinstance(event, (WarningEvent, SinkEvent, StopEvent, WaitEvent))
            self.notice(event.message)

    def _draw(self) -> RenderableType:
        job_view = self._picture
        if job_view is None:
            return Text()
        run = job_view.state.repeat if job_view.state.phase == "run" else None
        # Without the arm's name, which changes too fast to be read.
        doing = (run or "").partition(" (")[0] or job_view.state.phase or "starting"
        text = Text(plain_text(doing), style="bold cyan")
        plus = "±" if self._unicode else "+-"
        arms = [each.name for each in job_view.job.repeat.arms] if job_view.job.repeat is not None else []
        for name in arms or [""]:
            walls = self._walls.get(name)
            if not walls:
                continue
            text.append(f"   {plain_text(name)}" if name else "  ")
            text.append(f" {duration(mean_of(walls))}", style="bold")
            if len(walls) > 1:
                text.append(f" {plus} {duration(half_width(walls), like=mean_of(walls))}", style="dim")
        return cropped(text, self._console.width, unicode=self._unicode)


@dataclass(frozen=True, kw_only=True)
class ShownCommand:
    """One row of the final table."""

    text: str
    times: CommandTimes
    doubts: Sequence[str]
    compared: MetricComparison | None = None
    """Its wall times against those of the first command; None of the first one."""


def times_view(every: Sequence[ShownCommand], *, width: int, unicode: bool = True) -> RenderableType:
    """Return the table of all commands, what each says against the first, and what is doubtful, for so many columns."""
    plus, dots = ("±", "…") if unicode else ("+-", "..")
    rows = [_figures(each.times, plus=plus, dots=dots) for each in every]
    parts: list[RenderableType] = []
    if width >= _WIDE:
        table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("command", overflow="fold")
        for name in ("wall time", "range", "user + system", "peak memory", "runs"):
            table.add_column(name, justify="right", no_wrap=True)
        for each, (wall, *others) in zip(every, rows, strict=True):
            table.add_row(Text(plain_text(each.text)), Text(wall, style="bold"), *map(Text, others))
        parts.append(table)
    else:
        for each, (wall, span, cpu, memory, runs) in zip(every, rows, strict=True):
            line = Text.assemble((wall, "bold"), f"   {span}   CPU {cpu}   {memory}   {runs} runs")
            parts += [Text(plain_text(each.text)), Padding(line, (0, 0, 0, 2))]
    first = every[0].text if every else ""
    said = [(each, each.compared) for each in every if each.compared is not None]
    if said:
        parts.append(Text())
    for row, compared in said:
        parts.append(_sentence(row.text, first, compared, unicode=unicode))
        # The verdict's own notes: what else would tell, what disagrees.
        parts += [Padding(Text(plain_text(note), style="dim"), (0, 0, 0, 2)) for note in compared.notes]
    warned = [(row.text, doubt) for row in every for doubt in row.doubts]
    if warned:
        parts.append(Text())
    parts += [Text(f"{plain_text(name)}: {doubt}", style="yellow") for name, doubt in warned]
    if any(len(each.times.walls) > 1 for each in every):
        parts += [Text(), Text(f"{plus}: the 95 % confidence interval of the mean", style="dim")]
    return Group(*parts)


def _figures(times: CommandTimes, *, plus: str, dots: str) -> tuple[str, str, str, str, str]:
    """Return wall time, range, CPU time, peak memory and number of runs, all times in the unit of the mean."""
    mean = times.mean
    half = f" {plus} {_number(times.half_width, like=mean)}" if len(times.walls) > 1 else ""
    memory = times.peak_memory
    return (
        f"{_number(mean, like=mean)}{half} {_unit(mean)}",
        f"{_number(min(times.walls), like=mean)} {dots} {duration(max(times.walls), like=mean)}",
        f"{_number(times.user, like=mean)} + {duration(times.system, like=mean)}",
        size(memory) if memory is not None else f"below {size(times.floor)}",
        str(len(times.walls)),
    )


def _number(seconds: float, *, like: float) -> str:
    return duration(seconds, like=like).rpartition(" ")[0]


def _unit(seconds: float) -> str:
    return duration(seconds).rpartition(" ")[2]


def _sentence(name: str, first: str, compared: MetricComparison, *, unicode: bool) -> Text:
    """Return what is said of a command against the first one."""
    effect, dots = compared.effect, "…" if unicode else ".."
    style = {Verdict.BETTER: "bold green", Verdict.WORSE: "bold red", Verdict.UNKNOWN: "yellow"}
    interval = ""
    if effect.low is not None and effect.high is not None:
        shown = [_change(each, factor=_is_large(effect.change)) for each in (effect.low, effect.high)]
        interval = f" (95 % interval {shown[0]} {dots} {shown[1]})"
    change = _change(effect.change, factor=_is_large(effect.change))
    match compared.verdict:
        case Verdict.BETTER | Verdict.WORSE:
            word = "faster" if compared.verdict is Verdict.BETTER else "slower"
            how = f"takes {change} as long as" if _is_large(effect.change) else f"is {word} than"
            end = "" if _is_large(effect.change) else f": {change} wall time"
            text = f"{name} {how} {first}{end}{interval}"
        case Verdict.UNKNOWN:
            text = (
                f"cannot tell whether {name} is faster or slower than {first}: {change} wall time{interval}"
            )
        case Verdict.NONE if effect.excludes_zero:
            text = f"{name} may be faster or slower than {first}, or not: {change} wall time{interval}"
        case _:
            text = f"no difference found between {name} and {first}: {change} wall time{interval}"
    return Text(plain_text(text), style=style.get(compared.verdict, ""))


def _is_large(change: float) -> bool:
    return change >= _LARGE or change <= -_LARGE / 2


def _change(change: float, *, factor: bool) -> str:
    return f"{1 + change:.2f} times" if factor else f"{100 * change:+.1f} %"
