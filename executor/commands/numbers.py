"""Commands that print the metrics of a job, extract them again, and export them."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import replace
from executor.commands.job_options import JobOptions, check_choice
from executor.commands.options import JobArgument, JsonOption, choices
from executor.commands.printing import print_findings, print_json, print_result, say
from executor.documents.text import tell
from executor.errors import UsageError

_FORMATS = ("table", "jsonl", "csv", "bmf", "gha", "openmetrics")

# `bai --help` and each shell completion load this module, so modules that only one command needs are imported
# in its function.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bai_agent.job.descriptor import Job
    from bai_agent.job.record import Stream
    from executor.records.reading import MalformedLines
    from executor.records.series_lines import RecordLines


def metrics(
    job: JobArgument,
    options: JobOptions,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(_FORMATS),
            help="The format: a table of statistics, the records, or one number per metric for other programs.",
            autocompletion=choices(*_FORMATS),
        ),
    ] = "table",
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="Only this metric; can be repeated."),
    ] = None,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            metavar="N",
            min=0,
            help="Only the generation with this number, for a job that was started several times.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job ends.")] = False,
    extract_: Annotated[
        str | None,
        typer.Option(
            "--extract",
            metavar="N|last",
            help="Use the records that `bai extract` has made, instead of the run's own.",
            autocompletion=choices("last"),
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Print a job's metrics: statistics, records, numbers.

    Three formats are for continuous benchmarking: bmf for Bencher, gha for github-action-benchmark,
    openmetrics for Prometheus. These three formats contain the headlines of a successful job. If the job has
    several runs, each number is the median of the runs' headlines.
    """

    from executor.jobs.extract import chosen_set, stream_of
    from executor.jobs.stream import record_lines
    from executor.records.counted_values import failed_runs, memory_floor_in
    from executor.records.follower import benchmark_starts
    from executor.records.nodes import NodeListing
    from executor.view.records import GenerationRecords, print_csv, print_jsonl, print_statistics

    form = "jsonl" if json_ else form
    check_choice("--format", form, _FORMATS)
    prints = {"table": print_statistics, "jsonl": print_jsonl, "csv": print_csv}.get(form)
    if prints is None and follow:
        raise UsageError(f"--follow needs records, but --format {form} has only the numbers of an ended job")
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
        raise UsageError(f"--generation {generation}: {record.job_id} has no record of that generation")
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
    """Print the records of the named metrics, or of all metrics. Return which lines were skipped because they
    are not records."""
    from executor.view.records import NamedRecords

    if not names:
        return prints(job, lines)
    named = NamedRecords(names)
    wanted = tuple(each for each in job.metrics if each.name in named.names)
    # Of `[repeat]`, only the part that assigns runs to arms is needed here.
    turns = replace(job.repeat, until=None, metric=None) if job.repeat is not None else None
    malformed = prints(replace(job, metrics=wanted, repeat=turns), named.only(lines))
    _say_unseen(job_id, job, named.unseen)
    return malformed


def _say_unseen(job_id: str, job: Job, unseen: Sequence[str]) -> None:
    """Print which of the named metrics have no record. Raises UsageError for a metric that the job does not
    have."""
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
        raise UsageError(f"--generation: {record.job_id} has no generations, because the job has no restarts")


def _print_headlines(
    record: JobRecord,
    job: Job,
    stream: Stream,
    *,
    form: str,
    names: Sequence[str],
    generation: int | None,
) -> None:
    """Print the headlines of a job, or of one of its generations, in the format of another program."""
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
    """Extract metrics again from a job's saved log.

    Use this command for a forgotten metric, a wrong pattern, or output that the run had no time to search.
    The records become a separate set, which `bai metrics JOB --extract last` shows; the run's own records do
    not change.
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
        tell(f"{options.command('metrics', record.job_id, '--extract', str(number))} shows the records")


def _to_mlflow(record: JobRecord, tracking_uri: str | None, experiment: str | None, *, json_: bool) -> None:
    from executor.export.facts import job_facts
    from executor.export.mlflow import export_to_mlflow

    if tracking_uri is None and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise UsageError("MLflow's server is not named; give --tracking-uri URI, or set MLFLOW_TRACKING_URI")
    facts = job_facts(record)
    name = experiment or facts.job.job.name or "bai"
    for each in export_to_mlflow(facts, uri=tracking_uri, experiment=name):
        table = {"run_id": each.run_id, "new": each.new, "values": each.values}
        print_result(table, f"{each.run_id}  {each.values:,} values", json_=json_)
    say(f'{record.job_id} is in MLflow\'s experiment "{name}"')


def _to_tensorboard(record: JobRecord, folder: Path | None, *, json_: bool) -> None:
    from executor.export.facts import job_facts
    from executor.export.tensorboard import export_to_tensorboard

    if folder is None:
        raise UsageError("the folder is not named; give --dir DIR")
    place = str(export_to_tensorboard(job_facts(record), folder))
    print_result({"folder": place}, place, json_=json_)
    say(f"{record.job_id} is exported; show it: tensorboard --logdir {folder}")


_TARGETS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "mlflow": (_to_mlflow, ("--tracking-uri", "--experiment")),
    "tensorboard": (_to_tensorboard, ("--dir",)),
}
"""For each target of `bai export`: the function that exports a job, and the options of `bai export` whose
values the function gets."""


def export(
    job: JobArgument,
    options: JobOptions,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="|".join(_TARGETS),
            help="The system to export to.",
            autocompletion=choices(*_TARGETS),
        ),
    ],
    tracking_uri: Annotated[
        str | None,
        typer.Option("--tracking-uri", metavar="URI", help="MLflow's server. Unset: MLFLOW_TRACKING_URI."),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            "--experiment", metavar="NAME", help="MLflow's experiment. Unset: the benchmark's name."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="The folder for TensorBoard; the job gets a folder in it."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Export a job's metrics, for example to MLflow.

    The job's parameters are also exported. If a job is exported again, MLflow gets only new values, and
    TensorBoard's files are replaced.
    """
    check_choice("--to", to, tuple(_TARGETS))
    given = {"--tracking-uri": tracking_uri, "--experiment": experiment, "--dir": folder}
    write, own = _TARGETS[to]
    for option, value in given.items():
        if value is not None and option not in own:
            raise UsageError(f"{option} is not for --to {to}")
    write(options.find(job), *(given[option] for option in own), json_=json_)
