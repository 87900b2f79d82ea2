"""Commands about benchmark descriptors; none of them runs anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.job.outcome import ExitCode
from executor.commands.job_options import JobOptions
from executor.commands.options import (
    ArgumentsArgument,
    DataRootOption,
    FileArgument,
    JobIdOption,
    JsonOption,
    OnOption,
    ScriptOption,
    print_findings,
    print_json,
    say,
)
from executor.view.text import tell

if TYPE_CHECKING:
    from executor.descriptor import Descriptor, Finding
    from executor.planning.request import JobRequest


def init() -> None:
    """Print a commented descriptor to start from."""
    from executor.descriptor import TEMPLATE

    sys.stdout.write(TEMPLATE)


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Benchmark descriptors (TOML).")],
    on: OnOption = None,
    script: ScriptOption = None,
    json_: JsonOption = False,
) -> None:
    """Check descriptors and name every mistake.

    What would run here is also looked at for secrets that are not set. With `--on ec2` also what would stop a launch, as far as it is known without AWS. Exit code 2 where there is a mistake.
    """
    from executor.descriptor import has_errors, load, render_findings
    from executor.descriptor.metric_checks import try_examples
    from executor.planning.request import JobRequest, place_of
    from executor.view.trial import print_examples

    wrong = False
    for file in files:
        descriptor, findings = load(file, script=script)
        if descriptor is not None:
            job_request = JobRequest(file=file, on=on, script=script)
            if on is not None and place_of(job_request, descriptor) == "ec2":
                findings = [*findings, *_preflight(job_request, descriptor)]
                descriptor = None if has_errors(findings) else descriptor
            elif on is not None or descriptor.info.execution_engine in ("local", "default"):
                findings = [*findings, *_unset_secrets(file, descriptor)]
        wrong = wrong or descriptor is None
        if json_:
            print_json(
                {
                    "file": str(file),
                    "valid": descriptor is not None,
                    "findings": [_finding_table(each) for each in findings],
                    "examples": try_examples(descriptor) if descriptor is not None else [],
                }
            )
            continue
        tell(render_findings(findings), end="")
        if descriptor is not None:
            tell(f"{file}: valid; {_in_a_line(descriptor)}")
            print_examples(try_examples(descriptor))
    if wrong:
        raise typer.Exit(ExitCode.USAGE)


def schema() -> None:
    """Print the JSON Schema of descriptors, for editors."""
    from executor.descriptor import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def plan(
    file: FileArgument,
    options: JobOptions,
    arguments: ArgumentsArgument = None,
    on: OnOption = None,
    job_id: JobIdOption = None,
    data_root: DataRootOption = None,
    script: ScriptOption = None,
    user_data: Annotated[
        bool,
        typer.Option(
            "--user-data", help="On EC2: only the user data, in base64, for the console's launch page."
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Print what would run.

    For this machine, a job descriptor with an id of its own, which `bai-agent run` takes. For EC2, what would be launched, and what it costs at most.
    Touches nothing.
    """
    from bai_agent.job.descriptor_file import job_table
    from executor.errors import UsageError
    from executor.jobs.jobs import store_at
    from executor.planning.job_toml import job_toml
    from executor.planning.request import (
        JobRequest,
        check_id,
        new_job_id,
        place_of,
        planned,
        read_request,
        survey,
    )

    job_request = JobRequest(
        file=file, on=on, arguments=tuple(arguments or ()), data_root=data_root, script=script
    )
    descriptor, findings = read_request(job_request)
    print_findings(findings)
    if place_of(job_request, descriptor) == "ec2":
        from executor.commands.launches import plan_on_ec2

        plan_on_ec2(
            job_request, descriptor, options.settings, job_id=job_id, user_data=user_data, json_=json_
        )
        return
    if user_data:
        raise UsageError("--user-data is for instances; add `--on ec2`")
    if job_id is not None:
        check_id(job_id)
    store = store_at(options.store)
    # Each plan is a job of its own, as each `bai run` is.
    drawn = job_id or new_job_id(job_request, descriptor)
    job = planned(job_request, descriptor, job_id=drawn, store=store, scripts=None)
    if (scripts := survey(job_request, descriptor, leave_out=[store.folder])) is not None:
        say(f"scripts: {scripts.sentence()}")
    if json_:
        print_json(job_table(job))
    else:
        tell(job_toml(job), end="")


def metrics_test(
    file: FileArgument,
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help='What a benchmark printed; "-" reads standard input.')
    ],
    records: Annotated[
        bool, typer.Option("--records", help="The records that a run would make, one JSON object a line.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Show what the patterns take from a log.

    Matches, values, near misses and the pace. Exit code 1 where a required metric has no value.
    """
    from executor.descriptor import load
    from executor.jobs.metrics_trial import MetricsTrial, try_metrics
    from executor.planning.plan import metrics_of
    from executor.planning.request import FindingsError
    from executor.view.trial import print_trial

    descriptor, findings = load(file)
    if descriptor is None:
        raise FindingsError(findings)
    metrics = metrics_of(descriptor)
    if not metrics:
        say(f"{file} has no [[output.metrics]]")
        return

    def show(trial: MetricsTrial) -> None:
        if json_:
            print_json(trial.as_table())
        else:
            print_trial(trial)

    if not try_metrics(metrics, log, show=None if records else show):
        raise typer.Exit(ExitCode.BENCHMARK_FAILED)


def _preflight(job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
    import os
    from datetime import datetime, timezone

    from executor.backends.ec2.bundle.bundle import cache_folder
    from executor.backends.ec2.launch.preflight import preflight
    from executor.config import read_settings

    return preflight(
        job_request,
        descriptor,
        read_settings(),
        cache=cache_folder(os.environ),
        now=datetime.now(timezone.utc),
    )


def _unset_secrets(file: Path, descriptor: Descriptor) -> list[Finding]:
    """Return warnings: who runs it later may have what is not set here."""
    import os

    from executor.descriptor import Finding, Severity
    from executor.planning.request import unset_secrets

    password = descriptor.kafka.sasl_password if descriptor.kafka is not None else None
    return [
        Finding(
            file=str(file),
            path=path,
            problem=f"the environment variable {name} is not set here",
            fix=f"export {name} before `bai run`, which would refuse to start",
            severity=Severity.WARNING,
        )
        for path, name in unset_secrets(descriptor.env.secrets, password, os.environ)
    ]


def _finding_table(finding: Finding) -> dict[str, object]:
    return {
        "key": finding.key,
        "path": list(finding.path),
        "severity": finding.severity.value,
        "problem": finding.problem,
        "fix": finding.fix,
    }


def _in_a_line(descriptor: Descriptor) -> str:
    """Return what would run, where, and what would be taken from it."""
    hardware = descriptor.hardware
    code = (descriptor.ml.benchmark_code if descriptor.ml else None) or ""
    args = (descriptor.ml.args if descriptor.ml else None) or ""
    lines = code.strip().splitlines()
    command = (
        "a script" if len(lines) != 1 or lines[0].startswith("#!") else f"`{lines[0]} {args}".strip() + "`"
    )
    where = {"aws.ec2": f"on {hardware.instance_type} at aws.ec2"}.get(
        descriptor.info.execution_engine, "on this machine"
    )
    counts = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in (
            (len(descriptor.output.metrics), "metric"),
            (len(descriptor.data.sources), "source"),
        )
        if count
    ]
    return f"runs {command} {where}" + (f", with {' and '.join(counts)}" if counts else "")
