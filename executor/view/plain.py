"""The view for pipes and CI: the benchmark's bytes as they are, and plain lines of ours between them."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from rich.console import Console

from executor.follow import TRUNCATED, News
from executor.view.picture import Picture
from executor.view.summary import print_summary
from executor.view.text import place, plain_text, seconds, size, speaks_unicode

_SUMMARY_WIDTH = 110


class PlainView:
    """Writes lines to `stream`; nothing is left out, however much a benchmark prints."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._within_line = False

    def begin(self, picture: Picture) -> None:
        self.notice(f"job {picture.job_id}")

    def notice(self, sentence: str) -> None:
        if self._within_line:
            self._write(b"\n")
        self._write(f"[bai] {plain_text(sentence)}\n".encode(errors="replace"))
        self._stream.flush()

    def show(self, picture: Picture, news: News) -> None:
        for event in news.before:
            self._tell(picture, event)
        if news.truncated:
            self.notice(TRUNCATED)
        if news.log:
            self._write(news.log)
            self._stream.flush()
        for event in news.after:
            # Warnings after the benchmark's end stand in the summary that comes next.
            if event.get("type") != "warning":
                self._tell(picture, event)

    def refresh(self, picture: Picture) -> None:
        return

    def end(self, picture: Picture) -> None:
        if self._within_line:
            self._write(b"\n")
        self._stream.flush()
        sys.stdout.flush()
        drawn = io.StringIO()
        console = Console(
            file=drawn, width=_SUMMARY_WIDTH, force_terminal=False, no_color=True, highlight=False
        )
        print_summary(console, picture, unicode=speaks_unicode())
        for line in drawn.getvalue().splitlines():
            print(line.rstrip())
        sys.stdout.flush()

    def close(self) -> None:
        return

    def _tell(self, picture: Picture, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "phase" and event.get("state") == "finished":
            self.notice(f"{event.get('phase')} finished in {seconds(float(event.get('seconds') or 0))}")
        elif kind == "pull" and event.get("done") and not picture.own_copy(str(event.get("src"))):
            self.notice(f"pulled {place(str(event.get('src')))}: {size(event.get('bytes') or 0)}")
        elif kind in ("warning", "sink", "stop") and not picture.is_last_word(event):
            self.notice(str(event.get("message")))

    def _write(self, content: bytes) -> None:
        self._stream.write(content)
        self._within_line = not content.endswith(b"\n")
