"""Commands that list jobs, show one job, and fetch its files."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord
from executor.commands.job_options import JobOptions, label_values, time_ago
from executor.commands.printing import print_json, say
from executor.documents.text import tell
from executor.errors import UsageError

# `bai --help` and each shell completion load this module, so modules that only one command needs are imported
# in its function.
if TYPE_CHECKING:
    import typer

    from bai_agent.job.record_types import JobResult
    from executor.analysis.measured_runs import OverRuns
    from executor.commands.options import JobArgument, JsonOption, choices
    from executor.jobs.job_list import JobFilter


def list_jobs(
    options: JobOptions,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of newest jobs to list.")] = 30,
    every: Annotated[bool, typer.Option("--all", "-a", help="List all jobs.")] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            "-l",
            metavar="KEY=VALUE",
            help="Only jobs with this label; can be repeated, and all labels must match.",
        ),
    ] = None,
    status_: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help='Only jobs with this status or outcome, such as "running" or "failed"; can be repeated to accept several.',
            autocompletion=choices("running", "succeeded", "failed", "canceled", "error", "pending", "died"),
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Only the jobs of this group.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="AGE", help='Only jobs that were started within this time: "2d", "12h".'
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """List jobs, the newest last.

    Lists jobs on this machine and, if a bucket is configured, jobs on EC2. Exit code 5 if this machine's jobs
    or the bucket cannot be read.
    """
    from executor.jobs.job_list import EVERY_JOB, listed
    from executor.records.job_status import UNREADABLE

    only = _job_filter(label, status_, since, group)
    listing = listed(
        options.stores(),
        None if every else count,
        options.backends,
        only=only,
        prices=lambda: options.settings.prices,
    )
    unreadable = [
        each.status.machine
        for each in listing.jobs
        if each.status.status == UNREADABLE and each.status.machine
    ]
    for trouble in (*listing.troubles, *unreadable):
        say(trouble)
    if json_:
        for each in listing.jobs:
            print_json(each.as_table())
    elif listing.jobs:
        from executor.documents.listing import jobs_table
        from executor.documents.screen import show_blocks

        show_blocks([jobs_table(listing.jobs)])
    elif not listing.troubles:
        such = "no jobs" if only is EVERY_JOB else "no such jobs"
        say(f"there are {such} in {' and '.join(listing.places)}")
    if listing.troubles:
        sys.exit(ExitCode.OURS)


def _job_filter(
    labels: list[str] | None, statuses: list[str] | None, since: str | None, group: str | None
) -> JobFilter:
    from executor.jobs.job_list import EVERY_JOB, JobFilter

    if not labels and not statuses and since is None and group is None:
        return EVERY_JOB
    return JobFilter(
        group=group,
        labels=label_values(labels, option="--label"),
        statuses=tuple(_checked_status(each) for each in statuses or ()),
        since=time_ago("--since", since) if since is not None else None,
    )


def _checked_status(word: str) -> str:
    """Return `value` if it is a status or an outcome that jobs can have. Raises UsageError otherwise."""
    from executor.jobs.job_lookup import did_you_mean
    from executor.records.job_status import listed_words

    known = listed_words()
    if word.lower() in known:
        return word
    hint = did_you_mean(word.lower(), known, f"write one of {', '.join(sorted(known))}")
    raise UsageError(f'--status: "{word}" is not a status or outcome; {hint}')


def status(
    job: JobArgument,
    options: JobOptions,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait for the job's end; the exit code is the job's.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Also show values of --set, transports between nodes, processor time and memory that bai itself used, the benchmark's latest hints, and what the benchmark ran on: machine, image, processors, GPUs, Python and packages.",
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Show the status of a job.

    Shows the job's phase, the last value of each metric, each node of a job of several nodes, and what to do
    if the agent has died. For a group of jobs, shows the status of each job.
    """
    from executor.documents.screen import show_blocks
    from executor.documents.status import StatusView, status_as_json, status_blocks
    from executor.jobs.job_group import GroupNamedError
    from executor.jobs.job_list import last_values, measurements_of
    from executor.jobs.wait import wait_for_end
    from executor.records.generation_status import last_hints, size_status
    from executor.records.generations import generations_of
    from executor.records.job_status import unknown_status
    from executor.records.machine_facts import environments
    from executor.records.node_status import with_nodes
    from executor.records.reading import result_of

    try:
        record = options.find(job)
    except GroupNamedError as named:
        from executor.commands.group_commands import group_status

        group_status(named.group, options, wait=wait, json_=json_)
        return
    backend = options.backends.of(record)
    now = wait_for_end(record, backend, on_status=say) if wait else backend.status(record)
    result = result_of(record)
    measured = measurements_of(record) if result is not None else None
    view = StatusView(
        job=record.job(),
        status=with_nodes(now, record),
        values=last_values(record),
        result=result,
        measured=measured,
        over_runs=_over_runs(record, result) if measured is not None else [],
        machines=environments(record),
        generations=generations_of(record, None) if verbose and result is None else (),
        hints=last_hints(record, record.job()) if verbose else None,
        size=size_status(record, record.job()) if verbose and result is None else None,
        command=options.command,
        verbose=verbose,
        one_machine=not backend.remote,
    )
    if json_:
        print_json(status_as_json(view))
    else:
        show_blocks(status_blocks(view))
    if wait and (why := unknown_status(now)) is not None:
        say(why)
        sys.exit(ExitCode.OURS)
    if wait:
        sys.exit(result.exit_code if result is not None else ExitCode.OURS)


def _over_runs(record: JobRecord, result: JobResult | None) -> list[OverRuns]:
    """Return the statistics of each metric over the runs of a job that has ended. Empty for a job without
    `[repeat]`."""
    if result is None or record.job().repeat is None:
        return []
    from executor.analysis.measured_runs import over_runs
    from executor.jobs.compared import job_runs

    return over_runs(job_runs(record))


def fetch(
    job: JobArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The destination folder, new or existing.")],
    options: JobOptions,
    checkpoint: Annotated[
        bool,
        typer.Option("--checkpoint", help="Also copy the newest checkpoint, as a folder of its name."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Copy all files of a job into a folder.

    Copies result, log, metrics, events and artifacts of all nodes. Existing files are never overwritten. A
    second call continues an interrupted copy, and also copies new data.
    """
    from executor.jobs.fetch import fetch_checkpoint, fetch_job
    from executor.quantities import size

    record = options.find(job)
    files, total = 0, 0
    for each in chain(fetch_job(record, folder), fetch_checkpoint(record, folder) if checkpoint else ()):
        files, total = files + 1, total + each.bytes
        if json_:
            print_json({"path": str(each.path), "bytes": each.bytes})
        else:
            tell(f"{each.path}  {size(each.bytes)}")
    say(f"{record.job_id}: {files:,} file{'' if files == 1 else 's'} copied, {size(total)}")


def shell(
    job: JobArgument,
    options: JobOptions,
    node: Annotated[
        int, typer.Option("--node", metavar="R", min=0, help="The node with this rank; by default 0.")
    ] = 0,
) -> None:
    """Open a shell on a machine of a job.

    For a job on EC2, the shell is a session of AWS Systems Manager on a machine that is still on. For a job
    on this machine, the shell starts in the run directory, even after the job's end. The shell has the
    environment of the benchmark without the secrets. The exit code is that of the shell.
    """
    record = options.find(job)
    sys.exit(options.backends.of(record).shell(record, node=node, on_status=say))
