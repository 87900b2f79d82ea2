"""Functions with which commands start a job and follow it, and the messages that they print after an
interruption."""

from __future__ import annotations

import hashlib
import secrets
import signal
from typing import TYPE_CHECKING

import typer

from bai_agent.errors import BaiError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass
from executor.commands.job_options import JobOptions
from executor.commands.printing import (
    NOBODY_READS,
    nobody_reads,
    print_findings,
    print_json,
    say,
    silence,
    write_error,
)
from executor.documents.text import draws_in_place, tell
from executor.errors import NoResultError, UsageError

# Modules that only one command needs are imported in functions.
if TYPE_CHECKING:
    from executor.backends.backend import Backend, CapacityWait, LaunchNotice, SubmitListener
    from executor.planning.request import JobRequest, Submitted
    from executor.view.watch import View

_TAIL = 2**16
"""If a command begins to follow a running job on a terminal, it shows this many bytes of earlier output."""


def run_to_end(
    job_request: JobRequest, options: JobOptions, *, job_id: str | None, json_: bool, view: View | None = None
) -> tuple[Submitted, JobOptions, int]:
    """Start the job that `job_request` describes, and follow it to its end. Return the job, the options with
    which commands find it, and its exit code."""
    backend, submitted = submit_request(job_request, options, job_id=job_id, json_=json_, returns=False)
    there = options.for_submitted(backend)
    joined = not submitted.new
    return submitted, there, follow(submitted.record, backend, there, json_=json_, joined=joined, view=view)


def submit_request(
    job_request: JobRequest, options: JobOptions, *, job_id: str | None, json_: bool, returns: bool
) -> tuple[Backend, Submitted]:
    """Start the job that `job_request` describes, and print the progress of its start. returns: whether the
    command returns without following the job, so that it prints only the id. After a signal, a message says
    which job is possibly running, and how to check and cancel it.
    """
    from executor.jobs.resolved_request import resolved_request
    from executor.planning.request import read_request
    from executor.signals import SignalError, raised_signals

    submission = _Submission(options, job_id, prints_id=returns and not json_, returns=returns)
    try:
        with raised_signals():
            descriptor, findings = read_request(job_request)
            print_findings(findings)
            backend = submission.backend = options.backends.of_request(job_request, descriptor)
            if job_request.exclusive and backend.remote:
                raise UsageError(
                    "--exclusive: an instance has no other jobs; leave --exclusive out, or add `--on local`"
                )
            listener = submission.listener()
            with resolved_request(job_request, descriptor, options, job_id=job_id) as resolved:
                submitted = backend.submit(*resolved, job_id=job_id, listener=listener)
    except SignalError as interrupted:
        say(submission.interruption())
        raise typer.Exit(interrupted.exit_code) from interrupted
    if not submitted.new:
        _say_existing(submitted.record, returns=returns)
    if returns and json_:
        place = backend.location(submitted.record).files
        print_json({"type": "job", "job_id": submitted.record.job_id, "place": place})
    if returns and (looks := backend.attention(submitted.record)) is not None:
        say(options.for_submitted(backend).with_next_step(*looks))
    return backend, submitted


@dataclass
class _Submission:
    """Prints the progress of a submission and, after an interruption, what is left of the job."""

    options: JobOptions
    given: str | None
    """Job id from the command line; None if the user gave none."""
    prints_id: bool
    returns: bool
    """Whether the command returns without following the job."""
    backend: Backend | None = None
    job_id: str | None = None
    launched: bool = False
    wait: CapacityWait | None = None
    """The current wait for EC2 capacity; None if the launch does not wait."""

    def __post_init__(self) -> None:
        # An earlier call of the command has possibly started a job with this id.
        self.job_id, self.launched = self.given, self.given is not None

    def listener(self) -> SubmitListener:
        from executor.backends.backend import SubmitListener

        return SubmitListener(
            on_submit=self._on_submit,
            on_plan=self._on_plan,
            on_progress=say,
            on_launch=self._on_launch,
            on_wait=self._on_wait,
        )

    def _on_submit(self, job_id: str) -> None:
        self.job_id = job_id
        assert self.backend is not None
        # The id is printed before anything is requested, so that the submission can be repeated with this id
        # after an interruption.
        if not self.returns and self.backend.remote:
            say(f"the job is {job_id}")
        elif self.prints_id:
            tell(job_id, flush=True)

    def _on_plan(self, notice: LaunchNotice) -> None:
        say(notice.sentence(cost=True))
        for warning in notice.warnings():
            say(f"warning: {warning}")

    def _on_launch(self, job_id: str) -> None:
        self.launched, self.wait = True, None

    def _on_wait(self, wait: CapacityWait) -> None:
        self.wait = wait
        say(f"{wait.sentence}; asking again at {wait.again:%H:%M:%S} UTC, {wait.bound}")

    def interruption(self) -> str:
        """Return a sentence that says what an interrupted submission has left, and what the user can do about
        it."""
        if self.backend is None or self.job_id is None:
            return "interrupted; nothing was started"
        if (wait := self.wait) is not None:
            end = self.options.for_submitted(self.backend).command("cancel", wait.job_id, "--now")
            return (
                f"interrupted: nothing of {wait.job_id} runs, and the job no longer waits for capacity. The same command with "
                f"`--job-id {wait.job_id}` continues the wait, {wait.bound}. `{end}` ends the job"
            )
        if self.given is None and not self.backend.remote:
            return _cancelled_at_start(self.backend, self.options, self.job_id)
        return _left_behind(self.backend, self.options, self.job_id, launched=self.launched)


def _say_existing(record: JobRecord, *, returns: bool) -> None:
    if returns:
        say(f"the job {record.job_id} exists already, and is not started again")
        return
    what = "continues; its output follows" if record.result() is None else "has ended; its result follows"
    say(f"the job {record.job_id} exists already and {what}")


def seed_for(job_id: str | None) -> int:
    """Return a random seed. For a given job id the seed is always the same, so that a submission can be
    repeated."""
    if job_id is None:
        return secrets.randbelow(2**31)
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:4], "big") >> 1


def _cancelled_at_start(backend: Backend, options: JobOptions, job_id: str) -> str:
    """Cancel a new job on this machine whose start was interrupted. Return a sentence about the job's
    state."""
    there = options.for_submitted(backend)
    try:
        backend.cancel(there.find(job_id), now=False)
    except UsageError:
        return "interrupted; nothing was started"
    except BaiError as error:
        return f"{_left_behind(backend, options, job_id, launched=True)} ({error})"
    return f"interrupted while {job_id} was started: the job is cancelled; `{there.command('status', job_id)}` shows it"


def _left_behind(backend: Backend, options: JobOptions, job_id: str, *, launched: bool) -> str:
    """Return a sentence which says that the job is possibly running, and what the user can do about it."""
    again = f"the same command with `--job-id {job_id}` continues, and starts the job only once"
    if not launched:
        return f"interrupted before the start: nothing of {job_id} runs; {again}"
    there = options.for_submitted(backend)
    now = ("--now",) if backend.remote else ()
    look, end = there.command("status", job_id), there.command("cancel", job_id, *now)
    cost = ", and costs money" if backend.remote else ""
    return f"interrupted while {job_id} was started: the job is possibly running{cost}. `{look}` shows the job, `{end}` ends the job; {again}"


def _say_kept(record: JobRecord, backend: Backend, options: JobOptions) -> None:
    """Print which machines of a job stay on after its end, because they cost money."""
    try:
        now = backend.status(record)
    except BaiError as error:
        # This error does not end the command, because the exit code of the job, which has ended, is more
        # important.
        say(f"it is unknown whether its machines are kept: {error}")
        return
    if now.machine is not None:
        say(options.with_next_step(now.machine, now.next_step))


def _goes_on(record: JobRecord, options: JobOptions, *, cancelling: bool) -> str:
    """Return a sentence which says that the job continues, with the commands that follow or cancel it."""
    words = (
        [("status", "--wait"), ("logs", "-f")] if cancelling else [("status",), ("logs", "-f"), ("cancel",)]
    )
    commands = ", ".join(options.command(*each, record.job_id) for each in words)
    return f"{'cancelling' if cancelling else 'the job'} goes on: {commands}"


def _view(*, json_: bool) -> tuple[View, bool]:
    """Return the view for standard output, and whether it is a live view on a terminal."""
    if json_:
        from executor.view.plain import JsonView

        return JsonView(), False
    if draws_in_place():
        from rich.console import Console

        from executor.view.live import LiveView

        return LiveView(Console(highlight=False)), True
    from executor.view.plain import PlainView

    return PlainView(), False


def follow(
    record: JobRecord,
    backend: Backend,
    options: JobOptions,
    *,
    json_: bool,
    joined: bool,
    view: View | None = None,
) -> int:
    """Show a job until it ends, and return its exit code. options: options that are added to suggested
    commands. joined: whether the job was possibly started long ago. view: view to use in place of the default
    view.
    """
    try:
        shown = (view, False) if view is not None else _view(json_=json_)
        return _follow(record, backend, options, *shown, joined=joined)
    except KeyboardInterrupt:
        # At this Ctrl-C, the view did not exist yet, which would have cancelled the job.
        if joined or backend.remote:
            say(f"no longer following; {_goes_on(record, options, cancelling=False)}")
        else:
            say(_cancelled_at_start(backend, options, record.job_id))
        return 128 + signal.SIGINT


def _follow(
    record: JobRecord, backend: Backend, options: JobOptions, view: View, on_screen: bool, *, joined: bool
) -> int:
    from executor.documents.job_view import JobView
    from executor.records.follower import tail_position
    from executor.view.watch import LeftError, watch

    location = backend.location(record)
    job_view = JobView(
        job_id=record.job_id,
        job=record.job(),
        place=location.files,
        artifacts=location.artifacts,
        command=options.command,
    )
    position = tail_position(record.node(), "log", _TAIL) if joined and on_screen else 0
    watcher = backend.follow(record, on_status=view.notice)
    try:
        result = watch(
            record,
            job_view,
            view,
            watcher,
            remote=backend.remote,
            log_position=position,
            newest_only=on_screen,
        )
    except NoResultError as error:
        # The options with which commands find this job are added to the command that the message suggests.
        raise NoResultError(options.with_next_step(str(error), error.next_step)) from error
    except (LeftError, KeyboardInterrupt) as left:
        say(f"no longer following; {_goes_on(record, options, cancelling=job_view.cancelling)}")
        return left.exit_code if isinstance(left, LeftError) else 128 + signal.SIGINT
    except OSError as error:
        return _unprinted(error, _goes_on(record, options, cancelling=job_view.cancelling))
    if backend.remote:
        _say_kept(record, backend, options)
    return ExitCode(result.exit_code)


def _unprinted(error: OSError, goes_on: str) -> int:
    """Print that the output cannot be written, and return the exit code. Any other error is raised again."""
    unwritten = write_error(error)
    if unwritten is None and not nobody_reads(error):
        raise error
    silence()
    say(f"{unwritten or 'the output has no reader any more'}; {goes_on}")
    return NOBODY_READS if unwritten is None else ExitCode.OURS
