"""What a node starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Role(str, Enum):
    """What a node's process is for the job."""

    BENCHMARK = "benchmark"
    """It runs the benchmark: its end is the node's."""
    SERVER = "server"
    """It serves other nodes, such as an sshd for mpirun, and ends with the job."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command and its environment, as the shim starts them."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the benchmark's environment."""
    role: Role = Role.BENCHMARK
