"""The view for programs: one JSON object a line, the result last."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from bai_agent.job.record_types import as_table, event_table
from executor.records.follower import TRUNCATED, News
from executor.view.text import visible
from executor.view.watch import JobView


class JsonView:
    """Writes `{"type": …}` objects: the run's events as they are, `log` and `metric` between them, `result` last."""

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
            # The record is JSON already; reading it only to write it again would halve the pace.
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
        """Write the last line where it has no newline and will not get one."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> None:
        self._write({"type": "log", "line": line.decode(errors="replace").removesuffix("\r")})

    def _write(self, value: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(value, ensure_ascii=True) + "\n")
