"""Uploads files of the run directory to the job store during the run, on a separate thread.

The files themselves are the buffer, so the store can be unreachable for any time. A restarted agent continues
at the position in `store.offset`. Content that is sent twice does no harm, because it replaces the same
object.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from bai_agent.backoff import Backoff
from bai_agent.decode import checked
from bai_agent.errors import StoreError
from bai_agent.job.run_directory import RunDir, read_job_result, read_json, write_json
from bai_agent.light_dataclass import asdict, dataclass
from bai_agent.sinks.job_store.node_store import NodeStore
from bai_agent.sinks.job_store.stream import OBJECT_BYTES, StreamUpload, UploadOffset
from bai_agent.sinks.sink import Delivery, RareWarnings

log = logging.getLogger(__name__)

_POLL = 0.25
_FIRST_INTERVAL, _LONGEST_INTERVAL, _GROWTH = 2.0, 15.0, 1.25
"""First and longest pause between two uploads of a stream (seconds), and the factor by which the pause
grows. Short runs are uploaded often, and long runs cause few requests."""
_FIRST_PAUSE, _LONGEST_PAUSE, _HASTY_PAUSE = 1.0, 15.0, 0.5


@dataclass(frozen=True, kw_only=True)
class UploadBacklog:
    """What the store lacks: the pending bytes of each stream, the bytes that were lost before they were sent,
    and the reason."""

    log: int
    metrics: int
    lost: int
    error: str | None


class StoreUploader(threading.Thread):
    """Thread that uploads a node's log, metrics and events to the store, and finally its result."""

    def __init__(self, place: NodeStore, rundir: RunDir) -> None:
        super().__init__(name="The job store", daemon=True)
        self._place = place
        self._rundir = rundir
        reached = _read_reached(rundir.store_offset)
        # The files are opened by names that the benchmark does not know, because it can rename or delete its
        # log.
        self._streams = {
            name: self._stream(name, path, reached)
            for name, path in (
                ("log", rundir.kept_output),
                ("metrics", rundir.kept_metrics),
            )
        }
        self._due = dict.fromkeys(self._streams, 0.0)
        self._interval = dict.fromkeys(self._streams, _FIRST_INTERVAL)
        self._events_due = 0.0
        self._lines_sent: dict[str, int] = {}
        """Sizes of the event files at their last upload, by name. An event file is always uploaded as a
        whole."""
        self._environment_sent = False
        self._result_sent = False
        self._publish = self._is_first = False
        self._asked = 0
        self._answered = 0
        """Number of the newest upload request (see `flush_soon`) that was fulfilled. `_asked` is the number of the
        newest request."""
        self._changed = threading.Condition()
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._error: str | None = None
        self._over = False
        self._warnings = RareWarnings(log)

    @property
    def error(self) -> str | None:
        """Reason why the job store currently accepts nothing. None if the job store accepts uploads."""
        return self._error

    def flush_soon(self) -> int:
        """Request an immediate upload; return the request's sequence number."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
            return self._asked

    def flush(self, deadline: float) -> UploadBacklog:
        """Upload the current content of all files. Return what the store still lacks. The method returns no later than at
        `deadline` (`time.monotonic()`)."""
        asked = self.flush_soon()
        with self._changed:
            self._changed.wait_for(
                lambda: self._answered >= asked or self._over, timeout=max(0.0, deadline - time.monotonic())
            )
        sizes = {name: stream.pending() for name, stream in self._streams.items()}
        lost = sum(stream.reached.lost for stream in self._streams.values())
        return UploadBacklog(log=sizes["log"], metrics=sizes["metrics"], lost=lost, error=self._error)

    def finish(self, deadline: float) -> Delivery:
        """Upload the rest of all files. Return the numbers of delivered and missing bytes. The method returns no later than at
        `deadline` (`time.monotonic()`)."""
        left = self.flush(deadline)
        why = f": {left.error}" if left.error else ": the time was over (limits.drain)"
        warnings = [
            f"{count} bytes of the {stream} were not in the job store when the run ended{why}."
            for stream, count in (("output", left.log), ("metrics", left.metrics))
            if count
        ]
        if left.lost:
            warnings.append(
                f"The benchmark truncated its output; {left.lost} bytes of it had not reached the job store."
            )
        return Delivery(
            delivered=sum(stream.reached.sent for stream in self._streams.values()),
            undelivered=left.log + left.metrics,
            error=left.error,
            warnings=tuple(warnings),
        )

    def publish(self, deadline: float, *, is_first: bool) -> bool:
        """Upload the rest of all files, and then the result. Return whether the result was uploaded by
        `deadline`. is_first: whether this is the first node of a job that is not elastic."""
        self._publish, self._is_first = True, is_first
        self.flush(deadline)
        return self._result_sent

    def run(self) -> None:
        try:
            while True:
                self._serve()
        except BaseException:
            # BaseException is caught in the thread's outermost frame, because a defect, or a panic of
            # obstore, must appear in the result.
            log.exception("the job store: the uploader ended because of an unexpected error")
            with self._changed:
                self._error = "the uploader ended because of an unexpected error; agent.log has the details"
                self._over = True
                self._changed.notify_all()

    def _serve(self) -> None:
        # The number is read before the upload, because the upload does not fulfil later requests.
        asked = self._asked
        try:
            self._send(everything=asked > self._answered)
        except (StoreError, OSError) as error:
            self._failed(str(error))
            pause = self._backoff.next()
            self._wait(pause if asked == self._answered else _HASTY_PAUSE, than=asked)
            return
        if self._error is not None:
            log.info("the job store accepts uploads again")
            self._error = None
        self._backoff.reset()
        with self._changed:
            self._answered = asked
            self._changed.notify_all()
        self._wait(_POLL, than=asked)

    def _wait(self, seconds: float, *, than: int) -> None:
        """Wait until there are more requests than `than`, for at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked > than, timeout=seconds)

    def _send(self, *, everything: bool) -> None:
        publish = self._publish
        for name, stream in self._streams.items():
            self._send_stream(name, stream, everything=everything)
        if everything or time.monotonic() >= self._events_due:
            self._send_events()
        if not self._environment_sent and self._rundir.environment.exists():
            self._place.put("environment.json", self._rundir.environment.read_bytes())
            self._environment_sent = True
        if publish and everything and not self._result_sent:
            self._place.put_result(
                self._rundir.result.read_bytes(), read_job_result(self._rundir, is_first=self._is_first)
            )
            self._result_sent = True

    def _send_stream(self, name: str, stream: StreamUpload, *, everything: bool) -> None:
        pending = stream.pending()
        if pending and (everything or pending >= OBJECT_BYTES or time.monotonic() >= self._due[name]):
            while stream.send():
                continue
            self._due[name] = time.monotonic() + self._interval[name]
            self._interval[name] = min(_LONGEST_INTERVAL, self._interval[name] * _GROWTH)

    def _send_events(self) -> None:
        for path in (self._rundir.events, self._rundir.repeats):
            self._send_lines(path)

    def _send_lines(self, path: Path) -> None:
        sent = self._lines_sent.get(path.name, -1)
        try:
            if path.stat().st_size == sent:
                return
            content = path.read_bytes()
        except FileNotFoundError:
            return  # the benchmark may have deleted it, and the result is still to be sent
        content = content[: content.rfind(b"\n") + 1]
        if len(content) != sent:
            self._place.put(path.name, content)
            self._lines_sent[path.name] = len(content)
            self._events_due = time.monotonic() + _FIRST_INTERVAL

    def _stream(self, name: str, path: Path, reached: dict[str, UploadOffset]) -> StreamUpload:
        suffix = ".jsonl" if name == "metrics" else ""

        def put(start: int, content: bytes) -> None:
            self._place.put(f"{name}/{start:020}{suffix}", content)

        def save(position: UploadOffset) -> None:
            reached[name] = position
            write_json(self._rundir.store_offset, {key: asdict(each) for key, each in reached.items()})

        return StreamUpload(
            path,
            reached=reached.get(name, UploadOffset()),
            put=put,
            save=save,
            whole_lines=name == "metrics",
        )

    def _failed(self, reason: str) -> None:
        self._error = reason
        self._warnings.add(reason)


def _read_reached(path: Path) -> dict[str, UploadOffset]:
    return {
        name: checked(UploadOffset, position, where=str(path))
        for name, position in (read_json(path) or {}).items()
    }
