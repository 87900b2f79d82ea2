"""The Python API of `bai`, for example for notebooks: plans, submits and reads jobs without a terminal.

`from executor import plan, submit, status, scale, wait, metrics`; docs/api.md has examples. Each failure is a `BaiError` with the message
that `bai` would print. Nothing is printed, and there are no prompts. Warnings and progress are passed to
`on_progress`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bai_agent.errors import BaiError
from executor.backends.terminal import unattended
from executor.errors import UsageError
from executor.jobs.scope import JobScope

# Each function imports the modules that only this function needs, because the import of the descriptor reader
# takes a third of a second, and functions that read jobs do not need it.
if TYPE_CHECKING:
    from executor.backends.backend import Backend
    from executor.descriptor import Descriptor
    from executor.planning.request import JobRequest
    from executor.records.job_status import JobStatus

PathLike = str | os.PathLike[str]
OnProgress = Callable[[str], None]


def _unheard(sentence: str) -> None:
    return


def plan(
    file: PathLike,
    on: str | None = None,
    *,
    arguments: Sequence[str] = (),
    job_id: str | None = None,
    data_root: PathLike | None = None,
    script: PathLike | None = None,
    set: Mapping[str, Any] = MappingProxyType({}),  # noqa: A002 - the option's name
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
    on_progress: OnProgress = _unheard,
) -> dict[str, Any]:
    """Return the plan that `bai plan --json` prints: the job descriptor and, on EC2, the launch. The call
    changes nothing.

    on: "local" for this machine, "ec2" for instances; if None, the descriptor decides. set: keys of the
    descriptor in the form of `--set`, with Python values: {"limits.max_runtime": "2h"}. arguments, job_id,
    data_root, script, store, profile, region, bucket: as the options of `bai plan`.
    """
    job_request = _request(file, on, arguments, data_root, script, set)
    jobs = _jobs(store, profile, region, bucket)
    with (
        _for_a_program(),
        _read(job_request, jobs, on_progress, job_id=job_id) as (job_request, descriptor, backend),
        backend.plan(job_request, descriptor, job_id=job_id, on_progress=on_progress) as planned,
    ):
        return planned.table()


def submit(
    file: PathLike,
    on: str | None = None,
    *,
    arguments: Sequence[str] = (),
    job_id: str | None = None,
    data_root: PathLike | None = None,
    script: PathLike | None = None,
    set: Mapping[str, Any] = MappingProxyType({}),  # noqa: A002 - the option's name
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
    on_progress: OnProgress = _unheard,
) -> str:
    """Start a benchmark, or launch it on EC2, and return its job id. The job continues without this process.

    `submit` has the same parameters as `plan`. With a `job_id`, the call can be repeated after any failure,
    and the job is started only once.
    """
    from executor.backends.backend import SubmitListener

    job_request = _request(file, on, arguments, data_root, script, set)
    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        listener = SubmitListener(
            on_submit=lambda drawn: on_progress(f"the job is {drawn}"), on_progress=on_progress
        )
        with _read(job_request, jobs, on_progress, job_id=job_id) as (job_request, descriptor, backend):
            return backend.submit(job_request, descriptor, job_id=job_id, listener=listener).record.job_id


def status(
    job_id: str,
    *,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
) -> JobStatus:
    """Return the current status of a job and, if it has several nodes, of each node.

    job_id: the job's id, the beginning of the id, or "last". store, profile, region, bucket: as the options
    of `bai status`.
    """
    from executor.records.node_status import with_nodes

    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        record = jobs.find(job_id)
        return with_nodes(jobs.backends.of(record).status(record), record)


def wait(
    job_id: str,
    timeout_s: float | None = None,
    *,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
    on_progress: OnProgress = _unheard,
) -> JobStatus:
    """Wait until a job has ended, or until its agent is dead and no result will be written. Return the job's
    status.

    timeout_s: time after which StillGoesOnError is raised (seconds); None if there is no limit. The other
    parameters are those of `status`.
    """
    from executor.jobs.wait import wait_for_end
    from executor.records.node_status import with_nodes

    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        record = jobs.find(job_id)
        ended = wait_for_end(record, jobs.backends.of(record), timeout_s=timeout_s, on_status=on_progress)
        return with_nodes(ended, record)


def scale(
    job_id: str,
    nodes: int,
    *,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
) -> str:
    """Set the desired number of nodes of an elastic job, as `bai scale` does; return the sentence that `bai
    scale` prints.

    The other parameters are those of `status`.
    """
    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        record = jobs.find(job_id)
        return jobs.backends.of(record).scale(record, nodes)


def metrics(
    job_id: str,
    *,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
) -> list[dict[str, Any]]:
    """Return the current records of a job's metrics in their order, as `bai metrics --json` prints them.

    The parameters are those of `status`.
    """
    from executor.jobs.stream import record_lines
    from executor.records.nodes import node_records
    from executor.records.reading import records_in
    from executor.records.series_lines import labelled

    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        lines = record_lines(node_records(jobs.find(job_id)), backends=jobs.backends)
        return [dict(labelled(each, rank)) for content, rank in lines for each in records_in(content)]


@contextmanager
def _for_a_program() -> Iterator[None]:
    """Prevent prompts, and convert all expected errors into a BaiError."""
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
    on: str | None,
    arguments: Sequence[str],
    data_root: PathLike | None,
    script: PathLike | None,
    values: Mapping[str, Any],
) -> JobRequest:
    from executor.descriptor.overrides import program_overrides
    from executor.planning.request import JobRequest

    if isinstance(arguments, str):
        raise UsageError(f"arguments: write a list of them, such as [{arguments!r}], not one text")
    overrides = program_overrides(values)
    return JobRequest(
        file=Path(file),
        on=on,
        arguments=tuple(arguments),
        data_root=Path(data_root) if data_root is not None else None,
        script=Path(script) if script is not None else None,
        overrides=overrides,
    )


def _jobs(store: PathLike | None, profile: str | None, region: str | None, bucket: str | None) -> JobScope:
    named = os.fspath(store) if store is not None else None
    return JobScope(store=named, profile=profile, region=region, bucket=bucket)


@contextmanager
def _read(
    job_request: JobRequest, jobs: JobScope, on_progress: OnProgress, *, job_id: str | None
) -> Iterator[tuple[JobRequest, Descriptor, Backend]]:
    """Return the request with its references resolved, its descriptor, and the backend. Warnings are passed
    to `on_progress`."""
    from executor.descriptor import render_findings
    from executor.jobs.resolved_request import resolved_request
    from executor.planning.request import read_request

    descriptor, findings = read_request(job_request)
    if findings:
        on_progress(render_findings(findings).rstrip())
    backend = jobs.backends.of_request(job_request, descriptor)
    with resolved_request(job_request, descriptor, jobs, job_id=job_id) as resolved:
        yield *resolved, backend
