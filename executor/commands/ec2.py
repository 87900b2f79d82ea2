"""Commands about EC2 itself, and about how it is asked: the only ones that know it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bai_agent.errors import StoreError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.tables import write_table
from executor.commands.job_options import AwsOptions, KeyOptions
from executor.commands.options import JsonOption, ProfileOption, choices, print_json, say
from executor.errors import UsageError
from executor.view.text import tell

# What only one command needs is imported there: `bai --help` and each completion in a shell load this module.
if TYPE_CHECKING:
    from executor.backends.ec2.staging_bucket import Upload


def doctor(
    options: AwsOptions,
    keys: KeyOptions,
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
    from executor.planning.request import JobRequest

    overrides = keys.overrides()
    if file is None and overrides:
        raise UsageError(
            f"{overrides[0].option} sets a key of a descriptor, and none is named; write bai doctor FILE"
        )
    job_request = JobRequest(file=file, overrides=overrides) if file is not None else None
    failed: ExitCode | None = None
    for each in examine(options.settings, job_request):
        if each.health is Health.FAILED and failed is not ExitCode.USAGE:
            failed = ExitCode.USAGE if each.configuration else ExitCode.OURS
        if json_:
            print_json(each.as_table())
        else:
            todo = f"; {each.todo}" if each.todo else ""
            tell(f"{each.health.value:<7} {each.check:<16} {each.sentence}{todo}", flush=True)
    if failed is not None:
        raise typer.Exit(failed)


def bundle(
    options: AwsOptions,
    arch: Annotated[
        str,
        typer.Option(
            "--arch",
            metavar="NAMES",
            help="For which CPUs, with a comma between.",
            autocompletion=choices("x86_64", "aarch64"),
        ),
    ] = "x86_64,aarch64",
    upload: Annotated[
        bool, typer.Option("--upload", help="Put them into the staging bucket, where they are not yet.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Keep a copy here, named by its sha256."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Build the agent as instances download it.

    `bai submit` does so by itself. Packages come from the package index once, and then from a cache.
    """

    from executor.backends.ec2.bundle.bundle import build, cache_folder
    from executor.backends.ec2.bundle.wheels import ARCHITECTURES
    from executor.backends.ec2.launch.draft import bundle_upload
    from executor.backends.ec2.staging_bucket import staging_bucket
    from executor.backends.ec2.staging_bucket import upload as bring
    from executor.quantities import size

    def on_upload(each: Upload) -> None:
        say(f"uploading {each.what} ({size(each.size)})")

    names = [each.strip() for each in arch.split(",") if each.strip()]
    if wrong := [each for each in names if each not in ARCHITECTURES]:
        raise UsageError(f'--arch: "{wrong[0]}" is not known; write {" or ".join(ARCHITECTURES)}')
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--output: {output} cannot be made: {error.strerror}") from error
    built = [build(each, cache=cache_folder(os.environ)) for each in names]
    if upload:
        bring(staging_bucket(options.settings), [bundle_upload(each) for each in built], on_upload=on_upload)
    for each in built:
        if output is not None:
            shutil.copyfile(each.path, output / f"{each.sha256}.tar.gz")
        if json_:
            print_json(
                {
                    "architecture": each.architecture,
                    "sha256": each.sha256,
                    "bytes": each.size,
                    "key": each.key,
                }
            )
        else:
            tell(f"{each.architecture:<8} {each.sha256}  {size(each.size)}")


def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be terminated.")] = False,
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region",
            metavar="REGION",
            help="Only there; several are fine [default: the configured one, and all in which jobs were launched].",
        ),
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Terminate machines that should be gone.

    Those whose time is up, those that hang after their job's end, and those that never ran their user data: only such as `bai`
    launched, whoever did; meant for cron too.
    Exit code 5 where one cannot be terminated.
    """
    from executor.backends.ec2.job_store import bucket_store, named_regions
    from executor.backends.ec2.monitor.reaper import Reaped, unattended_jobs
    from executor.backends.ec2.monitor.reaper import reap as reap_region
    from executor.backends.ec2.session import AwsError, aws_of
    from executor.config import read_settings

    troubles = 0

    def on_reaped(reaped: Reaped) -> None:
        nonlocal troubles
        troubles += bool(reaped.trouble)
        instance = reaped.instance
        if json_:
            print_json(
                {
                    "instance_id": instance.id,
                    "job_id": instance.job_id,
                    "type": instance.type,
                    "state": instance.state,
                    "expires": reaped.expires.isoformat() if reaped.expires else None,
                    "reason": reaped.why,
                    "terminated": not reaped.trouble and not dry_run,
                    "trouble": reaped.trouble or None,
                }
            )
            return
        done = reaped.trouble or ("would be terminated" if dry_run else "terminated")
        tell(f"{instance.id}  {instance.type}  {instance.state}  {instance.job_id}  {reaped.why}: {done}")

    settings = read_settings({"profile": profile})
    count = 0
    regions = dict.fromkeys(region or [settings.need_region()])
    jobs = None
    if settings.store_url is not None:
        try:
            store = bucket_store(settings)
            jobs = unattended_jobs(store, settings)
            if not region:
                regions.update(dict.fromkeys(named_regions(store)))
        except StoreError as error:
            troubles += 1
            jobs = None
            say(f"in which other regions jobs were launched is not known: {error}")
    for each in regions:
        try:
            ec2 = aws_of(settings, region=each).ec2()
            count += len(
                reap_region(
                    ec2, now=datetime.now(timezone.utc), dry_run=dry_run, jobs=jobs, on_reaped=on_reaped
                )
            )
        except AwsError as error:
            # A region that is out of reach does not keep the machines of the others.
            troubles += 1
            say(f"{each}: {error}")
    if not count and not troubles:
        say("there is nothing to reap")
    if troubles:
        raise typer.Exit(ExitCode.OURS)


def config(options: AwsOptions, json_: JsonOption = False) -> None:
    """Print the configuration, each value with where it came from."""
    from executor.config import config_file
    from executor.descriptor.toml_text import toml_value

    settings = options.settings
    table = write_table(settings)
    table.pop("origins", None)
    rows = [(key, value, settings.origins.get(key, "default")) for key, value in _flat(table)]
    if json_:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
        return
    if not rows:
        say(f"nothing is configured; docs/ec2.md tells what can stand in {config_file(os.environ)}")
    for key, value, origin in rows:
        tell(f"{key} = {toml_value(value)}  # {origin}")


def _flat(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        rows += _flat(value, f"{before}{key}.") if isinstance(value, dict) else [(before + key, value)]
    return rows
