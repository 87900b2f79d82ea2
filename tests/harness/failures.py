"""Ways in which code under test is made to end."""

from __future__ import annotations


class KilledError(Exception):
    """Stands for a kill: nothing that the process would do after it is done."""


class PanicException(BaseException):
    """As a library written in Rust raises it: no Exception."""
