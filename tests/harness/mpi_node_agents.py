"""Runs the agents of a multi-node job under Open MPI on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from instance_services import Services
from node_agents import Nodes


class MpiNodes(Nodes):
    """The agents of one job at 127.0.0.1, 127.0.0.2 … Their metadata services make them instances."""

    def __init__(self, folder: Path, argv: list[str], *, nodes: int = 2, **tables: Any) -> None:
        strategy = {"name": "mpi", **tables.pop("strategy", {})}
        super().__init__(folder, "", nodes=nodes, argv=argv, strategy=strategy, **tables)
        self.options = {rank: ["--instance-id", f"i-{rank}"] for rank in range(nodes)}
        self._services = ExitStack()
        self._metadata = [self._metadata_of(f"127.0.0.{rank + 1}") for rank in range(nodes)]

    def start(
        self, rank: int, env: Mapping[str, str] = MappingProxyType({}), *, inside: Path | None = None
    ) -> subprocess.Popen[bytes]:
        return super().start(
            rank, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self._metadata[rank], **env}, inside=inside
        )

    def run(self, envs: Mapping[int, Mapping[str, str]] = MappingProxyType({})) -> list[int]:
        """Start both of two nodes, and return their exit codes."""
        for rank in (0, 1):
            self.start(rank, envs.get(rank, {}))
        return [self.wait(rank) for rank in (0, 1)]

    def output(self, rank: int = 0) -> str:
        path = self.rundir(rank) / "output.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        super().close()
        self._services.close()

    def _metadata_of(self, address: str) -> str:
        services = Services(metadata={"local-ipv4": address})
        server = services.serve()
        self._services.callback(server.server_close)
        self._services.callback(server.shutdown)
        return services.url
