"""What of a launch can be known to fail before AWS is asked: for `bai validate --on ec2`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from bai_agent.errors import BaiError
from executor.backends.ec2.launch.draft import draft, planned_job
from executor.backends.ec2.launch.request import check_run_instances
from executor.backends.ec2.launch.resolve import ec2_table
from executor.config import Settings
from executor.descriptor import Descriptor, Finding
from executor.planning.request import UNDRAWN_ID, JobRequest


def preflight(
    job_request: JobRequest, descriptor: Descriptor, settings: Settings, *, cache: Path, now: datetime
) -> list[Finding]:
    """Return what stands against launching `job_request`: its strategy, scripts, local data, launch parameters, size of user data.

    Reads local files and packs the scripts, as a submission does; asks no network.
    """

    def draw() -> None:
        with planned_job(job_request, descriptor, settings, job_id=UNDRAWN_ID) as (job, _):
            draft(job, descriptor, settings, None, cache=cache, now=now)

    found: list[Finding] = []

    def attempt(check: Callable[[], object]) -> None:
        try:
            check()
        except BaiError as error:
            problem = str(error)
            # A key that stops the first check stops the second one too.
            if problem not in (each.problem for each in found):
                found.append(Finding(file=str(job_request.file), problem=problem, fix=""))

    attempt(lambda: check_run_instances(ec2_table(descriptor).run_instances))
    attempt(draw)
    return found
