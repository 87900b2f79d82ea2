"""Commands of the service's users: cancel a job of theirs, and its children."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bai_agent.errors import DescriptorError
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore, RecordError
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Entry
from executor.service.event import MAX_ID, Event, is_utf8
from executor.service.messages import AppStatus, Message, MessageWriter, ReturnCode
from executor.service.outbox import Outbox
from executor.service.requests import job_id_of

log = logging.getLogger(__name__)

ANSWER, CANCELLED = "00-answer", "50-cancelled"
_MARK = " of the service"
_DONE = "Cancel command processed successfully"
_FAILED = "Cancel command failed: "


class InvalidArgumentsError(ValueError):
    """A command's arguments make no sense; the text says why."""


@dataclass(frozen=True)
class CancelArguments:
    """What is to be cancelled."""

    target: str
    """An action id."""
    cascade: bool


@dataclass(frozen=True)
class _Outcome:
    job_id: str
    cancelled: bool
    text: str


class Commands:
    """Does what commands ask for, and answers."""

    def __init__(
        self,
        entries: Entries,
        jobs: JobStore,
        *,
        writer: MessageWriter,
        send: Callable[[Message], None],
        counters: ServiceCounters,
    ) -> None:
        """jobs: the job store."""
        self._entries = entries
        self._jobs = jobs
        self._writer = writer
        self._send = send
        self._counters = counters

    def process(self, entry: Entry) -> None:
        """Carry a command out, unless that was done, and answer. Raises StoreError, SendError, ConnectError."""
        outbox = Outbox(self._entries.store, entry.name, self._send)
        if not outbox.is_kept(ANSWER):
            code, text, value = self._carry_out(entry)
            outbox.keep(ANSWER, lambda: self._writer.command_response(entry.event, code, text, value))
        answer = outbox.post(ANSWER, _never)
        self._counters.command(int(answer.table["payload"]["return_code"]))
        self._entries.close(entry)

    def _carry_out(self, entry: Entry) -> tuple[ReturnCode, str, Any]:
        if entry.too_large:
            return ReturnCode.INVALID_ARGUMENTS, f"{_FAILED}Invalid args: the command is too large", None
        event = entry.event
        try:
            arguments = read_arguments(event)
        except InvalidArgumentsError as error:
            return ReturnCode.INVALID_ARGUMENTS, f"{_FAILED}Invalid args: {error}", None
        target = job_id_of(arguments.target)
        # One that belongs to another client is not told apart from one that was never there.
        names = [target]
        if arguments.cascade:
            names += self._entries.keep_targets(entry.name, lambda: self._open_children(target))
        outcomes = [found for name in dict.fromkeys(names) if (found := self._cancel(name, entry, arguments))]
        value = [{"job_id": each.job_id, "message": each.text} for each in outcomes]
        if any(each.cancelled for each in outcomes):
            return ReturnCode.DONE, _DONE, value
        if outcomes:
            return ReturnCode.FAILED, f"{_FAILED}{outcomes[0].job_id} {outcomes[0].text}", value
        return ReturnCode.FAILED, f"{_FAILED}no job of yours was found for {arguments.target}", None

    def _open_children(self, parent: str) -> list[str]:
        """Return the children of a request that may still run: of a scheduled one most have ended, and there may be thousands."""
        there = set(self._entries.open_names())
        return [each for each in self._entries.children(parent) if each in there]

    def _cancel(self, name: str, entry: Entry, arguments: CancelArguments) -> _Outcome | None:
        """Ask a job to end, and say so to its client; None where the client has no such job."""
        owner = self._entries.owner(name)
        if owner is None or owner.client_id != entry.event.client_id:
            return None
        record = JobRecord(self._jobs, name)
        if record.exists():
            try:
                identity = record.job().job
            except DescriptorError as error:
                log.warning("%s", error)
                return _Outcome(name, False, "has a record that cannot be read")
            # Somebody may have submitted a job under this id without the service.
            if identity.client_id != owner.client_id or identity.action_id != owner.action_id:
                return None
        mark = f"{entry.name}{_MARK}"
        ours = _cancelled_by(record) == mark
        target = self._entries.read(name)
        if not ours and (target is None or record.result() is not None):
            return _Outcome(name, False, "has ended before")
        source = target.event if target is not None else _of(entry.event, owner.action_id)
        outbox = Outbox(self._entries.store, name, self._send)

        def make() -> Message:
            return self._writer.status(
                source, AppStatus.SUCCEEDED, "Execution successfully cancelled...", about=entry.event.table
            )

        if not ours:
            # Kept before: a launch that sees the cancel sends it ahead of its own last word.
            outbox.keep(CANCELLED, make)
            record.cancel(by=mark)
        outbox.post(CANCELLED, make)
        log.info("cancelling %s", name)
        return _Outcome(name, True, "is being cancelled")


def is_by_command(record: JobRecord) -> bool:
    """Return whether a command has cancelled a job, whose client hears of that. Raises StoreError."""
    return _cancelled_by(record).endswith(_MARK)


def _cancelled_by(record: JobRecord) -> str:
    """Return who has cancelled a job; "" if nobody has, or if `cancel.json` is not what we write, which cancels all the same."""
    try:
        return str((record.read_object(record.key("cancel.json")) or {}).get("by", ""))
    except RecordError:
        return ""


def read_arguments(event: Event) -> CancelArguments:
    """Return what a cancel command asks for: a table, or a list in the order of its parameters. Raises InvalidArgumentsError."""
    given = event.payload.get("args")
    if isinstance(given, list):
        if not 1 <= len(given) <= 2:
            raise InvalidArgumentsError(f"expected target_action_id and cascade, got {len(given)} of them")
        given = dict(zip(("target_action_id", "cascade"), given, strict=False))
    if not isinstance(given, dict):
        raise InvalidArgumentsError("expected a table with target_action_id")
    if unknown := sorted(given.keys() - {"target_action_id", "cascade"}):
        raise InvalidArgumentsError(f"there is no argument {unknown[0][:60]!r}")
    target, cascade = given.get("target_action_id"), given.get("cascade")
    if not isinstance(target, str) or not target or not is_utf8(target):
        raise InvalidArgumentsError("target_action_id must be a text")
    if len(target) > MAX_ID:
        raise InvalidArgumentsError(f"target_action_id is longer than {MAX_ID} characters")
    if cascade is not None and not isinstance(cascade, bool):
        raise InvalidArgumentsError("cascade must be true or false")
    return CancelArguments(target=target, cascade=bool(cascade))


def _of(event: Event, action_id: str) -> Event:
    """Return a request of which only the ids are known any more, as far as the command of the same client tells."""
    table = {**event.table, "action_id": action_id, "parent_action_id": None}
    return Event(table=table, action_id=action_id, client_id=event.client_id)


def _never() -> Message:
    raise ValueError("this message has been kept before")
