"""Chooses ports of loopback at which no process listens."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_PORTS = range(10_000, 32_000)
"""Ports below those that Linux assigns to connections and to servers without a port."""


def free_port() -> int:
    """Return a port that is free now. Only another call of this function may take it."""
    # Not the module's functions, whose generator tests and plugins seed alike in each process.
    for port in random.SystemRandom().sample(_PORTS, 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port of loopback is free")
