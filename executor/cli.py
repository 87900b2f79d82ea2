"""`bai`: runs benchmarks, and looks at them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bai_agent import __version__
from bai_agent.errors import BaiError, DescriptorError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.utf8 import speak_utf8, terminal_encoding
from executor.commands import descriptors, endings, health, jobs, launches, runs
from executor.commands.job_options import JobOptions
from executor.commands.options import NOBODY_READS, nobody_reads, say, silence, with_given, write_error
from executor.view.text import tell

app = typer.Typer(
    name="bai",
    help="Run a benchmark as a TOML file describes it, and trust its numbers.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _command(name: str, function: Callable[..., None], *, reaps: bool = False) -> None:
    """Add a command that ends quietly when nobody reads what it prints any more.

    Its parameter `options` becomes options. reaps: where it has looked at EC2, it ends machines of this user whose time is
    up, in passing, with the same options.
    """

    @functools.wraps(function)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            try:
                function(*arguments, **options)
                sys.stdout.flush()
            finally:
                if reaps and "executor.backends.ec2.instances" in sys.modules:
                    _reap(options["options"])
        except EOFError as error:
            # Only the AWS library asks for something: the code of a second factor.
            from executor.backends.ec2.session import unasked

            raise unasked() from error
        except OSError as error:
            if not nobody_reads(error):
                raise
            silence()
            raise typer.Exit(NOBODY_READS) from error

    app.command(name)(with_given(guarded))


def _reap(options: JobOptions) -> None:
    from executor.backends.ec2.monitor.reaper import reap_own

    try:
        reap_own(options)
    except (BaiError, EOFError):
        return  # what cannot be read or asked is told where it is needed


_command("run", runs.run, reaps=True)
_command("submit", launches.submit)
_command("init", descriptors.init)
_command("validate", descriptors.validate)
_command("plan", descriptors.plan)
_command("schema", descriptors.schema)
_command("metrics-test", descriptors.metrics_test)
_command("list", jobs.list_jobs, reaps=True)
_command("status", jobs.status, reaps=True)
_command("logs", jobs.logs, reaps=True)
_command("metrics", jobs.metrics, reaps=True)
_command("extract", jobs.extract, reaps=True)
_command("fetch", jobs.fetch, reaps=True)
_command("cancel", endings.cancel, reaps=True)
_command("release", endings.release, reaps=True)
_command("reap", endings.reap)
_command("doctor", health.doctor)
_command("resume", runs.resume, reaps=True)
_command("prune", jobs.prune)
_command("bundle", launches.bundle)
_command("config", launches.config)


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
    from executor.errors import UsageError
    from executor.planning.request import FindingsError

    if isinstance(error, FindingsError):
        tell(str(error), stream=sys.stderr)
        return ExitCode.USAGE
    say(str(error))
    if isinstance(error, (UsageError, DescriptorError)):
        return ExitCode.USAGE
    # Only now, as these bring the whole descriptor with them.
    from executor.planning.job_sources import PlanError
    from executor.planning.scripts_folder import ScriptsError

    return ExitCode.USAGE if isinstance(error, (PlanError, ScriptsError)) else ExitCode.OURS
