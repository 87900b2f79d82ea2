"""The first phase: the run directory, our place in the job store, the secrets, and the machine itself."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bai_agent import __version__
from bai_agent.aside import aside
from bai_agent.ballast import keep_room
from bai_agent.benchmark import process
from bai_agent.drafts import NO_LINKS
from bai_agent.errors import BaiError, StoreError
from bai_agent.machine import NotReadyError, wait_for_disks, wait_for_gpus
from bai_agent.outcome import Outcome
from bai_agent.push.place import ClaimedError
from bai_agent.push.store import StoreUploader
from bai_agent.run_state import Run
from bai_agent.rundir import boot_id, make_folder, now_ms, write_json
from bai_agent.secrets import SecretError, resolve
from bai_agent.strategy import strategy_of
from bai_agent.watch import EndedError, Reason

_CLAIM_SECONDS = 120.0
"""How long a store that is away is asked for our place in it before anything is run."""

_CLAIM_MARGIN = 5.0


def prepare(this: Run) -> None:
    """Make the run directory complete, and find out early what would fail late."""
    rundir = this.rundir
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
        _let_user_in(this)
    identity = {
        "host": platform.node(),
        "instance_id": this.node.instance_id,
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "version": __version__,
        "time": now_ms(),
    }
    _claim(this, identity)
    try:
        strategy_of(this.job)
        if process.state(rundir) is process.State.NOT_STARTED:
            secrets_of(this)
    except SecretError as error:
        raise EndedError(Reason(Outcome.PREPARE_FAILED, str(error))) from error
    except BaiError as error:
        raise EndedError(Reason(Outcome.BAD_DESCRIPTOR, str(error))) from error
    if this.node.instance_id is not None:
        _wait_for_machine(this)
    write_json(rundir.ready, identity)


def _let_user_in(this: Run) -> None:
    """Give the benchmark's user the way to its folders; whoever cannot go it is told now, before anything is pulled."""
    try:
        user = process.find_user(this.job.benchmark.user)
        if user is not None:
            process.open_way(this.rundir.path, top=this.top_folder)
            process.give_to(user, this.rundir.work)
            process.require_access(user, [this.rundir.work])
    except process.SetupError as error:
        raise EndedError(Reason(Outcome.PREPARE_FAILED, str(error))) from error


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
        raise EndedError(Reason(Outcome.PREPARE_FAILED, message)) from error


def _claim(this: Run, identity: Mapping[str, Any]) -> None:
    """Make this node's place in the job store ours, so that no other machine runs the same."""
    place = this.place
    if place is None:
        return
    if not this.rundir.store_offset.exists():
        deadline = time.monotonic() + _CLAIM_SECONDS
        descriptor = this.rundir.job.read_bytes()
        try:
            claimed = aside(
                lambda: place.claim(
                    identity, descriptor=descriptor, until=lambda: time.monotonic() > deadline
                ),
                over=lambda: this.watch.stopping() or time.monotonic() > deadline + _CLAIM_MARGIN,
                name="claim",
            )
        except ClaimedError as error:
            raise EndedError(Reason(Outcome.PREPARE_FAILED, str(error))) from error
        except StoreError as error:
            message = str(error)
            raise EndedError(Reason(Outcome.STORE_FAILED, f"{message[0].upper()}{message[1:]}.")) from error
        if not claimed:
            late = f"The job store {place.record.store.url} did not answer within {_CLAIM_SECONDS:.0f} s."
            raise EndedError(this.watch.reason() or Reason(Outcome.STORE_FAILED, late))
        write_json(this.rundir.store_offset, {})
    start_uploader(this)


def start_uploader(this: Run) -> None:
    """Begin to bring the run directory into a job store that is elsewhere, unless that goes on already."""
    if this.place is not None and this.uploader is None:
        this.uploader = StoreUploader(this.place, this.rundir)
        this.uploader.start()


def _wait_for_machine(this: Run) -> None:
    try:
        for warning in (
            *wait_for_gpus(stopping=this.watch.stopping),
            *wait_for_disks(stopping=this.watch.stopping),
        ):
            this.warn(warning)
    except NotReadyError as error:
        raise EndedError(Reason(Outcome.PREPARE_FAILED, str(error))) from error
    if reason := this.watch.reason():
        raise EndedError(reason)


def secrets_of(this: Run) -> dict[str, str]:
    """Return the benchmark's secrets, by their names in its environment. Raises SecretError."""
    found = {name: resolve(reference) for name, reference in this.job.benchmark.secrets.items()}
    this.redactor.know(found.values())
    this.knows_secrets = True
    return found
