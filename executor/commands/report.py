"""The command that writes a report on a job."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from bai_agent.job.run_directory import now_ms
from executor.commands.job_options import JobOptions, check_choice, check_output
from executor.commands.options import JobArgument, JsonOption, choices
from executor.commands.printing import say
from executor.documents.text import tell
from executor.errors import UsageError

# `bai --help` and each shell completion load this module, so modules that the command needs are imported in
# functions.
if TYPE_CHECKING:
    from executor.report.contents import Report

_FORMATS = ("html", "md", "json", "csv")


def report(
    job: JobArgument,
    options: JobOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help='The file to write; "-" is standard output. [default: JOB.html; other formats: standard output]',
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(_FORMATS),
            help="html is a page, md has tables for a comment, json and csv have all values. [default: the suffix of FILE, otherwise html]",
            autocompletion=choices(*_FORMATS),
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Write a report on a job, as a page or in other formats.

    The page shows plots, figures, the machine, its software, and how to repeat the job. The page is one HTML
    file that needs no network. A report can also be written while the job runs. The report on a group of jobs
    shows the combinations, and a plot of their headline.
    """
    from executor.jobs.job_group import GroupNamedError
    from executor.report.contents import report_of

    if json_ and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} ask for two formats; leave one of them out")
    check_output(output)
    kind = _format("json" if json_ else form, output)
    if open_ and (kind != "html" or output == Path("-")):
        raise UsageError(
            "--open needs a page in a file; write --format html or no --format, and a file name after -o"
        )
    try:
        record = options.find(job)
    except GroupNamedError as named:
        from executor.commands.group_commands import group_comparison, write_page

        compared, output = group_comparison(named.group, options), _file(output, kind, job)
        write_page(compared, kind, output)
        _tell(output, open_=open_)
        return
    made = report_of(record, now=now_ms(), prices=options.settings.prices)
    if made.points.malformed.count:
        say(made.points.malformed.sentence(f"the metrics of {record.job_id}"))
    file = _file(output, kind, record.job_id)
    _write(made, kind, file)
    _tell(file, open_=open_)


def _file(output: Path | None, kind: str, name: str) -> Path | None:
    """Return the path of the report's file; None for standard output."""
    if output is None and kind == "html":
        return Path(f"{name}.html")
    return None if output == Path("-") else output


def _tell(file: Path | None, *, open_: bool) -> None:
    """Print the name of the report's file, and show the file in a browser if the user requested this."""
    if file is not None:
        tell(str(file))
    if file is not None and open_:
        _show(file)


def _show(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.absolute().as_uri()):
        say(f"no browser could be started; open {page} yourself")


def _format(form: str | None, output: Path | None) -> str:
    """Return the report's format: the one that --format names, or else the one of the file's suffix."""
    if form is not None:
        check_choice("--format", form, _FORMATS)
        return form
    ending = output.suffix.removeprefix(".").lower() if output is not None else ""
    ending = {"htm": "html", "markdown": "md", "": "html"}.get(ending, ending)
    if ending not in _FORMATS:
        raise UsageError(
            f'-o {output}: no report is written as "{ending}"; end it with {", ".join(_FORMATS[:-1])} or {_FORMATS[-1]}, or add --format'
        )
    return ending


def _write(report: Report, kind: str, output: Path | None) -> None:
    """Write the report's file completely or not at all. An existing file is replaced only after the new one
    is complete."""
    if output is None:
        _render(report, kind, sys.stdout)
        return
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8", newline="") as stream:
            _render(report, kind, stream)
        draft.replace(output)
    finally:
        draft.unlink(missing_ok=True)


def _render(report: Report, kind: str, stream: TextIO) -> None:
    from executor.report.html import html_report
    from executor.report.markdown import markdown_report
    from executor.report.report_json import write_csv, write_json

    match kind:
        case "html":
            stream.write(html_report(report))
        case "md":
            stream.write(markdown_report(report))
        case "json":
            write_json(report, stream)
        case _:
            write_csv(report, stream)
