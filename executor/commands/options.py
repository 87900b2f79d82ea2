"""Arguments and options that several commands have, and how they print."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bai_agent.errors import BaiError
from bai_agent.job.record import JobRecord
from executor.backends import backend_names
from executor.commands.job_options import AwsOptions, JobOptions
from executor.view.text import plain_text, tell

if TYPE_CHECKING:
    from executor.descriptor import Finding


def _job_ids(incomplete: str) -> list[str]:
    """Complete a job id in the shell, from the usual store."""
    from executor.backends.local.job_store import store_at
    from executor.jobs.jobs import job_ids
    from executor.planning.request import LAST

    try:
        known = job_ids(store_at(None))
    except BaiError:
        return []
    return [each for each in (*known, LAST) if each.startswith(incomplete)]


def choices(*values: str) -> Callable[[str], list[str]]:
    """Return what completes a value in the shell that is one of `values`."""
    return lambda incomplete: [each for each in values if each.startswith(incomplete)]


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A benchmark descriptor (TOML).")]
JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help='A job id, the beginning of one, or "last".', autocompletion=_job_ids),
]
ArgumentsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGS", help="What follows -- is passed on to the benchmark."),
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
        help='"local": this machine; "ec2": EC2 instances; whatever FILE says.',
        autocompletion=choices(*backend_names()),
    ),
]
JobIdOption = Annotated[
    str | None,
    typer.Option("--job-id", metavar="ID", help="The job's id; the same one twice is one job."),
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
    typer.Option("--bucket", metavar="NAME", help="The exchange bucket [default: the configuration's]."),
]


_SPREAD: Mapping[type, Mapping[str, Any]] = {
    AwsOptions: {"profile": ProfileOption, "region": RegionOption, "bucket": BucketOption},
    JobOptions: {
        "store": StoreOption,
        "profile": ProfileOption,
        "region": RegionOption,
        "bucket": BucketOption,
    },
}
"""Parameter of a command → the options that it stands for."""


def with_given(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameter of type `JobOptions` or `AwsOptions` is spread into options, which stand before `--json`."""
    signature = inspect.signature(function, eval_str=True)
    found = [each for each in signature.parameters.values() if each.annotation in _SPREAD]
    if not found:
        return function
    (given,) = found
    kinds = _SPREAD[given.annotation]

    @functools.wraps(function)
    def spread(**options: Any) -> None:
        mine = {name: options.pop(name) for name in kinds}
        function(**options, **{given.name: given.annotation(**mine)})

    kept = [each for each in signature.parameters.values() if each is not given]
    last = [each for each in kept if each.name == "json_"]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in kinds.items()
    ]
    kept = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in kept if each not in last]
    last = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in last]
    # This is what typer reads.
    spread.__signature__ = signature.replace(parameters=[*kept, *options, *last])  # type: ignore[attr-defined]
    spread.__annotations__ = {each.name: each.annotation for each in (*kept, *options, *last)}
    return spread


def say(sentence: str) -> None:
    """Tell the person something that is no result."""
    print(f"bai: {plain_text(sentence)}", file=sys.stderr)


def print_findings(findings: Sequence[Finding]) -> None:
    """Show what is wrong with a descriptor that can be run all the same."""
    if findings:
        from executor.descriptor import render_findings

        tell(render_findings(findings), end="", stream=sys.stderr)


def print_done(record: JobRecord, what: str, *, json_: bool) -> None:
    """Say what was done about a job."""
    if json_:
        print_json({"job_id": record.job_id, "message": what})
    else:
        tell(plain_text(f"{record.job_id}: {what}"))


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=True, default=str))


NOBODY_READS = 128 + 13
"""The exit code where standard output was closed: as a shell shows a process that SIGPIPE ended."""


def nobody_reads(error: OSError) -> bool:
    """Return whether `error` means that our output goes nowhere. EIO is how a terminal ends that was closed."""
    return error.errno in (errno.EPIPE, errno.EIO)


def write_error(error: OSError) -> str | None:
    """Return a sentence where `error` means that a file that our output goes to takes no more; else None."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"the output cannot be written: {error.strerror}"
    return None


def silence() -> None:
    """Let what is still buffered for standard output go nowhere, so that Python's exit does not fail over it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
