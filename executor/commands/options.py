"""Arguments and options of several commands, and how commands print."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from bai_agent.errors import BaiError, DescriptorError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.run_directory import FULL, now_ms
from executor.backends import backend_names
from executor.commands.job_options import AwsOptions, JobOptions, KeyOptions, ScriptOptions
from executor.documents.text import plain_text, tell
from executor.errors import NotStartedError, UsageError

# `bai --help` and each completion in a shell load this module, so each command imports what it alone needs.
if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from executor.descriptor import Finding
    from executor.planning.request import JobRequest


def job_ids_of(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete a job id in the shell, from the store on this machine, with the status of each job."""
    from executor.backends.local.folder_store import store_at
    from executor.jobs.completion import complete_job_ids

    try:
        store = store_at(ctx.params.get("store"))
    except BaiError:
        return []
    return complete_job_ids(store.folder, incomplete)


def _settable_keys(incomplete: str) -> list[str]:
    """Complete the key of `--set KEY=VALUE` in the shell."""
    from executor.descriptor.schema import settable_keys

    return [f"{each}=" for each in settable_keys() if each.startswith(incomplete)]


def choices(*values: str) -> Callable[[str], list[str]]:
    """Return a shell completion for an option whose value is one of `values`."""
    return lambda incomplete: [each for each in values if each.startswith(incomplete)]


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A benchmark descriptor (TOML).")]
_SCRIPT_TOO = "A benchmark descriptor (TOML), a script, or a folder followed by the script in it"
RunFileArgument = Annotated[Path, typer.Argument(metavar="FILE", help=f"{_SCRIPT_TOO}.")]
FileOrNoneArgument = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help=f"{_SCRIPT_TOO}; none with --like."),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="JOB",
        help="Run what JOB ran, as --like does, from the newest checkpoint of JOB, which has ended.",
        autocompletion=job_ids_of,
    ),
]
LikeOption = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="JOB",
        help="Run what JOB ran, in place of FILE: the same descriptor, scripts, arguments and --set; further options take precedence.",
        autocompletion=job_ids_of,
    ),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help='A job id, the beginning of one, or "last".', autocompletion=job_ids_of
    ),
]
RunningJobArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help='A job id, the beginning of one, or "last" [default: the newest job that runs].',
        show_default=False,
        autocompletion=job_ids_of,
    ),
]
ArgumentsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGS", help="Arguments after -- are passed on to the benchmark."),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="STORE",
        help="The job store: a folder, or s3://bucket/jobs [default: BAI_STORE, or ~/.bai/jobs and the configured bucket].",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable: one JSON object a line.")]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="WHERE",
        help="; ".join(f'"{name}": {words}' for name, words in backend_names().items())
        + "; whatever FILE says.",
        autocompletion=choices(*backend_names()),
    ),
]
JobIdOption = Annotated[
    str | None,
    typer.Option(
        "--job-id", metavar="ID", help="The job's id; a repeated submission with the same id is one job."
    ),
]
DataRootOption = Annotated[
    Path | None, typer.Option("--data-root", metavar="DIR", help="Put before all absolute data paths.")
]
ScriptOption = Annotated[
    Path | None,
    typer.Option(
        "--script",
        metavar="PATH",
        help="A file or folder that goes along under its own name as $(BAI_SCRIPTS_PATH)/NAME, in place of [ml.script].",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of FILE for this time, e.g. ml.args='--batch 64'; can be repeated.",
        autocompletion=_settable_keys,
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        metavar="N|MIN:MAX",
        help="The number of machines, or a range: hardware.distributed.num_instances.",
    ),
]
InstanceTypeOption = Annotated[
    str | None,
    typer.Option("--instance-type", metavar="TYPE", help="The EC2 instance type: hardware.instance_type."),
]
MaxCostOption = Annotated[
    float | None,
    typer.Option(
        "--max-cost", metavar="USD", help="On EC2: launch nothing that may cost more: limits.max_cost."
    ),
]
MetricOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME=REGEX",
        help="For a script: a metric to take from its output, 'loss=loss: (\\S+)'; can be repeated.",
    ),
]
PresetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="For a script: metrics of a known program (`bai presets`); can be repeated.",
    ),
]
EmitTomlOption = Annotated[
    bool | None,
    typer.Option("--emit-toml", help="For a script: print its benchmark descriptor, and run nothing."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="The AWS profile [default: the configuration's]."),
]
RegionOption = Annotated[
    str | None,
    typer.Option("--region", metavar="NAME", help="The AWS region [default: the configuration's]."),
]
BucketOption = Annotated[
    str | None,
    typer.Option("--bucket", metavar="NAME", help="The staging bucket [default: the configuration's]."),
]


_AWS_OPTIONS = {"profile": ProfileOption, "region": RegionOption, "bucket": BucketOption}
_SPREAD: Mapping[type, Mapping[str, Any]] = {
    AwsOptions: _AWS_OPTIONS,
    KeyOptions: {
        "set_": SetOption,
        "nodes": NodesOption,
        "instance_type": InstanceTypeOption,
        "max_cost": MaxCostOption,
    },
    ScriptOptions: {"metric": MetricOption, "preset": PresetOption, "emit_toml": EmitTomlOption},
    JobOptions: {"store": StoreOption, **_AWS_OPTIONS},
}
"""Type of a command's parameter → the options that it stands for."""


class OptionTable:
    """A class whose fields are options of a command, each with its default."""


def _spread(kind: Any) -> Mapping[str, Any]:
    """Return the options that the type of a command's parameter stands for; empty for other types."""
    if isinstance(kind, type) and issubclass(kind, OptionTable):
        return get_type_hints(kind, include_extras=True)
    return _SPREAD.get(kind, {})


def with_given(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters that stand for several options are spread into these, which stand before `--json`."""
    signature = inspect.signature(function, eval_str=True)
    found = {each: names for each in signature.parameters.values() if (names := _spread(each.annotation))}
    if not found:
        return function

    @functools.wraps(function)
    def spread(**options: Any) -> None:
        for given, names in found.items():
            mine = {name: options.pop(name) for name in names}
            options[given.name] = given.annotation(**mine)
        function(**options)

    own = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(given.annotation, name, None),
            annotation=kind,
        )
        for given, names in found.items()
        for name, kind in names.items()
    ]
    kept = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in signature.parameters.values()
        if each not in found
    ]
    last = [each for each in kept if each.name == "json_"]
    parameters = [*(each for each in kept if each not in last), *own, *last]
    # typer reads this.
    spread.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread


def say(sentence: str) -> None:
    """Print a message to stderr."""
    print(f"bai: {plain_text(sentence)}", file=sys.stderr)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print the warnings of a descriptor to stderr."""
    if findings:
        from executor.descriptor import render_findings

        tell(render_findings(findings), end="", stream=sys.stderr)


def requested(given: JobRequest, flags: ScriptOptions) -> JobRequest:
    """Return the request of a person, whose file may be a script. Raises UsageError.

    With `--emit-toml` the command ends: its descriptor and warnings are printed. Raises FindingsError.
    """
    from executor.planning.request import read_request
    from executor.planning.script_request import emitted_toml

    made = flags.request(given)
    if flags.emit_toml:
        _, findings = read_request(made)
        print_findings(findings)
        tell(emitted_toml(made), end="")
        raise typer.Exit
    return made


def print_done(record: JobRecord, what: str, *, json_: bool) -> None:
    """Print a message about a job."""
    line = plain_text(f"{record.job_id}: {what}")
    print_result({"job_id": record.job_id, "message": what}, line, json_=json_)


def print_result(value: Mapping[str, Any], line: str, *, json_: bool) -> None:
    """Print a result: as JSON, or as a line for people."""
    if json_:
        print_json(value)
    else:
        tell(line, flush=True)


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=True, default=str))


def label_values(given: list[str] | None, *, option: str) -> dict[str, str]:
    """Return the labels given as KEY=VALUE. Raises UsageError."""
    found = {}
    for each in given or ():
        key, mark, value = each.partition("=")
        if not mark or not key:
            raise UsageError(f'{option}: "{each}" is not KEY=VALUE; write for example {option} team=vision')
        found[key] = value
    return found


def check_choice(option: str, given: str, known: Sequence[str]) -> None:
    """Raise UsageError if the value of an option is none of `known`."""
    if given not in known:
        *first, last = known
        raise UsageError(f'{option}: "{given}" is not known; write {", ".join(first)} or {last}')


def duration_of(option: str, text: str) -> timedelta:
    """Return the duration that is the value of an option. Raises UsageError."""
    from bai_agent.job.schema.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def time_ago(option: str, text: str) -> int:
    """Return the time (ms UTC) that is an option's duration ago. Raises UsageError."""
    return now_ms() - round(duration_of(option, text).total_seconds() * 1000)


def check_output(output: Path | None, endings: Sequence[str] = ()) -> None:
    """Raise UsageError for a file that cannot be written. endings: allowed endings; () for any."""
    if output is None or output == Path("-"):
        return
    if not output.parent.is_dir():
        raise UsageError(
            f"-o {output}: the folder {output.parent} does not exist; make it first: mkdir -p {output.parent}"
        )
    ending = output.suffix.removeprefix(".").lower()
    if endings and ending not in endings:
        known = " or ".join(f".{each}" for each in endings)
        raise UsageError(
            f"-o {output}: a page is written, not {f'.{ending}' if ending else 'a file without ending'}; end it with {known}"
        )


NOBODY_READS = 128 + 13
"""Exit code if standard output was closed: that of a process that SIGPIPE ended."""


def nobody_reads(error: OSError) -> bool:
    """Return whether `error` means that our output has no reader. A closed terminal gives EIO."""
    return error.errno in (errno.EPIPE, errno.EIO)


def write_error(error: OSError) -> str | None:
    """Return a sentence if `error` means that the file which takes our output is full; else None."""
    if error.filename is None and error.errno in (*FULL, errno.EFBIG):
        return f"the output cannot be written: {error.strerror}"
    return None


def silence() -> None:
    """Discard what is still buffered for standard output, so that Python's exit does not fail over it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def exit_code_of(error: BaiError) -> ExitCode:
    """Return the exit code with which an error ends a command."""
    # Imported here, so that `bai --help` does not wait for it.
    from executor.planning.request import FindingsError

    if isinstance(error, (FindingsError, UsageError, DescriptorError)):
        return ExitCode.USAGE
    if isinstance(error, NotStartedError):
        return error.outcome.exit_code
    # Imported now, because these load the whole descriptor.
    from executor.errors import PlanError, ScriptsError

    return ExitCode.USAGE if isinstance(error, (PlanError, ScriptsError)) else ExitCode.OURS
