"""Whether a person can be asked for something: a command is called by somebody at a terminal, the API by a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_UNATTENDED = ContextVar("unattended", default=False)


@contextmanager
def unattended() -> Iterator[None]:
    """Ask nobody for anything in this block."""
    before = _UNATTENDED.set(True)
    try:
        yield
    finally:
        _UNATTENDED.reset(before)


def is_unattended() -> bool:
    return _UNATTENDED.get()
