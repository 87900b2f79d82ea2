"""Exceptions that tests raise to end code under test."""

from __future__ import annotations


class KilledError(Exception):
    """Stands for a kill: the process does nothing more."""


class PanicException(BaseException):
    """Stands for the panic of a library written in Rust, which is not an Exception."""
