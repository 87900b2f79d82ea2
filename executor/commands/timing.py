"""`bai time`: times commands in shuffled blocks, as one job. The options have the same names as those of
hyperfine."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from bai_agent.job.outcome import ExitCode
from executor.commands.job_options import JobOptions, KeyOptions
from executor.commands.options import JobIdOption, JsonOption
from executor.commands.printing import print_json, say
from executor.commands.submission import run_to_end, seed_for
from executor.documents.text import draws_in_place, speaks_unicode, tell
from executor.errors import UsageError

# `bai --help` and each shell completion load this module, so modules that the command needs are imported in
# functions.
if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from executor.planning.timing_request import TimedCommand
    from executor.view.timing_screen import ShownCommand, TimeView


class TimeCommand(TyperCommand):
    """Parses `-L NAME VALUES` and `-P NAME MIN MAX` as options with a single value, because Typer does not
    support options with a varying number of values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from executor.planning.timing_request import joined_words

        return super().parse_args(ctx, joined_words(args))


def time(
    commands: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...", help="Commands, each in quotes; the others are compared with the first one."
        ),
    ],
    options: JobOptions,
    keys: KeyOptions,
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            "-r",
            metavar="N",
            min=1,
            help="Number of runs of each command [default: at least 10, and as many as take about 3 s].",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="2%", help="Continue until the wall times are known this precisely."),
    ] = None,
    min_runs: Annotated[
        int | None, typer.Option("--min-runs", "-m", metavar="N", min=1, help="Minimum runs of each command.")
    ] = None,
    max_runs: Annotated[
        int | None,
        typer.Option("--max-runs", "-M", metavar="N", min=1, help="Maximum number of runs of each command."),
    ] = None,
    warmup: Annotated[
        int,
        typer.Option(
            "--warmup", "-w", metavar="N", min=0, help="Warm-up runs of each command, which do not count."
        ),
    ] = 0,
    prepare: Annotated[
        list[str] | None,
        typer.Option(
            "--prepare",
            "-p",
            metavar="CMD",
            help="Command to run before each run, not timed. Give this option once for all commands, or once for each command.",
        ),
    ] = None,
    conclude: Annotated[
        list[str] | None, typer.Option("--conclude", "-C", metavar="CMD", help="Command after each run.")
    ] = None,
    setup: Annotated[
        str | None,
        typer.Option(
            "--setup", "-s", metavar="CMD", help="Command run once before all runs, for each parameter value."
        ),
    ] = None,
    cleanup: Annotated[
        str | None, typer.Option("--cleanup", "-c", metavar="CMD", help="Command to run once after all runs.")
    ] = None,
    parameter_list: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter-list",
            "-L",
            metavar="NAME=1,2,4",
            help="Time each command with each of these values for {NAME}; also -L NAME 1,2,4. Can be repeated.",
        ),
    ] = None,
    parameter_scan: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter-scan",
            "-P",
            metavar="NAME=MIN,MAX[,STEP]",
            help="Time each command with the numbers from MIN to MAX; also -P NAME MIN MAX.",
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("--parameter-step-size", "-D", metavar="STEP", help="Step of -P [default: 1]."),
    ] = None,
    shell: Annotated[
        str | None,
        typer.Option(
            "--shell",
            "-S",
            metavar="SHELL",
            help='Shell for the commands, such as sh, "bash -e", or default (/bin/sh). Without --shell, commands run without a shell.',
        ),
    ] = None,
    no_shell: Annotated[bool, typer.Option("-N", help="Run commands without a shell (the default).")] = False,
    ignore_failure: Annotated[
        bool, typer.Option("--ignore-failure", "-i", help="Also count runs with an exit code other than 0.")
    ] = False,
    names: Annotated[
        list[str] | None,
        typer.Option("--command-name", "-n", metavar="NAME", help="Command name; repeat for each command."),
    ] = None,
    keep_output: Annotated[
        bool,
        typer.Option(
            "--keep-output",
            help="Save the commands' output in the log; by default, only their errors.",
        ),
    ] = False,
    export_json: Annotated[
        Path | None,
        typer.Option("--export-json", metavar="FILE", help="Write all times as JSON, as hyperfine does."),
    ] = None,
    export_csv: Annotated[
        Path | None, typer.Option("--export-csv", metavar="FILE", help="Write CSV, a line per command.")
    ] = None,
    export_markdown: Annotated[
        Path | None, typer.Option("--export-markdown", metavar="FILE", help="Write a Markdown table.")
    ] = None,
    task: Annotated[
        str,
        typer.Option(
            "--task",
            metavar="NAME",
            help="The label task_name, by which `bai compare --baseline` finds jobs.",
        ),
    ] = "time",
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, help="Seed for the order of the runs; random by default."),
    ] = None,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="Wait until no other job runs on this machine.")
    ] = False,
    emit_toml: Annotated[
        bool, typer.Option("--emit-toml", help="Print the benchmark descriptor, and run nothing.")
    ] = False,
    job_id: JobIdOption = None,
    json_: JsonOption = False,
) -> None:
    """Time commands in shuffled blocks, with intervals.

    A command is split into words and run without a shell. Use --shell sh for a command that needs a shell.
    The result is a job, which `bai compare`, `bai report` and `bai run --like` accept. Exit code: that of the
    job; 1 if a command fails.
    """
    from executor.planning import timing_request as timing
    from executor.planning.timing_request import parameter_lists, parameter_scans

    if no_shell and shell not in (None, "none"):
        raise UsageError(f"-N and --shell {shell} exclude each other; write one of them")
    words = timing.shell_words(shell)
    parameters = {**parameter_lists(parameter_list or ()), **parameter_scans(parameter_scan or (), step)}
    once = {name: (text,) for name, text in (("setup", setup), ("cleanup", cleanup)) if text}
    around = timing.Around(prepare=prepare or (), conclude=conclude or (), **once)
    timed = timing.timed_commands(
        commands, names=names or (), parameters=parameters, shell=words, around=around
    )
    count = timing.RunCount(runs=runs, until=until, least=min_runs, most=max_runs, warmup=warmup)
    folder = Path.cwd()
    drawn = seed if seed is not None else seed_for(job_id)
    text = timing.timing_descriptor(
        timed, count, folder=folder, task=task, seed=drawn,
        ignore_failure=ignore_failure, discard_stdout=not keep_output,
    )  # fmt: skip
    if emit_toml:
        tell(text, end="")
        return
    for each in timed:
        timing.check_program(each, folder)
    exports = _checked({"json": export_json, "csv": export_csv, "markdown": export_markdown})
    _once("--setup", chain.from_iterable(each.setup for each in timed), words)
    try:
        record, code = _run(text, options, keys, exclusive=exclusive, job_id=job_id, json_=json_)
    finally:
        _once("--cleanup", chain.from_iterable(each.cleanup for each in timed), words, fails=False)
    if code != ExitCode.SUCCEEDED:
        raise typer.Exit(code)
    shown = _shown(
        record, options, timed, warmup=warmup, prepares=prepare is not None, shell=words is not None
    )
    _export(exports, timed, shown, record.job_id)
    _print(record, options, shown, json_=json_)


def _checked(paths: dict[str, Path | None]) -> dict[str, Path]:
    """Return the paths of the files that the command will write. Raises UsageError for a file whose folder
    does not exist."""
    named = {form: path for form, path in paths.items() if path is not None}
    for path in named.values():
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.absolute().parent}; make it first")
    return named


def _run(
    text: str, options: JobOptions, keys: KeyOptions, *, exclusive: bool, job_id: str | None, json_: bool
) -> tuple[JobRecord, int]:
    """Run a descriptor as a job to its end. Return the job's record and its exit code."""
    from executor.planning.request import JobRequest

    request = JobRequest(
        file=Path("time.toml"),
        content=text.encode(),
        on="local",
        overrides=keys.overrides(),
        exclusive=exclusive,
    )
    view = None if json_ else _view()
    submitted, _, code = run_to_end(request, options, job_id=job_id, json_=json_, view=view)
    return submitted.record, code


def _view() -> TimeView:
    from rich.console import Console

    from executor.documents.screen import screen_width
    from executor.planning.timing_request import WALL
    from executor.view.timing_screen import TimeView

    drawn = draws_in_place()
    console = Console(highlight=False, width=None if drawn else screen_width(), no_color=not drawn)
    return TimeView(console, metric=WALL, drawn=drawn)


def _shown(
    record: JobRecord,
    options: JobOptions,
    timed: Sequence[TimedCommand],
    *,
    warmup: int,
    prepares: bool,
    shell: bool,
) -> list[ShownCommand]:
    """Return the rows of the final table: each command, with the comparison of its times with those of the
    first command."""
    from executor.analysis.compared_metric import MetricComparison
    from executor.analysis.comparison import compare_sides
    from executor.analysis.timing_analysis import command_times, doubts
    from executor.jobs.compared import RunReader
    from executor.planning.timing_request import WALL
    from executor.records.reading import result_of
    from executor.view.timing_screen import ShownCommand

    result = result_of(record)
    assert result is not None  # the job's end was just shown
    times = command_times(result, [each.name for each in timed] if len(timed) > 1 else [])
    compared: dict[str, MetricComparison | None] = {}
    if len(times) > 1:
        first, *others = RunReader(options.find, options.stores).sides([record.job_id])
        pairs = compare_sides(first.runs, [side.runs for side in others])
        compared = {side.arm or "": pair.find(WALL) for side, pair in zip(others, pairs, strict=True)}
    by_name = {each.name if len(timed) > 1 else "": each for each in timed}
    return [
        ShownCommand(
            text=by_name[each.name].text,
            times=each,
            doubts=doubts(each, warmup=warmup, prepares=prepares, shell=shell),
            compared=compared.get(each.name),
        )
        for each in times
    ]


def _print(record: JobRecord, options: JobOptions, shown: Sequence[ShownCommand], *, json_: bool) -> None:
    from executor.documents.screen import show_blocks
    from executor.view.timing_screen import times_blocks

    if json_:
        print_json(
            {"type": "times", "job_id": record.job_id, "commands": [_as_table(each) for each in shown]}
        )
        return
    show_blocks(times_blocks(shown))
    compare = f" · {options.command('compare', record.job_id)}" if len(shown) > 1 else ""
    separator = " · " if speaks_unicode() else " | "
    tell(f"more: {options.command('report', record.job_id)}{compare}".replace(" · ", separator))


def _as_table(shown: ShownCommand) -> dict[str, Any]:
    times = shown.times
    return {
        "command": shown.text,
        "arm": times.name or None,
        "mean": times.mean,
        "half_width": times.half_width if len(times.walls) > 1 else None,
        "median": times.median,
        "min": min(times.walls),
        "max": max(times.walls),
        "user": times.user,
        "system": times.system,
        "peak_memory": times.peak_memory,
        "times": list(times.walls),
        "exit_codes": list(times.exit_codes),
        "doubts": list(shown.doubts),
        "compared": shown.compared.as_table() if shown.compared is not None else None,
    }


def _export(
    paths: dict[str, Path], timed: Sequence[TimedCommand], shown: Sequence[ShownCommand], job_id: str
) -> None:
    from executor.export.exchange import ExportedTimes, as_csv, as_json, as_markdown

    by_name = {each.name: each for each in timed}
    every = [
        ExportedTimes(
            command=each.text,
            parameters=by_name[each.times.name].parameters if each.times.name else timed[0].parameters,
            times=each.times,
        )
        for each in shown
    ]
    forms: dict[str, Callable[[], str]] = {
        "json": lambda: as_json(every, job_id=job_id),
        "csv": lambda: as_csv(every),
        "markdown": lambda: as_markdown(every),
    }
    for name, path in paths.items():
        path.write_text(forms[name](), encoding="utf-8")
        say(f"{path} has the times")


def _once(option: str, commands: Iterable[str], shell: str | None, *, fails: bool = True) -> None:
    """Run each of `commands` once, outside of the timed blocks. fails: whether a failed command is an error,
    and not only a message."""
    for text in dict.fromkeys(commands):
        words = [*shlex.split(shell), text] if shell is not None else shlex.split(text)
        try:
            code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode
            problem = f"it exited with code {code}" if code else ""
        except OSError as error:
            problem = str(error.strerror)
        if problem and fails:
            raise UsageError(f"{option} {text}: {problem}; nothing was timed")
        if problem:
            say(f"{option} {text}: {problem}")
