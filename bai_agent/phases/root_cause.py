"""Finds out which process failed first, and why, if a launcher started several processes."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from bai_agent.benchmark.ending import classify, classify_process, classify_server, classify_serving
from bai_agent.benchmark.state import read_started
from bai_agent.files.user_rights import folder_owner, user_rights
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import peer_of
from bai_agent.job.record_types import RunEnd
from bai_agent.job.redaction import Redactor
from bai_agent.job.repeats import RepeatedRun, RepeatedRuns, read_repeats
from bai_agent.metrics.search.terminal import visible
from bai_agent.nodes.members_file import peers_of
from bai_agent.run.run_context import RunContext
from bai_agent.strategy import explain_failure
from bai_agent.strategy.failure import Cause, LeftFile, Remains
from bai_agent.strategy.launch import Role
from bai_agent.strategy.process_ends import ProcessEnd, ProcessLog, open_regular, process_ends, process_logs

log = logging.getLogger(__name__)

_LAST_BYTES = 65536
_SECRET_BYTES = 65536
"""Size of the largest secret that AWS Secrets Manager stores (bytes):
https://docs.aws.amazon.com/secretsmanager/latest/userguide/reference_limits.html. A secret can begin before
the last lines of a log and end within the last lines."""
_FILES = 256
_FILE_BYTES = 65536
_ENTRIES = 1024
"""Largest number of entries of a folder that are examined."""
_DEPTH = 4
_CLOCK_MS = 1000
"""Tolerance for inexact times (ms): time stamps of files can be too early, and times that launchers report
can be too late."""
_MESSAGE_CHARACTERS = 300
"""A failed process's message is truncated to this length in a sentence (characters)."""


def classify_end(ctx: RunContext, left: RunEnd, *, quote: bool) -> tuple[Outcome, str, Cause | None]:
    """Return the benchmark's outcome on this node, a sentence about the outcome, and the process that failed
    first, if the strategy finds it.

    quote: whether the sentence may quote the benchmark's output.
    """
    if ctx.role is Role.SERVE and ctx.job.server is not None:
        return (*classify_server(left), None)
    if ctx.role is Role.SERVE:
        outcome, sentence = classify_serving(left, program=ctx.job.strategy.serving_program)
        # The serving process ended because the launcher on another node failed. The launcher possibly failed
        # because of a process on this node.
        cause = _found_cause(ctx, left, quote=quote) if outcome is Outcome.PEER_FAILED else None
        if cause is None:
            return outcome, sentence, None
        return (*classify_process(left, cause), cause)
    outcome, sentence = classify(left)
    if left.code in (None, 0) or outcome not in (Outcome.FAILED, Outcome.OOM):
        return outcome, sentence, None
    cause = _found_cause(ctx, left, quote=quote)
    return (*classify(left, cause), cause)


def judge_end(ctx: RunContext, left: RunEnd, *, quote: bool) -> tuple[Outcome, str, Cause | None]:
    """Return outcome, sentence and process, as `classify_end` does. If the agent stopped the benchmark, the
    sentence is the agent's reason for the stop."""
    outcome, sentence, cause = classify_end(ctx, left, quote=quote)
    stops = ctx.stops_of_generation()
    if left.stop is not None and outcome is not Outcome.OOM and cause is None:
        return outcome, stops[0].message if stops else sentence, None
    if ctx.reason is not None and outcome in (Outcome.LOST, Outcome.INTERRUPTED, Outcome.KILLED):
        # The agent killed the benchmark itself instead of ordering the shim to stop it.
        return ctx.reason.outcome, ctx.reason.message, None
    if outcome is Outcome.FAILED and stops and stops[-1].reason == Outcome.DISK_FULL:
        return Outcome.DISK_FULL, f"{stops[-1].message} {sentence}", cause
    return outcome, sentence, cause


def failed_at(left: RunEnd | None, cause: Cause | None, *, stopped: int | None = None) -> int | None:
    """Return when the benchmark, or the first of its processes, failed (ms UTC). left: how the benchmark
    ended, which was a failure.

    stopped: time at which the benchmark was ordered to stop; None if there was no order. Processes on other
    nodes can fail after this time, because this node's processes end.
    """
    ended = left.time if left is not None else None
    if cause is None and left is not None and left.stop is not None and ended and stopped:
        return min(stopped, ended)
    if cause is None or cause.failed is None or ended is None:
        return ended
    # A launcher needs some time to end the other processes after the first failure. A failure time outside of
    # this run was written by another program, and is ignored.
    begun = ended - 1000 * ((left.wall_seconds if left is not None else None) or 0) - _CLOCK_MS
    return min(cause.failed, ended) if begun <= cause.failed <= ended + _CLOCK_MS else ended


def stopped_at(ctx: RunContext) -> int | None:
    """Return the time of the first order to stop this generation (ms UTC); None if there was no order."""
    return next((each.time for each in ctx.stops_of_generation()), None)


def read_end(
    path: Path,
    redactor: Redactor,
    *,
    opener: Callable[[Path], int] | None = None,
    begin: int = 0,
    end: int | None = None,
) -> str:
    """Return the last 64 KiB of a log. The text is redacted before it is truncated, because a truncated
    secret would not be recognised.

    begin, end: range of the log from which the text is read (byte offsets). If `end` is None, the range ends
    with the file.
    """
    try:
        with path.open("rb") if opener is None else os.fdopen(opener(path), "rb") as file:
            size = file.seek(0, 2)
            size = size if end is None else min(size, end)
            # If the file is shorter than `begin`, the file has been truncated since.
            begin = begin if begin <= size else 0
            start = max(begin, size - _LAST_BYTES - _SECRET_BYTES)
            file.seek(start)
            content = file.read(size - start)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    text = redactor.redact(content.decode(errors="replace"))
    return text[-_LAST_BYTES:] if start > begin else text


def generation_begin(ctx: RunContext) -> int:
    """Return the offset in the output file at which this generation's output begins (bytes); 0 for the first
    generation."""
    started = read_started(ctx.rundir) if ctx.rundir.generation else None
    return started.output_bytes if started is not None else 0


def _found_cause(ctx: RunContext, left: RunEnd, *, quote: bool) -> Cause | None:
    try:
        cause = _cause(ctx, left)
    except Exception:
        # Any error is caught, because the benchmark can leave any files, and the node's outcome must be
        # reported all the same.
        log.exception("it is unknown which process failed first")
        return None
    if cause is not None and not quote:
        return replace(cause, message="", traceback=(), printed=None)
    return cause


def _cause(ctx: RunContext, left: RunEnd) -> Cause | None:
    redact = ctx.redactor.redact
    # If another node starts the runs, `repeats.jsonl` does not exist on this node.
    runs = read_repeats(ctx.rundir.repeats) if ctx.job.repeat is not None else RepeatedRuns()
    failed = next((each for each in runs.runs if each.ended is not None and each.ended.code != 0), None)
    if failed is None and runs.failed_step is not None:
        return None  # the existing files are from successful runs
    files = [replace(each, content=redact(each.content)) for each in _left_files(ctx.rundir.launcher)]
    logs = [each for each in process_logs(ctx.rundir.processes) if each.generation == ctx.rundir.generation]
    if failed is not None:
        files = [each for each in files if _is_of(failed, each)]
        number = failed.repeat if failed.repeat is not None else failed.run
        logs = [each for each in logs if (each.warmup, each.run) == (failed.repeat is None, number)]
    ends = process_ends(logs)
    remains = Remains(
        log=read_end(
            ctx.rundir.kept_output,
            ctx.redactor,
            begin=generation_begin(ctx),
            end=None if failed is None else _end_of(failed),
        ),
        code=left.code,
        files=files,
        processes=ends,
    )
    peers = peers_of(ctx.rundir)
    cause = explain_failure(ctx.job, remains, peer_of(peers, ctx.node.rank), peers)
    if cause is None:
        return None
    own = _log_of(cause, logs, ends)
    if own is not None:
        printed = read_end(own.path, ctx.redactor, opener=open_regular)
        cause = replace(cause, printed=printed or cause.printed)
        if failed is None and own.run is not None:
            # If another node starts the runs, only the log of the process tells in which run it failed.
            kind = "warm-up run" if own.warmup else "run"
            cause = replace(cause, process=f"in {kind} {own.run + 1}, {cause.process}")
    message = redact(_plain(cause.message))
    cut = len(message) - _MESSAGE_CHARACTERS
    return replace(
        cause,
        message=f"{message[:_MESSAGE_CHARACTERS]}…" if cut > 0 else message,
        traceback=[redact(_unescaped(line)) for line in cause.traceback],
    )


def _is_of(run: RepeatedRun, file: LeftFile) -> bool:
    """Return whether a file was written during the run `run`. The folder can also contain files of earlier
    runs."""
    ended = run.ended.time if run.ended is not None else None
    return ended is not None and run.time - _CLOCK_MS <= file.modified <= ended + _CLOCK_MS


def _end_of(run: RepeatedRun) -> int | None:
    return run.ended.output_bytes if run.ended is not None else None


def _log_of(cause: Cause, logs: Sequence[ProcessLog], ends: Sequence[ProcessEnd]) -> ProcessLog | None:
    """Return the log of the process that failed first, in the run in which the process failed; None if the
    process has no separate log."""
    own = [each for each in logs if each.rank == cause.rank]
    paths = {each.log for each in ends if each.rank == cause.rank and each.time == cause.failed}
    return next((each for each in own if each.path in paths), own[-1] if own else None)


def _plain(text: str) -> str:
    """Return a text for use within a sentence: without escape sequences and control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in _unescaped(text)).split())


def _unescaped(text: str) -> str:
    return visible(text.encode(errors="replace")).decode(errors="replace")


def _left_files(folder: Path) -> list[LeftFile]:
    """Return the files in the launcher's folder, with their content. The benchmark can create anything in
    this folder, including links and pipes."""
    with user_rights(folder_owner(folder)):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        return list(islice(_files_below(descriptor, "", _DEPTH), _FILES))


def _files_below(folder: int, prefix: str, depth: int) -> Iterator[LeftFile]:
    """Yield the regular files below a folder. `folder` is an open file descriptor, which this function
    closes."""
    try:
        with os.scandir(folder) as entries:
            found = [(each.name, each.is_dir(follow_symlinks=False)) for each in islice(entries, _ENTRIES)]
        for name, is_folder in found:
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(name, flags | (os.O_DIRECTORY if is_folder else 0), dir_fd=folder)
            except OSError:
                continue
            if not is_folder:
                yield from _read(descriptor, prefix + name)
            elif depth > 1:
                yield from _files_below(descriptor, f"{prefix}{name}/", depth - 1)
            else:
                os.close(descriptor)
    finally:
        os.close(folder)


def _read(descriptor: int, path: str) -> Iterator[LeftFile]:
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            content = file.read(_FILE_BYTES) or b""
            yield LeftFile(
                path=path,
                content=content.decode(errors="replace"),
                modified=status.st_mtime_ns // 1_000_000,
            )
