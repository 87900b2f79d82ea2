"""Carries out the commands that users send to the service. The only command is `cancel`, which cancels a job
of the user and, on request, the job's children."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bai_agent.errors import DescriptorError, RecordError
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import dataclass
from executor.service.counters import ServiceCounters
from executor.service.entries import Entries, Entry, Owner
from executor.service.events.event import MAX_ID, Event, is_utf8
from executor.service.events.messages import AppStatus, Message, MessageWriter, ReturnCode
from executor.service.events.requests import action_job_id
from executor.service.outbox import Outbox

log = logging.getLogger(__name__)

ANSWER, CANCELLED = "00-answer", "50-cancelled"
_MARK = " of the service"
_DONE = "Cancel command processed successfully"
_FAILED = "Cancel command failed: "


class InvalidArgumentsError(ValueError):
    """A command has invalid arguments; the message contains the reason."""


@dataclass(frozen=True)
class CancelArguments:
    """The arguments of a cancel command."""

    target: str
    """Action id of the job."""
    cascade: bool


@dataclass(frozen=True)
class _Outcome:
    job_id: str
    cancelled: bool
    text: str


class Commands:
    """Carries out commands, and sends their answers."""

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
        """Carry out a command unless it was carried out before, and send the answer. Raises StoreError,
        SendError, ConnectError."""
        outbox = Outbox(self._entries.store, entry.name, self._send)
        if not outbox.is_kept(ANSWER):
            code, text, value = self._carry_out(entry)
            outbox.keep(ANSWER, lambda: self._writer.command_response(entry.event, code, text, value))
        answer = outbox.post(ANSWER)
        self._counters.commands.labels(str(answer.table["payload"]["return_code"])).inc()
        self._entries.close(entry)

    def _carry_out(self, entry: Entry) -> tuple[ReturnCode, str, Any]:
        if entry.too_large:
            return ReturnCode.INVALID_ARGUMENTS, f"{_FAILED}Invalid args: the command is too large", None
        event = entry.event
        try:
            arguments = read_arguments(event)
        except InvalidArgumentsError as error:
            return ReturnCode.INVALID_ARGUMENTS, f"{_FAILED}Invalid args: {error}", None
        target = action_job_id(arguments.target)
        # The answer about another client's job is the same as about a job that never existed, so that the
        # answer does not reveal other clients' jobs.
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
        """Return the open children of a request. Children that have ended are left out, because a scheduled
        request may have thousands of them."""
        there = set(self._entries.open_names())
        return [each for each in self._entries.children(parent) if each in there]

    def _cancel(self, name: str, entry: Entry, arguments: CancelArguments) -> _Outcome | None:
        """Cancel a job, and notify the job's client; return None if the client has no such job."""
        owner = self._entries.owner(name)
        if owner is None or owner.client_id != entry.event.client_id:
            return None
        record = JobRecord(self._jobs, name)
        try:
            if not _is_job_of(owner, record):
                return None
        except DescriptorError as error:
            log.warning("%s", error)
            return _Outcome(name, False, "has a record that cannot be read")
        mark = f"{entry.name}{_MARK}"
        ours = _cancelled_by(record) == mark
        target = self._entries.read(name)
        if not ours and (target is None or record.result() is not None):
            return _Outcome(name, False, "has ended before")
        source = target.event if target is not None else _rebuilt_event(entry.event, owner.action_id)
        outbox = Outbox(self._entries.store, name, self._send)

        def make() -> Message:
            return self._writer.status(
                source, AppStatus.SUCCEEDED, "Execution successfully cancelled...", about=entry.event.table
            )

        if not ours:
            # The message about the cancellation is stored before the cancellation, because a launch that sees
            # the cancellation sends this message before its own last message.
            outbox.keep(CANCELLED, make)
            record.cancel(by=mark)
        outbox.post(CANCELLED, make)
        log.info("cancelling %s", name)
        return _Outcome(name, True, "is being cancelled")


def _is_job_of(owner: Owner, record: JobRecord) -> bool:
    """Return whether a job belongs to `owner`. A user may also have submitted a job of this id without the
    service. Raises DescriptorError."""
    if not record.exists():
        return True
    identity = record.job().job
    return (identity.client_id, identity.action_id) == (owner.client_id, owner.action_id)


def is_by_command(record: JobRecord) -> bool:
    """Return whether a command has cancelled a job, so that the job's client must be notified. Raises
    StoreError."""
    return _cancelled_by(record).endswith(_MARK)


def _cancelled_by(record: JobRecord) -> str:
    """Return the author of a cancellation; "" if there is no cancellation, or if the service did not write
    `cancel.json`. A `cancel.json` of any writer cancels the job."""
    try:
        return str((record.read_object(record.key("cancel.json")) or {}).get("by", ""))
    except RecordError:
        return ""


def read_arguments(event: Event) -> CancelArguments:
    """Return the arguments of a cancel command: a table, or a list in the order of the parameters. Raises InvalidArgumentsError."""
    given = _named_arguments(event.payload.get("args"))
    target, cascade = given.get("target_action_id"), given.get("cascade")
    if not isinstance(target, str) or not target or not is_utf8(target):
        raise InvalidArgumentsError("target_action_id must be a text")
    if len(target) > MAX_ID:
        raise InvalidArgumentsError(f"target_action_id is longer than {MAX_ID} characters")
    if cascade is not None and not isinstance(cascade, bool):
        raise InvalidArgumentsError("cascade must be true or false")
    return CancelArguments(target=target, cascade=bool(cascade))


def _named_arguments(given: Any) -> dict[str, Any]:
    if isinstance(given, list):
        if not 1 <= len(given) <= 2:
            raise InvalidArgumentsError(f"expected target_action_id and cascade, got {len(given)} arguments")
        given = dict(zip(("target_action_id", "cascade"), given, strict=False))
    if not isinstance(given, dict):
        raise InvalidArgumentsError("expected a table with target_action_id")
    if unknown := sorted(given.keys() - {"target_action_id", "cascade"}):
        raise InvalidArgumentsError(f"there is no argument {unknown[0][:60]!r}")
    return given


def _rebuilt_event(event: Event, action_id: str) -> Event:
    """Return an event for the request with this action id. The request's own event is no longer stored. All
    fields except the action ids are copied from `event`, which the same client sent."""
    table = {**event.table, "action_id": action_id, "parent_action_id": None}
    return Event(table=table, action_id=action_id, client_id=event.client_id)
