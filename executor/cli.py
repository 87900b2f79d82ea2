"""The command line of `bai`, which runs benchmarks and shows their jobs."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from bai_agent.errors import BaiError
from bai_agent.files.utf8 import speak_utf8, terminal_encoding
from bai_agent.job.outcome import ExitCode
from executor.commands.job_options import JobOptions
from executor.commands.printing import (
    NOBODY_READS,
    exit_code_of,
    nobody_reads,
    print_json,
    say,
    silence,
    write_error,
)
from executor.documents.text import tell
from executor.errors import NextStepError
from executor.signals import command_begins

if TYPE_CHECKING:
    from typer.core import TyperGroup

    from executor.commands.options import LoadedCommand


class _Command(NamedTuple):
    function: str
    """The command's module in `executor/commands/`, and the command's function in that module."""
    help: str
    """First sentence of the function's docstring. The sentence is repeated here, so that `bai --help` does
    not import the commands' modules."""
    starts: bool = False
    """Whether the command starts a job. Until the job is started, Ctrl-C ends the command with the message
    "nothing was started"."""
    tidies: bool = False
    """Whether `bai` also terminates this user's expired machines after the command, on the backends that the
    command used."""
    kind: str | None = None
    """Name of a class in the command's module that reads the command line, if the command has a syntax of its
    own; None if Typer's usual class reads it."""
    plain: int | None = None
    """Number of arguments of a command line that is read without Typer, to save time. None if Typer reads all
    command lines of the command."""


_COMMANDS = {
    "run": _Command("runs:run", "Run a benchmark and follow it to its end.", starts=True, tidies=True),
    "submit": _Command(
        "runs:submit", "Launch a benchmark on EC2, print the job's id, and return.", starts=True, tidies=True
    ),
    "init": _Command("descriptors:init", "Print a commented descriptor to start from."),
    "validate": _Command("descriptors:validate", "Check descriptors and name every mistake."),
    "plan": _Command("descriptors:plan", "Print the plan of a job, without starting it."),
    "schema": _Command("descriptors:schema", "Print the JSON Schema of descriptors, for editors."),
    "presets": _Command("descriptors:presets", "List the programs whose metrics `[output] preset` takes."),
    "metrics-test": _Command("descriptors:metrics_test", "Try a descriptor's patterns on a log."),
    "list": _Command("jobs:list_jobs", "List jobs, the newest last.", tidies=True, plain=0),
    "status": _Command("jobs:status", "Show the status of a job.", tidies=True, plain=1),
    "top": _Command("top:top", "Show a running job without affecting it.", tidies=True),
    "logs": _Command("logs:logs", "Print the output of a job's benchmark.", tidies=True),
    "metrics": _Command(
        "numbers:metrics", "Print a job's metrics: statistics, records, numbers.", tidies=True
    ),
    "report": _Command(
        "report:report", "Write a report on a job, as a page or in other formats.", tidies=True
    ),
    "compare": _Command(
        "compare:compare", "Compare runs: is one side better, and how sure is that?", tidies=True
    ),
    "ab": _Command(
        "compare:ab", "Compare benchmarks that take turns on one machine.", starts=True, tidies=True
    ),
    "time": _Command(
        "timing:time",
        "Time commands in shuffled blocks, with intervals.",
        starts=True,
        tidies=True,
        kind="TimeCommand",
    ),
    "extract": _Command("numbers:extract", "Extract metrics again from a job's saved log.", tidies=True),
    "fetch": _Command("jobs:fetch", "Copy all files of a job into a folder.", tidies=True),
    "export": _Command("numbers:export", "Export a job's metrics, for example to MLflow.", tidies=True),
    "shell": _Command("jobs:shell", "Open a shell on a machine of a job."),
    "cancel": _Command("endings:cancel", "Ask a job to end.", tidies=True),
    "scale": _Command(
        "endings:scale", "Change the number of nodes of an elastic job while it runs.", tidies=True
    ),
    "release": _Command("endings:release", "Release the machines that a job keeps.", tidies=True),
    "reap": _Command("ec2:reap", "Check all jobs on EC2 that no command follows."),
    "setup": _Command("setup:setup", "Set an AWS account up for jobs on EC2, or undo that."),
    "doctor": _Command("ec2:doctor", "Check everything that a job on EC2 needs."),
    "resume": _Command("runs:resume", "Restart the dead agent of a job.", tidies=True),
    "prune": _Command("endings:prune", "Delete old jobs, and old virtual environments."),
    "rm": _Command("endings:rm", "Delete ended jobs of this machine."),
    "bundle": _Command("ec2:bundle", "Build the agent's bundle, which instances download."),
    "config": _Command("ec2:config", "Print the configuration, with the origin of each value."),
    "serve": _Command("serve:serve", "Run jobs that are requested through Kafka on EC2."),
}


def group() -> TyperGroup:
    """Return `bai` with all its commands."""
    # Typer is imported only now, because its import takes a third of a short command's time.
    from executor.commands.options import command_group

    return command_group({name: each.help for name, each in _COMMANDS.items()}, _load)


def _run_without_typer(words: Sequence[str]) -> None:
    """Run the command and end the process, if the command line has no option other than `--json`. Return
    without doing anything if Typer must read the command line."""
    name, *values = [each for each in words if each != "--json"] or [""]
    count = _COMMANDS[name].plain if name in _COMMANDS else None
    if len(values) != count or any(each.startswith("-") for each in values):
        return
    try:
        _load(name)[0](*values, options=JobOptions(), json_="--json" in words)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit()


def _load(name: str) -> LoadedCommand:
    command = _COMMANDS[name]
    module, _, function = command.function.partition(":")
    there = import_module(f"executor.commands.{module}")
    kind = getattr(there, command.kind) if command.kind is not None else None
    return _guarded(getattr(there, function), command), kind


def _guarded(function: Callable[..., None], command: _Command) -> Callable[..., None]:
    """Return a function that runs the command `function`, exits quietly if standard output was closed, tidies
    up, and adds options to suggested commands."""

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
            # Only the AWS library reads from the terminal, so the EOFError means that it prompted for the
            # code of a second factor.
            from executor.backends.ec2.session import unasked

            raise unasked() from error
        except BaiError as error:
            shown = _with_options(error, options.get("options"))
            if options.get("json_"):
                print_json(_error_table(shown))
            if shown is error:
                raise
            raise shown from error
        except OSError as error:
            if not nobody_reads(error):
                raise
            silence()
            sys.exit(NOBODY_READS)

    return guarded


def _with_options(error: BaiError, given: object) -> BaiError:
    """Return the error. If the error suggests a command, the user's options are added to that command."""
    if not isinstance(error, NextStepError) or not isinstance(given, JobOptions):
        return error
    return type(error)(given.with_next_step(str(error), error.next_step)) if error.next_step else error


def _tidy(options: JobOptions) -> None:
    for backend in options.backends.made():
        with suppress(BaiError, EOFError):  # Commands that need the backend report these failures themselves.
            backend.tidy()


def main() -> None:
    """Run `bai`. The exit codes are those in `bai_agent.job.outcome`, 130 or 143 after a signal, and 141
    after the reader closed the pipe."""
    try:
        _run()
    except SystemExit as end:
        _leave(end)


def _run() -> None:
    speak_utf8()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A benchmark may print any text. Characters that the terminal's encoding lacks are printed as
        # question marks.
        stream.reconfigure(encoding=terminal_encoding() or stream.encoding, errors="replace")  # type: ignore[union-attr]
    try:
        _run_without_typer(sys.argv[1:])
        group()()
    except BaiError as error:
        sys.exit(_refuse(error))
    except OSError as error:
        silence()
        place = f"{error.filename}: " if error.filename is not None else ""
        say(write_error(error) or f"{place}{error.strerror or error}")
        sys.exit(ExitCode.OURS)


def _leave(end: SystemExit) -> NoReturn:
    """Exit the process at once. A normal exit would first delete all objects one by one, which takes a tenth
    of a short command's time."""
    if not isinstance(end.code, (int, type(None))):
        raise end
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        raise end from None  # On a normal exit, Python reports the lost output.
    atexit._run_exitfuncs()
    os._exit(end.code or 0)


def _open_closed_streams() -> None:
    """Replace each standard stream that the caller has closed (`>&-`) by /dev/null."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as we live


def _refuse(error: BaiError) -> ExitCode:
    # The module of requests is imported only here, so that `bai --help` does not wait for its import.
    from executor.planning.request import FindingsError

    if isinstance(error, FindingsError):
        tell(str(error), stream=sys.stderr)
    else:
        say(str(error))
    return exit_code_of(error)


def _error_table(error: BaiError) -> dict[str, Any]:
    """Return what a failed command prints as JSON. The error's message is also printed to stderr for the
    user."""
    findings = [each.as_table() for each in getattr(error, "findings", ())]
    table = {"type": "error", "exit_code": int(exit_code_of(error)), "message": str(error)}
    return {**table, "findings": findings} if findings else table
