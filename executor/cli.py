"""`bai`: runs benchmarks, and looks at them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from bai_agent import __version__
from bai_agent.errors import BaiError, DescriptorError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.utf8 import speak_utf8, terminal_encoding
from executor.commands import (
    ab,
    compare,
    descriptors,
    ec2,
    endings,
    export,
    jobs,
    report,
    runs,
    service,
    top,
)
from executor.commands.job_options import JobOptions
from executor.commands.options import NOBODY_READS, nobody_reads, say, silence, with_given, write_error
from executor.errors import NoResultError, NotStartedError, UsageError
from executor.view.text import tell

app = typer.Typer(
    name="bai",
    help="Run a benchmark as a TOML file describes it, and trust its numbers.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _command(name: str, function: Callable[..., None], *, tidies: bool = False) -> None:
    """Add a command that ends quietly when nobody reads what it prints any more.

    Its parameter `options` becomes options. tidies: it does in passing what is due for other jobs, where it has
    had to do with their backend: it ends machines of this user whose time is up.
    """

    @functools.wraps(function)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            try:
                function(*arguments, **options)
                sys.stdout.flush()
            finally:
                if tidies:
                    _tidy(options["options"])
        except EOFError as error:
            # Only the AWS library asks for something: the code of a second factor.
            from executor.backends.ec2.session import unasked

            raise unasked() from error
        except (UsageError, NoResultError) as error:
            if error.next_step is None or not isinstance(given := options.get("options"), JobOptions):
                raise
            raise type(error)(given.with_next_step(str(error), error.next_step)) from error
        except OSError as error:
            if not nobody_reads(error):
                raise
            silence()
            raise typer.Exit(NOBODY_READS) from error

    app.command(name)(with_given(guarded))


def _tidy(options: JobOptions) -> None:
    for backend in options.backends.made():
        with suppress(BaiError, EOFError):  # what cannot be read or asked is told where it is needed
            backend.tidy()


_command("run", runs.run, tidies=True)
_command("submit", runs.submit)
_command("init", descriptors.init)
_command("validate", descriptors.validate)
_command("plan", descriptors.plan)
_command("schema", descriptors.schema)
_command("presets", descriptors.presets)
_command("metrics-test", descriptors.metrics_test)
_command("list", jobs.list_jobs, tidies=True)
_command("status", jobs.status, tidies=True)
_command("top", top.top)
_command("logs", jobs.logs, tidies=True)
_command("metrics", jobs.metrics, tidies=True)
_command("report", report.report, tidies=True)
_command("compare", compare.compare, tidies=True)
_command("ab", ab.ab, tidies=True)
_command("extract", jobs.extract, tidies=True)
_command("fetch", jobs.fetch, tidies=True)
_command("export", export.export, tidies=True)
_command("cancel", endings.cancel, tidies=True)
_command("release", endings.release, tidies=True)
_command("reap", ec2.reap)
_command("doctor", ec2.doctor)
_command("resume", runs.resume, tidies=True)
_command("prune", jobs.prune)
_command("bundle", ec2.bundle)
_command("config", ec2.config)
_command("serve", service.serve)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"bai {__version__}")
        raise typer.Exit


@app.callback()
def _bai(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    return


def main() -> None:
    """Run `bai`. Exit codes: see `bai_agent.job.outcome`; 130 and 143 where a signal ended the following, 141 a closed pipe."""
    speak_utf8()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # What a benchmark prints may be anything; a terminal that cannot show it shows a question mark.
        stream.reconfigure(encoding=terminal_encoding() or stream.encoding, errors="replace")  # type: ignore[union-attr]
    try:
        app()
    except BaiError as error:
        sys.exit(_refuse(error))
    except OSError as error:
        silence()
        place = f"{error.filename}: " if error.filename is not None else ""
        say(write_error(error) or f"{place}{error.strerror or error}")
        sys.exit(ExitCode.OURS)


def _open_closed_streams() -> None:
    """Give a standard stream that the caller has closed (`>&-`) a place: what is written there was not wanted."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as we live


def _refuse(error: BaiError) -> ExitCode:
    # Here and below: `bai --help` waits for none of it.
    from executor.planning.request import FindingsError

    if isinstance(error, FindingsError):
        tell(str(error), stream=sys.stderr)
        return ExitCode.USAGE
    say(str(error))
    if isinstance(error, (UsageError, DescriptorError)):
        return ExitCode.USAGE
    if isinstance(error, NotStartedError):
        return error.outcome.exit_code
    # Only now, as these bring the whole descriptor with them.
    from executor.planning.job_sources import PlanError
    from executor.planning.scripts_folder import ScriptsError

    return ExitCode.USAGE if isinstance(error, (PlanError, ScriptsError)) else ExitCode.OURS
