"""`bai` for programs, such as a notebook: plan, submit and look at jobs without a terminal.

`from executor import plan, submit, status, wait, metrics`; docs/api.md shows how. What goes wrong is a `BaiError`, whose text is
what `bai` would print. Nothing is printed and nobody is asked for anything: `said` hears warnings and what is being done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bai_agent.errors import BaiError
from executor.commands.job_options import AwsOptions, JobOptions
from executor.unattended import unattended

if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from executor.descriptor import Descriptor, Finding
    from executor.planning.request import JobRequest
    from executor.records.job_status import JobStatus

PathLike = str | os.PathLike[str]
Place = Literal["local", "ec2"]
Said = Callable[[str], None]


def _unsaid(sentence: str) -> None:
    return


def plan(
    file: PathLike,
    on: Place | None = None,
    *,
    arguments: Sequence[str] = (),
    job_id: str | None = None,
    data_root: PathLike | None = None,
    script: PathLike | None = None,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
    said: Said = _unsaid,
) -> dict[str, Any]:
    """Return what would run, as `bai plan --json` shows it: the job descriptor, or on EC2 what would be launched. Touches nothing.

    on: "local" for this machine, "ec2" for instances; unset: what the descriptor says.
    arguments, job_id, data_root, script, store, profile, region, bucket: as the options of `bai plan`.
    """
    from executor.planning.request import place_of, read_request

    job_request = _request(file, on, arguments, data_root, script)
    options = _options(store, profile, region, bucket)
    with _for_a_program():
        descriptor, findings = read_request(job_request)
        _say_findings(findings, said)
        if place_of(job_request, descriptor) == "ec2":
            return _plan_on_ec2(job_request, descriptor, options, job_id=job_id, said=said)
        return _plan_here(job_request, descriptor, options, job_id=job_id)


def submit(
    file: PathLike,
    on: Place | None = None,
    *,
    arguments: Sequence[str] = (),
    job_id: str | None = None,
    data_root: PathLike | None = None,
    script: PathLike | None = None,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
    said: Said = _unsaid,
) -> str:
    """Start a benchmark, or launch it on EC2, and return its job's id; it goes on without this process.

    The parameters are those of `plan`. With a `job_id` it can be repeated after whatever went wrong: it is started once.
    """
    from executor.planning.request import place_of, read_request

    job_request = _request(file, on, arguments, data_root, script)
    options = _options(store, profile, region, bucket)
    with _for_a_program():
        if place_of(job_request, read_request(job_request)[0]) == "ec2":
            return _submit_to_ec2(job_request, options, job_id=job_id, said=said)
        return _submit_here(job_request, options, job_id=job_id, said=said)


def status(
    job_id: str,
    *,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
) -> JobStatus:
    """Return how a job stands now.

    job_id: or the beginning of one, or "last". store, profile, region, bucket: as the options of `bai status`.
    """
    from executor.jobs.jobs import job_status

    options = _options(store, profile, region, bucket)
    with _for_a_program():
        return job_status(_find(job_id, options), options)


def wait(
    job_id: str,
    timeout: float | None = None,
    *,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
    said: Said = _unsaid,
) -> JobStatus:
    """Return how a job stands when it has ended, or when its agent is gone so that nobody will write its end.

    timeout: seconds, after which StillGoesOnError is raised; unset: as long as the job goes on. The others are those of `status`.
    """
    from executor.jobs.wait import wait_for_end

    options = _options(store, profile, region, bucket)
    with _for_a_program():
        return wait_for_end(_find(job_id, options), options, timeout=timeout, said=said)


def metrics(
    job_id: str,
    *,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
) -> list[dict[str, Any]]:
    """Return the records of a job's metrics that there are now, in their order, as `bai metrics --json` prints them.

    The parameters are those of `status`.
    """
    from executor.jobs.stream import pieces, whole_lines
    from executor.records.reading import records_in

    options = _options(store, profile, region, bucket)
    with _for_a_program():
        record = _find(job_id, options)
        lines = whole_lines(pieces(record, "metrics", options=options))
        return [dict(each) for piece in lines for each in records_in(piece)]


@contextmanager
def _for_a_program() -> Iterator[None]:
    """Ask nobody, and let everything foreseen that goes wrong be a BaiError."""
    try:
        with unattended():
            yield
    except EOFError as error:
        from executor.backends.ec2.session import unasked

        raise unasked() from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        raise BaiError(f"{place}{error.strerror or error}") from error


def _request(
    file: PathLike,
    on: Place | None,
    arguments: Sequence[str],
    data_root: PathLike | None,
    script: PathLike | None,
) -> JobRequest:
    from executor.errors import UsageError
    from executor.planning.request import JobRequest

    if isinstance(arguments, str):
        raise UsageError(f"arguments: write a list of them, such as [{arguments!r}], not one text")
    return JobRequest(
        file=Path(file),
        on=on,
        arguments=tuple(arguments),
        data_root=Path(data_root) if data_root is not None else None,
        script=Path(script) if script is not None else None,
    )


def _options(
    store: PathLike | None, profile: str | None, region: str | None, bucket: str | None
) -> JobOptions:
    named = os.fspath(store) if store is not None else None
    return JobOptions(store=named, profile=profile, region=region, bucket=bucket)


def _find(job_id: str, options: JobOptions) -> JobRecord:
    from executor.jobs.jobs import find_job

    return find_job(options.stores(), job_id)


def _plan_here(
    job_request: JobRequest, descriptor: Descriptor, options: JobOptions, *, job_id: str | None
) -> dict[str, Any]:
    from bai_agent.job.descriptor_file import job_table
    from executor.jobs.jobs import store_at
    from executor.planning.request import check_id, new_job_id, planned

    if job_id is not None:
        check_id(job_id)
    drawn = job_id or new_job_id(job_request, descriptor)
    return job_table(
        planned(job_request, descriptor, job_id=drawn, store=store_at(options.store), scripts=None)
    )


def _plan_on_ec2(
    job_request: JobRequest, descriptor: Descriptor, options: AwsOptions, *, job_id: str | None, said: Said
) -> dict[str, Any]:
    from executor.backends.ec2.launch.draft import planned_launch
    from executor.planning.request import survey
    from executor.view.launch import plan_table

    launch = planned_launch(job_request, descriptor, options.settings, job_id=job_id, said=said)
    with launch as (made, uploads, aws):
        cost = made.cost(options.settings, aws)
        return plan_table(made, uploads, cost, survey(job_request, descriptor))


def _submit_here(job_request: JobRequest, options: JobOptions, *, job_id: str | None, said: Said) -> str:
    from executor.backends.local.agent import local_agent
    from executor.backends.local.submission import submit
    from executor.jobs.jobs import store_at

    def told(drawn: str, findings: Sequence[Finding]) -> None:
        _say_findings(findings, said)
        said(f"the job is {drawn}")

    record = submit(job_request, store_at(options.store), job_id=job_id, told=told).record
    agent = local_agent(record)
    if agent is not None and record.result() is None and not agent.alive():
        agent.start()
    return record.job_id


def _submit_to_ec2(job_request: JobRequest, options: AwsOptions, *, job_id: str | None, said: Said) -> str:
    from executor.backends.ec2.launch.submission import submit
    from executor.quantities import size

    def told(drawn: str, findings: Sequence[Finding]) -> None:
        _say_findings(findings, said)
        said(f"the job is {drawn}")

    submitted = submit(
        job_request,
        options.settings,
        job_id=job_id,
        told=told,
        uploading=lambda each: said(f"uploading {each.what} ({size(each.size)})"),
        said=said,
    )
    return submitted.record.job_id


def _say_findings(findings: Sequence[Finding], said: Said) -> None:
    if findings:
        from executor.descriptor import render_findings

        said(render_findings(findings).rstrip())
