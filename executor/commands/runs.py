"""Commands that start and follow jobs."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.errors import BaiError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord
from executor.commands.job_options import AwsOptions, JobOptions
from executor.commands.options import (
    NOBODY_READS,
    ArgumentsArgument,
    DataRootOption,
    FileArgument,
    JobArgument,
    JobIdOption,
    JsonOption,
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
from executor.view.text import draws_in_place, tell

if TYPE_CHECKING:
    from executor.backends.backend import Backend, LaunchNotice
    from executor.planning.request import JobRequest, Submitted
    from executor.view.job_view import View

_TAIL = 2**16
"""Bytes of earlier output that somebody sees who joins a job at a terminal."""


def run(
    file: FileArgument,
    options: JobOptions,
    arguments: ArgumentsArgument = None,
    on: OnOption = None,
    job_id: JobIdOption = None,
    data_root: DataRootOption = None,
    script: ScriptOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start it, print its id, and return.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Run a benchmark and follow it to its end.

    The exit code says how it ended: 0 succeeded, 1 the benchmark failed, 2 wrong usage or descriptor, 3 out of time,
    4 cancelled, 5 our side, 6 killed from outside. 130 and 143: Ctrl-C or SIGTERM ended the following; the job goes on.

    Ctrl-C cancels it, a second Ctrl-C leaves it to itself; a closed terminal only ends the following.
    """
    from executor.planning.request import JobRequest

    job_request = JobRequest(
        file=file, on=on, arguments=tuple(arguments or ()), data_root=data_root, script=script
    )
    backend, submitted = _submit(job_request, options, job_id=job_id, json_=json_, returns=detach)
    if not detach:
        there = options.for_job(submitted.record)
        raise typer.Exit(follow(submitted.record, backend, there, json_=json_, joined=not submitted.new))


def submit(
    file: FileArgument,
    options: AwsOptions,
    arguments: ArgumentsArgument = None,
    job_id: JobIdOption = None,
    script: ScriptOption = None,
    json_: JsonOption = False,
) -> None:
    """Launch a benchmark on EC2, print the job's id, and return.

    With --job-id it can be repeated after whatever went wrong: it is launched once.
    """
    from executor.planning.request import JobRequest

    job_request = JobRequest(file=file, on="ec2", arguments=tuple(arguments or ()), script=script)
    jobs = JobOptions(profile=options.profile, region=options.region, bucket=options.bucket)
    _submit(job_request, jobs, job_id=job_id, json_=json_, returns=True)


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
    from executor.jobs.jobs import find_job

    record = find_job(options.stores(), job)
    backend = options.backends.of(record)
    # An agent elsewhere is started again by its own machine.
    done = backend.resume(record) if not (follow_ and backend.remote) else ""
    if follow_:
        raise typer.Exit(follow(record, backend, options, json_=json_, joined=True))
    print_done(record, done, json_=json_)


def follow(record: JobRecord, backend: Backend, options: JobOptions, *, json_: bool, joined: bool) -> int:
    """Show a job to its end; return the exit code for it.

    options: what hints repeat. joined: somebody comes to a job that may be long under way.
    """
    from executor.commands.watch import LeftError, exit_code_of, watch
    from executor.records.follower import tail_position
    from executor.view.job_view import JobView

    location = backend.location(record)
    job_view = JobView(
        job_id=record.job_id,
        job=record.job(),
        place=location.files,
        artifacts=location.artifacts,
        command=options.command,
    )
    view, on_screen = _view(json_=json_)
    position = tail_position(record.node(), "log", _TAIL) if joined and on_screen else 0
    watcher = backend.follow(record, said=view.notice)
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
    return exit_code_of(result)


def _submit(
    job_request: JobRequest, options: JobOptions, *, job_id: str | None, json_: bool, returns: bool
) -> tuple[Backend, Submitted]:
    """Start `job_request` and say what becomes of it. returns: nobody follows, so the job's id is what is printed.

    A signal ends it with what is left behind: something that may run, and how to look at it and end it.
    """
    from executor.backends.backend import SubmitListener
    from executor.planning.request import read_request
    from executor.signals import SignalError, raised_signals

    descriptor, findings = read_request(job_request)
    print_findings(findings)
    backend = options.backends.of_request(job_request, descriptor)
    known = job_id
    launched = job_id is not None  # repeated, it may have been started before

    def on_submit(drawn: str) -> None:
        nonlocal known
        known = drawn
        # Before anybody is asked: whoever is cut off now can repeat the submission with this id.
        if not returns and backend.remote:
            say(f"the job is {drawn}")
        elif returns and not json_:
            tell(drawn, flush=True)

    def on_plan(notice: LaunchNotice) -> None:
        say(notice.sentence(cost=not returns))

    def on_launch(drawn: str) -> None:
        nonlocal launched
        launched = True

    listener = SubmitListener(on_submit=on_submit, on_plan=on_plan, on_progress=say, on_launch=on_launch)
    try:
        with raised_signals():
            submitted = backend.submit(job_request, descriptor, job_id=job_id, listener=listener)
    except SignalError as interrupted:
        say(_left_behind(backend, options, known, launched=launched))
        raise typer.Exit(interrupted.exit_code) from interrupted
    record = submitted.record
    if not submitted.new:
        ended = record.result() is not None
        goes_on = "goes on; it is started once" if returns else "goes on; this is what it prints"
        say(f"the job {record.job_id} exists already and {'has ended; this is how' if ended else goes_on}")
    if returns and json_:
        print_json({"type": "job", "job_id": record.job_id, "place": backend.location(record).files})
    return backend, submitted


def _left_behind(backend: Backend, options: JobOptions, job_id: str | None, *, launched: bool) -> str:
    """Return what a submission that was cut short leaves behind, and what can be done about it."""
    if job_id is None:
        return "interrupted; nothing was started"
    again = f"the same command with `--job-id {job_id}` goes on, and starts it once"
    if not launched:
        return f"interrupted before the start: nothing of {job_id} runs; {again}"
    there = options.for_bucket(options.settings.store_url or "") if backend.remote else options.for_local()
    now = ("--now",) if backend.remote else ()
    look, end = there.command("status", job_id), there.command("cancel", job_id, *now)
    cost = ", and cost" if backend.remote else ""
    return f"interrupted while {job_id} was started: it may run{cost}. `{look}` looks at it, `{end}` ends it; {again}"


def _say_kept(record: JobRecord, backend: Backend, options: JobOptions) -> None:
    """Say which machines of a job that ended are kept, and cost."""
    try:
        now = backend.status(record)
    except BaiError as error:
        # The job has ended, and its exit code counts.
        say(f"whether its machines are kept is not known: {error}")
        return
    if now.machine is not None:
        say(options.with_next_step(now.machine, now.next_step))


def _goes_on(record: JobRecord, options: JobOptions, *, cancelling: bool) -> str:
    """Return what becomes of a job that is no longer followed, and how to come back to it."""
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
