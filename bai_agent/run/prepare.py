"""The first phase: the run directory, our place in the job store, the secrets, and the machine itself."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bai_agent import __version__
from bai_agent.aws.secrets import SecretError, resolve
from bai_agent.benchmark import process
from bai_agent.errors import BaiError, StoreError
from bai_agent.job.new_files import NO_LINKS
from bai_agent.job.outcome import Outcome
from bai_agent.job.reserved_space import keep_room
from bai_agent.job.run_directory import boot_id, make_folder, now_ms, write_json
from bai_agent.run.call_with_deadline import call_with_deadline
from bai_agent.run.context import RunContext
from bai_agent.run.machine import NotReadyError, wait_for_disks, wait_for_gpus
from bai_agent.run.stop import RunEndedError, StopReason
from bai_agent.sinks.job_store.node_store import ClaimedError
from bai_agent.sinks.job_store.uploader import StoreUploader
from bai_agent.strategy import strategy_of

_CLAIM_SECONDS = 120.0
"""How long a store that is away is asked for our place in it before anything is run."""

_CLAIM_MARGIN = 5.0


def prepare(ctx: RunContext) -> None:
    """Make the run directory complete, and find out early what would fail late."""
    rundir = ctx.rundir
    for folder in (rundir.work, rundir.log_chunks, rundir.metric_chunks):
        make_folder(folder, private=rundir.path)
    for file, link in (
        (rundir.output, rundir.kept_output),
        (rundir.metrics, rundir.kept_metrics),
    ):
        if not link.exists():
            file.touch(mode=0o600)
            _link(file, link)
    keep_room(rundir)
    if process.state(rundir) is process.State.NOT_STARTED:
        _let_user_in(ctx)
    identity = {
        "host": platform.node(),
        "instance_id": ctx.node.instance_id,
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "version": __version__,
        "time": now_ms(),
    }
    _claim(ctx, identity)
    try:
        strategy_of(ctx.job)
        if process.state(rundir) is process.State.NOT_STARTED:
            secrets_of(ctx)
    except SecretError as error:
        raise RunEndedError(StopReason(Outcome.PREPARE_FAILED, str(error))) from error
    except BaiError as error:
        raise RunEndedError(StopReason(Outcome.BAD_DESCRIPTOR, str(error))) from error
    if ctx.node.instance_id is not None:
        _wait_for_machine(ctx)
    write_json(rundir.ready, identity)


def _let_user_in(ctx: RunContext) -> None:
    """Give the benchmark's user the way to its folders; whoever cannot go it is told now, before anything is pulled."""
    try:
        user = process.find_user(ctx.job.benchmark.user)
        if user is not None:
            process.open_way(ctx.rundir.path, top=ctx.top_folder)
            process.give_to(user, ctx.rundir.work)
            process.require_access(user, [ctx.rundir.work])
    except process.SetupError as error:
        raise RunEndedError(StopReason(Outcome.PREPARE_FAILED, str(error))) from error


def _link(file: Path, link: Path) -> None:
    """Give the growing file its second name. Raises EndedError where the file system has no such thing."""
    try:
        os.link(file, link)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        message = (
            f"The run directory cannot be in {file.parent}: its file system has no hard links ({error.strerror}); "
            "name a folder on another one with --store, or --dir of bai-agent."
        )
        raise RunEndedError(StopReason(Outcome.PREPARE_FAILED, message)) from error


def _claim(ctx: RunContext, identity: Mapping[str, Any]) -> None:
    """Make this node's place in the job store ours, so that no other machine runs the same."""
    place = ctx.place
    if place is None:
        return
    if not ctx.rundir.store_offset.exists():
        deadline = time.monotonic() + _CLAIM_SECONDS
        descriptor = ctx.rundir.job.read_bytes()
        try:
            claimed = call_with_deadline(
                lambda: place.claim(
                    identity, descriptor=descriptor, until=lambda: time.monotonic() > deadline
                ),
                over=lambda: ctx.watch.stopping() or time.monotonic() > deadline + _CLAIM_MARGIN,
                name="claim",
            )
        except ClaimedError as error:
            raise RunEndedError(StopReason(Outcome.PREPARE_FAILED, str(error))) from error
        except StoreError as error:
            message = str(error)
            raise RunEndedError(
                StopReason(Outcome.STORE_FAILED, f"{message[0].upper()}{message[1:]}.")
            ) from error
        if not claimed:
            late = f"The job store {place.record.store.url} did not answer within {_CLAIM_SECONDS:.0f} s."
            raise RunEndedError(ctx.watch.reason() or StopReason(Outcome.STORE_FAILED, late))
        write_json(ctx.rundir.store_offset, {})
    start_uploader(ctx)


def start_uploader(ctx: RunContext) -> None:
    """Begin to bring the run directory into a job store that is elsewhere, unless that goes on already."""
    if ctx.place is not None and ctx.uploader is None:
        ctx.uploader = StoreUploader(ctx.place, ctx.rundir)
        ctx.uploader.start()
        ctx.sinks.append(ctx.uploader)


def _wait_for_machine(ctx: RunContext) -> None:
    try:
        for warning in (
            *wait_for_gpus(stopping=ctx.watch.stopping),
            *wait_for_disks(stopping=ctx.watch.stopping),
        ):
            ctx.warn(warning)
    except NotReadyError as error:
        raise RunEndedError(StopReason(Outcome.PREPARE_FAILED, str(error))) from error
    if reason := ctx.watch.reason():
        raise RunEndedError(reason)


def secrets_of(ctx: RunContext) -> dict[str, str]:
    """Return the benchmark's secrets, by their names in its environment. Raises SecretError."""
    found = {name: resolve(reference) for name, reference in ctx.job.benchmark.secrets.items()}
    ctx.redactor.know(found.values())
    ctx.knows_secrets = True
    return found
