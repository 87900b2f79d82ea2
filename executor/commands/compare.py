"""`bai compare`: what runs allow to conclude."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from executor.commands.job_options import JobOptions
from executor.commands.options import JsonOption, check_output, job_ids_of, print_json, say
from executor.errors import UsageError

# `bai --help` and each completion in a shell load this module: what a comparison needs is imported there.
if TYPE_CHECKING:
    from executor.analysis.baseline import AgainstHistory
    from executor.analysis.comparison import Comparison
    from executor.analysis.condition import Condition
    from executor.jobs.compared import RunReader, Side
    from executor.jobs.compared_pair import ComparedPair

FOUND = 1
"""The exit code where a metric has become worse, or a condition of `--fail-if` holds."""
UNJUDGED = 2


def compare(
    options: JobOptions,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB... [vs JOB...]",
            help='Job ids, the beginnings of them, "last", or KEY=VALUE for all jobs with a label. Each is a side, or all between the words "vs" are one; the first side is what the others are compared with.',
            autocompletion=job_ids_of,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="KEY=VALUE",
            help="Compare one job (the newest with this label where none is named) with the history of jobs that have the label.",
        ),
    ] = None,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, help="So many jobs of the history, the newest.")
    ] = 20,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="A change for which to fail, e.g. 'throughput < -5%'; can be repeated. Only these decide the exit code then.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write a page (HTML) that shows every run, too."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Compare runs: is one side better, and how sure is that?

    A job is one run, with [repeat] many. Exit code 1: a metric that names its better direction is worse, or a condition
    of --fail-if holds; 2: such a condition, or such a metric, cannot be judged.
    """
    from executor.analysis.condition import parse_condition
    from executor.jobs.compared import RunReader
    from executor.jobs.compared_pair import compared_pairs

    check_output(output, ("html", "htm"))
    conditions = [parse_condition(each) for each in fail_if or ()]
    reader = RunReader(options.find, options.stores)
    if baseline is not None:
        banded = _against_history(reader, jobs or [], baseline, last, options, json_=json_, output=output)
        raise typer.Exit(_exit_code([banded], conditions))
    if not jobs:
        raise UsageError(
            "which jobs? Name two or more, or --baseline KEY=VALUE for the newest one with a label"
        )
    sides = reader.sides(jobs)
    pairs = compared_pairs(sides, earlier_scatter=_earlier_scatter(reader, sides))
    if json_:
        for pair in pairs:
            print_json(pair.as_table())
    else:
        _show(pairs)
    if output is not None:
        from executor.view.comparison_page import comparison_page

        page = comparison_page([(*each.names, each.comparison, each.differences) for each in pairs])
        output.write_text(page, encoding="utf-8")
        say(f"{output} shows every run")
    raise typer.Exit(_exit_code([each.comparison for each in pairs], conditions))


def _earlier_scatter(reader: RunReader, sides: Sequence[Side]) -> dict[str, float]:
    """Return how much earlier runs scatter, by metric, if a side has a single run and so says nothing of it."""
    if min(len(side.runs) for side in sides) >= 2:
        return {}
    known = {job.runs.job_id for side in sides for job in side.jobs}
    return reader.earlier_scatter(sides[0], but=known)


def _show(pairs: Sequence[ComparedPair]) -> None:
    from rich.text import Text

    from executor.analysis.comparison import METHOD
    from executor.view.comparison import comparison_view
    from executor.view.listing import screen_width, show
    from executor.view.text import speaks_unicode

    for i, pair in enumerate(pairs):
        if i:
            show(Text())
        show(
            comparison_view(
                pair.comparison,
                names=pair.names,
                counts=pair.counts,
                differences=pair.differences,
                left_out=pair.left_out,
                method=METHOD,
                width=screen_width(),
                unicode=speaks_unicode(),
            )
        )


def _exit_code(compared: Sequence[Comparison | AgainstHistory], conditions: Sequence[Condition]) -> int:
    """Say which conditions hold, and which cannot be judged and why; return the exit code."""
    from executor.analysis.condition import judge

    if not conditions:
        if any(each.worse for each in compared):
            return FOUND
        return UNJUDGED if any(each.unjudged for each in compared) else 0
    judged = judge(conditions, compared)
    for each in judged:
        if each.holds:
            say(f"{each.condition.text}: so it is")
        elif each.holds is None:
            say(f"{each.condition.text}: cannot be judged, {each.why}")
    if any(each.holds for each in judged):
        return FOUND
    return UNJUDGED if any(each.holds is None for each in judged) else 0


def _against_history(
    reader: RunReader,
    words: list[str],
    label: str,
    last: int,
    options: JobOptions,
    *,
    json_: bool,
    output: Path | None,
) -> AgainstHistory:
    """Print how a job lies to the history, write the page `output` too; return how."""
    from executor.analysis.baseline import METHOD, against_history
    from executor.analysis.differences import descriptor_differences, environment_differences
    from executor.jobs.compared import by_arm

    if len(words) > 1:
        raise UsageError(f"--baseline is for one job, and {len(words)} are named")
    if words:
        newest = reader.job(options.find(words[0]))
    else:
        found = reader.labelled(label, last=1)
        if not found:
            raise UsageError(f"there is no job with the label {label} that has succeeded")
        newest = found[0]
    if not newest.runs.runs:
        raise UsageError(f"{newest.runs.job_id} has no run that succeeded: {'; '.join(newest.runs.left_out)}")
    # Those after it are no history of it.
    before = [
        job
        for job in reader.labelled(label, but=[newest.runs.job_id])
        if job.runs.runs and job.runs.runs[0].started <= newest.runs.runs[0].started
    ][-last:]
    elsewhere = [job for job in before if job.machines != newest.machines]
    before = [job for job in before if job not in elsewhere]
    left_out = [
        f"{job.runs.job_id} ran on {job.machines}, not on {newest.machines}: no history of it"
        for job in elsewhere
    ]
    if not before:
        why = f": {'; '.join(left_out)}" if left_out else ""
        raise UsageError(f"there is no earlier job with the label {label} that has succeeded{why}")
    runs = [run for job in before for run in job.runs.runs]
    banded = against_history(by_arm(runs), by_arm(newest.runs.runs))
    differences = [
        *environment_differences([each for job in before for each in job.environments], newest.environments),
        *descriptor_differences([job.described() for job in before], [newest.described()]),
    ]
    left_out += [sentence for job in (*before, newest) for sentence in job.runs.left_out]
    count = sum(len(job.runs.runs) for job in before)
    history = f"{len(before)} job{'' if len(before) == 1 else 's'} with {label}, {count} run{'' if count == 1 else 's'}"
    if json_:
        print_json(
            {
                "run": newest.runs.job_id,
                "history": [job.runs.job_id for job in before],
                "left_out": left_out,
                "differences": [each.as_table() for each in differences],
                "metrics": banded.tables(),
            }
        )
    else:
        from executor.view.comparison import band_view
        from executor.view.listing import screen_width, show
        from executor.view.text import speaks_unicode

        show(
            band_view(
                banded,
                name=newest.runs.job_id,
                history=history,
                differences=differences,
                left_out=left_out,
                method=METHOD,
                width=screen_width(),
                unicode=speaks_unicode(),
            )
        )
    if output is not None:
        from executor.view.comparison_page import band_page

        page = band_page(banded, name=newest.runs.job_id, history=history, differences=differences)
        output.write_text(page, encoding="utf-8")
        say(f"{output} shows every run")
    return banded
