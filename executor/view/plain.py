"""Two views: plain lines for pipes, CI and simple terminals, and JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, TextIO

from bai_agent.job.record_types import (
    PhaseEvent,
    PullEvent,
    RequirementsEvent,
    RunEvent,
    WarningEvent,
    as_table,
    event_table,
)
from executor.documents.job_view import JobView
from executor.documents.screen import Screen, print_plainly
from executor.documents.summary import summary_blocks
from executor.documents.text import colourless, place, plain_text, speaks_unicode, visible
from executor.quantities import seconds, size
from executor.records.follower import TRUNCATED, News
from executor.view.log import Scroll

_SUMMARY_WIDTH = 80


class PlainView:
    """View that writes the benchmark's lines and plain messages of `bai` to `stream`. No line is left out,
    however much a benchmark prints.

    Into a pipe, the benchmark's bytes are written unchanged. Control sequences are removed for a terminal,
    because this view is used for terminals that do not support them.
    """

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._scroll = Scroll() if stream is None and sys.stdout.isatty() else None
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
            # Warnings after the benchmark's end are not printed here, because the summary that follows shows
            # them.
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
        screen = Screen(width=_SUMMARY_WIDTH, unicode=speaks_unicode())
        for each in screen.render(summary_blocks(job_view)):
            print_plainly(each, width=_SUMMARY_WIDTH)
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
            case _ if (phrase := job_view.remark(event)) is not None:
                self.notice(phrase.text)

    def _write_rest(self) -> None:
        if self._scroll is not None:
            self._write_lines(self._scroll.take_rest())

    def _write_lines(self, lines: list[str]) -> None:
        for line in lines:
            self._write(f"{colourless(line)}\n".encode(sys.stdout.encoding, errors="replace"))

    def _write(self, content: bytes) -> None:
        self._stream.write(content)
        self._within_line = not content.endswith(b"\n")


class JsonView:
    """View that writes JSON objects with the key `type`: the run's events unchanged, `log` and `metric`
    objects between them, and `result` at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._rest = b""

    def begin(self, job_view: JobView) -> None:
        self._write(
            {"type": "job", "job_id": job_view.job_id, "name": job_view.job.job.name, "place": job_view.place}
        )
        self._stream.flush()

    def notice(self, sentence: str) -> None:
        self._write({"type": "notice", "message": sentence})
        self._stream.flush()

    def show(self, job_view: JobView, news: News) -> None:
        for event in news.before:
            self._write(event_table(event))
        if news.truncated:
            self._end_line()
            self.notice(TRUNCATED)
        *lines, self._rest = (self._rest + news.log).split(b"\n")
        for line in lines:
            self._line(line)
        for record in news.records.splitlines():
            # The record is written as it is, because it is already JSON. Decoding and encoding it again would
            # halve the speed.
            self._stream.write('{"type": "metric", ' + visible(record[1:].decode(errors="replace")) + "\n")
        for event in news.after:
            self._write(event_table(event))
        self._stream.flush()

    def refresh(self, job_view: JobView) -> None:
        return

    def end(self, job_view: JobView) -> None:
        self._end_line()
        self._write({"type": "result", **(as_table(job_view.result) if job_view.result else {})})
        self._stream.flush()

    def close(self) -> None:
        return

    def _end_line(self) -> None:
        """After the end of the output, write its last line if this line has no newline."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> None:
        self._write({"type": "log", "line": line.decode(errors="replace").removesuffix("\r")})

    def _write(self, value: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(value, ensure_ascii=True) + "\n")
