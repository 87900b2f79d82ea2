"""Commands that look at jobs."""

from __future__ import annotations

import os
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from bai_agent.job.schema.durations import parse_duration
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
from executor.documents.text import safe_line, tell
from executor.errors import UsageError

HEADLINE_FORMATS = ("bmf", "gha", "openmetrics")
"""Formats of `bai metrics` with one number for each metric of a job."""

# `bai --help` and each completion in a shell load this module, so each command imports what it alone needs.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bai_agent.job.descriptor import Job, Repeat
    from bai_agent.job.record import NodeRecord, Stream
    from bai_agent.job.record_types import JobResult
    from executor.analysis.measured_runs import OverRuns
    from executor.jobs.job_list import JobFilter
    from executor.records.reading import MalformedLines
    from executor.records.series_lines import RecordLines
    from executor.view.log import LogView, RawLog


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

    Lists jobs on this machine and, if a bucket is configured, jobs on EC2. Exit code 5 if one of the two
    cannot be read.
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
        raise typer.Exit(ExitCode.OURS)


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
        since=_moment(since) if since is not None else None,
    )


def _moment(since: str) -> int:
    """Return the time (ms UTC) that long ago. Raises UsageError."""
    try:
        return now_ms() - round(parse_duration(since).total_seconds() * 1000)
    except ValueError as error:
        raise UsageError(f"--since: {error}") from error


def _checked_status(word: str) -> str:
    """Return a status or outcome that jobs may have. Raises UsageError."""
    from difflib import get_close_matches

    from executor.records.job_status import listed_words

    known = listed_words()
    if word.lower() in known:
        return word
    near = get_close_matches(word.lower(), known, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"write one of {', '.join(sorted(known))}"
    raise UsageError(f'--status: "{word}" is not a status or outcome; {hint}')


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
            help="And what was set with --set, what moves data between several nodes, what bai itself took of the machines, the last hints of a benchmark that gives some, and what it ran on: machine, image, processors, GPUs, Python and packages.",
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Show the status of a job.

    Shows its phase, the last value of each metric, each of several nodes, and what to do if its agent has
    died. For a group of jobs, the status of each of them.
    """
    from executor.documents.screen import show_blocks
    from executor.documents.status import StatusView, status_as_json, status_blocks
    from executor.jobs.job_group import GroupNamedError
    from executor.jobs.job_list import last_values, measurements_of
    from executor.jobs.wait import wait_for_end
    from executor.records.generation_status import last_hints, size_status
    from executor.records.generations import generations_of
    from executor.records.job_status import unknown_status
    from executor.records.machine_facts import SUMMARY_NODES, environments
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
        machines=list(environments(record, most=None if verbose else SUMMARY_NODES)),
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
        raise typer.Exit(ExitCode.OURS)
    if wait:
        raise typer.Exit(result.exit_code if result is not None else ExitCode.OURS)


def _over_runs(record: JobRecord, result: JobResult | None) -> list[OverRuns]:
    """Return the metrics over the runs of a job that has ended; empty without `[repeat]`."""
    if result is None or record.job().repeat is None:
        return []
    from executor.analysis.measured_runs import over_runs
    from executor.jobs.compared import job_runs

    return over_runs(job_runs(record))


def logs(
    job: JobArgument,
    options: JobOptions,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only this many last lines.")
    ] = None,
    boot: Annotated[
        bool, typer.Option("--boot", help="Consoles of its machines instead, for a job on EC2.")
    ] = False,
    rank: Annotated[
        int | None,
        typer.Option("--node", metavar="R", min=0, help="Log of the node with this rank; by default 0."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Logs of all nodes, each line after its node's rank.")
    ] = False,
    repeat: Annotated[
        int | None,
        typer.Option(
            "--repeat", metavar="N", min=0, help="Only the run with this number, of a job with [repeat]."
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Print the output of the benchmark.

    By default the log of the first node, if there are several; for an elastic job that of the node with rank
    0, from node to node.
    """
    from executor.jobs.stream import pieces_of_repeat
    from executor.records.nodes import NodeListing, node_of_rank

    others = {"--follow": follow, "--lines": lines is not None, "--boot": boot, "--all": every}
    if rank is not None and every:
        raise UsageError("--node and --all exclude each other; write one of them")
    if repeat is not None and any(others.values()):
        given = " and ".join(name for name, is_given in others.items() if is_given)
        raise UsageError(f"--repeat prints all of one run; leave out {given}")
    record = options.find(job)
    node = record.node() if rank is None else node_of_rank(record, rank)
    if boot:
        _print_consoles(record, options, rank=rank, json_=json_)
        return
    listing = NodeListing(record)
    if rank is None and not every and not json_ and not listing.is_elastic and sys.stderr.isatty():
        _say_of_other_nodes(len(listing.look()))
    with _log_view(json_=json_, follow=follow, with_ranks=every) as view:
        if repeat is not None:
            for piece in pieces_of_repeat(node, repeat):
                view.feed(piece)
        elif rank is None and not every and listing.is_elastic:
            _print_leads(view, record, options, follow=follow, lines=lines)
        else:
            shown = listing.look if every else lambda: [node]
            _print_logs(view, shown, options, follow=follow, lines=lines, with_ranks=every)


def _log_view(*, json_: bool, follow: bool, with_ranks: bool) -> LogView | RawLog:
    from executor.view.log import LogView, RawLog

    if not json_ and not sys.stdout.isatty():
        return RawLog(follow=follow, with_ranks=with_ranks)
    return LogView(json_=json_, follow=follow, with_ranks=with_ranks)


def _print_logs(
    view: LogView | RawLog,
    list_nodes: Callable[[], Sequence[NodeRecord]],
    options: JobOptions,
    *,
    follow: bool,
    lines: int | None,
    with_ranks: bool,
) -> None:
    """Print the logs of nodes. lines: number of last lines to print; None: all."""
    from executor.jobs.stream import pieces_of_nodes, position_of_last_lines
    from executor.records.follower import TRUNCATED

    nodes = list_nodes()
    positions = (
        {each.rank: position_of_last_lines(each, lines) for each in nodes} if lines is not None else {}
    )

    def on_truncated(rank: int) -> None:
        view.print_rests(rank)
        say(f"node {rank}: {TRUNCATED}" if with_ranks else TRUNCATED)

    for rank, piece in pieces_of_nodes(
        nodes,
        "log",
        positions=positions,
        follow=follow,
        on_truncated=on_truncated,
        on_status=partial(_say_between, view),
        backends=options.backends,
        again=list_nodes,
    ):
        view.feed(piece, rank)


def _print_leads(
    view: LogView | RawLog, record: JobRecord, options: JobOptions, *, follow: bool, lines: int | None
) -> None:
    """Print the log of the node with rank 0 of an elastic job, with a message wherever it changes to another
    node."""
    from executor.jobs.stream import pieces_of_leads
    from executor.records.follower import TRUNCATED

    def say_after_rest(sentence: str) -> None:
        view.print_rests()
        say(sentence)

    for rank, piece in pieces_of_leads(
        record,
        lines=lines,
        follow=follow,
        on_lead=lambda lead: say_after_rest(f"output {lead.sentence}"),
        on_truncated=lambda node: say_after_rest(f"node {node}: {TRUNCATED}"),
        on_status=partial(_say_between, view),
        backends=options.backends,
    ):
        view.feed(piece, rank)


def _say_between(view: LogView | RawLog, sentence: str) -> None:
    with view.paused():
        say(sentence)


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
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            metavar="N",
            min=0,
            help="Only the generation with this number, of a job that was started several times.",
        ),
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

    Those formats are for continuous benchmarking: bmf for Bencher, gha for github-action-benchmark,
    openmetrics for Prometheus. Their numbers are the headlines of a job that succeeded; with several runs,
    the median of the runs' headlines.
    """

    from executor.jobs.extract import chosen_set, stream_of
    from executor.jobs.stream import record_lines
    from executor.records.counted_values import failed_runs, memory_floor_in
    from executor.records.follower import benchmark_starts
    from executor.records.nodes import NodeListing
    from executor.view.records import GenerationRecords, print_csv, print_jsonl, print_statistics

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
        _print_headlines(record, described, stream, form=form, names=name or (), generation=generation)
        return
    listing = NodeListing(record)
    nodes = listing.look()
    if prints is print_statistics:
        prints = partial(
            print_statistics,
            starts=benchmark_starts(nodes[0]),
            failed=failed_runs(record),
            memory_floor=memory_floor_in(record),
        )
    lines = record_lines(
        nodes, stream, follow=follow, on_status=say, backends=options.backends, again=listing.look
    )
    only = GenerationRecords(generation) if generation is not None else None
    if only is not None:
        _require_generations(record, described)
        lines = only.only(lines)
    malformed = _print_named(record.job_id, described, lines, name or (), partial(prints, follow=follow))
    if only is not None and not only.has_seen:
        raise UsageError(f"--generation {generation}: {record.job_id} has no record of it")
    if malformed.count:
        several = f"the metrics of the {len(nodes)} nodes of {record.job_id}"
        say(malformed.sentence(several if len(nodes) > 1 else nodes[0].url("metrics")))


def _print_named(
    job_id: str,
    job: Job,
    lines: Iterator[RecordLines],
    names: Sequence[str],
    prints: Callable[[Job, Iterator[RecordLines]], MalformedLines],
) -> MalformedLines:
    """Print the records of the named metrics, or all; return the lines that were passed over."""
    from dataclasses import replace

    from executor.view.records import NamedRecords

    if not names:
        return prints(job, lines)
    named = NamedRecords(names)
    wanted = tuple(each for each in job.metrics if each.name in named.names)
    malformed = prints(replace(job, metrics=wanted, repeat=_turns(job)), named.only(lines))
    _say_unseen(job_id, job, named.unseen)
    return malformed


def _turns(job: Job) -> Repeat | None:
    """Return the part of a job's `[repeat]` that assigns runs to arms."""
    from dataclasses import replace

    return replace(job.repeat, until=None, metric=None) if job.repeat is not None else None


def _say_unseen(job_id: str, job: Job, unseen: Sequence[str]) -> None:
    """Report metrics without a record. Raises UsageError for names that the job does not have."""
    known = sorted(metric.name for metric in job.named_metrics())
    strange = [each for each in unseen if each not in known]
    if strange:
        names = f"; it names {', '.join(known)}" if known else ""
        raise UsageError(f'{job_id} has no record of a metric "{strange[0]}"{names}')
    for each in unseen:
        say(f'{job_id} has no record of a metric "{each}"')


def _require_generations(record: JobRecord, job: Job) -> None:
    """Raise UsageError if a job has no generations."""
    if not job.has_generations:
        raise UsageError(f"--generation: {record.job_id} is started once, as it has no restarts")


def _print_headlines(
    record: JobRecord,
    job: Job,
    stream: Stream,
    *,
    form: str,
    names: Sequence[str],
    generation: int | None,
) -> None:
    """Print the headlines of a job, or of one generation, in the format of another program."""
    from executor.analysis.measured_runs import runs_of
    from executor.documents.text import visible_bytes
    from executor.export.exchange import headlines_of, text_of
    from executor.records.follower import benchmark_starts
    from executor.records.points import read_points
    from executor.records.reading import result_of

    points = read_points(record, stream)
    starts = benchmark_starts(record.node())
    result = result_of(record)
    if generation is not None:
        _require_generations(record, job)
        if result is not None and all(each.generation != generation for each in result.generations or ()):
            raise UsageError(f"--generation {generation}: {record.job_id} has no such generation")
    runs = runs_of(record.job_id, job, result, points, starts=starts, generation=generation)
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
            help="A benchmark descriptor with the metrics to search for, instead of the job's own.",
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Extract metrics again, from the log that a job has kept.

    Use it for a forgotten metric, a wrong pattern, or output that the run had no time to search. The records
    become a separate set, which `bai metrics JOB --extract last` shows; the run's own records do not change.
    """
    from executor.jobs.extract import extract_again
    from executor.planning.plan import plan_metrics
    from executor.planning.request import JobRequest, read_request

    record = options.find(job)
    metrics = None
    if descriptor is not None:
        described, findings = read_request(JobRequest(file=descriptor, variables=dict(os.environ)))
        print_findings(findings)
        metrics = plan_metrics(described)
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
    checkpoint: Annotated[
        bool,
        typer.Option("--checkpoint", help="Also the job's newest checkpoint, into a folder of its name."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Copy all of a job into a folder.

    Result, log, metrics, events and artifacts of all its nodes. Existing files are never overwritten.
    A second call continues an interrupted one, and copies new data.
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
