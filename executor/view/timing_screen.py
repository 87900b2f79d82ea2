"""The screen of `bai time`: one line during the runs, and then a table of the commands with conclusions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from rich.console import Console, RenderableType
from rich.text import Text

from bai_agent.job.figures import half_width, mean_of
from bai_agent.job.outcome import Outcome
from bai_agent.light_dataclass import dataclass
from executor.analysis.compared_metric import MetricComparison, Verdict
from executor.analysis.timing_analysis import CommandTimes, duration
from executor.documents.document import Block, Column, Notes, Phrase, Table, Tone
from executor.documents.job_view import JobView
from executor.documents.screen import Screen
from executor.documents.text import plain_text, speaks_unicode
from executor.quantities import percent, size
from executor.records.follower import News
from executor.records.reading import records_in
from executor.view.stage import DrawnTerminal, cropped

_REFRESH = 0.2
_LAST_LINES = 10
_LARGE = 1.0
"""A relative change of at least this size is shown as a factor. For example, a change of 1.0 is the factor
2."""


class TimeView:
    """View that draws one line about the completed runs on a terminal. If standard output is not a terminal,
    nothing is printed until the end."""

    def __init__(self, console: Console, *, metric: str, drawn: bool) -> None:
        """metric: name of the metric with the wall times. drawn: whether standard output is a terminal on
        which lines can be redrawn."""
        self._console = console
        self._metric = metric
        self._unicode = speaks_unicode(console.file)
        self._stage = DrawnTerminal(console, self._draw) if drawn else None
        self._picture: JobView | None = None
        self._walls: dict[str, list[float]] = {}
        self._turns: list[str] = []
        """Name of the arm of each run, without warm-up runs."""
        self._next = 0.0

    def begin(self, job_view: JobView) -> None:
        self._picture = job_view
        if (repeat := job_view.job.repeat) is not None:
            names = [each.name for each in repeat.arms] or [""]
            self._turns = [names[each] for each in repeat.sequence[repeat.warmup_runs :]]
        if self._stage is not None:
            self._stage.open()

    def notice(self, sentence: str) -> None:
        with self._stage.above() if self._stage is not None else nullcontext():
            self._print(f"[bai] {sentence}", "live")

    def show(self, job_view: JobView, news: News) -> None:
        for record in records_in(news.records):
            number = record.get("repeat")
            if record["name"] == self._metric and number is not None and number < len(self._turns):
                self._walls.setdefault(self._turns[number], []).append(record["value"])
        for event in (*news.before, *news.after):
            if (phrase := job_view.remark(event)) is not None:
                self.notice(phrase.text)

    def refresh(self, job_view: JobView) -> None:
        if self._stage is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _REFRESH
            self._stage.refresh()

    def end(self, job_view: JobView) -> None:
        self.close()
        result = job_view.result
        if result is not None and result.exit_code != 0:
            self._print(result.sentence, "bad")
            said = [line for line in result.last_lines or () if line and not line.startswith("[bai] ")]
            for line in said[-_LAST_LINES:]:
                self._print(f"  {line}")
            more = job_view.command("logs", job_view.job_id)
            failed = any(each.outcome == Outcome.FAILED.value for each in result.repeats or ())
            hint = "; --ignore-failure counts runs with an exit code other than 0" if failed else ""
            self._print(f"all that was printed: {more}{hint}", "soft")

    def close(self) -> None:
        if self._stage is not None:
            self._stage.close()

    @property
    def _screen(self) -> Screen:
        return Screen(width=self._console.width, unicode=self._unicode)

    def _print(self, text: str, tone: Tone = "") -> None:
        self._console.print(self._screen.text(text, tone), soft_wrap=True)

    def _draw(self) -> RenderableType:
        job_view = self._picture
        if job_view is None:
            return Text()
        run = job_view.state.repeat if job_view.state.phase == "run" else None
        # The line does not name the current arm, because the name would change too fast to be read.
        doing = (run or "").partition(" (")[0] or job_view.state.phase or "starting"
        text = Text(plain_text(doing), style="bold cyan")
        repeat = job_view.job.repeat
        for name in [each.name for each in repeat.arms] if repeat is not None and repeat.arms else [""]:
            if walls := self._walls.get(name):
                text.append_text(self._so_far(name, walls))
        return cropped(text, self._console.width, unicode=self._unicode)

    def _so_far(self, name: str, walls: Sequence[float]) -> Text:
        """Return the mean of a command's wall times so far as text, with the confidence interval of the
        mean."""
        text = self._screen.text(f"   {name}" if name else "  ")
        text.append(f" {duration(mean_of(walls))}", style="bold")
        if len(walls) > 1:
            half = duration(half_width(walls), like=mean_of(walls))
            text.append_text(self._screen.text(f" ± {half}", "soft"))
        return text


@dataclass(frozen=True, kw_only=True)
class ShownCommand:
    """A row of the final table."""

    text: str
    times: CommandTimes
    doubts: Sequence[str]
    compared: MetricComparison | None = None
    """Comparison of the command's wall times with those of the first command. None for the first command."""


_COLUMNS = [
    Column("command", number=False, wraps=True),
    *(Column(name, pointed=False) for name in ("wall time", "range", "user + system", "peak memory", "runs")),
]


def times_blocks(every: Sequence[ShownCommand]) -> Iterator[Block]:
    """Yield the table of all commands, the comparison of each further command with the first, and notes on
    times that are doubtful."""
    yield Table(_COLUMNS, [_row(each) for each in every], stacks=True)
    sentences = []
    for each in every:
        if each.compared is not None:
            sentences.append(_sentence(each.text, every[0].text, each.compared))
            # The verdict's notes say how many more runs are needed, or which tests disagree.
            sentences += [Phrase(note, "soft") for note in each.compared.notes]
    yield Notes(sentences)
    yield Notes([Phrase(f"{each.text}: {doubt}", "caution") for each in every for doubt in each.doubts])
    if any(len(each.times.walls) > 1 for each in every):
        yield Notes([Phrase("±: the 95 % confidence interval of the mean", "soft")])


def _row(shown: ShownCommand) -> list[Phrase]:
    """Return a command's cells for wall time, range, CPU time, peak memory and number of runs. All times are
    in the unit of the mean."""
    times = shown.times
    mean, memory = times.mean, times.peak_memory
    half = f" ± {_number(times.half_width, like=mean)}" if len(times.walls) > 1 else ""
    return [
        Phrase(shown.text),
        Phrase(f"{_number(mean, like=mean)}{half} {_unit(mean)}", "strong"),
        Phrase(f"{_number(min(times.walls), like=mean)} … {duration(max(times.walls), like=mean)}"),
        Phrase(f"{_number(times.user, like=mean)} + {duration(times.system, like=mean)}"),
        Phrase(size(memory) if memory is not None else f"below {size(times.floor)}"),
        Phrase(str(len(times.walls))),
    ]


def _number(seconds: float, *, like: float) -> str:
    return duration(seconds, like=like).rpartition(" ")[0]


def _unit(seconds: float) -> str:
    return duration(seconds).rpartition(" ")[2]


_TONES: dict[Verdict, Tone] = {Verdict.BETTER: "good", Verdict.WORSE: "bad", Verdict.UNKNOWN: "caution"}


def _sentence(name: str, first: str, compared: MetricComparison) -> Phrase:
    """Return a sentence that compares a command's wall times with those of the first command."""
    effect, large = compared.effect, _is_large(compared.effect.change)
    interval = ""
    if effect.low is not None and effect.high is not None:
        ends = " … ".join(_change(each, factor=large) for each in (effect.low, effect.high))
        interval = f" (95 % interval {ends})"
    change = f"{_change(effect.change, factor=large)} wall time"
    match compared.verdict:
        case Verdict.BETTER | Verdict.WORSE if large:
            text = f"{name} takes {_change(effect.change, factor=True)} as long as {first}"
        case Verdict.BETTER:
            text = f"{name} is faster than {first}: {change}"
        case Verdict.WORSE:
            text = f"{name} is slower than {first}: {change}"
        case Verdict.UNKNOWN:
            text = f"cannot tell whether {name} is faster or slower than {first}: {change}"
        case Verdict.NONE if effect.excludes_zero:
            text = f"{name} is possibly faster or slower than {first}, or equal: {change}"
        case _:
            text = f"no difference found between {name} and {first}: {change}"
    return Phrase(text + interval, _TONES.get(compared.verdict, ""))


def _is_large(change: float) -> bool:
    return change >= _LARGE or change <= -_LARGE / 2


def _change(change: float, *, factor: bool) -> str:
    return f"{1 + change:.2f} times" if factor else percent(change, "+.1f")
