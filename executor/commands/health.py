"""`bai doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bai_agent.job.outcome import ExitCode
from executor.commands.job_options import AwsOptions
from executor.commands.options import JsonOption, print_json
from executor.view.text import tell


def doctor(
    options: AwsOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="A benchmark descriptor: its image and its launch are tried as well."
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Try what a job on EC2 needs.

    Says what to do where something is missing. Launches nothing. Exit code 2 where the configuration, credentials or FILE have to be
    corrected, else 5 where something fails.
    """
    from executor.backends.ec2.doctor.doctor import examine
    from executor.backends.ec2.doctor.findings import Health

    failed: ExitCode | None = None
    for each in examine(options.settings, file):
        if each.health is Health.FAILED and failed is not ExitCode.USAGE:
            failed = ExitCode.USAGE if each.configuration else ExitCode.OURS
        if json_:
            print_json(each.as_table())
        else:
            todo = f"; {each.todo}" if each.todo else ""
            tell(f"{each.health.value:<7} {each.check:<16} {each.sentence}{todo}", flush=True)
    if failed is not None:
        raise typer.Exit(failed)
