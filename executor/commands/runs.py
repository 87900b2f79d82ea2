"""Commands that start and follow jobs."""

from __future__ import annotations

import dataclasses
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.errors import BaiError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord
from executor.commands.job_options import AwsOptions, JobOptions, KeyOptions
from executor.commands.options import (
    NOBODY_READS,
    ArgumentsArgument,
    DataRootOption,
    FileOrNoneArgument,
    JobArgument,
    JobIdOption,
    JsonOption,
    LikeOption,
    OnOption,
    ScriptOption,
    nobody_reads,
    print_done,
    print_findings,
    print_json,
    say,
    silence,
    write_error,
)
from executor.errors import NoResultError, UsageError
from executor.view.text import draws_in_place, tell

# What only one command needs is imported there: `bai --help` and each completion in a shell load this module.
if TYPE_CHECKING:
    from executor.backends.backend import Backend, CapacityWait, LaunchNotice
    from executor.planning.request import JobRequest, Submitted
    from executor.view.watch import View

_TAIL = 2**16
"""Bytes of earlier output that somebody sees who joins a job at a terminal."""


def run(
    options: JobOptions,
    keys: KeyOptions,
    file: FileOrNoneArgument = None,
    arguments: ArgumentsArgument = None,
    like: LikeOption = None,
    on: OnOption = None,
    job_id: JobIdOption = None,
    data_root: DataRootOption = None,
    script: ScriptOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start it, print its id, and return.")
    ] = False,
    exclusive: Annotated[
        bool,
        typer.Option(
            "--exclusive",
            help="Begin only when no other job runs on this machine, and keep others with --exclusive waiting.",
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Run a benchmark and follow it to its end.

    The exit code says how it ended: 0 succeeded, 1 the benchmark failed, 2 wrong usage or descriptor, 3 out of time,
    4 cancelled, 5 our side, 6 killed from outside. 130 and 143: Ctrl-C or SIGTERM ended the following; the job goes on.

    Ctrl-C cancels it, a second Ctrl-C leaves it to itself; a closed terminal only ends the following.
    """
    with ExitStack() as stack:
        job_request = dataclasses.replace(
            _request(
                file, like, arguments, options, keys, on=on, script=script, data_root=data_root, stack=stack
            ),
            exclusive=exclusive,
        )
        backend, submitted = submit_request(job_request, options, job_id=job_id, json_=json_, returns=detach)
    if not detach:
        there = options.for_submitted(backend)
        raise typer.Exit(follow(submitted.record, backend, there, json_=json_, joined=not submitted.new))


def submit(
    options: AwsOptions,
    keys: KeyOptions,
    file: FileOrNoneArgument = None,
    arguments: ArgumentsArgument = None,
    like: LikeOption = None,
    job_id: JobIdOption = None,
    script: ScriptOption = None,
    json_: JsonOption = False,
) -> None:
    """Launch a benchmark on EC2, print the job's id, and return.

    With --job-id it can be repeated after whatever went wrong: it is launched once. With `limits.wait_for_capacity` it stays until
    there is room; Ctrl-C leaves, and the same --job-id goes on.
    """
    with ExitStack() as stack:
        job_request = _request(file, like, arguments, options, keys, on="ec2", script=script, stack=stack)
        submit_request(job_request, options, job_id=job_id, json_=json_, returns=True)


def resume(
    job: JobArgument,
    options: JobOptions,
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow it to its end, as `bai run` does.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Start the agent of a job again that died.

    It goes on where the last one stopped; a benchmark that still runs is not started twice.
    """

    record = options.find(job)
    backend = options.backends.of(record)
    # An agent elsewhere is started again by its own machine.
    done = backend.resume(record) if not (follow_ and backend.remote) else ""
    if follow_:
        raise typer.Exit(follow(record, backend, options, json_=json_, joined=True))
    print_done(record, done, json_=json_)


def follow(
    record: JobRecord,
    backend: Backend,
    options: JobOptions,
    *,
    json_: bool,
    joined: bool,
    view: View | None = None,
) -> int:
    """Show a job to its end; return the exit code for it.

    options: what hints repeat. joined: somebody comes to a job that may be long under way. view: in place of the usual ones.
    """
    try:
        shown = (view, False) if view is not None else _view(json_=json_)
        return _follow(record, backend, options, *shown, joined=joined)
    except KeyboardInterrupt:
        # The view was not there yet, which cancels at the first Ctrl-C.
        if joined or backend.remote:
            say(f"no longer following; {_goes_on(record, options, cancelling=False)}")
        else:
            say(_cancelled_at_start(backend, options, record.job_id))
        return 128 + signal.SIGINT


def _follow(
    record: JobRecord, backend: Backend, options: JobOptions, view: View, on_screen: bool, *, joined: bool
) -> int:
    from executor.records.follower import tail_position
    from executor.view.watch import JobView, LeftError, watch

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
        # With the options that find this job, which may be fewer than those that were given.
        raise NoResultError(options.with_next_step(str(error), error.next_step)) from error
    except (LeftError, KeyboardInterrupt) as left:
        say(f"no longer following; {_goes_on(record, options, cancelling=job_view.cancelling)}")
        return left.exit_code if isinstance(left, LeftError) else 128 + signal.SIGINT
    except OSError as error:
        unwritten = write_error(error)
        if unwritten is None and not nobody_reads(error):
            raise
        silence()
        goes_on = _goes_on(record, options, cancelling=job_view.cancelling)
        say(f"{unwritten or 'nobody reads the output any more'}; {goes_on}")
        return NOBODY_READS if unwritten is None else ExitCode.OURS
    if backend.remote:
        _say_kept(record, backend, options)
    return ExitCode(result.exit_code)


def _request(
    file: str | None,
    like: str | None,
    arguments: list[str] | None,
    options: JobOptions,
    keys: KeyOptions,
    *,
    on: str | None,
    script: Path | None,
    stack: ExitStack,
    data_root: Path | None = None,
) -> JobRequest:
    """Return what is asked for: what FILE says, or what the job `like` was made of, with what was given beside it.

    stack: files that it names may be gone when this ends.
    """
    from executor.planning.request import JobRequest

    if like is None and file is None:
        raise UsageError("neither FILE nor --like JOB says what to run; name one of them")
    given = JobRequest(
        file=Path(file or ""),
        on=on,
        arguments=tuple(arguments or ()),
        data_root=data_root,
        script=script,
        overrides=keys.overrides(),
    )
    if like is None:
        return given
    from executor.jobs.like import request_like

    if file is not None and "--" not in sys.argv:
        raise UsageError(
            f"--like {like} and {file} exclude each other; name one of them. The benchmark's arguments stand behind --"
        )
    again = request_like(
        options.find(like),
        stack=stack,
        open_store=lambda url: next(options.backends.stores(url)),
        overrides=given.overrides,
        takes_scripts=script is None,
    )
    return dataclasses.replace(
        again,
        on=given.on or again.on,
        # Without FILE the first of them stands in its place.
        arguments=(*again.arguments, *((file, *given.arguments) if file is not None else ())),
        data_root=given.data_root or again.data_root,
        script=given.script or again.script,
        scripts=None if given.script is not None else again.scripts,
        overrides=(*again.overrides, *given.overrides),
    )


def submit_request(
    job_request: JobRequest, options: JobOptions, *, job_id: str | None, json_: bool, returns: bool
) -> tuple[Backend, Submitted]:
    """Start `job_request` and print its progress. returns: nobody follows, so the job's id is the output.

    A signal ends it with what is left behind: something that may run, and how to look at it and end it.
    """
    from executor.backends.backend import SubmitListener
    from executor.planning.request import read_request
    from executor.signals import SignalError, raised_signals

    backend: Backend | None = None
    known = job_id
    launched = job_id is not None  # repeated, it may have been started before
    waits: CapacityWait | None = None

    def on_submit(drawn: str) -> None:
        nonlocal known
        known = drawn
        assert backend is not None
        # Before anybody is asked: whoever is cut off now can repeat the submission with this id.
        if not returns and backend.remote:
            say(f"the job is {drawn}")
        elif returns and not json_:
            tell(drawn, flush=True)

    def on_plan(notice: LaunchNotice) -> None:
        say(notice.sentence(cost=True))
        for warning in notice.warnings():
            say(f"warning: {warning}")

    def on_launch(drawn: str) -> None:
        nonlocal launched, waits
        launched, waits = True, None

    def on_wait(wait: CapacityWait) -> None:
        nonlocal waits
        waits = wait
        say(f"{wait.sentence}; asking again at {wait.again:%H:%M:%S} UTC, {wait.bound}")

    listener = SubmitListener(
        on_submit=on_submit, on_plan=on_plan, on_progress=say, on_launch=on_launch, on_wait=on_wait
    )
    try:
        with raised_signals():
            descriptor, findings = read_request(job_request)
            print_findings(findings)
            backend = options.backends.of_request(job_request, descriptor)
            if job_request.exclusive and backend.remote:
                raise UsageError(
                    "--exclusive: an instance has no other jobs; leave it out, or add `--on local`"
                )
            submitted = backend.submit(job_request, descriptor, job_id=job_id, listener=listener)
    except SignalError as interrupted:
        if backend is None or known is None:
            say("interrupted; nothing was started")
        elif waits is not None:
            end = options.for_submitted(backend).command("cancel", waits.job_id, "--now")
            say(
                f"interrupted: nothing of {waits.job_id} runs, and nobody waits for capacity any more; the same command with "
                f"`--job-id {waits.job_id}` goes on, {waits.bound}; `{end}` ends it"
            )
        elif job_id is None and not backend.remote:
            say(_cancelled_at_start(backend, options, known))
        else:
            say(_left_behind(backend, options, known, launched=launched))
        raise typer.Exit(interrupted.exit_code) from interrupted
    record = submitted.record
    if not submitted.new and returns:
        say(f"the job {record.job_id} exists already; it is started once")
    elif not submitted.new:
        ended = record.result() is not None
        what = "has ended; this is how" if ended else "goes on; this is what it prints"
        say(f"the job {record.job_id} exists already and {what}")
    if returns and json_:
        print_json({"type": "job", "job_id": record.job_id, "place": backend.location(record).files})
    return backend, submitted


def _cancelled_at_start(backend: Backend, options: JobOptions, job_id: str) -> str:
    """Cancel a new job of this machine that was interrupted while it was started; return what became of it."""
    there = options.for_submitted(backend)
    try:
        backend.cancel(there.find(job_id), now=False)
    except UsageError:
        return "interrupted; nothing was started"
    except BaiError as error:
        return f"{_left_behind(backend, options, job_id, launched=True)} ({error})"
    return f"interrupted while {job_id} was started: it is cancelled; `{there.command('status', job_id)}` looks at it"


def _left_behind(backend: Backend, options: JobOptions, job_id: str, *, launched: bool) -> str:
    """Return what an interrupted submission leaves behind, and what to do about it."""
    again = f"the same command with `--job-id {job_id}` goes on, and starts it once"
    if not launched:
        return f"interrupted before the start: nothing of {job_id} runs; {again}"
    there = options.for_submitted(backend)
    now = ("--now",) if backend.remote else ()
    look, end = there.command("status", job_id), there.command("cancel", job_id, *now)
    cost = ", and cost" if backend.remote else ""
    return f"interrupted while {job_id} was started: it may run{cost}. `{look}` looks at it, `{end}` ends it; {again}"


def _say_kept(record: JobRecord, backend: Backend, options: JobOptions) -> None:
    """Print which machines of an ended job are kept, and cost money."""
    try:
        now = backend.status(record)
    except BaiError as error:
        # The job has ended, and its exit code counts.
        say(f"whether its machines are kept is not known: {error}")
        return
    if now.machine is not None:
        say(options.with_next_step(now.machine, now.next_step))


def _goes_on(record: JobRecord, options: JobOptions, *, cancelling: bool) -> str:
    """Return what happens to a job that is no longer followed, and how to return to it."""
    words = (
        [("status", "--wait"), ("logs", "-f")] if cancelling else [("status",), ("logs", "-f"), ("cancel",)]
    )
    commands = ", ".join(options.command(*each, record.job_id) for each in words)
    return f"{'cancelling' if cancelling else 'the job'} goes on: {commands}"


def _view(*, json_: bool) -> tuple[View, bool]:
    """Return the view for standard output, and whether it is a screen."""
    if json_:
        from executor.view.json_lines import JsonView

        return JsonView(), False
    if draws_in_place():
        from rich.console import Console

        from executor.view.live import LiveView

        return LiveView(Console(highlight=False)), True
    from executor.view.plain import PlainView

    return PlainView(), False
