"""Converts signals to exceptions, so that an interrupted command can report which jobs still run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_SECONDS = 0.01
"""Time after which a signal is sent again if it arrived while pydantic was building a model (seconds)."""


class SignalError(KeyboardInterrupt):
    """A signal told this process to end. `SignalError` is not derived from Exception, so that libraries do
    not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def raised_signals() -> Iterator[None]:
    """While the context is open, the first Ctrl-C or SIGTERM raises SignalError. A second signal ends the
    process at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is _end_quietly:
        before[signal.SIGINT] = signal.default_int_handler

    def on_signal(number: int, frame: FrameType | None) -> None:
        if _builds_a_model(frame):
            threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()
            return
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise SignalError(number)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _builds_a_model(frame: FrameType | None) -> bool:
    """Return whether pydantic is running. A SignalError is not raised while pydantic runs, because pydantic
    converts any exception of a callback into its own exception."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("pydantic."):
            return True
        frame = frame.f_back
    return False


def end_quietly_until_a_command_begins() -> None:
    """Make Ctrl-C end this process with one sentence, unless the process that started it ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_quietly)


def command_begins() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again. From now on, the command itself reports which jobs still
    run."""
    if signal.getsignal(signal.SIGINT) is _end_quietly:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_quietly(number: int, frame: FrameType | None) -> None:
    os.write(2, b"bai: interrupted; nothing was started\n")
    os._exit(128 + number)
