"""Ports of loopback that nobody listens at."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that is free now; most likely so a moment later, too."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port
