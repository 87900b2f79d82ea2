"""Commands that look at jobs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord
from executor.commands.job_options import JobOptions
from executor.commands.options import (
    JobArgument,
    JsonOption,
    StoreOption,
    choices,
    print_findings,
    print_json,
    say,
)
from executor.view.text import tell


def list_jobs(
    options: JobOptions,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many, the newest.")] = 30,
    every: Annotated[bool, typer.Option("--all", "-a", help="All of them.")] = False,
    json_: JsonOption = False,
) -> None:
    """List jobs, the newest last.

    Those on this machine, and those on EC2 where a bucket is configured. Exit code 5 where one of the two cannot be read.
    """
    from executor.jobs.jobs import listed
    from executor.records.job_status import UNREADABLE

    listing = listed(options.stores(), None if every else count, options.backends)
    unreadable = [each.machine for each, _ in listing.jobs if each.status == UNREADABLE and each.machine]
    for trouble in (*listing.troubles, *unreadable):
        say(trouble)
    if json_:
        for each, name in listing.jobs:
            print_json({**each.as_table(), "name": name})
    elif listing.jobs:
        from executor.view.listing import print_listing

        print_listing(listing.jobs)
    elif not listing.troubles:
        say(f"there are no jobs in {' and '.join(listing.places)}")
    if listing.troubles:
        raise typer.Exit(ExitCode.OURS)


def status(
    job: JobArgument,
    options: JobOptions,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Until it has ended; the exit code is then the job's.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="And what it ran on: machine, image, processors, GPUs, Python and packages.",
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Say how a job stands.

    Its phase, the last value of each metric, and what to do where its agent has died.
    """
    from executor.commands.watch import exit_code_of
    from executor.jobs.jobs import find_job, last_values
    from executor.jobs.wait import wait_for_end
    from executor.records.environments import environments
    from executor.records.job_status import unknown_status
    from executor.records.reading import result_of

    record = find_job(options.stores(), job)
    backend = options.backends.of(record)
    now = wait_for_end(record, backend, said=say) if wait else backend.status(record)
    values = last_values(record.node())
    result = result_of(record)
    nodes = list(environments(record)) if verbose else []
    if json_:
        step = now.next_step
        print_json(
            {
                **now.as_table(),
                "next_step": {"command": options.command(*step.words), "effect": step.effect}
                if step
                else None,
                "name": record.job().job.name,
                "metrics": list(values.values()),
                "result": result,
                **({"environments": [each.as_table() for each in nodes]} if verbose else {}),
            }
        )
    else:
        from executor.view.listing import print_environments, print_status

        print_status(record.job(), now, values, options.command, result=result)
        print_environments(nodes)
    if wait and (why := unknown_status(now)) is not None:
        say(why)
        raise typer.Exit(ExitCode.OURS)
    if wait:
        raise typer.Exit(exit_code_of(result) if result is not None else ExitCode.OURS)


def logs(
    job: JobArgument,
    options: JobOptions,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only so many last lines.")
    ] = None,
    boot: Annotated[
        bool, typer.Option("--boot", help="What the consoles of its machines say instead, for a job on EC2.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Print what the benchmark printed."""
    from executor.jobs.jobs import find_job
    from executor.jobs.stream import pieces, position_of_last_lines
    from executor.records.follower import TRUNCATED
    from executor.view.log import LogView

    record = find_job(options.stores(), job)
    if boot:
        _print_consoles(record, options, json_=json_)
        return
    position = position_of_last_lines(record.node(), lines) if lines is not None else 0
    if not json_ and not sys.stdout.isatty():
        for piece in pieces(
            record.node(),
            "log",
            position=position,
            follow=follow,
            on_truncated=lambda: say(TRUNCATED),
            said=say,
            backends=options.backends,
        ):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        return
    with LogView(json_=json_, follow=follow) as view:

        def on_reach(sentence: str) -> None:
            with view.aside():
                say(sentence)

        def on_truncated() -> None:
            view.print_rest()
            say(TRUNCATED)

        for piece in pieces(
            record.node(),
            "log",
            position=position,
            follow=follow,
            on_truncated=on_truncated,
            said=on_reach,
            backends=options.backends,
        ):
            view.feed(piece)


def metrics(
    job: JobArgument,
    options: JobOptions,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="table|jsonl|csv",
            help="A table of statistics, or the records.",
            autocompletion=choices("table", "jsonl", "csv"),
        ),
    ] = "table",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    extract_: Annotated[
        str | None,
        typer.Option(
            "--extract",
            metavar="N|last",
            help="The records that `bai extract` has made, not the run's own.",
            autocompletion=choices("last"),
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Print a job's metrics: statistics, or records."""
    from executor.errors import UsageError
    from executor.jobs.extract import chosen_set, job_of_set, stream_of
    from executor.jobs.jobs import find_job
    from executor.jobs.stream import pieces, whole_lines
    from executor.view.records import print_csv, print_jsonl, print_statistics

    form = "jsonl" if json_ else form
    prints = {"table": print_statistics, "jsonl": print_jsonl, "csv": print_csv}.get(form)
    if prints is None:
        raise UsageError(f'--format: "{form}" is not known; write table, jsonl or csv')
    record = find_job(options.stores(), job)
    if extract_ is None:
        described, stream = record.job(), "metrics"
    else:
        number = chosen_set(record.node(), extract_)
        described, stream = job_of_set(record.node(), number), stream_of(number)
    foreign = prints(
        described,
        whole_lines(pieces(record.node(), stream, follow=follow, said=say, backends=options.backends)),
        follow,
    )
    if foreign.count:
        say(foreign.sentence(record.node()))


def extract(
    job: JobArgument,
    options: JobOptions,
    descriptor: Annotated[
        Path | None,
        typer.Option(
            "--descriptor",
            metavar="FILE",
            help="A benchmark descriptor, whose metrics are looked for instead of the job's own.",
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Extract metrics again, from the log that a job has kept.

    For a metric that was forgotten, a pattern that was wrong, or numbers for which the run had no time. The records become a set
    of their own, which `bai metrics JOB --extract last` shows; the run's own ones stay as they are.
    """
    from executor.jobs.extract import extract_again
    from executor.jobs.jobs import find_job
    from executor.planning.plan import metrics_of
    from executor.planning.request import JobRequest, read_request

    record = find_job(options.stores(), job)
    metrics = None
    if descriptor is not None:
        described, findings = read_request(JobRequest(file=descriptor))
        print_findings(findings)
        metrics = metrics_of(described)
    number = 0
    for each in extract_again(record, metrics, said=say):
        number = each.number
        for warning in each.summary["warnings"]:
            say(f"node {each.rank}: {warning}")
        if json_:
            print_json(each.as_table())
        else:
            tell(f"node {each.rank}: {each.summary['records']:,} records of {each.summary['lines']:,} lines")
    if not json_:
        tell(f"{options.command('metrics', record.job_id, '--extract', str(number))} shows them")


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help='Since its end: "30d", "12h".')
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    store: StoreOption = None,
    json_: JsonOption = False,
) -> None:
    """Delete old jobs, and virtual environments long unused.

    Never a job that runs. Exit code 5 where one cannot be deleted.
    """
    from bai_agent.benchmark.venv_cache import venv_cache
    from bai_agent.job.durations import parse_duration
    from bai_agent.job.run_directory import now_ms
    from executor.backends.local.job_store import store_at
    from executor.errors import UsageError
    from executor.jobs.prune import prune_jobs, prune_venvs
    from executor.quantities import size

    try:
        age = parse_duration(older_than)
    except ValueError as error:
        raise UsageError(f"--older-than: {error}") from error
    total, count, failed = 0, 0, 0

    def on_failure(why: str) -> None:
        nonlocal failed
        failed += 1
        say(why)

    before = now_ms() - round(age.total_seconds() * 1000)
    for each in prune_jobs(
        store_at(store, exists=True),
        before=before,
        dry_run=dry_run,
        left=say,
        on_failure=on_failure,
    ):
        total, count = total + each.bytes, count + 1
        if json_:
            print_json({"job_id": each.job_id, "bytes": each.bytes, "deleted": not dry_run})
        else:
            tell(f"{each.job_id}  {size(each.bytes)}")
    environments = 0
    for each in prune_venvs(venv_cache(os.environ), before=before, dry_run=dry_run, on_failure=on_failure):
        total, environments = total + each.bytes, environments + 1
        if json_:
            print_json({"venv": each.job_id, "bytes": each.bytes, "deleted": not dry_run})
        else:
            tell(f"virtual environment {each.job_id}  {size(each.bytes)}")
    verb = "would be deleted" if dry_run else "deleted"
    jobs = f"{count:,} job{'' if count == 1 else 's'}"
    if environments:
        jobs += f" and {environments:,} virtual environment{'' if environments == 1 else 's'}"
    say(f"{jobs} {verb}, {size(total)}")
    if failed:
        raise typer.Exit(ExitCode.OURS)


def fetch(
    job: JobArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; it need not exist.")],
    options: JobOptions,
    json_: JsonOption = False,
) -> None:
    """Copy all of a job into a folder.

    Result, log, metrics, events and artifacts of all its nodes. Nothing that is there is overwritten.
    Called again it goes on where it stopped, and takes what has come since.
    """
    from executor.jobs.fetch import fetch_job
    from executor.jobs.jobs import find_job
    from executor.quantities import size

    record = find_job(options.stores(), job)
    files, total = 0, 0
    for each in fetch_job(record, folder):
        files, total = files + 1, total + each.bytes
        if json_:
            print_json({"path": str(each.path), "bytes": each.bytes})
        else:
            tell(f"{each.path}  {size(each.bytes)}")
    say(f"{record.job_id}: {files:,} file{'' if files == 1 else 's'} brought, {size(total)}")


def _print_consoles(record: JobRecord, options: JobOptions, *, json_: bool) -> None:
    from executor.view.text import safe_line

    consoles = options.backends.of(record).consoles(record)
    if not consoles:
        say(
            f"EC2 knows no machine of {record.job_id} any more; a console is kept for about an hour after its end"
        )
    for each in consoles:
        if json_:
            print_json({"instance_id": each.instance_id, "state": each.state, "console": each.text})
            continue
        tell(f"== {each.instance_id} ({each.state}), node {each.node}")
        print("\n".join(safe_line(line) for line in each.text.splitlines()) or "(its console is empty)")
