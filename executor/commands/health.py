"""`bai doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bai_agent.outcome import ExitCode
from executor.commands.options import BucketOption, JsonOption, ProfileOption, RegionOption, print_json


def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="A benchmark descriptor: its image and its launch are tried as well."
        ),
    ] = None,
    profile: ProfileOption = None,
    region: RegionOption = None,
    bucket: BucketOption = None,
    json_: JsonOption = False,
) -> None:
    """Try what a job on EC2 needs.

    Says what to do where something is missing. Launches nothing. Exit code 1 where something fails.
    """
    from executor.config import read_settings
    from executor.ec2.doctor import examine
    from executor.ec2.findings import Health

    settings = read_settings({"profile": profile, "region": region, "bucket": bucket})
    failed = False
    for each in examine(settings, file):
        failed = failed or each.health is Health.FAILED
        if json_:
            print_json(each.as_table())
        else:
            todo = f"; {each.todo}" if each.todo else ""
            print(f"{each.health.value:<7} {each.check:<16} {each.sentence}{todo}", flush=True)
    if failed:
        raise typer.Exit(ExitCode.BENCHMARK_FAILED)
