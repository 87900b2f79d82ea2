"""Commands about EC2 itself and bai's configuration for it. The commands in other modules do not depend on
EC2."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bai_agent.job.outcome import ExitCode
from bai_agent.job.schema.tables import write_table
from executor.commands.job_options import AwsOptions, KeyOptions, check_choice, duration_of
from executor.commands.options import JsonOption, ProfileOption, choices
from executor.commands.printing import print_json, print_result, say
from executor.documents.text import tell
from executor.errors import UsageError

# `bai --help` and each shell completion load this module, so modules that only one command needs are imported
# in its function.
if TYPE_CHECKING:
    from executor.backends.ec2.monitor.reaper import Reaped
    from executor.backends.ec2.staging_bucket import Upload
    from executor.configuration.config import Settings
    from executor.planning.request import JobRequest

_LEAST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=5), timedelta(days=1)


def doctor(
    options: AwsOptions,
    keys: KeyOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="A benchmark descriptor whose image and launch are also checked."
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Check everything that a job on EC2 needs.

    If something is missing, prints what to do. Launches nothing. Exit code 2 if the configuration,
    credentials or FILE have to be corrected, else 5 if a check fails.
    """
    from executor.planning.request import JobRequest

    overrides = keys.overrides()
    if file is None and overrides:
        raise UsageError(
            f"{overrides[0].option} sets a key of a descriptor, but no descriptor is named; write bai doctor FILE"
        )
    job_request = None
    if file is not None:
        job_request = JobRequest(file=file, overrides=overrides, variables=dict(os.environ))
    failed = print_health(options.settings, job_request, json_=json_)
    if failed is not None:
        raise typer.Exit(failed)


def print_health(settings: Settings, job_request: JobRequest | None, *, json_: bool) -> ExitCode | None:
    """Print the findings of `bai doctor`. Return the exit code if a check fails, and None otherwise."""
    from executor.backends.ec2.doctor.doctor import examine
    from executor.backends.ec2.doctor.doctor_findings import Health

    failed: ExitCode | None = None
    for each in examine(settings, job_request):
        if each.health is Health.FAILED and failed is not ExitCode.USAGE:
            failed = ExitCode.USAGE if each.configuration else ExitCode.OURS
        todo = f"; {each.todo}" if each.todo else ""
        line = f"{each.health.value:<7} {each.check:<16} {each.sentence}{todo}"
        print_result(each.as_table(), line, json_=json_)
    return failed


def bundle(
    options: AwsOptions,
    arch: Annotated[
        str,
        typer.Option(
            "--arch",
            metavar="NAMES",
            help="CPU architectures, separated by commas.",
            autocompletion=choices("x86_64", "aarch64"),
        ),
    ] = "x86_64,aarch64",
    upload: Annotated[
        bool, typer.Option("--upload", help="Upload bundles that the staging bucket lacks.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for a copy of the bundle, SHA256.tar.gz."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Build the agent's bundle, which instances download.

    `bai submit` also builds the bundle. Packages are downloaded from the package index once, and then taken
    from a cache.
    """

    from executor.backends.ec2.bundle.bundle import build
    from executor.backends.ec2.bundle.wheels import ARCHITECTURES
    from executor.backends.ec2.launch.draft import bundle_upload
    from executor.backends.ec2.staging_bucket import staging_bucket
    from executor.backends.ec2.staging_bucket import upload as bring
    from executor.owned_folders import cache_folder
    from executor.quantities import size

    def on_upload(each: Upload) -> None:
        say(f"uploading {each.what} ({size(each.size)})")

    names = [each.strip() for each in arch.split(",") if each.strip()]
    for name in names:
        check_choice("--arch", name, ARCHITECTURES)
    if output is not None:
        _make_folder(output)
    built = [build(each, cache=cache_folder(os.environ)) for each in names]
    if upload:
        bring(staging_bucket(options.settings), [bundle_upload(each) for each in built], on_upload=on_upload)
    for each in built:
        if output is not None:
            shutil.copyfile(each.path, output / f"{each.sha256}.tar.gz")
        table = {
            "architecture": each.architecture,
            "sha256": each.sha256,
            "bytes": each.size,
            "key": each.key,
        }
        print_result(table, f"{each.architecture:<8} {each.sha256}  {size(each.size)}", json_=json_)


def _make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output: {output} cannot be made: {error.strerror}") from error


def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be terminated.")] = False,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="DURATION",
            help='Repeat the check at this interval, such as "30s", until Ctrl-C.',
        ),
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region",
            metavar="REGION",
            help="Check only this region; can be repeated [default: the configured one, and all regions of jobs].",
        ),
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Check all jobs on EC2 that no command follows.

    Terminates machines that are past their deadline, hang after their job's end, or never ran their user
    data, whoever submitted the job. Writes the results of jobs whose machines are gone. Launches machines in
    place of lost ones. This command can also be run by cron. Exit code 5 if a machine cannot be terminated,
    or a job or region cannot be checked.
    """
    from executor.configuration.config import read_settings

    pause = None if every is None else _read_pause(every)
    settings = read_settings({"profile": profile})
    if not region:
        settings.need_region()
    reaping = _Reaping(settings, dry_run=dry_run, every=pause, json_=json_)
    if pause is not None:
        reaping.repeat(region or (), pause)
    reaping.look(region or ())
    if not reaping.count and not reaping.troubles:
        say("there is nothing to reap")
    if reaping.troubles:
        raise typer.Exit(ExitCode.OURS)


def _read_pause(text: str) -> timedelta:
    pause = duration_of("--every", text)
    if not _LEAST_PAUSE <= pause <= _LONGEST_PAUSE:
        raise UsageError(f'--every: "{text}" is not between 5s and 1d')
    return pause


class _Reaping:
    """Carries out one call of `bai reap`."""

    def __init__(self, settings: Settings, *, dry_run: bool, every: timedelta | None, json_: bool) -> None:
        from executor.backends.ec2.bucket_store import bucket_store
        from executor.backends.ec2.monitor.bucket_look import BucketLook, LookListener
        from executor.backends.ec2.monitor.replacer import kept_replacer
        from executor.backends.ec2.watched_jobs import Looker

        self._dry_run, self._json = dry_run, json_
        self.count = 0
        """Number of machines and jobs that all checks have found."""
        self.troubles = 0
        self._said: set[str] = set()
        """Sentences that the last check printed. The next check does not print these sentences again."""
        self._saying: set[str] = set()
        self._look = BucketLook(
            settings=settings,
            store=None if settings.store_url is None else bucket_store(settings),
            kind=Looker.REAP,
            every=every,
            replacer=lambda record: kept_replacer(record, settings),
            listener=LookListener(
                on_reaped=self._on_reaped, on_job=self._on_job, on_trouble=self._on_trouble
            ),
            dry_run=dry_run,
        )

    def look(self, regions: Collection[str]) -> None:
        self._said, self._saying = self._saying, set()
        self._look.look(regions=regions)

    def repeat(self, regions: Collection[str], pause: timedelta) -> NoReturn:
        """Repeat the check until a signal arrives."""
        from executor.signals import SignalError, raised_signals

        try:
            with raised_signals():
                while True:
                    # The pause starts after the end of a check, so that two checks never overlap.
                    self.look(regions)
                    time.sleep(pause.total_seconds())
        except SignalError as ended:
            say("no longer looking")
            raise typer.Exit(ended.exit_code) from ended

    def _on_reaped(self, reaped: Reaped) -> None:
        self.troubles += bool(reaped.trouble)
        self.count += 1
        instance = reaped.instance
        table = {
            "instance_id": instance.id,
            "job_id": instance.job_id,
            "type": instance.type,
            "state": instance.state,
            "expires": reaped.expires.isoformat() if reaped.expires else None,
            "reason": reaped.why,
            "terminated": not reaped.trouble and not self._dry_run,
            "trouble": reaped.trouble or None,
        }
        done = reaped.trouble or ("would be terminated" if self._dry_run else "terminated")
        machine = f"{instance.id}  {instance.type}  {instance.state}  {instance.job_id}"
        if self._is_news(f"{instance.id}: {done}"):
            print_result(table, f"{machine}  {reaped.why}: {done}", json_=self._json)

    def _on_job(self, job_id: str, sentence: str) -> None:
        self.count += 1
        if self._is_news(f"{job_id}: {sentence}"):
            print_result({"job_id": job_id, "sentence": sentence}, f"{job_id}: {sentence}", json_=self._json)

    def _on_trouble(self, sentence: str) -> None:
        self.troubles += 1
        if self._is_news(sentence):
            say(sentence)

    def _is_news(self, sentence: str) -> bool:
        """Return whether a sentence is new, that is, the last check did not print it."""
        self._saying.add(sentence)
        return sentence not in self._said


def config(options: AwsOptions, json_: JsonOption = False) -> None:
    """Print the configuration, with the origin of each value."""
    from executor.configuration.config import config_file
    from executor.descriptor.toml_text import toml_value

    settings = options.settings
    table = write_table(settings)
    table.pop("origins", None)
    rows = [(key, value, settings.origins.get(key, "default")) for key, value in _flat(table)]
    if json_:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
        return
    if not rows:
        say(f"nothing is configured; docs/ec2.md lists the keys of {config_file(os.environ)}")
    for key, value, origin in rows:
        tell(f"{key} = {toml_value(value)}  # {origin}")


def _flat(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        rows += _flat(value, f"{before}{key}.") if isinstance(value, dict) else [(before + key, value)]
    return rows
