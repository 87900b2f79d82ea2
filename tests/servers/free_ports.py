"""Ports of loopback that nobody listens at."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_PORTS = range(10_000, 32_000)
"""Below those that Linux gives to connections and to servers that name none: it hands out thousands during the tests."""


def free_port() -> int:
    """A port that is free now, and that only another call of this may take."""
    # Not the module's own numbers, which tests and their plugins seed alike in each process.
    for port in random.SystemRandom().sample(_PORTS, 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port of loopback is free")
