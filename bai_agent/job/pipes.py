"""Talking with another process through a pipe, for a limited time."""

from __future__ import annotations

import os
import select
import time

_PIECE = 65536


def read_to_end(descriptor: int, *, seconds: float, most: int | None = None) -> bytes:
    """Return all that comes out of a pipe until its last writer has closed it, or the first `most` bytes.

    Raises TimeoutError where that takes longer than `seconds`. Uses poll: select() fails for descriptors from 1024 on.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + seconds
    said = b""
    while True:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"no end after {seconds:g} s")
        piece = os.read(descriptor, _PIECE)
        if not piece:
            return said
        said += piece
        if most is not None and len(said) >= most:
            return said[:most]


def write_within(descriptor: int, content: bytes, *, seconds: float) -> None:
    """Write all of `content` into a pipe. Raises TimeoutError where its reader has not made room for it in time."""
    os.set_blocking(descriptor, False)
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    deadline = time.monotonic() + seconds
    left = memoryview(content)
    while left:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"not taken within {seconds:g} s")
        left = left[os.write(descriptor, left[:_PIECE]) :]
