"""Commands that work on benchmark descriptors without running a benchmark."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bai_agent.job.outcome import ExitCode
from bai_agent.light_dataclass import asdict, dataclass, fields
from executor.backends import Backends
from executor.commands.job_options import JobOptions, KeyOptions, ScriptOptions
from executor.commands.options import (
    ArgumentsArgument,
    DataRootOption,
    FileArgument,
    JobIdOption,
    JsonOption,
    OnOption,
    RunFileArgument,
    ScriptOption,
    requested,
)
from executor.commands.printing import print_findings, print_json, say
from executor.documents.text import tell

# `bai --help` and each shell completion load this module, so modules that only one command needs are imported
# in its function.
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from executor.backends.backend import Backend
    from executor.descriptor import Descriptor, Finding
    from executor.descriptor.presets import Preset, PresetUse
    from executor.planning.request import JobRequest


def init() -> None:
    """Print a commented descriptor to start from."""
    from executor.descriptor import TEMPLATE

    sys.stdout.write(TEMPLATE)


def validate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Benchmark descriptors (TOML), or scripts.")
    ],
    keys: KeyOptions,
    flags: ScriptOptions,
    on: OnOption = None,
    script: ScriptOption = None,
    json_: JsonOption = False,
) -> None:
    """Check descriptors and name every mistake.

    For a file that would run on this machine, also reports secrets that are not set. With `--on ec2`, also
    reports mistakes that would prevent a launch, as far as they are known without AWS. Exit code 2 if there
    is a mistake.
    """
    from executor.descriptor import render_findings
    from executor.documents.screen import show_blocks
    from executor.documents.trial import example_notes, use_text
    from executor.planning.request import JobRequest

    wrong, backends, overrides = False, Backends(), keys.overrides()
    for file, arguments in _with_arguments(files):
        given = JobRequest(file=file, on=on, arguments=arguments, script=script, overrides=overrides)
        job_request = requested(given, flags)
        checked = _checked(job_request, backends)
        descriptor = checked.descriptor
        wrong = wrong or descriptor is None
        if json_:
            print_json(checked.as_table())
            continue
        tell(render_findings(checked.findings), end="")
        if descriptor is not None:
            place = on or descriptor.info.execution_engine
            tell(f"{job_request.file}: valid; {_in_a_line(descriptor, here=checked.here, place=place)}")
            for use in _uses(descriptor):
                tell(f"  {use_text(use)}")
            show_blocks([example_notes(checked.examples)])
    if wrong:
        raise typer.Exit(ExitCode.USAGE)


def _with_arguments(files: Sequence[Path]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield each file with its arguments. The argument of a folder is the next word, which names a script in
    the folder."""
    left = list(files)
    while left:
        file = left.pop(0)
        yield file, (str(left.pop(0)),) if left and file.is_dir() and left[0].suffix != ".toml" else ()


@dataclass(frozen=True)
class _Checked:
    """The result of checking one file."""

    file: Path
    descriptor: Descriptor | None
    """The file's descriptor; None if it has a mistake."""
    findings: Sequence[Finding]
    here: bool
    """Whether the job would run on this machine."""

    @property
    def examples(self) -> list[dict[str, Any]]:
        """The values that each metric's pattern finds in the metric's example."""
        from executor.descriptor.checks.metric_checks import try_examples

        return try_examples(self.descriptor) if self.descriptor is not None else []

    def as_table(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        uses = _uses(self.descriptor) if self.descriptor is not None else []
        return {
            "file": str(self.file),
            "valid": self.descriptor is not None,
            "findings": [each.as_table() for each in self.findings],
            "examples": self.examples,
            "presets": [asdict(each) for each in uses],
        }


def _checked(request: JobRequest, backends: Backends) -> _Checked:
    """Check a descriptor file. The backend's requirements are also checked if the backend is this machine or
    was named by `--on`."""
    from executor.descriptor import has_errors
    from executor.descriptor.override_places import expected_origins, name_flag, name_option
    from executor.jobs.earlier_jobs import without_earlier_jobs
    from executor.planning.request import load_request

    descriptor, findings = load_request(request)
    if descriptor is not None:
        findings = [*findings, *_combination_mistakes(request, descriptor, findings)]
    if descriptor is None or has_errors(findings):
        return _Checked(request.file, None, findings, here=False)
    engine = backends.of_engine(descriptor.info.execution_engine)
    here = engine is not None and not engine.remote
    # If only the descriptor names another backend, this machine's configuration is possibly not meant for
    # that backend.
    if request.on is not None or here:
        backend = backends.of_request(request, descriptor)
        here = not backend.remote
        origins = expected_origins(request.overrides)
        checked = without_earlier_jobs(descriptor)
        found = [name_option(each, origins) for each in backend.preflight(request, checked)]
        if request.flags is not None:
            found = [name_flag(each, request.flags) for each in found]
        findings = [*findings, *found]
    return _Checked(request.file, None if has_errors(findings) else descriptor, findings, here=here)


def _combination_mistakes(
    request: JobRequest, descriptor: Descriptor, findings: Sequence[Finding]
) -> Sequence[Finding]:
    """Return the mistakes in the first combination of `[matrix]` that has any."""
    from executor.planning.matrix import matrix_plan
    from executor.planning.request import UNDRAWN_ID, FindingsError

    if descriptor.matrix is None or not descriptor.matrix.axes:
        return []
    try:
        matrix_plan(request, UNDRAWN_ID)
    except FindingsError as error:
        return [each for each in error.findings if each not in findings]
    return []


def schema() -> None:
    """Print the JSON Schema of descriptors, for editors."""
    from executor.descriptor import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print the metrics of this preset, to copy them.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """List the programs whose metrics `[output] preset` takes.

    With NAME, prints the metrics of that preset as they would be written in a descriptor.
    """
    from executor.descriptor.presets import preset_names, read_preset
    from executor.documents.trial import preset_lines
    from executor.errors import UsageError

    if name is not None and name not in preset_names():
        raise UsageError(f'there is no preset "{name}"; there are {", ".join(preset_names())}')
    chosen = [read_preset(each) for each in ([name] if name is not None else preset_names())]
    if json_:
        print_json({"presets": [_preset_table(each) for each in chosen]})
    elif name is not None:
        tell(chosen[0].text, end="")
    else:
        tell(preset_lines(chosen), end="")


def _preset_table(preset: Preset) -> dict[str, Any]:
    """Return a preset as JSON values, which are the keys of each metric in the preset's file."""
    return {
        "name": preset.name,
        "title": preset.title,
        "recorded": preset.recorded,
        "metrics": [
            {key: getattr(metric, key) for key in names if key in metric.written - {"preset"}}
            for metric in preset.metrics
            for names in [[each.name for each in fields(metric)]]
        ],
    }


def plan(
    file: RunFileArgument,
    options: JobOptions,
    keys: KeyOptions,
    flags: ScriptOptions,
    arguments: ArgumentsArgument = None,
    on: OnOption = None,
    job_id: JobIdOption = None,
    data_root: DataRootOption = None,
    script: ScriptOption = None,
    user_data: Annotated[
        bool,
        typer.Option(
            "--user-data", help="On EC2: print only the user data (base64), for the console's launch page."
        ),
    ] = False,
    show_user_data: Annotated[
        bool,
        typer.Option("--show-user-data", help="On EC2: also print the user data in clear text."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Print the plan of a job, without starting it.

    For a job on this machine, prints a job descriptor with a new id, which `bai-agent run` accepts. For a job
    on EC2, prints what would be launched, and the maximum cost. With [matrix] in FILE, prints each
    combination with its maximum cost. Changes nothing.
    """
    from executor.jobs.resolved_request import resolved_request
    from executor.planning.request import JobRequest, MatrixError, read_request

    given = JobRequest(
        file=file,
        on=on,
        arguments=tuple(arguments or ()),
        data_root=data_root,
        script=script,
        overrides=keys.overrides(),
    )
    job_request = requested(given, flags)
    try:
        descriptor, findings = read_request(job_request)
    except MatrixError:
        if user_data or show_user_data:
            raise
        from executor.commands.group_commands import plan_group

        plan_group(job_request, options, group_id=job_id, json_=json_)
        return
    print_findings(findings)
    backend = options.backends.of_request(job_request, descriptor)
    with resolved_request(job_request, descriptor, options, job_id=job_id) as (job_request, descriptor):
        _show_plan(
            backend,
            job_request,
            descriptor,
            job_id=job_id,
            user_data=user_data,
            show_user_data=show_user_data,
            json_=json_,
        )


def _show_plan(
    backend: Backend,
    job_request: JobRequest,
    descriptor: Descriptor,
    *,
    job_id: str | None,
    user_data: bool,
    show_user_data: bool,
    json_: bool,
) -> None:
    """Print the plan of a job, or the user data with which its instances start."""
    from executor.documents.trial import use_text
    from executor.errors import UsageError
    from executor.planning.requested_job import new_job_id

    if not backend.remote:
        print_findings(backend.preflight(job_request, descriptor))
    if user_data and job_id is None:
        # If the user pastes the printed user data into the EC2 console, the job runs with the id in it.
        # Therefore, each print has a new id.
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
        Path, typer.Argument(metavar="LOG", help='Output of a benchmark; "-" reads standard input.')
    ],
    records: Annotated[
        bool, typer.Option("--records", help="Print the records of a run, one JSON object per line.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Try a descriptor's patterns on a log.

    Prints matches, values, near misses and the speed. Exit code 1 if a required metric has no value.
    """
    from executor.descriptor import load
    from executor.documents.screen import show_blocks
    from executor.documents.trial import trial_blocks
    from executor.planning.plan import plan_metrics
    from executor.planning.request import FindingsError
    from executor.trial.metrics_trial import MetricsTrial, try_metrics

    descriptor, findings = load(file, variables=os.environ)
    if descriptor is None:
        raise FindingsError(findings)
    metrics = plan_metrics(descriptor)
    if not metrics:
        say(f"{file} has no [[output.metrics]] and no preset")
        return

    def show(trial: MetricsTrial) -> None:
        if json_:
            print_json(trial.as_table())
        else:
            show_blocks(trial_blocks(trial))

    if not try_metrics(metrics, log, show=None if records else show):
        raise typer.Exit(ExitCode.BENCHMARK_FAILED)


def _uses(descriptor: Descriptor) -> list[PresetUse]:
    from executor.descriptor.presets import preset_uses

    return preset_uses(descriptor.output.metrics, descriptor.output.preset)


def _in_a_line(descriptor: Descriptor, *, here: bool, place: str) -> str:
    """Return a line about a descriptor: command, backend, and numbers of metrics and sources. here: whether
    the benchmark runs on this machine. place: name of the backend for a benchmark that runs elsewhere."""
    code = descriptor.ml.benchmark_code or ""
    args = descriptor.ml.args or ""
    lines = code.strip().splitlines()
    command = (
        "a script" if len(lines) != 1 or lines[0].startswith("#!") else f"`{lines[0]} {args}".strip() + "`"
    )
    where = "on this machine" if here else f"on {descriptor.hardware.instance_type} at {place}"
    server = descriptor.used_server
    metrics, models = (server.output.metrics, server.models) if server is not None else ([], [])
    counts = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in (
            (len([*descriptor.output.every_metric, *metrics]), "metric"),
            (len([*descriptor.data.sources, *models]), "source"),
            (len(descriptor.mounts), "mount"),
        )
        if count
    ]
    return f"runs {command} {where}" + (f", with {_listed(counts)}" if counts else "")


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
