"""`bai` for programs, such as a notebook: plan, submit and look at jobs without a terminal.

`from executor import plan, submit, status, wait, metrics`; docs/api.md shows how. What goes wrong is a `BaiError`, whose text is
what `bai` would print. Nothing is printed and nobody is asked for anything: `on_progress` hears warnings and what is being done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bai_agent.errors import BaiError
from executor.errors import UsageError
from executor.jobs.scope import JobScope
from executor.unattended import unattended

# What only one call needs is imported there: descriptors take a third of a second, and looking at a job needs none.
if TYPE_CHECKING:
    from executor.descriptor import Finding
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
    """Return what would run, as `bai plan --json` shows it: the job descriptor, or on EC2 what would be launched. Touches nothing.

    on: "local" for this machine, "ec2" for instances; unset: what the descriptor says.
    set: keys of the descriptor, written as for `--set`, and their values as Python has them: {"limits.max_runtime": "2h"}.
    arguments, job_id, data_root, script, store, profile, region, bucket: as the options of `bai plan`.
    """
    from executor.planning.request import read_request

    job_request = _request(file, on, arguments, data_root, script, set)
    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        descriptor, findings = read_request(job_request)
        _say_findings(findings, on_progress)
        backend = jobs.backends.of_request(job_request, descriptor)
        with backend.plan(job_request, descriptor, job_id=job_id, on_progress=on_progress) as planned:
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
    """Start a benchmark, or launch it on EC2, and return its job's id; it goes on without this process.

    The parameters are those of `plan`. With a `job_id` it can be repeated after whatever went wrong: it is started once.
    """
    from executor.backends.backend import SubmitListener
    from executor.planning.request import read_request

    job_request = _request(file, on, arguments, data_root, script, set)
    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        descriptor, findings = read_request(job_request)
        _say_findings(findings, on_progress)
        backend = jobs.backends.of_request(job_request, descriptor)
        listener = SubmitListener(
            on_submit=lambda drawn: on_progress(f"the job is {drawn}"), on_progress=on_progress
        )
        return backend.submit(job_request, descriptor, job_id=job_id, listener=listener).record.job_id


def status(
    job_id: str,
    *,
    store: PathLike | None = None,
    profile: str | None = None,
    region: str | None = None,
    bucket: str | None = None,
) -> JobStatus:
    """Return how a job stands now, and each of its nodes where it has several.

    job_id: or the beginning of one, or "last". store, profile, region, bucket: as the options of `bai status`.
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
    """Return how a job stands when it has ended, or when its agent is gone so that nobody will write its end.

    timeout_s: after so long StillGoesOnError is raised; unset: as long as the job goes on. The others are those of `status`.
    """
    from executor.jobs.wait import wait_for_end
    from executor.records.node_status import with_nodes

    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        record = jobs.find(job_id)
        ended = wait_for_end(record, jobs.backends.of(record), timeout_s=timeout_s, on_status=on_progress)
        return with_nodes(ended, record)


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
    from executor.jobs.stream import record_lines
    from executor.records.nodes import node_records
    from executor.records.reading import records_in

    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        lines = record_lines(node_records(jobs.find(job_id)), backends=jobs.backends)
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
    on: str | None,
    arguments: Sequence[str],
    data_root: PathLike | None,
    script: PathLike | None,
    values: Mapping[str, Any],
) -> JobRequest:
    from executor.descriptor.overrides import check_overlaps, overrides_of_program
    from executor.planning.request import JobRequest

    if isinstance(arguments, str):
        raise UsageError(f"arguments: write a list of them, such as [{arguments!r}], not one text")
    overrides = overrides_of_program(values)
    check_overlaps(overrides)
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


def _say_findings(findings: Sequence[Finding], on_progress: OnProgress) -> None:
    if findings:
        from executor.descriptor import render_findings

        on_progress(render_findings(findings).rstrip())
