"""Reads exit.json and summarises the benchmark's end in one outcome and one sentence."""

from __future__ import annotations

import signal

from bai_agent.job.outcome import Outcome, signal_name
from bai_agent.job.record_types import BenchmarkExit
from bai_agent.strategy.failure import Cause

_SHELL_SIGNAL = 128


def classify(ended: BenchmarkExit, cause: Cause | None = None) -> tuple[Outcome, str]:
    """Return the benchmark's outcome according to its exit.json (`ended`), and a sentence for the user.

    cause: the process that failed first, if a launcher started several processes. The first cause in this
    list that applies gives the outcome: the end was not recorded; the benchmark never ran; the agent stopped
    the benchmark; the agent was told to end; the kernel killed the benchmark because of memory; another
    signal; the benchmark's own exit code.
    """
    if ended.lost:
        return Outcome.LOST, Outcome.LOST.sentence
    error, stop = ended.exec_error, ended.stop
    if error is not None:
        outcome = Outcome.NOT_FOUND if error["not_found"] else Outcome.NOT_EXECUTABLE
        return outcome, str(error["message"])
    after = f"after {_seconds(ended.wall_seconds or 0)}"
    if stop is not None:
        return _stopped(str(stop), ended, after)
    if ended.stop_signal is not None:
        name = signal_name(ended.stop_signal)
        return (
            Outcome.INTERRUPTED,
            f"The benchmark was ended {after}: its shim received {name}, as in a shutdown.",
        )
    if ended.oom and ended.code != 0:
        end = f"{cause.process} {_end_of(cause)}" if cause else _end(ended)
        return Outcome.OOM, (
            f"The benchmark ran out of memory {after}: the kernel killed one of its processes ({end}). "
            f"Its largest process had used {_size(ended.peak_memory_bytes or 0)}."
        )
    if ended.signal is not None:
        return _killed(ended.signal, after)
    code = ended.code
    if code == 0:
        return Outcome.SUCCEEDED, f"The benchmark finished successfully {after}."
    if cause is not None:
        return _failed_process(cause, after)
    return Outcome.FAILED, f"The benchmark failed {after}: it exited with code {code}{_shell_hint(code)}."


def classify_server(ended: BenchmarkExit) -> tuple[Outcome, str]:
    """Return outcome and sentence, as `classify` does, for the server process of a job. A server that ends
    before it was ordered to stop has failed."""
    outcome, sentence = classify(ended)
    if outcome is Outcome.SUCCEEDED and ended.stop is None:
        after = _seconds(ended.wall_seconds or 0)
        return Outcome.FAILED, f"The server ended by itself after {after}, before its client: {_end(ended)}."
    return outcome, sentence.replace("The benchmark", "The server", 1)


def classify_serving(ended: BenchmarkExit, *, program: str) -> tuple[Outcome, str]:
    """Return outcome and sentence, as `classify` does, for a node that only runs `program` for another node.
    If the node's processes end before they were ordered to stop, the node counts as lost."""
    outcome, sentence = classify(ended)
    if outcome is Outcome.SUCCEEDED and ended.stop is not None:
        return outcome, sentence
    if ended.oom:
        return Outcome.OOM, (
            "The benchmark ran out of memory on this node: the kernel killed one of its processes. "
            f"Its largest process had used {_size(ended.peak_memory_bytes or 0)}."
        )
    if ended.lost or ended.exec_error or ended.stop is not None or ended.stop_signal is not None:
        return outcome, sentence
    return Outcome.LOST, (
        f"{program} ended by itself after {_seconds(ended.wall_seconds or 0)}: {_end(ended)}."
    )


def classify_process(ended: BenchmarkExit, cause: Cause) -> tuple[Outcome, str]:
    """Return outcome and sentence, as `classify` does, for a node that serves other nodes. A process failed
    on the node before the node was told to end."""
    wall = ended.wall_seconds or 0
    if cause.failed is not None:
        wall = max(0.0, wall - max(0, (ended.time or 0) - cause.failed) / 1000)
    return _failed_process(cause, f"after {_seconds(wall)}")


def _stopped(reason: str, ended: BenchmarkExit, after: str) -> tuple[Outcome, str]:
    try:
        outcome = Outcome(reason)
    except ValueError:  # a stop.json written by hand
        outcome = Outcome.INTERRUPTED
    if ended.code is None and ended.signal is None:
        return outcome, f"{outcome.sentence.removesuffix('.')}; its process never started or did not end."
    killed = ended.signal == signal.SIGKILL
    how = "the benchmark did not end on SIGTERM and was killed" if killed else _end(ended)
    return outcome, f"{outcome.sentence.removesuffix('.')} {after}; {how}."


_CRASHES = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
)


def _killed(number: int, after: str) -> tuple[Outcome, str]:
    if number in _CRASHES:
        return Outcome.FAILED, f"The benchmark crashed {after}: {signal_name(number)}."
    return (
        Outcome.KILLED,
        f"The benchmark was killed {after} by {signal_name(number)}, which bai did not send.",
    )


def _failed_process(cause: Cause, after: str) -> tuple[Outcome, str]:
    if cause.signal is None or cause.signal in _CRASHES:
        return Outcome.FAILED, f"The benchmark failed {after}: {cause.process} {_end_of(cause)}."
    how = f"{cause.process} was ended by {signal_name(cause.signal)}, which bai did not send"
    return Outcome.KILLED, f"The benchmark failed {after}: {how}."


def _end_of(cause: Cause) -> str:
    """Describe the end of a process, followed by its last output without the full stop."""
    said = f": {cause.message.rstrip('.')}" if cause.message else ""
    if cause.signal is not None:
        verb = "crashed with" if cause.signal in _CRASHES else "ended by"
        return f"{verb} {signal_name(cause.signal)}{said}"
    return f"exited with code {cause.code}{said}" if cause.code is not None else f"failed{said}"


def _end(ended: BenchmarkExit) -> str:
    if ended.signal is not None:
        return f"it ended by {signal_name(ended.signal)}"
    return f"it exited with code {ended.code}"


def _shell_hint(code: int | None) -> str:
    """Explain an exit code of a shell. For example, exit code 137 means that signal 9 killed the shell's
    command."""
    if code is None:
        return ""
    number = code - _SHELL_SIGNAL
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *_CRASHES):
        return f", a shell's code for a command that was ended by {signal_name(number)}"
    if code == 127:
        return ", a shell's code for a command that was not found"
    if code == 126:
        return ", a shell's code for a command that cannot be executed"
    return ""


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {rest} s" if hours else f"{minutes} min {rest} s"


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
