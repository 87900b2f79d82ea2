"""Commands that end jobs, and their machines."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Annotated

import typer

from bai_agent.errors import BaiError, StoreError
from bai_agent.job.outcome import ExitCode, Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from executor.commands.job_options import JobOptions
from executor.commands.options import JobArgument, JsonOption, ProfileOption, print_json, say
from executor.view.text import plain_text, tell


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
    from executor.backends.local.agent import local_agent
    from executor.errors import UsageError
    from executor.jobs.jobs import find_job
    from executor.records.reading import result_of

    record = find_job(options.stores(), job)
    agent = local_agent(record)
    if now and agent is not None:
        raise UsageError(f"--now is for jobs on EC2, and {record.job_id} runs on this machine")
    if (result := result_of(record)) is not None:
        told = f"it has ended before: {result.get('sentence')}"
    else:
        first = record.cancel(by="bai cancel")
        told = "cancelling" if first else "cancelling, as was asked before"
        if agent is not None and not agent.alive():
            # Nobody else would end a benchmark that still runs, or write the job's result.
            agent.start()
            told = f"{told}; its agent had died and was started again to end the job"
    if now:
        told = f"{told.rstrip('.')}; {_end_machines(record, options)}"
    _tell(record, told, json_=json_)


def release(job: JobArgument, options: JobOptions, json_: JsonOption = False) -> None:
    """Let the kept machines of a failed job go.

    Those on EC2 that keep_on_failure keeps to be looked into. They power off within a minute.
    """
    from executor.backends.local.agent import local_agent
    from executor.errors import UsageError
    from executor.jobs.jobs import find_job

    record = find_job(options.stores(), job)
    if local_agent(record) is not None:
        raise UsageError(f"{record.job_id} runs on this machine, which nothing keeps")
    if (nothing := _keeps_nothing(record, options)) is not None:
        _tell(record, f"there is nothing to release: {nothing}", json_=json_)
        return
    content = json.dumps({"time": now_ms(), "by": "bai release"}).encode() + b"\n"
    first = record.store.put(record.key("release.json"), content, if_absent=True)
    _tell(record, "released" if first else "it was released before", json_=json_)


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
    """Terminate machines whose time is up.

    Those that have not gone by themselves, and only those that `bai` launched, whoever did; meant for cron too.
    Exit code 5 where one cannot be terminated.
    """
    from executor.backends.ec2.monitor.reaper import Reaped
    from executor.backends.ec2.monitor.reaper import reap as reap_region
    from executor.backends.ec2.regions import named_regions
    from executor.backends.ec2.session import AwsError, aws_of
    from executor.config import read_settings
    from executor.jobs.stores import bucket_store

    troubles = 0

    def told(reaped: Reaped) -> None:
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
                    "terminated": not reaped.trouble and not dry_run,
                    "trouble": reaped.trouble or None,
                }
            )
            return
        since = f"{reaped.expires:%Y-%m-%d %H:%M} UTC" if reaped.expires else "?"
        done = reaped.trouble or ("would be terminated" if dry_run else "terminated")
        tell(
            f"{instance.id}  {instance.type}  {instance.state}  {instance.job_id}  time was up at {since}: {done}"
        )

    settings = read_settings({"profile": profile})
    count = 0
    regions = dict.fromkeys(region or [settings.need_region()])
    if not region and settings.store_url is not None:
        try:
            regions.update(dict.fromkeys(named_regions(bucket_store(settings))))
        except StoreError as error:
            troubles += 1
            say(f"in which other regions jobs were launched is not known: {error}")
    for each in regions:
        try:
            ec2 = aws_of(settings, region=each).ec2()
            count += len(reap_region(ec2, now=datetime.now(timezone.utc), dry_run=dry_run, told=told))
        except AwsError as error:
            # A region that is out of reach does not keep the machines of the others.
            troubles += 1
            say(f"{each}: {error}")
    if not count and not troubles:
        say("there is nothing to reap")
    if troubles:
        raise typer.Exit(ExitCode.OURS)


def _keeps_nothing(record: JobRecord, options: JobOptions) -> str | None:
    """Return why no machine of the job is kept, or will be; None where one is, or may be for all that can be seen."""
    from executor.backends.ec2.monitor.job_status import monitor_of
    from executor.records.reading import result_of

    monitor = monitor_of(record, options.settings)
    if monitor.job.end.keep_on_failure is None:
        return "it keeps no machine to look into (keep_on_failure is not set)"
    if result_of(record) is None:
        return None
    try:
        there = [each for each in monitor.instances() if each.living]
    except BaiError:
        return None
    return None if there else "it has ended, and none of its machines is there any more"


def _end_machines(record: JobRecord, options: JobOptions) -> str:
    """Terminate a job's machines, and write that it was cancelled where it has no result; return what was done."""
    from executor.backends.ec2.monitor.job_status import monitor_of
    from executor.backends.ec2.verdict import write_result

    ended = monitor_of(record, options.settings).end()
    write_result(
        record, Outcome.CANCELLED, "The job was cancelled, and its machines were terminated at once."
    )
    if not ended:
        return "it has no machines"
    return f"{', '.join(ended)} {'is' if len(ended) == 1 else 'are'} being terminated"


def _tell(record: JobRecord, told: str, *, json_: bool) -> None:
    if json_:
        print_json({"job_id": record.job_id, "message": told})
    else:
        tell(plain_text(f"{record.job_id}: {told}"))
