"""Commands that start, follow and end jobs."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bai_agent.errors import BaiError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord
from executor.commands.job_options import JobOptions
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
    print_findings,
    print_json,
    say,
    silence,
    write_error,
)
from executor.view.text import draws_in_place, plain_text, tell

if TYPE_CHECKING:
    from executor.backends.local.agent import LocalAgent
    from executor.descriptor import Finding
    from executor.view.job_view import JobView, View

_FAR_PAUSE = 2.0
"""Seconds between two looks at a bucket; its objects are written every few seconds."""
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
    from executor.backends.local.submission import submit
    from executor.jobs.jobs import store_at
    from executor.planning.request import JobRequest, place_of, read_request
    from executor.signals import SignalError, raised_signals

    def told(drawn: str, findings: Sequence[Finding]) -> None:
        print_findings(findings)
        if detach and not json_:
            tell(drawn, flush=True)

    job_request = JobRequest(
        file=file, on=on, arguments=tuple(arguments or ()), data_root=data_root, script=script
    )
    if place_of(job_request, read_request(job_request)[0]) == "ec2":
        from executor.commands.launches import submit_to_ec2

        launched = submit_to_ec2(job_request, options, job_id=job_id, json_=json_, returns=detach)
        if not detach:
            there = options.for_bucket(launched.record.store.url)
            raise typer.Exit(follow(launched.record, there, json_=json_, joined=not launched.new))
        return
    submitted = submit(job_request, store_at(options.store), job_id=job_id, told=told)
    record = submitted.record
    agent = _agent(record)
    if not submitted.new:
        ended = record.result() is not None
        what = "has ended; this is how" if ended else "runs; this is what it prints"
        say(f"the job {record.job_id} exists already and {what}")
    try:
        with raised_signals():
            if record.result() is None and not agent.alive():
                agent.start()
    except SignalError as interrupted:
        there = options.for_local()
        look, end = there.command("status", record.job_id), there.command("cancel", record.job_id)
        say(
            f"interrupted while {record.job_id} was started: it may run. `{look}` looks at it, `{end}` ends it"
        )
        raise typer.Exit(interrupted.exit_code) from interrupted
    if detach:
        if json_:
            print_json({"type": "job", "job_id": record.job_id, "place": str(agent.rundir.path)})
        return
    raise typer.Exit(follow(record, options.for_local(), json_=json_, joined=not submitted.new))


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
    from executor.backends.local.agent import local_agent
    from executor.jobs.jobs import find_job
    from executor.records.reading import result_of

    record = find_job(options.stores(), job)
    if follow_ and local_agent(record) is None:
        raise typer.Exit(follow(record, options, json_=json_, joined=True))
    agent = _agent(record)
    if (result := result_of(record)) is not None:
        told = f"it has ended: {result.get('sentence')}"
    elif agent.alive():
        told = "its agent is running"
    else:
        agent.start()
        told = "its agent is running again"
    if follow_:
        raise typer.Exit(follow(record, options, json_=json_, joined=True))
    if json_:
        print_json({"job_id": record.job_id, "message": told})
    else:
        tell(plain_text(f"{record.job_id}: {told}"))


def follow(record: JobRecord, options: JobOptions, *, json_: bool, joined: bool) -> int:
    """Show a job to its end; return the exit code for it.

    given: with which EC2 is asked, and what hints repeat. joined: somebody comes to a job that may be long under way.
    """
    from executor.backends.local.agent import local_agent
    from executor.commands.watch import LeftError, exit_code_of, watch
    from executor.records.follower import tail_position
    from executor.view.job_view import JobView

    agent = local_agent(record)
    place = str(agent.rundir.path) if agent is not None else f"{record.store.url}/{record.job_id}"
    artifacts = str(agent.descriptor.parent / "artifacts") if agent is not None else ""
    job_view = JobView(
        job_id=record.job_id, job=record.job(), place=place, artifacts=artifacts, options=options
    )
    view, on_screen = _view(json_=json_)
    position = tail_position(record, "log", _TAIL) if joined and on_screen else 0
    try:
        if agent is not None:
            result = watch(record, job_view, view, agent=agent, log_position=position, newest_only=on_screen)
        else:
            result = _watch_from_afar(
                record, job_view, view, options, log_position=position, newest_only=on_screen
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
    if result is None:
        return ExitCode.OURS
    if agent is None:
        _tell_kept(record, result, options)
    return exit_code_of(result)


def _tell_kept(record: JobRecord, result: Mapping[str, Any], options: JobOptions) -> None:
    """Say which machines of a job that ended are kept, and cost."""
    from executor.backends.ec2.monitor.job_status import kept_machines

    try:
        kept = kept_machines(record, result, options)
    except BaiError as error:
        # The job has ended, and its exit code counts.
        kept = f"whether its machines are kept is not known: {error}"
    if kept is not None:
        say(kept)


def _goes_on(record: JobRecord, options: JobOptions, *, cancelling: bool) -> str:
    """Return what becomes of a job that is no longer followed, and how to come back to it."""
    words = (
        [("status", "--wait"), ("logs", "-f")] if cancelling else [("status",), ("logs", "-f"), ("cancel",)]
    )
    commands = ", ".join(options.command(*each, record.job_id) for each in words)
    return f"{'cancelling' if cancelling else 'the job'} goes on: {commands}"


def _watch_from_afar(
    record: JobRecord,
    job_view: JobView,
    view: View,
    options: JobOptions,
    *,
    log_position: int,
    newest_only: bool,
) -> Mapping[str, Any] | None:
    """Follow a job on EC2."""
    from executor.backends.ec2.monitor.job_status import monitor_of
    from executor.backends.ec2.monitor.watcher import InstanceWatcher
    from executor.commands.watch import watch

    return watch(
        record,
        job_view,
        view,
        agent=None,
        watcher=InstanceWatcher(monitor_of(record, options.settings)),
        log_position=log_position,
        newest_only=newest_only,
        pause=_FAR_PAUSE,
    )


def _agent(record: JobRecord) -> LocalAgent:
    from executor.backends.local.agent import local_agent
    from executor.errors import UsageError

    agent = local_agent(record)
    if agent is None:
        raise UsageError(f"the job {record.job_id} in {record.store.url} does not run on this machine")
    return agent


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
