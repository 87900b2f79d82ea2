"""The view for pipes, CI and terminals that only know lines: what the benchmark prints, and plain lines of ours between it."""

from __future__ import annotations

import io
import sys
from typing import BinaryIO

from rich.console import Console

from bai_agent.job.record_types import (
    NeighbourEvent,
    PhaseEvent,
    PullEvent,
    RequirementsEvent,
    RunEvent,
    SinkEvent,
    StopEvent,
    WaitEvent,
    WarningEvent,
)
from executor.quantities import seconds, size
from executor.records.follower import TRUNCATED, News
from executor.records.run_state import neighbour_sentence
from executor.view.scroll import Scroll
from executor.view.summary import print_summary
from executor.view.text import colourless, place, plain_text, speaks_unicode
from executor.view.watch import JobView

_SUMMARY_WIDTH = 80
_KEEP = 2**20
"""Lines of one piece of output; a piece has no more bytes than that."""


class PlainView:
    """Writes lines to `stream`; nothing is left out, however much a benchmark prints.

    Its bytes stay as they are, but for a terminal: one that comes here knows no control sequences.
    """

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._scroll = Scroll(keep=_KEEP) if stream is None and sys.stdout.isatty() else None
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._within_line = False

    def begin(self, job_view: JobView) -> None:
        self.notice(f"job {job_view.job_id}")

    def notice(self, sentence: str) -> None:
        self._write_rest()
        if self._within_line:
            self._write(b"\n")
        self._write(f"[bai] {plain_text(sentence)}\n".encode(errors="replace"))
        self._stream.flush()

    def show(self, job_view: JobView, news: News) -> None:
        for event in news.before:
            self._tell(job_view, event)
        if news.truncated:
            self.notice(TRUNCATED)
        if news.log:
            if self._scroll is None:
                self._write(news.log)
            else:
                self._scroll.feed(news.log)
                self._write_lines(self._scroll.take()[1])
            self._stream.flush()
        for event in news.after:
            # Warnings after the benchmark's end stand in the summary that comes next.
            if not isinstance(event, WarningEvent):
                self._tell(job_view, event)

    def refresh(self, job_view: JobView) -> None:
        return

    def end(self, job_view: JobView) -> None:
        self._write_rest()
        if self._within_line:
            self._write(b"\n")
        self._stream.flush()
        sys.stdout.flush()
        drawn = io.StringIO()
        console = Console(
            file=drawn, width=_SUMMARY_WIDTH, force_terminal=False, no_color=True, highlight=False
        )
        print_summary(console, job_view, unicode=speaks_unicode())
        for line in drawn.getvalue().splitlines():
            print(line.rstrip())
        sys.stdout.flush()

    def close(self) -> None:
        return

    def _tell(self, job_view: JobView, event: RunEvent) -> None:
        match event:
            case PhaseEvent(state="finished"):
                self.notice(f"{event.phase} finished in {seconds(event.seconds or 0)}")
            case PullEvent(done=True) if not job_view.own_copy(event.src):
                self.notice(f"pulled {place(event.src)}: {size(event.bytes)}")
            case RequirementsEvent(done=False):
                self.notice(f"installing {event.path}")
            case WarningEvent() | SinkEvent() | StopEvent() if not job_view.is_last_word(event):
                self.notice(event.message)
            case WaitEvent():
                self.notice(event.message)
            case NeighbourEvent(until=None):
                self.notice(neighbour_sentence(event.job_id, there=True))

    def _write_rest(self) -> None:
        if self._scroll is not None:
            self._write_lines(self._scroll.take_rest())

    def _write_lines(self, lines: list[str]) -> None:
        for line in lines:
            self._write(f"{colourless(line)}\n".encode(sys.stdout.encoding, errors="replace"))

    def _write(self, content: bytes) -> None:
        self._stream.write(content)
        self._within_line = not content.endswith(b"\n")
