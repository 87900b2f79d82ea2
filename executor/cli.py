"""`bai`: runs benchmarks, and looks at them."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

from bai_agent import __version__
from bai_agent.errors import BaiError, DescriptorError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.utf8 import speak_utf8, terminal_encoding
from executor.commands.job_options import JobOptions
from executor.commands.options import (
    NOBODY_READS,
    nobody_reads,
    print_json,
    say,
    silence,
    with_given,
    write_error,
)
from executor.errors import NoResultError, NotStartedError, UsageError
from executor.signals import command_begins
from executor.view.text import tell


class _Command(NamedTuple):
    function: str
    """The module in `executor/commands/`, and its function."""
    starts: bool = False
    """It starts a job: until it does, Ctrl-C is answered with "nothing was started"."""
    tidies: bool = False
    """It does in passing what is due for other jobs, where it has had to do with their backend: it ends machines of this user
    whose time is up."""
    kind: str | None = None
    """The class there that reads its command line, where that has forms of its own."""


_COMMANDS = {
    "run": _Command("runs:run", starts=True, tidies=True),
    "submit": _Command("runs:submit", starts=True, tidies=True),
    "init": _Command("descriptors:init"),
    "validate": _Command("descriptors:validate"),
    "plan": _Command("descriptors:plan"),
    "schema": _Command("descriptors:schema"),
    "presets": _Command("descriptors:presets"),
    "metrics-test": _Command("descriptors:metrics_test"),
    "list": _Command("jobs:list_jobs", tidies=True),
    "status": _Command("jobs:status", tidies=True),
    "top": _Command("top:top", tidies=True),
    "logs": _Command("jobs:logs", tidies=True),
    "metrics": _Command("jobs:metrics", tidies=True),
    "report": _Command("report:report", tidies=True),
    "compare": _Command("compare:compare", tidies=True),
    "ab": _Command("ab:ab", starts=True, tidies=True),
    "time": _Command("timing:time", starts=True, tidies=True, kind="TimeCommand"),
    "extract": _Command("jobs:extract", tidies=True),
    "fetch": _Command("jobs:fetch", tidies=True),
    "export": _Command("export:export", tidies=True),
    "cancel": _Command("endings:cancel", tidies=True),
    "release": _Command("endings:release", tidies=True),
    "reap": _Command("ec2:reap"),
    "doctor": _Command("ec2:doctor"),
    "resume": _Command("runs:resume", tidies=True),
    "prune": _Command("deletion:prune"),
    "rm": _Command("deletion:rm"),
    "bundle": _Command("ec2:bundle"),
    "config": _Command("ec2:config"),
    "serve": _Command("service:serve"),
}


def group() -> TyperGroup:
    """Return `bai` with all its commands."""
    app = typer.Typer(
        name="bai",
        help="Run a benchmark as a TOML file describes it, and trust its numbers.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_bai)
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    made.commands = _Commands()  # type: ignore[assignment]  # it is only read
    return made


class _Commands(Mapping[str, Any]):
    """The commands by name. Each is made when it is asked for: to import and make all of them takes longer than a short one does."""

    def __getitem__(self, name: str) -> Any:
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


@functools.cache
def _made(name: str) -> Any:
    command = _COMMANDS[name]
    module, _, function = command.function.partition(":")
    there = import_module(f"executor.commands.{module}")
    found = getattr(there, function)
    kind = getattr(there, command.kind) if command.kind is not None else None
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=kind)(with_given(_guarded(found, command)))
    return typer.main.get_command(app)


def _guarded(function: Callable[..., None], command: _Command) -> Callable[..., None]:
    """Return a command that ends quietly when nobody reads what it prints any more."""

    @functools.wraps(function)
    def guarded(*arguments: Any, **options: Any) -> None:
        if not command.starts:
            command_begins()
        try:
            try:
                function(*arguments, **options)
                sys.stdout.flush()
            finally:
                if command.tidies:
                    _tidy(options["options"])
        except EOFError as error:
            # Only the AWS library asks for something: the code of a second factor.
            from executor.backends.ec2.session import unasked

            raise unasked() from error
        except BaiError as error:
            shown = error
            if isinstance(error, (UsageError, NoResultError)) and error.next_step is not None:
                given = options.get("options")
                if isinstance(given, JobOptions):
                    shown = type(error)(given.with_next_step(str(error), error.next_step))
            if options.get("json_"):
                print_json(_error_table(shown))
            if shown is error:
                raise
            raise shown from error
        except OSError as error:
            if not nobody_reads(error):
                raise
            silence()
            raise typer.Exit(NOBODY_READS) from error

    return guarded


def _tidy(options: JobOptions) -> None:
    for backend in options.backends.made():
        with suppress(BaiError, EOFError):  # what cannot be read or asked is told where it is needed
            backend.tidy()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"bai {__version__}")
        raise typer.Exit


def _bai(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    return


def main() -> None:
    """Run `bai`. Exit codes: see `bai_agent.job.outcome`; 130 and 143 where a signal ended the following, 141 a closed pipe."""
    # What is loaded makes very many objects that stay, and a command few cycles: to look for those often is in vain.
    gc.set_threshold(100_000)
    try:
        _run()
    except SystemExit as end:
        _leave(end)


def _run() -> None:
    speak_utf8()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # What a benchmark prints may be anything; a terminal that cannot show it shows a question mark.
        stream.reconfigure(encoding=terminal_encoding() or stream.encoding, errors="replace")  # type: ignore[union-attr]
    try:
        group()()
    except BaiError as error:
        sys.exit(_refuse(error))
    except OSError as error:
        silence()
        place = f"{error.filename}: " if error.filename is not None else ""
        say(write_error(error) or f"{place}{error.strerror or error}")
        sys.exit(ExitCode.OURS)


def _leave(end: SystemExit) -> NoReturn:
    """End at once: Python would first take all modules apart, object by object, which is a tenth of a short command's time."""
    if not isinstance(end.code, (int, type(None))):
        raise end
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        raise end from None  # Python says what of the output was lost
    atexit._run_exitfuncs()
    os._exit(end.code or 0)


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
    else:
        say(str(error))
    return _exit_code(error)


def _exit_code(error: BaiError) -> ExitCode:
    from executor.planning.request import FindingsError

    if isinstance(error, (FindingsError, UsageError, DescriptorError)):
        return ExitCode.USAGE
    if isinstance(error, NotStartedError):
        return error.outcome.exit_code
    # Only now, as these bring the whole descriptor with them.
    from executor.planning.job_sources import PlanError
    from executor.planning.scripts_folder import ScriptsError

    return ExitCode.USAGE if isinstance(error, (PlanError, ScriptsError)) else ExitCode.OURS


def _error_table(error: BaiError) -> dict[str, Any]:
    """Return what a program that reads `--json` is told of a refusal; a person reads the same on stderr."""
    from executor.planning.request import FindingsError

    findings = [each.as_table() for each in error.findings] if isinstance(error, FindingsError) else []
    table = {"type": "error", "exit_code": int(_exit_code(error)), "message": str(error)}
    return {**table, "findings": findings} if findings else table
