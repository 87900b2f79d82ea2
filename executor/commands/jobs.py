"""Commands that look at jobs."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from bai_agent.outcome import ExitCode
from executor.commands.options import JobArgument, JsonOption, StoreOption, print_json, say

_PAUSE = 0.25
"""Seconds between two looks at a job that somebody waits for."""


def list_jobs(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many, the newest.")] = 30,
    every: Annotated[bool, typer.Option("--all", "-a", help="All of them.")] = False,
    store: StoreOption = None,
    json_: JsonOption = False,
) -> None:
    """List jobs, the newest last."""
    from bai_agent.store.record import JobRecord
    from executor.jobs import job_ids, standing, started_of, store_at

    place = store_at(store)
    records = [JobRecord(place, each) for each in job_ids(place)]
    if not every and len(records) > count:
        records = sorted(records, key=started_of)[-count:]
    found = sorted(
        ((standing(record), record) for record in records),
        key=lambda each: (each[0].started or 0, each[0].job_id),
    )
    if json_:
        for each, record in found:
            print_json({**each.as_table(), "name": record.job().job.name})
        return
    if not found:
        say(f"there are no jobs in {place.folder}")
        return
    from executor.view.listing import print_listing

    print_listing([(each, record.job().job.name) for each, record in found])


def status(
    job: JobArgument,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Until it has ended; the exit code is then the job's.")
    ] = False,
    store: StoreOption = None,
    json_: JsonOption = False,
) -> None:
    """Say how a job stands.

    Its phase, the last value of each metric, and what to do where its agent has died.
    """
    from executor.follow import result_of
    from executor.jobs import DIED, find_job, is_over, last_values, standing, store_at
    from executor.watch import exit_code_of

    record = find_job(store_at(store), job)
    now = standing(record)
    while wait and not is_over(now) and now.status != DIED:
        time.sleep(_PAUSE)
        now = standing(record)
    values = last_values(record)
    result = result_of(record)
    if json_:
        print_json(
            {
                **now.as_table(),
                "name": record.job().job.name,
                "metrics": list(values.values()),
                "result": result,
            }
        )
    else:
        from executor.view.listing import print_standing

        print_standing(record.job(), now, values)
    if wait:
        raise typer.Exit(exit_code_of(result) if result is not None else ExitCode.OURS)


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only so many last lines.")
    ] = None,
    store: StoreOption = None,
    json_: JsonOption = False,
) -> None:
    """Print what the benchmark printed."""
    from executor.jobs import find_job, store_at
    from executor.stream import pieces, position_of_last_lines
    from executor.view.scroll import Scroll

    record = find_job(store_at(store), job)
    position = position_of_last_lines(record, lines) if lines is not None else 0
    on_screen = sys.stdout.isatty()
    scroll = Scroll(keep=2**20)
    for piece in pieces(record, "log", position=position, follow=follow):
        if not json_ and not on_screen:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            continue
        scroll.feed(piece)
        _print_lines(scroll.take()[1], json_=json_)
    _print_lines(scroll.take_rest(), json_=json_)


def metrics(
    job: JobArgument,
    form: Annotated[
        str,
        typer.Option("--format", metavar="table|jsonl|csv", help="A table of statistics, or the records."),
    ] = "table",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    store: StoreOption = None,
    json_: JsonOption = False,
) -> None:
    """Print a job's metrics: statistics, or records."""
    from executor.jobs import UsageError, find_job, store_at
    from executor.stream import pieces, whole_lines
    from executor.view.records import print_csv, print_jsonl, print_statistics

    form = "jsonl" if json_ else form
    prints = {"table": print_statistics, "jsonl": print_jsonl, "csv": print_csv}.get(form)
    if prints is None:
        raise UsageError(f'--format: "{form}" is not known; write table, jsonl or csv')
    record = find_job(store_at(store), job)
    prints(record.job(), whole_lines(pieces(record, "metrics", follow=follow)), follow)


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help='Since its end: "30d", "12h".')
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    store: StoreOption = None,
    json_: JsonOption = False,
) -> None:
    """Delete old jobs, never one that runs."""
    from bai_agent.durations import parse_duration
    from bai_agent.rundir import now_ms
    from executor.jobs import UsageError, store_at
    from executor.prune import prune_jobs
    from executor.view.text import size

    try:
        age = parse_duration(older_than)
    except ValueError as error:
        raise UsageError(f"--older-than: {error}") from error
    total, count = 0, 0
    for each in prune_jobs(
        store_at(store), before=now_ms() - round(age.total_seconds() * 1000), dry_run=dry_run
    ):
        total, count = total + each.bytes, count + 1
        if json_:
            print_json({"job_id": each.job_id, "bytes": each.bytes, "deleted": not dry_run})
        else:
            print(f"{each.job_id}  {size(each.bytes)}")
    verb = "would be deleted" if dry_run else "deleted"
    say(f"{count:,} job{'' if count == 1 else 's'} {verb}, {size(total)}")


def _print_lines(lines: list[str], *, json_: bool) -> None:
    for line in lines:
        if json_:
            print_json({"line": line})
        else:
            # A colour that a line leaves switched on ends with it.
            sys.stdout.write(f"{line}\x1b[0m\n" if "\x1b" in line else f"{line}\n")
    if lines:
        sys.stdout.flush()
