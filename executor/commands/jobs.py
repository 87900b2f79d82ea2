"""Commands that look at jobs."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.job.durations import parse_duration
from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from executor.commands.job_options import JobOptions
from executor.commands.options import (
    JobArgument,
    JsonOption,
    choices,
    label_values,
    print_findings,
    print_json,
    say,
)
from executor.errors import UsageError
from executor.view.text import safe_line, tell

HEADLINE_FORMATS = ("bmf", "gha", "openmetrics")
"""Of `bai metrics`: one number for each metric of a job."""

# What only one command needs is imported there: `bai --help` and each completion in a shell load this module.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bai_agent.job.descriptor import Job, Repeat
    from bai_agent.job.record import Stream
    from bai_agent.job.record_types import JobResult
    from executor.analysis.runs import OverRuns
    from executor.jobs.jobs import JobFilter


def list_jobs(
    options: JobOptions,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many, the newest.")] = 30,
    every: Annotated[bool, typer.Option("--all", "-a", help="All of them.")] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            "-l",
            metavar="KEY=VALUE",
            help="Only jobs with this label; can be repeated: all must be there.",
        ),
    ] = None,
    status_: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help='Only jobs with this status or outcome, such as "running" or "failed"; can be repeated: any of them.',
            autocompletion=choices("running", "succeeded", "failed", "canceled", "error", "pending", "died"),
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="AGE", help='Only jobs that were started so long ago at most: "2d", "12h".'
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """List jobs, the newest last.

    Those on this machine, and those on EC2 where a bucket is configured. Exit code 5 where one of the two cannot be read.
    """
    from executor.jobs.jobs import EVERY_JOB, listed
    from executor.records.job_status import UNREADABLE

    only = _job_filter(label, status_, since)
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
        from executor.view.listing import print_listing

        print_listing(listing.jobs)
    elif not listing.troubles:
        such = "no jobs" if only is EVERY_JOB else "no such jobs"
        say(f"there are {such} in {' and '.join(listing.places)}")
    if listing.troubles:
        raise typer.Exit(ExitCode.OURS)


def _job_filter(labels: list[str] | None, statuses: list[str] | None, since: str | None) -> JobFilter:
    from difflib import get_close_matches

    from executor.jobs.jobs import EVERY_JOB, JobFilter
    from executor.records.job_status import listed_words

    if not labels and not statuses and since is None:
        return EVERY_JOB
    wanted = label_values(labels, option="--label")
    started = None
    if since is not None:
        try:
            started = now_ms() - round(parse_duration(since).total_seconds() * 1000)
        except ValueError as error:
            raise UsageError(f"--since: {error}") from error
    for each in statuses or ():
        if each.lower() not in (known := listed_words()):
            near = get_close_matches(each.lower(), known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"write one of {', '.join(sorted(known))}"
            raise UsageError(f'--status: "{each}" is no status and no outcome; {hint}')
    return JobFilter(labels=wanted, statuses=tuple(statuses or ()), since=started)


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
            help="And what was set with --set, what moves data between several nodes, what bai itself took of the machines, and what it ran on: machine, image, processors, GPUs, Python and packages.",
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Say how a job stands.

    Its phase, the last value of each metric, each of several nodes, and what to do where its agent has died.
    """
    from bai_agent.job.record_types import as_table
    from executor.jobs.jobs import last_values, measurements_of
    from executor.jobs.wait import wait_for_end
    from executor.records.environments import SUMMARY_NODES, environments, machine_warnings
    from executor.records.job_status import is_over, unknown_status
    from executor.records.node_status import with_nodes
    from executor.records.reading import result_of
    from executor.view.headlines import headline_rows, headline_table

    record = options.find(job)
    backend = options.backends.of(record)
    now = wait_for_end(record, backend, on_status=say) if wait else backend.status(record)
    values = last_values(record)
    result = result_of(record)
    measured = measurements_of(record) if result is not None else None
    over = _over_runs(record, result) if measured is not None else []
    now = with_nodes(now, record)
    machines = list(environments(record, most=None if verbose else SUMMARY_NODES))
    if json_:
        step = now.next_step
        print_json(
            {
                **now.as_table(),
                "warnings": list((result.warnings if result is not None else None) or now.warnings),
                "next_step": {"command": options.command(*step.words), "effect": step.effect}
                if step
                else None,
                "name": record.job().job.name,
                "set": record.job().set,
                "metrics": list(values.values()),
                "headlines": {each.name: headline_table(each) for each in headline_rows(measured)},
                "over_runs": [each.as_table() for each in over],
                "result": as_table(result) if result is not None else None,
                "machine_warnings": [each.as_table() for each in machine_warnings(machines)],
                **({"environments": [each.as_table() for each in machines]} if verbose else {}),
            }
        )
    else:
        from executor.view.listing import (
            print_environments,
            print_nodes,
            print_own_usage,
            print_set,
            print_status,
            print_transports,
        )

        print_status(
            record.job(),
            now,
            values,
            options.command,
            result=result,
            measured=measured,
            over_runs=over,
            machine_warnings=() if verbose else machine_warnings(machines),
        )
        print_nodes(now.nodes, is_over=is_over(now))
        if verbose:
            print_transports(now.nodes)
            print_set(record.job())
            print_own_usage(result, one_machine=not backend.remote)
            print_environments(machines)
    if wait and (why := unknown_status(now)) is not None:
        say(why)
        raise typer.Exit(ExitCode.OURS)
    if wait:
        raise typer.Exit(result.exit_code if result is not None else ExitCode.OURS)


def _over_runs(record: JobRecord, result: JobResult | None) -> list[OverRuns]:
    """Return what the runs of a job that has ended say together; nothing of a job without `[repeat]`."""
    if result is None or record.job().repeat is None:
        return []
    from executor.analysis.runs import over_runs
    from executor.jobs.compared import job_runs

    return over_runs(job_runs(record))


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
    rank: Annotated[
        int | None,
        typer.Option("--node", metavar="R", min=0, help="Of the node with this rank; 0 where not given."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Of all nodes, each line with its node's rank in front.")
    ] = False,
    repeat: Annotated[
        int | None,
        typer.Option(
            "--repeat", metavar="N", min=0, help="Of the run with this number alone, of a job with [repeat]."
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Print what the benchmark printed.

    On the first one of several nodes, unless another one or all of them are asked for.
    """
    from executor.jobs.repeats import pieces_of_repeat
    from executor.jobs.stream import pieces_of_nodes, position_of_last_lines
    from executor.records.follower import TRUNCATED
    from executor.records.nodes import node_of_rank, node_records
    from executor.view.log import LogView, RawLog

    if rank is not None and every:
        raise UsageError("--node and --all exclude each other; write one of them")
    if repeat is not None and (follow or lines is not None or boot or every):
        raise UsageError(
            "--repeat prints all of one run; --follow, --lines, --boot and --all do not go with it"
        )
    record = options.find(job)
    node = record.node() if rank is None else node_of_rank(record, rank)
    if boot:
        _print_consoles(record, options, rank=rank, json_=json_)
        return
    nodes = node_records(record) if every else [node]
    if rank is None and not every and not json_ and sys.stderr.isatty():
        _say_of_other_nodes(len(node_records(record)))
    positions = (
        {each.rank: position_of_last_lines(each, lines) for each in nodes} if lines is not None else {}
    )
    raw = not json_ and not sys.stdout.isatty()
    with (
        RawLog(follow=follow, with_ranks=every)
        if raw
        else LogView(json_=json_, follow=follow, with_ranks=every)
    ) as view:
        if repeat is not None:
            for piece in pieces_of_repeat(node, repeat):
                view.feed(piece)
            return

        def on_status(sentence: str) -> None:
            with view.paused():
                say(sentence)

        def on_truncated(which: int) -> None:
            view.print_rests(which)
            say(f"node {which}: {TRUNCATED}" if every else TRUNCATED)

        for which, piece in pieces_of_nodes(
            nodes,
            "log",
            positions=positions,
            follow=follow,
            on_truncated=on_truncated,
            on_status=on_status,
            backends=options.backends,
        ):
            view.feed(piece, which)


def metrics(
    job: JobArgument,
    options: JobOptions,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="table|jsonl|csv|bmf|gha|openmetrics",
            help="A table of statistics; the records; or, for other programs, one number for each metric.",
            autocompletion=choices("table", "jsonl", "csv", *HEADLINE_FORMATS),
        ),
    ] = "table",
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="Only this metric; can be given several times."),
    ] = None,
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
    """Print a job's metrics: statistics, records, numbers.

    Those formats are for continuous benchmarking: bmf for Bencher, gha for github-action-benchmark, openmetrics for Prometheus. Their
    numbers are the headlines of a job that succeeded; of one with several runs, the median of theirs.
    """
    from dataclasses import replace

    from executor.jobs.extract import chosen_set, stream_of
    from executor.jobs.stream import record_lines
    from executor.records.follower import benchmark_starts
    from executor.records.memory_floor import memory_floor_in
    from executor.records.nodes import node_records
    from executor.records.repeated_runs import failed_runs
    from executor.view.records import NamedRecords, print_csv, print_jsonl, print_statistics

    form = "jsonl" if json_ else form
    prints = {"table": print_statistics, "jsonl": print_jsonl, "csv": print_csv}.get(form)
    if prints is None and form not in HEADLINE_FORMATS:
        known = ", ".join(("table", "jsonl", "csv", *HEADLINE_FORMATS[:-1]))
        raise UsageError(f'--format: "{form}" is not known; write {known} or {HEADLINE_FORMATS[-1]}')
    if prints is None and follow:
        raise UsageError(f"--follow is for records; {form} has the numbers of a job that has ended")
    record = options.find(job)
    if extract_ is None:
        described, stream = record.job(), "metrics"
    else:
        described, number = chosen_set(record, extract_)
        stream = stream_of(number)
    if prints is None:
        _print_headlines(record, described, stream, form=form, names=name or ())
        return
    nodes = node_records(record)
    if prints is print_statistics:
        prints = partial(
            print_statistics,
            starts=benchmark_starts(nodes[0]),
            failed=failed_runs(record),
            memory_floor=memory_floor_in(record),
        )
    lines = record_lines(nodes, stream, follow=follow, on_status=say, backends=options.backends)
    named = NamedRecords(name) if name else None
    if named is None:
        malformed = prints(described, lines, follow)
    else:
        wanted = tuple(each for each in described.metrics if each.name in named.names)
        malformed = prints(
            replace(described, metrics=wanted, repeat=_turns(described)), named.only(lines), follow
        )
    if malformed.count:
        several = f"the metrics of the {len(nodes)} nodes of {record.job_id}"
        say(malformed.sentence(several if len(nodes) > 1 else nodes[0].url("metrics")))
    if named is not None:
        _say_unseen(record.job_id, described, named.unseen)


def _turns(job: Job) -> Repeat | None:
    """Return a job's `[repeat]` as far as it says which run is of which arm."""
    from dataclasses import replace

    return replace(job.repeat, until=None, metric=None) if job.repeat is not None else None


def _say_unseen(job_id: str, job: Job, unseen: Sequence[str]) -> None:
    """Say which metrics have no record yet. Raises UsageError for those that the job does not name."""
    known = sorted(metric.name for metric in job.named_metrics())
    strange = [each for each in unseen if each not in known]
    if strange:
        names = f"; it names {', '.join(known)}" if known else ""
        raise UsageError(f'{job_id} has no record of a metric "{strange[0]}"{names}')
    for each in unseen:
        say(f'{job_id} has no record of a metric "{each}"')


def _print_headlines(record: JobRecord, job: Job, stream: Stream, *, form: str, names: Sequence[str]) -> None:
    """Print what stands for the runs of a job, in a form of another program's."""
    from executor.analysis.runs import runs_of
    from executor.records.follower import benchmark_starts
    from executor.records.points import read_points
    from executor.records.reading import result_of
    from executor.view.exchange import headlines_of, text_of
    from executor.view.text import visible_bytes

    points = read_points(record, stream)
    runs = runs_of(
        record.job_id, job, result_of(record), points, started=benchmark_starts(record.node()).get(None)
    )
    headlines = headlines_of(runs, names)
    text, notes = text_of(form, headlines, job_id=record.job_id, benchmark=job.job.name or record.job_id)
    for sentence in (*runs.left_out, *notes):
        say(sentence)
    sys.stdout.buffer.write(visible_bytes(text) if sys.stdout.isatty() else text)
    sys.stdout.buffer.flush()


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
    from executor.planning.plan import metrics_of
    from executor.planning.request import JobRequest, read_request

    record = options.find(job)
    metrics = None
    if descriptor is not None:
        described, findings = read_request(JobRequest(file=descriptor))
        print_findings(findings)
        metrics = metrics_of(described)
    number = 0
    for each in extract_again(record, metrics, on_progress=say):
        number = each.number
        for warning in each.summary["warnings"]:
            say(f"node {each.rank}: {warning}")
        if json_:
            print_json(each.as_table())
        else:
            tell(f"node {each.rank}: {each.summary['records']:,} records of {each.summary['lines']:,} lines")
    if not json_:
        tell(f"{options.command('metrics', record.job_id, '--extract', str(number))} shows them")


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
    from executor.quantities import size

    record = options.find(job)
    files, total = 0, 0
    for each in fetch_job(record, folder):
        files, total = files + 1, total + each.bytes
        if json_:
            print_json({"path": str(each.path), "bytes": each.bytes})
        else:
            tell(f"{each.path}  {size(each.bytes)}")
    say(f"{record.job_id}: {files:,} file{'' if files == 1 else 's'} brought, {size(total)}")


def _say_of_other_nodes(count: int) -> None:
    if count > 1:
        say(f"this is node 0 of {count}; --node R shows another one, --all shows all of them")


def _print_consoles(record: JobRecord, options: JobOptions, *, rank: int | None, json_: bool) -> None:

    for each in options.backends.of(record).consoles(record, on_status=say):
        if rank is not None and each.node != rank:
            continue
        if json_:
            print_json({"instance_id": each.instance_id, "state": each.state, "console": each.text})
            continue
        tell(f"== {each.instance_id} ({each.state}), node {each.node}")
        print("\n".join(safe_line(line) for line in each.text.splitlines()) or "(its console is empty)")
