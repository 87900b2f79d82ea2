"""Commands that end jobs, and let go of their machines."""

from __future__ import annotations

from typing import Annotated

import typer

from executor.commands.job_options import JobOptions
from executor.commands.options import JobArgument, JsonOption, print_done


def cancel(
    job: JobArgument,
    options: JobOptions,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="Terminate its machines at once, for a job on EC2; what it has not sent is lost."
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Ask a job to end.

    Its benchmark gets SIGTERM, and after limits.grace SIGKILL. An agent of this machine that has died is started again for that.
    """

    record = options.find(job)
    print_done(record, options.backends.of(record).cancel(record, now=now), json_=json_)


def release(job: JobArgument, options: JobOptions, json_: JsonOption = False) -> None:
    """Let the kept machines of a failed job go.

    Those on EC2 that keep_on_failure keeps to be looked into. They power off within a minute.
    """

    record = options.find(job)
    print_done(record, options.backends.of(record).release(record), json_=json_)
