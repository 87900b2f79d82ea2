"""`bai ab`: several descriptors, in turns, in one job on the same machine."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Annotated

import typer

from bai_agent.job.outcome import ExitCode
from executor.commands.compare import compare
from executor.commands.job_options import JobOptions, KeyOptions
from executor.commands.options import DataRootOption, JobIdOption, JsonOption, OnOption, say
from executor.commands.runs import follow, submit_request
from executor.errors import UsageError


def ab(
    first: Annotated[
        Path, typer.Argument(metavar="A.toml", help="The descriptor that the others are compared with.")
    ],
    others: Annotated[
        list[Path], typer.Argument(metavar="B.toml [C.toml...]", help="The other one, or several.")
    ],
    options: JobOptions,
    keys: KeyOptions,
    runs: Annotated[
        int | None, typer.Option("--runs", metavar="N", min=2, help="Runs of each; 10 where nothing says so.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="2%", help="Go on until the difference of the metric is known so well."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", min=0, help="Of the order in which they take turns; drawn where not given."
        ),
    ] = None,
    on: OnOption = None,
    job_id: JobIdOption = None,
    data_root: DataRootOption = None,
    json_: JsonOption = False,
) -> None:
    """Compare benchmarks that take turns on one machine.

    Their order is drawn by lot. They may differ in command, arguments, scripts, data, environment variables, labels and metrics. Exit
    code: that of the job, if it does not succeed; else that of `bai compare`: 1 where a metric that names its better direction is worse.
    """
    from executor.planning.request import JobRequest, OtherArms

    if runs is not None and until is not None:
        raise UsageError("--runs and --until exclude each other; write one of them")
    arms = OtherArms(
        files=tuple(others),
        runs=runs,
        until=_share(until) if until is not None else None,
        seed=seed if seed is not None else _seed(job_id),
    )
    request = JobRequest(file=first, on=on, data_root=data_root, overrides=keys.overrides(), other_arms=arms)
    backend, submitted = submit_request(request, options, job_id=job_id, json_=json_, returns=False)
    there = options.for_submitted(backend)
    code = follow(submitted.record, backend, there, json_=json_, joined=not submitted.new)
    if code != ExitCode.SUCCEEDED:
        raise typer.Exit(code)
    if (repeat := submitted.job.repeat) is not None:
        say(f"the order of the runs was drawn with --seed {repeat.seed}")
    compare(there, [submitted.record.job_id], json_=json_)


def _seed(job_id: str | None) -> int:
    """Return a seed: the same one for the same job id, so that a submission can be repeated."""
    if job_id is None:
        return secrets.randbelow(2**31)
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:4], "big") >> 1


def _share(text: str) -> float:
    """Return "2%" as 0.02. Raises UsageError."""
    from pydantic import TypeAdapter, ValidationError

    from executor.descriptor.values import Share

    try:
        share: float = TypeAdapter(Share).validate_python(text)
    except ValidationError:
        raise UsageError(f'--until: "{text}" is not a percentage above 0; write for example 2%') from None
    return share
