"""The command that opens a shell where a job runs."""

from __future__ import annotations

from typing import Annotated

import typer

from executor.commands.job_options import JobOptions
from executor.commands.options import JobArgument, say


def shell(
    job: JobArgument,
    options: JobOptions,
    node: Annotated[
        int, typer.Option("--node", metavar="R", min=0, help="The node with this rank; by default 0.")
    ] = 0,
) -> None:
    """Open a shell where a job runs.

    On EC2 a session of AWS Systems Manager on a machine that runs or is kept. Here a shell in the run directory, also after the job's end,
    with the environment of its benchmark but without its secrets. The exit code is that of the shell.
    """
    record = options.find(job)
    raise typer.Exit(options.backends.of(record).shell(record, node=node, on_status=say))
