"""The phase that fetches the benchmark's inputs, after the job's network file systems are mounted. The inputs
are the container image, data and scripts, the scripts' requirements, and the checkpoint of another job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.benchmark.children import Stopped
from bai_agent.benchmark.environment import find_user, scripts_folder, working_folder, workspaces
from bai_agent.errors import NoSpaceError, PullError, PullStopped, SetupError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import PullEvent, RequirementsEvent
from bai_agent.job.run_directory import RunDir
from bai_agent.light_dataclass import replace
from bai_agent.phases.generation_history import newest_begun
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.stop import RunEndedError

if TYPE_CHECKING:
    from bai_agent.pull import PullProgress


def mount_file_systems(ctx: RunContext) -> None:
    """Mount the job's network file systems, unless an earlier agent has mounted them since this boot. Raises
    RunEndedError.

    Only the first node on each machine mounts the file systems. The other nodes wait for the first node in
    the `join` phase.
    """
    if not ctx.job.mounts or not ctx.is_first_here or "run" in ctx.events.finished_phases():
        return
    # Imported here, because most jobs mount nothing.
    from bai_agent.machine.network_mounts import mount_all

    try:
        mount_all(ctx.job.mounts, ctx.rundir.mounts, stopping=ctx.watch.stopping)
    except SetupError as error:
        raise RunEndedError.of(Outcome.PREPARE_FAILED, str(error)) from error
    ctx.watch.raise_reason()


def unmount_file_systems(job: Job, rundir: RunDir) -> None:
    """Unmount the file systems that an agent has mounted for this node. This is the last step of a run,
    because artifacts and the result can be on the file systems."""
    if job.mounts:
        from bai_agent.machine.network_mounts import unmount_all

        unmount_all(rundir.mounts)


def bring(ctx: RunContext) -> None:
    """Pull the container image, data and scripts, install the scripts' requirements, and restore another
    job's checkpoint."""
    deadline = ctx.clock.monotonic() + ctx.job.limits.pull_timeout.total_seconds()
    homes = workspaces(ctx.job, ctx.rundir)

    def report(progress: PullProgress) -> None:
        ctx.events.add(PullEvent(**vars(progress)))

    try:
        if ctx.job.benchmark.container is not None:
            _bring_image(ctx, deadline)
        user = find_user(ctx.job.benchmark.user)
        if sources := _sources(ctx):
            from bai_agent.pull import pull

            pull(
                sources,
                folders=_folders(*homes[0]),
                manifest=ctx.rundir.pulled,
                deadline=deadline,
                report=report,
                stopping=ctx.watch.stopping,
                user=user,
            )
        for job, rundir in homes:
            if (required := job.benchmark.requirements) is not None:
                from bai_agent.requirements.python_env import install_requirements
                from bai_agent.requirements.venv_cache import venv_cache

                ctx.events.add(RequirementsEvent(path=required, done=False))
                # An EC2 instance runs only one job, so it needs no cache of Python environments.
                cache = venv_cache(os.environ) if ctx.node.instance_id is None else None
                install_requirements(job, rundir, deadline=deadline, stopping=ctx.watch.stopping, cache=cache)
                ctx.events.add(RequirementsEvent(path=required, done=True))
    except (PullStopped, Stopped):
        pass
    except NoSpaceError as error:
        raise RunEndedError.of(Outcome.DISK_FULL, str(error)) from error
    except (PullError, SetupError) as error:
        raise RunEndedError.of(Outcome.PULL_FAILED, str(error)) from error
    ctx.watch.raise_reason()
    checkpoint = ctx.job.checkpoint
    if checkpoint is not None and checkpoint.origin is not None and newest_begun(ctx) is None:
        from bai_agent.checkpoint.generation_checkpoints import restore_origin

        restore_origin(ctx)


def _bring_image(ctx: RunContext, deadline: float) -> None:
    """Pull the image of the benchmark's container, before the nodes meet. Raises RunEndedError, Stopped."""
    # Imported here, because most jobs have no container.
    from bai_agent.benchmark.container_image import bring_image

    on_instance = ctx.node.instance_id is not None
    try:
        bring_image(
            ctx.job, ctx.rundir, deadline=deadline, stopping=ctx.watch.stopping, on_instance=on_instance
        )
    except SetupError as error:
        raise RunEndedError.of(Outcome.PREPARE_FAILED, str(error)) from error


def _folders(job: Job, rundir: RunDir) -> dict[SourceKind, Path]:
    """Return the folder to which relative paths refer, by kind of source. Relative paths of data refer to the
    folder in which the benchmark starts."""
    start = working_folder(job, rundir, scripts=scripts_folder(job, rundir))
    return {SourceKind.DATA: start, SourceKind.SCRIPTS: rundir.scripts}


def _sources(ctx: RunContext) -> Sequence[Source]:
    """Return the sources that this node pulls. Only the first node on each machine pulls sources with
    absolute paths. Only the job's first node pulls sources into a network file system of the job.

    If arms have folders of their own, a source with a relative path is pulled into the folder of each arm
    that lists the source.
    """
    found: dict[Source, None] = {}
    for job, rundir in workspaces(ctx.job, ctx.rundir):
        folders = _folders(job, rundir)
        for source in job.sources:
            if not _is_pulled_by(ctx, source):
                continue
            if rundir.arm is not None:
                slash = "/" if source.path.endswith("/") else ""
                source = replace(source, path=f"{folders[source.kind] / source.path}{slash}")
            found[source] = None
    return list(found)


def _is_pulled_by(ctx: RunContext, source: Source) -> bool:
    """Return whether this node must pull the source itself."""
    # A job's server and its client have different sources, so each pulls its own.
    if ctx.node.rank == 0 or ctx.job.server is not None:
        return True
    if Path(source.path).is_absolute() and not ctx.is_first_here:
        return False
    return not any(mount.contains(source.path) for mount in ctx.job.mounts)
