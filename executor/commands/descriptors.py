"""Commands about benchmark descriptors; none of them runs anything."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.job.outcome import ExitCode
from executor.backends import Backends
from executor.commands.job_options import JobOptions, KeyOptions
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

# What only one command needs is imported there: `bai --help` and each completion in a shell load this module.
if TYPE_CHECKING:
    from executor.descriptor import Descriptor
    from executor.descriptor.presets import PresetUse


def init() -> None:
    """Print a commented descriptor to start from."""
    from executor.descriptor import TEMPLATE

    sys.stdout.write(TEMPLATE)


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Benchmark descriptors (TOML).")],
    keys: KeyOptions,
    on: OnOption = None,
    script: ScriptOption = None,
    json_: JsonOption = False,
) -> None:
    """Check descriptors and name every mistake.

    What would run here is also looked at for secrets that are not set. With `--on ec2` also what would stop a launch, as far as it is known without AWS. Exit code 2 where there is a mistake.
    """
    from executor.descriptor import has_errors, load, render_findings
    from executor.descriptor.metric_checks import try_examples
    from executor.descriptor.override_places import name_option, origins_of
    from executor.planning.request import JobRequest
    from executor.view.presets import use_text
    from executor.view.trial import print_examples

    wrong, backends, overrides = False, Backends(), keys.overrides()
    for file in files:
        descriptor, findings = load(file, script=script, overrides=overrides)
        engine = backends.of_engine(descriptor.info.execution_engine) if descriptor is not None else None
        here = engine is not None and not engine.remote
        # Where the descriptor alone says where it runs, what is configured here may not be what it is for.
        if descriptor is not None and (on is not None or here):
            job_request = JobRequest(file=file, on=on, script=script, overrides=overrides)
            backend = backends.of_request(job_request, descriptor)
            found = backend.preflight(job_request, descriptor)
            findings = [*findings, *(name_option(each, origins_of(overrides)) for each in found)]
            descriptor = None if has_errors(findings) else descriptor
        wrong = wrong or descriptor is None
        if json_:
            print_json(
                {
                    "file": str(file),
                    "valid": descriptor is not None,
                    "findings": [each.as_table() for each in findings],
                    "examples": try_examples(descriptor) if descriptor is not None else [],
                    "presets": [asdict(each) for each in _uses(descriptor)] if descriptor is not None else [],
                }
            )
            continue
        tell(render_findings(findings), end="")
        if descriptor is not None:
            tell(f"{file}: valid; {_in_a_line(descriptor, here=here)}")
            for use in _uses(descriptor):
                tell(f"  {use_text(use)}")
            print_examples(try_examples(descriptor))
    if wrong:
        raise typer.Exit(ExitCode.USAGE)


def schema() -> None:
    """Print the JSON Schema of descriptors, for editors."""
    from executor.descriptor import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One of them: its metrics, to copy and change.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """List the programs whose metrics `[output] preset` takes.

    With a name, its metrics as they would stand in a descriptor.
    """
    from executor.descriptor.presets import preset_names, read_preset
    from executor.errors import UsageError
    from executor.view.presets import preset_lines

    if name is not None and name not in preset_names():
        raise UsageError(f'there is no preset "{name}"; there are {", ".join(preset_names())}')
    chosen = [read_preset(each) for each in ([name] if name is not None else preset_names())]
    if json_:
        print_json(
            {
                "presets": [
                    {
                        "name": each.name,
                        "title": each.title,
                        "recorded": each.recorded,
                        "metrics": [
                            metric.model_dump(
                                mode="json", by_alias=True, exclude_unset=True, exclude={"preset"}
                            )
                            for metric in each.metrics
                        ],
                    }
                    for each in chosen
                ]
            }
        )
    elif name is not None:
        tell(chosen[0].text, end="")
    else:
        tell(preset_lines(chosen), end="")


def plan(
    file: FileArgument,
    options: JobOptions,
    keys: KeyOptions,
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
    show_user_data: Annotated[
        bool,
        typer.Option("--show-user-data", help="On EC2: also the user data in clear, which is long."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Print what would run.

    For this machine, a job descriptor with an id of its own, which `bai-agent run` takes. For EC2, what would be launched, and what it costs at most.
    Touches nothing.
    """
    from executor.errors import UsageError
    from executor.planning.request import JobRequest, new_job_id, read_request
    from executor.view.presets import use_text

    job_request = JobRequest(
        file=file,
        on=on,
        arguments=tuple(arguments or ()),
        data_root=data_root,
        script=script,
        overrides=keys.overrides(),
    )
    descriptor, findings = read_request(job_request)
    print_findings(findings)
    backend = options.backends.of_request(job_request, descriptor)
    if not backend.remote:
        print_findings(backend.preflight(job_request, descriptor))
    if user_data and job_id is None:
        # What is pasted into the console runs under this id; two of them must not share one.
        job_id = new_job_id(job_request, descriptor)
    with backend.plan(job_request, descriptor, job_id=job_id, on_progress=say) as planned:
        if user_data:
            sys.stdout.write(planned.user_data().decode() + "\n")
            return
        for note in planned.notes():
            say(note)
        for use in _uses(descriptor):
            say(use_text(use))
        if json_:
            print_json(planned.table())
        else:
            tell(planned.text(show_user_data=show_user_data), end="")
        if (refusal := planned.refusal()) is not None:
            raise UsageError(refusal)


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
        say(f"{file} has no [[output.metrics]] and no preset")
        return

    def show(trial: MetricsTrial) -> None:
        if json_:
            print_json(trial.as_table())
        else:
            print_trial(trial)

    if not try_metrics(metrics, log, show=None if records else show):
        raise typer.Exit(ExitCode.BENCHMARK_FAILED)


def _uses(descriptor: Descriptor) -> list[PresetUse]:
    from executor.descriptor.presets import preset_uses

    return preset_uses(descriptor.output.metrics, descriptor.output.preset)


def _in_a_line(descriptor: Descriptor, *, here: bool) -> str:
    """Return what would run, where, and how many metrics and sources it has. here: the descriptor says this machine."""
    code = (descriptor.ml.benchmark_code if descriptor.ml else None) or ""
    args = (descriptor.ml.args if descriptor.ml else None) or ""
    lines = code.strip().splitlines()
    command = (
        "a script" if len(lines) != 1 or lines[0].startswith("#!") else f"`{lines[0]} {args}".strip() + "`"
    )
    engine = descriptor.info.execution_engine
    where = "on this machine" if here else f"on {descriptor.hardware.instance_type} at {engine}"
    counts = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in (
            (len(descriptor.output.every_metric), "metric"),
            (len(descriptor.data.sources), "source"),
        )
        if count
    ]
    return f"runs {command} {where}" + (f", with {' and '.join(counts)}" if counts else "")
