"""Commands that launch on EC2, and what prepares a launch."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from executor.commands.job_options import AwsOptions, JobOptions
from executor.commands.options import (
    ArgumentsArgument,
    FileArgument,
    JobIdOption,
    JsonOption,
    ScriptOption,
    choices,
    print_findings,
    print_json,
    say,
)
from executor.view.text import tell

if TYPE_CHECKING:
    from executor.backends.ec2.launch.draft import LaunchPlan
    from executor.backends.ec2.session import AwsSession
    from executor.backends.ec2.staging_bucket import Upload
    from executor.config import Settings
    from executor.descriptor import Descriptor, Finding
    from executor.planning.request import JobRequest, Submitted


def submit(
    file: FileArgument,
    options: AwsOptions,
    arguments: ArgumentsArgument = None,
    job_id: JobIdOption = None,
    script: ScriptOption = None,
    json_: JsonOption = False,
) -> None:
    """Launch a benchmark on EC2, print the job's id, and return.

    With --job-id it can be repeated after whatever went wrong: it is launched once.
    """
    from executor.planning.request import JobRequest

    job_request = JobRequest(file=file, on="ec2", arguments=tuple(arguments or ()), script=script)
    jobs = JobOptions(profile=options.profile, region=options.region, bucket=options.bucket)
    submit_to_ec2(job_request, jobs, job_id=job_id, json_=json_, returns=True)


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
        bool, typer.Option("--upload", help="Put them into the exchange bucket, where they are not yet.")
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
    import shutil

    from executor.backends.ec2.bundle.bundle import build, cache_folder
    from executor.backends.ec2.bundle.wheels import ARCHITECTURES
    from executor.backends.ec2.launch.draft import bundle_upload
    from executor.backends.ec2.staging_bucket import staging_bucket
    from executor.backends.ec2.staging_bucket import upload as bring
    from executor.errors import UsageError
    from executor.quantities import size

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
        bring(staging_bucket(options.settings), [bundle_upload(each) for each in built], told=_tell_upload)
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


def config(options: AwsOptions, json_: JsonOption = False) -> None:
    """Print the configuration, each value with where it came from."""
    from bai_agent.job.tables import write_table
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


def submit_to_ec2(
    job_request: JobRequest, options: JobOptions, *, job_id: str | None, json_: bool, returns: bool
) -> Submitted:
    """Launch `job_request`, and say what is launched. `returns`: nobody follows, so the job's id is what is printed.

    A signal ends it with what is left behind: a machine that may run and cost, and how to look at it and end it.
    """
    from executor.backends.ec2.launch.submission import submit
    from executor.signals import SignalError, raised_signals

    settings = options.settings
    launched = job_id  # repeated, it may have been launched before
    known = job_id

    def told(drawn: str, findings: Sequence[Finding]) -> None:
        nonlocal known
        known = drawn
        print_findings(findings)
        # Before anybody is asked: whoever is cut off now can repeat the submission with this id.
        if not returns:
            say(f"the job is {drawn}")
        elif not json_:
            tell(drawn, flush=True)

    def drafted(draft: LaunchPlan, aws: AwsSession) -> None:
        nodes = draft.job.strategy.nodes
        cost = "" if returns else f": {draft.cost(settings, aws).sentence()}"
        say(f"launching {nodes} × {draft.resolved.kind.name} in {draft.resolved.region}{cost}")

    def launching(drawn: str) -> None:
        nonlocal launched
        launched = drawn

    try:
        with raised_signals():
            submitted = submit(
                job_request,
                settings,
                job_id=job_id,
                told=told,
                drafted=drafted,
                uploading=_tell_upload,
                launching=launching,
                said=say,
            )
    except SignalError as signal:
        say(_left_behind(options, known, launched=launched is not None))
        raise typer.Exit(signal.exit_code) from signal
    if not submitted.new:
        say(f"the job {submitted.record.job_id} exists already; it is launched once")
    if returns and json_:
        record = submitted.record
        print_json({"type": "job", "job_id": record.job_id, "place": f"{record.store.url}/{record.job_id}"})
    return submitted


def _left_behind(options: JobOptions, job_id: str | None, *, launched: bool) -> str:
    """Return what a submission that was cut short leaves behind, and what can be done about it."""
    if job_id is None:
        return "interrupted; nothing was launched"
    again = f"the same command with `--job-id {job_id}` goes on, and launches it once"
    if not launched:
        return f"interrupted before the launch: nothing of {job_id} runs; {again}"
    there = options.for_bucket(options.settings.store_url or "")
    look, end = there.command("status", job_id), there.command("cancel", job_id, "--now")
    return f"interrupted while launching: a machine of {job_id} may run, and cost. `{look}` looks at it, `{end}` ends it; {again}"


def plan_on_ec2(
    job_request: JobRequest,
    descriptor: Descriptor,
    settings: Settings,
    *,
    job_id: str | None,
    user_data: bool,
    json_: bool,
) -> None:
    """Print what would be launched. Reads only; without credentials some of it is not known."""
    from executor.backends.ec2.launch.draft import planned_launch
    from executor.planning.request import new_job_id, survey

    if user_data and job_id is None:
        # What is pasted into the console runs under this id; two of them must not share one.
        job_id = new_job_id(job_request, descriptor)
    launch = planned_launch(job_request, descriptor, settings, job_id=job_id, said=say)
    with launch as (made, uploads, aws):
        if user_data:
            _print_user_data(made, uploads)
            return
        from executor.view.launch import plan_table, print_draft

        cost = made.cost(settings, aws)
        scripts = survey(job_request, descriptor)
        if json_:
            print_json(plan_table(made, uploads, cost, scripts))
            return
        print_draft(made, uploads, cost)
        if scripts is not None:
            say(f"scripts: {scripts.sentence()}")


def _print_user_data(made: LaunchPlan, uploads: Sequence[Upload]) -> None:
    from executor.errors import UsageError

    if made.bundle is None:
        raise UsageError(
            "the user data names the agent's bundle, which needs a bucket, a region and AWS credentials"
        )
    say(
        f"for the job {made.job.job.id}; an instance needs the instance profile, and IAM and storage as `bai plan` shows"
    )
    wanted = [f"agent for {made.bundle.architecture}", *(each.what for each in uploads)]
    say(f"it reads from the bucket: {', '.join(wanted)}; `bai bundle --upload` brings the agent there")
    sys.stdout.write(base64.b64encode(made.user_data.content).decode() + "\n")


def _tell_upload(each: Upload) -> None:
    from executor.quantities import size

    say(f"uploading {each.what} ({size(each.size)})")


def _flat(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        rows += _flat(value, f"{before}{key}.") if isinstance(value, dict) else [(before + key, value)]
    return rows
