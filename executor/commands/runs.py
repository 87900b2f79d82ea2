"""Commands that run jobs: `bai run`, `submit` and `resume`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bai_agent.light_dataclass import dataclass, replace
from executor.commands.job_options import AwsOptions, JobOptions, KeyOptions, ScriptOptions
from executor.commands.options import (
    ArgumentsArgument,
    DataRootOption,
    FileOrNoneArgument,
    JobArgument,
    JobIdOption,
    JsonOption,
    LikeOption,
    OnOption,
    ResumeOption,
    ScriptOption,
    requested,
)
from executor.commands.printing import print_done
from executor.commands.submission import follow, submit_request
from executor.errors import UsageError

# `bai --help` and each shell completion load this module, so modules that only one command needs are imported
# in its function.
if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from executor.planning.request import JobRequest


def run(
    options: JobOptions,
    keys: KeyOptions,
    flags: ScriptOptions,
    file: FileOrNoneArgument = None,
    arguments: ArgumentsArgument = None,
    like: LikeOption = None,
    resume: ResumeOption = None,
    on: OnOption = None,
    job_id: JobIdOption = None,
    data_root: DataRootOption = None,
    script: ScriptOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start the job, print its id, and return.")
    ] = False,
    exclusive: Annotated[
        bool,
        typer.Option(
            "--exclusive",
            help="Begin only when no other job runs on this machine. Later jobs with --exclusive wait for this job.",
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Run a benchmark and follow it to its end.

    The exit code says how the job ended: 0 succeeded, 1 the benchmark failed, 2 wrong usage or descriptor, 3
    out of time, 4 cancelled, 5 bai, a machine or AWS failed, 6 killed from outside. 130 and 143: Ctrl-C or
    SIGTERM ended only this command, and the job continues.

    Ctrl-C cancels the job. A second Ctrl-C or a closed terminal ends only this command.

    With [matrix] in FILE, the command runs a group of jobs and compares them. The exit code of a group is the
    worst exit code of its jobs.
    """
    from executor.planning.request import JobRequest, MatrixError

    given = JobRequest(
        file=Path(file or ""),
        on=on,
        arguments=tuple(arguments or ()),
        data_root=data_root,
        script=script,
        overrides=keys.overrides(),
        exclusive=exclusive,
    )
    with ExitStack() as stack:
        job_request = _request(
            file, given, _rerun_option(like, resume), options, flags, job_id=job_id, stack=stack
        )
        try:
            backend, submitted = submit_request(
                job_request, options, job_id=job_id, json_=json_, returns=detach
            )
        except MatrixError as error:
            if detach:
                raise UsageError(
                    f"--detach: {job_request.file} has [matrix], whose jobs `bai` starts one after the other; leave --detach out, and "
                    "`bai resume GROUP` continues after an interruption"
                ) from error
            from executor.commands.group_commands import run_group

            raise typer.Exit(run_group(job_request, options, group_id=job_id, json_=json_)) from error
    if not detach:
        there = options.for_submitted(backend)
        raise typer.Exit(follow(submitted.record, backend, there, json_=json_, joined=not submitted.new))


def submit(
    options: AwsOptions,
    keys: KeyOptions,
    flags: ScriptOptions,
    file: FileOrNoneArgument = None,
    arguments: ArgumentsArgument = None,
    like: LikeOption = None,
    resume: ResumeOption = None,
    job_id: JobIdOption = None,
    script: ScriptOption = None,
    json_: JsonOption = False,
) -> None:
    """Launch a benchmark on EC2, print the job's id, and return.

    With --job-id, the command can be repeated after any failure; the job is launched only once. With
    `limits.wait_for_capacity`, the command waits until there is capacity. Ctrl-C stops the wait, and a call
    with the same --job-id continues it.
    """
    from executor.planning.request import JobRequest

    given = JobRequest(
        file=Path(file or ""),
        on="ec2",
        arguments=tuple(arguments or ()),
        script=script,
        overrides=keys.overrides(),
    )
    with ExitStack() as stack:
        job_request = _request(
            file, given, _rerun_option(like, resume), options, flags, job_id=job_id, stack=stack
        )
        submit_request(job_request, options, job_id=job_id, json_=json_, returns=True)


def resume(
    job: JobArgument,
    options: JobOptions,
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the job to its end, as `bai run` does.")
    ] = False,
    max_cost: Annotated[
        float | None,
        typer.Option(
            "--max-cost", metavar="USD", help="For a group of jobs: raise [matrix] max_cost to this amount."
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Restart the dead agent of a job.

    The new agent continues where the dead agent stopped. A benchmark that still runs is not started twice.
    For a group, the remaining jobs are started, and all jobs are followed to their end.
    """
    from executor.jobs.job_group import GroupNamedError

    try:
        record = options.find(job)
    except GroupNamedError as named:
        from executor.commands.group_commands import continue_group

        if max_cost is not None:
            named.group.raise_max_cost(max_cost)
        raise typer.Exit(continue_group(named.group, options, json_=json_)) from named
    if max_cost is not None:
        raise UsageError(f"--max-cost is for a group of jobs, but {record.job_id} is one job")
    backend = options.backends.of(record)
    # With --follow, the agent of a job on another machine is not restarted here, because that machine
    # restarts it.
    done = backend.resume(record) if not (follow_ and backend.remote) else ""
    if follow_:
        raise typer.Exit(follow(record, backend, options, json_=json_, joined=True))
    print_done(record, done, json_=json_)


@dataclass(frozen=True)
class _RerunOption:
    """`--like` or `--resume`, with the job whose request is repeated."""

    name: Literal["--like", "--resume"]
    job: str

    @property
    def resumes(self) -> bool:
        """Whether the new job begins from the newest checkpoint of the named job."""
        return self.name == "--resume"

    def __str__(self) -> str:
        return f"{self.name} {self.job}"


def _rerun_option(like: str | None, resume: str | None) -> _RerunOption | None:
    """Return which of `--like` and `--resume` was given; None if neither was. Raises UsageError."""
    if like is not None and resume is not None:
        raise UsageError(f"--like {like} and --resume {resume} exclude each other; --resume is enough")
    if resume is not None:
        return _RerunOption("--resume", resume)
    return None if like is None else _RerunOption("--like", like)


def _request(
    file: str | None,
    given: JobRequest,
    rerun: _RerunOption | None,
    options: JobOptions,
    flags: ScriptOptions,
    *,
    job_id: str | None,
    stack: ExitStack,
) -> JobRequest:
    """Return the request of FILE or a script, or the request of another job changed by the command line's
    options. given: FILE and the command line's options as a request. stack: when closed, removes files that
    the request needs.
    """
    if rerun is None and file is None:
        raise UsageError("nothing to run: name FILE, --like JOB or --resume JOB")
    if rerun is None:
        return requested(given, flags)
    if flags != ScriptOptions():
        raise UsageError(f"--metric, --preset and --emit-toml are for a script; leave them out with {rerun}")
    if file is not None and "--" not in sys.argv:
        raise UsageError(
            f"{rerun} and {file} exclude each other; name one of them. Write arguments of the benchmark after --"
        )
    # If there is no FILE, Typer takes the first of the benchmark's arguments for FILE.
    more = (file, *given.arguments) if file is not None else ()
    return _rerun_request(rerun, replace(given, arguments=more), options, job_id=job_id, stack=stack)


def _rerun_request(
    option: _RerunOption, given: JobRequest, options: JobOptions, *, job_id: str | None, stack: ExitStack
) -> JobRequest:
    """Return the request of the job that `option` names, changed by the command line's options."""
    from executor.jobs.rerun import Rerun, from_checkpoint

    record, is_made = _rerun_record(option, options, job_id)
    if option.resumes and not is_made:
        given = replace(given, overrides=(*from_checkpoint(record), *given.overrides))
    rerun = Rerun(
        record=record,
        option=option.name,
        stack=stack,
        open_store=lambda url: next(options.backends.stores(url)),
    )
    again = rerun.request(given.overrides, takes_scripts=given.script is None)
    arguments = (*again.arguments, *given.arguments)
    if is_made and again.arguments[len(again.arguments) - len(given.arguments) :] == given.arguments:
        arguments = again.arguments
    return replace(
        again,
        on=given.on or again.on,
        arguments=arguments,
        data_root=given.data_root or again.data_root,
        script=given.script or again.script,
        scripts=None if given.script is not None else again.scripts,
        overrides=(*again.overrides, *given.overrides),
        exclusive=given.exclusive,
    )


def _rerun_record(option: _RerunOption, options: JobOptions, job_id: str | None) -> tuple[JobRecord, bool]:
    """Return the job whose request is repeated, and whether an earlier call of the same command has already
    made the new job. Usually, the returned job is the job that `option` names. If that job is gone, or "last"
    names another job by now, the job `job_id` that the earlier call made is returned. Raises UsageError."""
    from executor.jobs.rerun import goes_on_from
    from executor.planning.request import LAST

    made = options.with_id(job_id) if job_id is not None and option.resumes else None
    if made is not None and not goes_on_from(made, option.job):
        made = None
    if made is not None and option.job.partition(":")[0] == LAST:
        return made, True
    try:
        found = options.find(option.job)
    except UsageError:
        if made is None:
            raise
        return made, True
    # With `--like last`, an earlier call of the same command has possibly made this job, so that it is the
    # newest job now.
    return found, found.job_id == job_id and not option.resumes
