"""Writes a job of this machine into its store: exactly once for a job id."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.local.job_draft import job_draft
from executor.errors import UsageError
from executor.planning.job_toml import job_toml
from executor.planning.repetition import keep_request, kept_scripts
from executor.planning.request import (
    JobRequest,
    Submitted,
    archive_of_request,
    check_id,
    check_start,
    new_job_id,
    planned,
    same_job,
    scripts_of_request,
)
from executor.planning.scripts_folder import ScriptsOrigin, copy_scripts

if TYPE_CHECKING:
    from executor.descriptor import Descriptor


def submit(
    job_request: JobRequest,
    descriptor: Descriptor,
    store: DirectoryStore,
    *,
    job_id: str | None = None,
    on_submit: Callable[[str], None] = lambda job_id: None,
) -> Submitted:
    """Write the job of `job_request` into `store`, with a copy of its scripts. `on_submit` is called with the job id before that.

    A job id that is there already with the same content is that job; with another it is a UsageError.
    """
    # Only where a job is made is the planner needed.
    from executor.planning.arm_files import arm_files
    from executor.planning.plan import nodes_on_this_machine

    if sys.platform != "linux":
        raise UsageError(
            f"benchmarks run on Linux (x86_64, aarch64) with this version, not on {sys.platform}"
        )
    if job_id is not None:
        check_id(job_id)
    drawn = job_id or new_job_id(job_request, descriptor)
    record = JobRecord(store, drawn)
    original = scripts_of_request(job_request, descriptor)
    nodes = nodes_on_this_machine(descriptor)
    scripts = ScriptsOrigin(path=kept_scripts(record, nodes=nodes)) if original is not None else None
    arms = arm_files(descriptor, leave_out=[store.folder])
    kept = {
        name: replace(each, scripts=ScriptsOrigin(path=kept_scripts(record, nodes=nodes, arm=name)))
        for name, each in arms.items()
        if each.scripts is not None
    }
    job = planned(job_request, descriptor, job_id=drawn, store=store, scripts=scripts, arms={**arms, **kept})
    on_submit(drawn)
    if not record.exists():
        check_start(job, os.environ)
        with job_draft(store, drawn) as draft:
            if original is not None:
                copy_scripts(original, draft.scripts(nodes=nodes), leave_out=[store.folder])
            for name, each in arms.items():
                if each.scripts is not None:
                    copy = draft.scripts(nodes=nodes, arm=name)
                    copy_scripts(each.scripts, copy, leave_out=[store.folder])
            files = original or archive_of_request(job_request, descriptor)
            keep_request(draft.record, job_request, files, leave_out=[store.folder])
            # An agent may start as soon as the job is there: with its scripts, or not at all.
            if draft.publish(job_toml(job).encode()):
                return Submitted(record, job, new=True)
    there = record.job()
    same_job(there, job, job_request)
    return Submitted(record, there, new=False)
