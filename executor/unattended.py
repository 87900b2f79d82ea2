"""Whether a prompt is possible: a person at a terminal runs a command, a program calls the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_UNATTENDED = ContextVar("unattended", default=False)


@contextmanager
def unattended() -> Iterator[None]:
    """Prevent prompts in this block."""
    before = _UNATTENDED.set(True)
    try:
        yield
    finally:
        _UNATTENDED.reset(before)


def is_unattended() -> bool:
    return _UNATTENDED.get()
