"""Tells whether a prompt is possible. A user at a terminal can answer one, but a program that calls the API
cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_UNATTENDED = ContextVar("unattended", default=False)


@contextmanager
def unattended() -> Iterator[None]:
    """Prevent prompts in this `with` block."""
    before = _UNATTENDED.set(True)
    try:
        yield
    finally:
        _UNATTENDED.reset(before)


def is_unattended() -> bool:
    return _UNATTENDED.get()
