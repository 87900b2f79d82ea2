"""Reads and writes a pipe within a time limit."""

from __future__ import annotations

import os
import select
import time

_PIECE = 65536


def read_to_end(descriptor: int, *, timeout_s: float, most: int | None = None) -> bytes:
    """Return the content of a pipe until its last writer closes it, or the first `most` bytes.

    Raises TimeoutError if the read takes longer than `timeout_s`. poll() is used, because select() fails for
    descriptors of 1024 or more.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + timeout_s
    content = b""
    while True:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"no end after {timeout_s:g} s")
        piece = os.read(descriptor, _PIECE)
        if not piece:
            return content
        content += piece
        if most is not None and len(content) >= most:
            return content[:most]


def write_within(descriptor: int, content: bytes, *, timeout_s: float) -> None:
    """Write all of `content` into a pipe. Raises TimeoutError if the pipe's reader is too slow."""
    os.set_blocking(descriptor, False)
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    deadline = time.monotonic() + timeout_s
    left = memoryview(content)
    while left:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"not taken within {timeout_s:g} s")
        left = left[os.write(descriptor, left[:_PIECE]) :]
