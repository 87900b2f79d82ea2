"""The live view on a terminal. The benchmark's lines scroll, and the job's current state is shown below
them."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from bai_agent.job.record_types import (
    PullEvent,
    RunEvent,
    WarningEvent,
)
from executor.documents.document import Tone
from executor.documents.job_view import JobView, phase_words
from executor.documents.machines import host_line
from executor.documents.metrics import metric_table
from executor.documents.screen import Screen
from executor.documents.summary import show_summary
from executor.documents.text import place, plain_text, speaks_unicode
from executor.quantities import seconds, size
from executor.records.follower import TRUNCATED, News
from executor.records.over_ranks import seen_first
from executor.view.log import Scroll
from executor.view.stage import DrawnTerminal, ansi_text, cropped

_REFRESH = 0.2
"""Shortest time between two redraws of the job's state (seconds)."""
_ROWS = 15
_PULLS = 4


class LiveView:
    """View for a terminal that understands cursor movements."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._unicode = speaks_unicode(console.file)
        self._scroll = Scroll(keep=max(100, 4 * console.height))
        self._stage = DrawnTerminal(console, self._draw)
        self._picture: JobView | None = None
        self._next = 0.0

    def begin(self, job_view: JobView) -> None:
        self._picture = job_view
        self._print(Text(f"[bai] job {job_view.job_id}; Ctrl-C cancels it", style="dim"))
        self._stage.open()

    def notice(self, sentence: str) -> None:
        with self._stage.above():
            self._notice(sentence)

    def show(self, job_view: JobView, news: News) -> None:
        if news.skipped or news.truncated:
            with self._stage.above():
                self._flush()
                if news.skipped:
                    self._say_skipped(f"{size(news.skipped)} of output")
                if news.truncated:
                    self._print_rest()
                    self._notice(TRUNCATED)
        self._scroll.feed(news.log)
        for event in news.before:
            self._tell(job_view, event)
        for event in news.after:
            # Warnings after the benchmark's end are not printed here, because the summary that follows shows
            # them.
            if not isinstance(event, WarningEvent):
                self._tell(job_view, event)

    def refresh(self, job_view: JobView) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REFRESH
        with self._stage.above():
            self._flush()

    def end(self, job_view: JobView) -> None:
        with self._stage.above():
            self._flush()
            self._print_rest()
        self.close()
        show_summary(self._console, job_view, unicode=self._unicode)

    def close(self) -> None:
        self._stage.close()

    def _notice(self, sentence: str, tone: Tone = "live") -> None:
        self._flush()
        self._print(self._screen.text(f"[bai] {sentence}", tone))

    def _tell(self, job_view: JobView, event: RunEvent) -> None:
        if (phrase := job_view.remark(event)) is not None:
            with self._stage.above():
                self._notice(phrase.text, phrase.tone)

    def _flush(self) -> None:
        """Print the benchmark's lines that have arrived since the last call."""
        passed, lines = self._scroll.take()
        if not passed and not lines:
            return
        if passed:
            self._say_skipped(f"{passed:,} lines")
        text = Text()
        for line in lines:
            text.append_text(ansi_text(line)).append("\n")
        text.right_crop(1)
        self._print(text)

    def _print_rest(self) -> None:
        for line in self._scroll.take_rest():
            self._print(ansi_text(line))

    def _say_skipped(self, what: str) -> None:
        more = self._picture.command("logs", self._picture.job_id) if self._picture is not None else ""
        self._print(self._screen.text(f"… {what} not shown; {more}", "soft"))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _draw(self) -> RenderableType:
        job_view = self._picture
        if job_view is None:
            return Text()
        width = self._console.width
        parts: list[RenderableType] = []
        current = self._scroll.current
        if current:
            parts.append(cropped(ansi_text(current), width, unicode=self._unicode))
        parts.append(self._heading(job_view))
        parts.append(self._phases(job_view))
        parts.extend(self._pulls(job_view))
        # The state takes at most half of the screen. The other half is left to the benchmark's output.
        room = max(1, min(_ROWS, self._console.height // 2 - len(parts) + 2))
        if every := seen_first(job_view.measurements.rows):
            parts.append(self._screen.grid(metric_table(every[:room])))
            if len(every) > room:
                more = f"… {len(every) - room:,} more; {job_view.command('metrics', job_view.job_id)}"
                parts.append(cropped(self._screen.text(more, "soft"), width, unicode=self._unicode))
        return Group(*parts)

    @property
    def _screen(self) -> Screen:
        return Screen(width=self._console.width, unicode=self._unicode)

    def _heading(self, job_view: JobView) -> Rule:
        phase = plain_text(job_view.state.phase or "starting")
        title = Text.assemble((job_view.job_id, "bold"), "  ")
        if job_view.cancelling:
            title.append("cancelling ", style="bold yellow")
        title.append(phase, style="bold cyan").append(f" {seconds(job_view.phase_seconds)}")
        if job_view.state.phase == "run" and job_view.state.repeat is not None:
            title.append(f"  {plain_text(job_view.state.repeat)}")
        return self._screen.rule(title)

    def _phases(self, job_view: JobView) -> RenderableType:
        left = self._screen.text(phase_words(job_view.state.finished), "soft")
        right = self._screen.text(host_line(job_view.measurements.host), "soft")
        line = Table.grid(expand=True, padding=(0, 1))
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_column(justify="right", no_wrap=True, overflow="ellipsis")
        line.add_row(left, right)
        return line

    def _pulls(self, job_view: JobView) -> list[RenderableType]:
        if job_view.state.phase != "pull":
            return []
        under_way = [
            pull
            for pull in job_view.state.pulls.values()
            if not pull.done and not job_view.own_copy(pull.src)
        ]
        rows = [self._pull(pull) for pull in under_way[:_PULLS]]
        if (required := job_view.state.installing) is not None:
            rows.append(self._screen.text(f"installing {required}", "soft"))
        return rows

    def _pull(self, pull: PullEvent) -> RenderableType:
        name = place(pull.src).rstrip("/").rpartition("/")[2] or pull.src
        of = f" of {size(pull.total_bytes)}" if pull.total_bytes else ""
        objects = f" · {pull.objects:,} of {pull.total_objects:,}" if (pull.total_objects or 0) > 1 else ""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=28)
        grid.add_column(width=24)
        grid.add_column(no_wrap=True)
        bar = ProgressBar(
            total=pull.total_bytes or None, completed=pull.bytes, width=24, pulse=not pull.total_bytes
        )
        grid.add_row(Text(plain_text(name)), bar, Text(f"{size(pull.bytes)}{of}{objects}", style="dim"))
        return grid
