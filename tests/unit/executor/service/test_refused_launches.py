"""What is said of a launch that was cancelled or refused: in order, and in an answer that Kafka takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from service_events import ACTION, cancel_event, encoded, fetcher_event

from bai_agent.job.outcome import Outcome
from bai_agent.job.store.directory import DirectoryStore
from executor.backends import Backends
from executor.configuration.service_config import Bounds, Topics
from executor.errors import LaunchError, UsageError
from executor.service.commands import Commands
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Entry, Kind
from executor.service.events.event import read_event
from executor.service.events.messages import Message, MessageWriter
from executor.service.service_jobs import Jobs


@dataclass
class RefusingBackend:
    """Launches nothing."""

    error: Exception

    def named(self, name: str) -> RefusingBackend:
        return self

    def submit(self, *arguments: Any, **options: Any) -> Any:
        raise self.error


class WatchedStore(DirectoryStore):
    """Says when a job has been cancelled."""

    on_cancel: Callable[[], None]

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        new = super().put(key, content, if_absent=if_absent)
        if key.endswith("/cancel.json"):
            self.on_cancel()
        return new


def accepted(entries: Entries, kind: Kind, event: dict[str, Any]) -> Entry:
    name = entries.accept(kind, read_event(encoded(event)), received_ms=1, size=1)
    entry = entries.read(name)
    assert entry is not None
    return entry


def writer() -> MessageWriter:
    ids = (str(number) for number in itertools.count())
    return MessageWriter(topics=Topics(), version="1", node=None, now_ms=lambda: 7, new_id=lambda: next(ids))


def refusing_jobs(entries: Entries, sent: list[Message], error: Exception) -> Jobs:
    return Jobs(
        entries,
        cast(Backends, RefusingBackend(error)),
        writer=writer(),
        send=sent.append,
        bounds=Bounds(),
        region="eu-central-1",
        counters=ServiceCounters(),
        now_ms=lambda: 7,
    )


def test_a_refusal_is_short_even_if_it_quotes_long_text(tmp_path: Path) -> None:
    sent: list[Message] = []
    entries = Entries(DirectoryStore(tmp_path))
    jobs = refusing_jobs(entries, sent, UsageError(f"ec2 cannot be used in region {'x' * 600_000}"))

    jobs.process(accepted(entries, Kind.JOB, fetcher_event()))

    payload = sent[-1].table["payload"]
    assert payload["status"] == "ERROR"
    assert payload["message"].startswith("ec2 cannot be used in region xxx")
    assert len(payload["message"]) <= 4000


def test_the_answer_to_a_cancel_is_sent_before_the_jobs_end(tmp_path: Path) -> None:
    # given a launch that sees the cancel before the command goes on
    sent: list[Message] = []
    entries, store = Entries(DirectoryStore(tmp_path)), WatchedStore(tmp_path / "jobs")
    jobs = refusing_jobs(entries, sent, LaunchError("the job was cancelled", Outcome.CANCELLED))
    request = accepted(entries, Kind.JOB, fetcher_event())
    store.on_cancel = lambda: jobs.process(request)

    # when
    commands = Commands(entries, store, writer=writer(), send=sent.append, counters=ServiceCounters())
    commands.process(accepted(entries, Kind.COMMAND, cancel_event([ACTION], action_id="c-1")))

    # then
    said = [each.table["payload"] for each in sent if each.topic == "BAI_APP_STATUS"]
    assert [each["message"] for each in said][:3] == [
        "Processing benchmark submission request...",
        "Execution successfully cancelled...",
        "Benchmark cancelled - watch ended",
    ]
    assert len({each.value for each in sent if each.topic == "BAI_APP_STATUS"}) == 3
