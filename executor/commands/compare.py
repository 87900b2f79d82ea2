"""`bai compare` draws conclusions from runs. `bai ab` runs several descriptors in turns, in one job on one
machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bai_agent.job.outcome import ExitCode
from executor.commands.job_options import JobOptions, KeyOptions, check_output
from executor.commands.options import DataRootOption, JobIdOption, JsonOption, OnOption, job_ids_of
from executor.commands.printing import print_json, say
from executor.errors import UsageError

# `bai --help` and each shell completion load this module, so modules that a comparison needs are imported in
# functions.
if TYPE_CHECKING:
    from executor.analysis.baseline import AgainstHistory
    from executor.analysis.comparison import Comparison
    from executor.analysis.condition import Condition
    from executor.documents.document import Block
    from executor.jobs.compared import RunReader, Side

FOUND = 1
"""Exit code if a metric is worse, or if a condition of `--fail-if` holds."""
UNJUDGED = 2


def compare(
    options: JobOptions,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB... [vs JOB...]",
            help='Job ids, beginnings of job ids, "last", or KEY=VALUE for all jobs with a label. Each job is a side. With the word "vs" between jobs, each group of jobs is a side. All other sides are compared with the first side.',
            autocompletion=job_ids_of,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="KEY=VALUE",
            help="Compare one job (by default the newest with this label) with the history of jobs that have the label.",
        ),
    ] = None,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, help="Number of newest jobs in the history.")
    ] = 20,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Fail if a metric changed in this way, e.g. 'throughput < -5%'; can be repeated. With --fail-if, only such conditions set the exit code.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Also write a page (HTML) that shows every run."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Compare runs: is one side better, and how sure is that?

    A job has one run, or several with [repeat]. A single group of jobs is compared combination by
    combination. Exit code 1: a metric with a better direction is worse, or a condition of --fail-if holds.
    Exit code 2: a metric with a better direction, or a condition of --fail-if, cannot be judged.
    """
    from executor.analysis.condition import parse_condition
    from executor.jobs.compared import RunReader
    from executor.jobs.job_group import GroupNamedError

    check_output(output, ("html", "htm"))
    conditions = [parse_condition(each) for each in fail_if or ()]
    if jobs is not None and len(jobs) == 1 and baseline is None and not conditions:
        try:
            options.find(jobs[0])
        except GroupNamedError as named:
            from executor.commands.group_commands import compare_group

            compare_group(named.group, options, output=output, json_=json_)
            return
        except UsageError:
            pass  # a label, or a mistake that is reported later
    reader = RunReader(options.find, options.stores)
    if baseline is not None:
        found = _against_history(reader, jobs or [], baseline, last, options)
    elif jobs:
        found = _between_sides(reader, jobs)
    else:
        raise UsageError(
            "no job is named; name two or more jobs, or compare the newest job that has a label: --baseline KEY=VALUE"
        )
    if json_:
        for table in found.tables:
            print_json(table)
    else:
        from executor.documents.screen import show_blocks

        show_blocks(found.blocks)
    if output is not None:
        from executor.report.html import html_page

        output.write_text(html_page(found.title, found.blocks), encoding="utf-8")
        say(f"{output} shows every run")
    raise typer.Exit(_exit_code(found.compared, conditions))


class _Found(NamedTuple):
    """A comparison that the command prints, and from which it computes the exit code."""

    title: str
    blocks: Sequence[Block]
    tables: Sequence[Mapping[str, Any]]
    compared: Sequence[Comparison | AgainstHistory]


def _between_sides(reader: RunReader, words: Sequence[str]) -> _Found:
    from executor.documents.comparison_document import pair_blocks
    from executor.jobs.compared_pair import compared_pairs

    sides = reader.sides(words)
    pairs = compared_pairs(sides, earlier_scatter=_earlier_scatter(reader, sides))
    return _Found(
        "Comparison of runs",
        [block for pair in pairs for block in pair_blocks(pair)],
        [pair.as_table() for pair in pairs],
        [pair.comparison for pair in pairs],
    )


def _against_history(
    reader: RunReader, words: Sequence[str], label: str, last: int, options: JobOptions
) -> _Found:
    from executor.documents.comparison_document import history_blocks
    from executor.jobs.compared_pair import compared_history

    if len(words) > 1:
        raise UsageError(f"--baseline is for one job, but {len(words)} are named")
    newest = reader.job(options.find(words[0])) if words else None
    found = compared_history(reader, label, newest, last=last)
    blocks = history_blocks(
        found.banded,
        name=found.newest.runs.job_id,
        history=found.history,
        differences=found.differences,
        left_out=found.left_out,
    )
    return _Found("A run against its history", list(blocks), [found.as_table()], [found.banded])


def _earlier_scatter(reader: RunReader, sides: Sequence[Side]) -> dict[str, float]:
    """Return the scatter of earlier runs of the first side's job, by metric. The table is empty if each side
    has two or more runs."""
    if min(len(side.runs) for side in sides) >= 2:
        return {}
    known = {job.runs.job_id for side in sides for job in side.jobs}
    return reader.earlier_scatter(sides[0], but=known)


def _exit_code(compared: Sequence[Comparison | AgainstHistory], conditions: Sequence[Condition]) -> int:
    """Print which conditions of `--fail-if` hold, and which cannot be judged and why. Return the exit
    code."""
    from executor.analysis.condition import judge

    if not conditions:
        return _worst(any(each.worse for each in compared), any(each.unjudged for each in compared))
    judged = judge(conditions, compared)
    for each in judged:
        if each.holds is not False:
            what = "holds" if each.holds else f"cannot be judged, {each.why}"
            say(f"{each.condition.text}: {what}")
    return _worst(any(each.holds for each in judged), any(each.holds is None for each in judged))


def _worst(found: bool, unjudged: bool) -> int:
    return FOUND if found else UNJUDGED if unjudged else 0


def ab(
    first: Annotated[
        Path, typer.Argument(metavar="A.toml", help="The baseline descriptor of the comparison.")
    ],
    others: Annotated[
        list[Path], typer.Argument(metavar="B.toml [C.toml...]", help="One or more other descriptors.")
    ],
    options: JobOptions,
    keys: KeyOptions,
    runs: Annotated[
        int | None, typer.Option("--runs", metavar="N", min=2, help="Runs of each descriptor [default: 10].")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="2%", help="Continue until the interval of the difference is this narrow."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, help="Seed for the order of the runs; random by default."),
    ] = None,
    on: OnOption = None,
    job_id: JobIdOption = None,
    data_root: DataRootOption = None,
    json_: JsonOption = False,
) -> None:
    """Compare benchmarks that take turns on one machine.

    The order of the runs is random. The descriptors may differ in command, arguments, scripts, data,
    environment variables, labels and metrics. Exit code: that of the job if the job does not succeed. If the
    job succeeds, the exit code is 1 if a metric with a better direction is worse, as in `bai compare`.
    """
    from executor.commands.submission import run_to_end, seed_for
    from executor.planning.request import JobRequest, OtherArms

    if runs is not None and until is not None:
        raise UsageError("--runs and --until exclude each other; write one of them")
    arms = OtherArms(
        files=tuple(others),
        runs=runs,
        until=_share(until) if until is not None else None,
        seed=seed if seed is not None else seed_for(job_id),
    )
    request = JobRequest(
        file=first,
        on=on,
        data_root=data_root,
        overrides=keys.overrides(),
        variables=dict(os.environ),
        other_arms=arms,
    )
    submitted, there, code = run_to_end(request, options, job_id=job_id, json_=json_)
    if code != ExitCode.SUCCEEDED:
        raise typer.Exit(code)
    if (repeat := submitted.job.repeat) is not None:
        say(f"the order of the runs was drawn with --seed {repeat.seed}")
    compare(there, [submitted.record.job_id], json_=json_)


def _share(text: str) -> float:
    """Convert a percentage such as "2%" to 0.02. Raises UsageError."""
    from pydantic import TypeAdapter, ValidationError

    from bai_agent.job.schema.field_types import PositivePercentage

    try:
        share: float = TypeAdapter(PositivePercentage).validate_python(text)
    except ValidationError:
        raise UsageError(f'--until: "{text}" is not a percentage above 0; write for example 2%') from None
    return share
