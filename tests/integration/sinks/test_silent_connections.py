"""Connections that send nothing do not block our ports or use up file descriptors."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

_SERVES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
{start}
print(port, flush=True)
for line in sys.stdin:
    print(len(os.listdir("/proc/self/fd")), flush=True)
"""
_ENDPOINTS = {
    "prometheus": "from bai_agent.sinks.prometheus_sink import Endpoint\nport = Endpoint('127.0.0.1', 0, lambda: b'x 1').port",
    "serve": "from executor.service.http import HttpEndpoints\nfrom executor.service.counters import ServiceCounters\n"
    "served = HttpEndpoints(('127.0.0.1', 0), ServiceCounters())\nserved.start()\nport = served.port",
}


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize(("name", "connections"), [("prometheus", 3000), ("serve", 1200)])
def test_silent_connections_do_not_use_up_ports_or_descriptors(name: str, connections: int) -> None:
    program = _SERVES.format(start=_ENDPOINTS[name])
    with (
        ExitStack() as stack,
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server,
    ):
        assert server.stdout is not None
        assert server.stdin is not None
        port = int(server.stdout.readline())
        for _ in range(connections):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert answer.status == 200
        server.stdin.write("\n")
        server.stdin.flush()
        assert int(server.stdout.readline()) < 100
        server.stdin.close()
        server.kill()
