"""The options of `bai time`, named as hyperfine's are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CommandsArgument = Annotated[
    list[str],
    typer.Argument(metavar="COMMAND...", help="Each in quotes; the others are compared with the first one."),
]
RunsOption = Annotated[
    int | None,
    typer.Option(
        "--runs",
        "-r",
        metavar="N",
        min=1,
        help="Runs of each command [default: at least 10, for about 3 s each].",
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="2%", help="Continue until the wall times have this precision."),
]
MinRunsOption = Annotated[
    int | None, typer.Option("--min-runs", "-m", metavar="N", min=1, help="Least number of runs of each.")
]
MaxRunsOption = Annotated[
    int | None, typer.Option("--max-runs", "-M", metavar="N", min=1, help="Greatest number of runs of each.")
]
WarmupOption = Annotated[
    int,
    typer.Option(
        "--warmup", "-w", metavar="N", min=0, help="Warm-up runs of each command, which do not count."
    ),
]
PrepareOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prepare",
        "-p",
        metavar="CMD",
        help="Before each run, not timed: one for all commands, or one for each.",
    ),
]
ConcludeOption = Annotated[
    list[str] | None, typer.Option("--conclude", "-C", metavar="CMD", help="The same after each run.")
]
SetupOption = Annotated[
    str | None,
    typer.Option("--setup", "-s", metavar="CMD", help="Once before all runs, for each command's parameters."),
]
CleanupOption = Annotated[
    str | None, typer.Option("--cleanup", "-c", metavar="CMD", help="Once after all runs.")
]
ParameterListOption = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter-list",
        "-L",
        metavar="NAME=1,2,4",
        help="Time each command with each of these for {NAME}; also -L NAME 1,2,4. Can be repeated.",
    ),
]
ParameterScanOption = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter-scan",
        "-P",
        metavar="NAME=MIN,MAX[,STEP]",
        help="The same with the numbers from MIN to MAX; also -P NAME MIN MAX.",
    ),
]
StepOption = Annotated[
    str | None,
    typer.Option("--parameter-step-size", "-D", metavar="STEP", help="Of --parameter-scan [default: 1]."),
]
ShellOption = Annotated[
    str | None,
    typer.Option(
        "--shell",
        "-S",
        metavar="SHELL",
        help='Run commands in this shell: sh, "bash -e", default; by default none.',
    ),
]
NoShellOption = Annotated[bool, typer.Option("-N", help="No shell, as without it.")]
IgnoreFailureOption = Annotated[
    bool, typer.Option("--ignore-failure", "-i", help="Count runs with an exit code other than 0.")
]
NamesOption = Annotated[
    list[str] | None,
    typer.Option("--command-name", "-n", metavar="NAME", help="The name of a command; one for each."),
]
KeepOutputOption = Annotated[
    bool,
    typer.Option(
        "--keep-output",
        help="Keep the commands' output in the log; without this only their errors.",
    ),
]
ExportJsonOption = Annotated[
    Path | None, typer.Option("--export-json", metavar="FILE", help="Write all times, as hyperfine does.")
]
ExportCsvOption = Annotated[
    Path | None, typer.Option("--export-csv", metavar="FILE", help="Write a line for each command.")
]
ExportMarkdownOption = Annotated[
    Path | None, typer.Option("--export-markdown", metavar="FILE", help="Write a table for a comment.")
]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="NAME",
        help="The label task_name, which `bai compare --baseline` finds jobs by.",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", min=0, help="Seed of the order in blocks; random by default."),
]
ExclusiveOption = Annotated[
    bool, typer.Option("--exclusive", help="Begin only when no other job runs on this machine.")
]
EmitTomlOption = Annotated[
    bool, typer.Option("--emit-toml", help="Print the benchmark descriptor of this, and run nothing.")
]
