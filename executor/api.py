"""`bai` for programs, such as a notebook: plan, submit and look at jobs without a terminal.

`from executor import plan, submit, status, wait, metrics`; docs/api.md shows how. What goes wrong is a `BaiError`, whose text is
what `bai` would print. Nothing is printed and nobody is asked for anything: `said` hears warnings and what is being done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bai_agent.errors import BaiError
from executor.backends import Backends
from executor.unattended import unattended

if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from executor.config import Settings
    from executor.descriptor import Finding
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
    from executor.planning.request import read_request

    job_request = _request(file, on, arguments, data_root, script)
    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        descriptor, findings = read_request(job_request)
        _say_findings(findings, said)
        backend = jobs.backends.of_request(job_request, descriptor)
        with backend.plan(job_request, descriptor, job_id=job_id, said=said) as planned:
            return planned.table()


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
    from executor.backends.backend import SubmitListener
    from executor.planning.request import read_request

    job_request = _request(file, on, arguments, data_root, script)
    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        descriptor, findings = read_request(job_request)
        _say_findings(findings, said)
        backend = jobs.backends.of_request(job_request, descriptor)
        listener = SubmitListener(on_submit=lambda drawn: said(f"the job is {drawn}"), on_progress=said)
        return backend.submit(job_request, descriptor, job_id=job_id, listener=listener).record.job_id


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
    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        record = jobs.find(job_id)
        return jobs.backends.of(record).status(record)


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

    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        record = jobs.find(job_id)
        return wait_for_end(record, jobs.backends.of(record), timeout=timeout, said=said)


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

    jobs = _jobs(store, profile, region, bucket)
    with _for_a_program():
        lines = whole_lines(pieces(jobs.find(job_id).node(), "metrics", backends=jobs.backends))
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


@dataclass(frozen=True)
class _Jobs:
    """Where jobs are looked for, and in whose name AWS is asked."""

    store: str | None
    flags: Mapping[str, str | None]

    @cached_property
    def settings(self) -> Settings:
        from executor.config import read_settings

        return read_settings(self.flags)

    @cached_property
    def backends(self) -> Backends:
        return Backends(settings=lambda: self.settings, store=self.store)

    def find(self, name: str) -> JobRecord:
        from executor.jobs.jobs import find_job
        from executor.jobs.stores import stores

        named = self.store
        if named is None and self.flags["bucket"] is not None:
            named = self.settings.store_url
        return find_job(stores(named, lambda: self.settings), name)


def _jobs(store: PathLike | None, profile: str | None, region: str | None, bucket: str | None) -> _Jobs:
    named = os.fspath(store) if store is not None else None
    return _Jobs(named, {"profile": profile, "region": region, "bucket": bucket})


def _say_findings(findings: Sequence[Finding], said: Said) -> None:
    if findings:
        from executor.descriptor import render_findings

        said(render_findings(findings).rstrip())
