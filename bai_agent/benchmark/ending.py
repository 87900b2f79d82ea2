"""Reads exit.json: how did the benchmark end, in one outcome and one sentence."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from bai_agent.job.outcome import Outcome, signal_name

_SHELL_SIGNAL = 128


def classify(ended: Mapping[str, Any]) -> tuple[Outcome, str]:
    """Return the outcome that `ended` (the content of exit.json) stands for, and a sentence for a person.

    In this order: nobody saw its end; it never ran; we ended it; we were told to end; the kernel took its memory away;
    somebody else's signal; its own exit code.
    """
    if ended["lost"]:
        return Outcome.LOST, Outcome.LOST.sentence
    error, stop = ended["exec_error"], ended["stop"]
    if error is not None:
        outcome = Outcome.NOT_FOUND if error["not_found"] else Outcome.NOT_EXECUTABLE
        return outcome, str(error["message"])
    after = f"after {_seconds(ended['wall_seconds'])}"
    if stop is not None:
        return _stopped(str(stop), ended, after)
    if ended["stop_signal"] is not None:
        name = signal_name(ended["stop_signal"])
        return (
            Outcome.INTERRUPTED,
            f"The benchmark was ended {after}: what watches it received {name}, as in a shutdown.",
        )
    if ended["oom"] and ended["code"] != 0:
        return Outcome.OOM, (
            f"The benchmark ran out of memory {after}: the kernel killed a process of it ({_end(ended)}). "
            f"Its largest process had used {_size(ended['peak_memory_bytes'])}."
        )
    if ended["signal"] is not None:
        return _killed(ended["signal"], after)
    code = ended["code"]
    if code == 0:
        return Outcome.SUCCEEDED, f"The benchmark finished successfully {after}."
    return Outcome.FAILED, f"The benchmark failed {after}: it exited with code {code}{_shell_hint(code)}."


def _stopped(reason: str, ended: Mapping[str, Any], after: str) -> tuple[Outcome, str]:
    try:
        outcome = Outcome(reason)
    except ValueError:  # a stop.json written by hand
        outcome = Outcome.INTERRUPTED
    if ended["code"] is None and ended["signal"] is None:
        return outcome, f"{outcome.sentence.removesuffix('.')}; it was not started or could not be ended."
    killed = ended["signal"] == signal.SIGKILL
    how = "it did not end on SIGTERM and was killed" if killed else _end(ended)
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
        f"The benchmark was killed {after} by {signal_name(number)}, which did not come from us.",
    )


def _end(ended: Mapping[str, Any]) -> str:
    if ended["signal"] is not None:
        return f"it ended by {signal_name(ended['signal'])}"
    return f"it exited with code {ended['code']}"


def _shell_hint(code: int) -> str:
    """Say what a shell means by 137: its command died of signal 9."""
    number = code - _SHELL_SIGNAL
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *_CRASHES):
        return f", by which a shell says that its command was ended by {signal_name(number)}"
    if code == 127:
        return ", by which a shell says that a command in it was not found"
    if code == 126:
        return ", by which a shell says that a command in it could not be executed"
    return ""


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {rest} s" if hours else f"{minutes} min {rest} s"


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
