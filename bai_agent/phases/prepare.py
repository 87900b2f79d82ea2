"""The first phase of a run. The phase prepares the run directory, this node's part of the job store, the
secrets, and the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bai_agent import __version__
from bai_agent.aws.secrets import resolve
from bai_agent.benchmark.environment import find_user, scripts_folder, workspaces
from bai_agent.benchmark.state import State, state
from bai_agent.benchmark.user_access import give_all_to, open_way, require_access, require_own_way
from bai_agent.errors import BaiError, ClaimedError, NotReadyError, SecretError, SetupError, StoreError
from bai_agent.files.new_files import NO_LINKS
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import boot_id, make_folder, now_ms, reserve_space, write_json
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.clock import call_with_deadline
from bai_agent.runtime.stop import RunEndedError
from bai_agent.strategy import strategy_of

_CLAIM_SECONDS = 120.0
"""Time for which this node tries to claim its part of an unreachable job store (seconds). After this time,
the run ends."""

_LAUNCH_SECONDS = 600.0
"""Value of `_CLAIM_SECONDS` for a machine that was launched after the job's start. The time is longer,
because the program that launched the machine possibly died before it recorded the launch. Another program
then records the launch later."""

_CLAIM_MARGIN = 5.0
"""Seconds to wait for the store's answer after the last attempt to claim this node's part."""


def prepare(ctx: RunContext) -> None:
    """Complete the run directory, and detect problems now that would otherwise fail the run much later."""
    rundir = ctx.rundir
    works = [each.work for _, each in workspaces(ctx.job, rundir)]
    for folder in (*works, rundir.log_chunks, rundir.metric_chunks):
        make_folder(folder, private=rundir.path)
    for file, link in (
        (rundir.output, rundir.kept_output),
        (rundir.metrics, rundir.kept_metrics),
    ):
        if not link.exists():
            file.touch(mode=0o600)
            _link(file, link)
    reserve_space(rundir)
    if state(rundir) is State.NOT_STARTED:
        _let_user_in(ctx)
    identity = {
        "host": os.uname().nodename,
        "instance_id": ctx.node.instance_id,
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "version": __version__,
        "time": now_ms(),
    }
    _claim(ctx, identity)
    start_monitor(ctx)
    try:
        strategy_of(ctx.job)
        if state(rundir) is State.NOT_STARTED:
            secrets_of(ctx)
    except SecretError as error:
        raise RunEndedError.of(Outcome.PREPARE_FAILED, str(error)) from error
    except BaiError as error:
        raise RunEndedError.of(Outcome.BAD_DESCRIPTOR, str(error)) from error
    if ctx.node.instance_id is not None:
        _wait_for_machine(ctx)
    write_json(rundir.ready, identity)


_PARTS = {
    "obstore": "nothing can be read from or written to S3",
    "ahocorasick_rs": "metrics are extracted more slowly",
    "psutil": "the load of the machine is not measured",
    "kafka": "no metrics are sent to Kafka",
    "backports.zstd": "no .zst archive can be unpacked",
}


def missing_dependencies() -> list[str]:
    """Return a sentence for each missing Python package. The agent is slower or has fewer features if a
    package is missing."""
    wanted = [each for each in _PARTS if each != "backports.zstd" or sys.version_info < (3, 14)]
    python = ".".join(map(str, sys.version_info[:2]))
    return [
        f"the module {name} is not installed for this Python ({python}): {_PARTS[name]}"
        for name in wanted
        if not _is_installed(name)
    ]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that the module belongs to
        return False


def _let_user_in(ctx: RunContext) -> None:
    """Give the benchmark's user access to the benchmark's folders. The function also tests the access, so
    that a problem is found before the pull."""
    try:
        user = find_user(ctx.job.benchmark.user)
        if user is not None:
            require_own_way(user, ctx.rundir.path)
            for job, own in workspaces(ctx.job, ctx.rundir):
                open_way(own.own, top=ctx.top_folder)
                # The benchmark's user also becomes the owner of the files that `bai` copied there. Later
                # files are created with the user's own rights.
                folders = [each for each in (own.work, scripts_folder(job, own)) if each is not None]
                for each in folders:
                    make_folder(each, private=own.path)
                    give_all_to(user, each)
                require_access(user, folders)
    except SetupError as error:
        raise RunEndedError.of(Outcome.PREPARE_FAILED, str(error)) from error


def _link(file: Path, link: Path) -> None:
    """Make the hard link `link` to the growing file `file`. Raises RunEndedError if the file system has no
    hard links."""
    try:
        os.link(file, link)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        message = (
            f"The run directory cannot be in {file.parent}: its file system has no hard links ({error.strerror}); "
            "name a folder on another file system with --store, or --dir of bai-agent."
        )
        raise RunEndedError.of(Outcome.PREPARE_FAILED, message) from error


def _claim(ctx: RunContext, identity: Mapping[str, Any]) -> None:
    """Claim this node's part of the job store, so that no other machine runs the same node. Raises
    RunEndedError."""
    node_store = ctx.node_store
    if node_store is None:
        return
    if not ctx.rundir.store_offset.exists():
        clock = ctx.clock
        seconds = _LAUNCH_SECONDS if ctx.node.launch else _CLAIM_SECONDS
        deadline = clock.monotonic() + seconds
        _require_job(ctx)
        descriptor = ctx.rundir.job.read_bytes()
        try:
            claimed = call_with_deadline(
                lambda: node_store.claim(
                    identity,
                    descriptor=descriptor,
                    until=lambda: clock.monotonic() > deadline,
                    sleep=clock.sleep,
                    clock=clock.monotonic,
                ),
                over=lambda: _has_to_leave(ctx) or clock.monotonic() > deadline + _CLAIM_MARGIN,
                name="claim",
            )
        except ClaimedError as error:
            raise RunEndedError.of(Outcome.PREPARE_FAILED, str(error)) from error
        except StoreError as error:
            message = str(error)
            raise RunEndedError.of(Outcome.STORE_FAILED, f"{message[0].upper()}{message[1:]}.") from error
        if not claimed:
            ctx.watch.raise_reason()
            late = f"The job store {node_store.record.store.url} did not answer within {seconds:.0f} s."
            raise RunEndedError.of(Outcome.STORE_FAILED, late)
        write_json(ctx.rundir.store_offset, {})
    start_uploader(ctx)


def _require_job(ctx: RunContext) -> None:
    """Raise RunEndedError if this machine was launched for a job that is over. Such a machine runs nothing
    and powers off."""
    if not ctx.node.launch or ctx.record is None:
        return
    try:
        is_over = ctx.record.result() is not None
    except StoreError:
        return  # the claim checks this again
    if is_over:
        raise RunEndedError.of(
            Outcome.SUCCEEDED, "The job was over before this machine could take part in it."
        )


def _has_to_leave(ctx: RunContext) -> bool:
    """Return whether the run must end before this node has claimed its part of the store. Reasons to end that
    were read from the store are ignored."""
    reason = ctx.watch.reason()
    return reason is not None and not reason.by_store


def start_uploader(ctx: RunContext) -> None:
    """Start to upload the run directory to a remote job store, unless the upload is already running."""
    if ctx.node_store is not None and ctx.uploader is None:
        ctx.uploader = ctx.new_uploader(ctx.node_store, ctx.rundir)
        ctx.uploader.start()
        ctx.sinks.append(ctx.uploader)


def start_monitor(ctx: RunContext) -> None:
    """Start the monitor that writes heartbeats for the other nodes, unless this agent has already started
    it."""
    if ctx.elastic is not None and any(metric.required for metric in ctx.job.metrics):
        # Imported here because most runs have no required metrics.
        from bai_agent.metrics.checkpoint import required_seen

        ctx.elastic.seen = lambda: required_seen(ctx.rundir.extractor_offset, ctx.job.metrics)
    if ctx.others is not None and ctx.others.ident is None:
        ctx.others.start()


def _wait_for_machine(ctx: RunContext) -> None:
    try:
        for warning in ctx.wait_for_machine(ctx.watch.stopping, ctx.clock):
            ctx.warn(warning)
    except NotReadyError as error:
        raise RunEndedError.of(Outcome.PREPARE_FAILED, str(error)) from error
    ctx.watch.raise_reason()


def secrets_of(ctx: RunContext) -> dict[str, str]:
    """Return the benchmark's secrets by the names of their environment variables. The redactor redacts these
    secrets from now on. Raises SecretError."""
    found = {name: resolve(reference) for name, reference in ctx.job.benchmark.secrets.items()}
    ctx.redactor.know(found.values())
    ctx.knows_secrets = True
    return found
