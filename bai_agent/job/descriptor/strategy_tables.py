"""How the nodes of a job work together: `[strategy]`, and the server of `[server]`."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Literal

from bai_agent.job.schema.declared import DeclaredTable, Example
from bai_agent.job.schema.field_types import Port, RequestPath, VariableName, in_range
from bai_agent.light_dataclass import dataclass, field

MPI_STRATEGIES = ("horovod", "mpi")
"""Strategies whose first node starts processes on all other nodes with mpirun."""
SHARED_FILES_STRATEGIES = (*MPI_STRATEGIES, "inference")
"""Strategies that cannot give each arm its own files on several nodes."""
CONTAINER_STRATEGIES = ("single_node", "each_node", "torchrun")
"""Strategies that support a container. Every other strategy also starts programs of bai, or a server for other
nodes."""

TOGETHER_STRATEGIES = ("each_node", "torchrun")
"""Strategies in which each of several nodes starts its own part of every run."""

SERVER_NODE = 1
"""Number of the node that runs the server of `[server]`. Node 0 is the server's client."""


class MpiLaunch(str, Enum):
    """Which program starts mpirun, with the strategies `horovod` and `mpi`."""

    MPIRUN = "mpirun"
    USER = "user"


@dataclass(frozen=True, kw_only=True)
class StrategyTable:
    """How the nodes work together: the `[strategy]` table."""

    name: str = "single_node"
    nodes: Annotated[int, in_range(1)] = 1
    """Number of nodes. In an elastic job, the largest number of nodes."""
    min_nodes: int | None = None
    """Smallest number of nodes with which an elastic job runs. None if the job is fixed."""
    processes_per_node: str = "1"
    """Number of the benchmark's processes per node, or "gpus" for one process per GPU."""
    launch: MpiLaunch = MpiLaunch.MPIRUN
    """Which program starts mpirun, with the strategies `horovod` and `mpi`. With `user`, the benchmark's
    command starts mpirun itself."""
    max_restarts: Annotated[int, in_range(0)] = 0
    """Maximum number of restarts, for the strategy `torchrun`. The key has the meaning of `max_restarts` in
    `[restart]`."""
    cpus_per_process: Annotated[int | None, in_range(1)] = None
    """CPUs for each process; unset: the launcher decides."""
    gpus: int | None = None
    """Number of GPUs of the instance type, if `processes_per_node` is "gpus". A node with a different number of
    GPUs fails. Unset: any number."""
    mpirun_options: tuple[str, ...] = ()
    """Options for mpirun, which are passed unchanged after bai's own options. Only with `launch =
    "mpirun"`."""
    efa: bool = False
    """Whether the machines have Elastic Fabric Adapters. If true, bai warns about a library that sends data
    between machines over sockets."""

    @property
    def process_logs(self) -> bool:
        """Whether each process writes its output to a file of its own, from which metrics are taken. The value is
        true if bai starts mpirun."""
        return self.name in MPI_STRATEGIES and self.launch is MpiLaunch.MPIRUN

    @property
    def is_supervised(self) -> bool:
        """Whether the agent acts as AdaptDL's supervisor of the benchmark's processes."""
        return self.name == "adaptdl"

    @property
    def saved_code(self) -> int | None:
        """Exit code of a benchmark that has saved its state and asks to be restarted. None for all strategies
        except `adaptdl`."""
        return 143 if self.is_supervised else None

    @property
    def absorbs_losses(self) -> bool:
        """Whether the benchmark continues by itself if nodes join or leave. If true, the loss of a node other than
        the first node does not end a generation."""
        return self.name == "ray"

    @property
    def serving_program(self) -> str:
        """Name in messages of the program through which the first node uses the other nodes."""
        return "Ray" if self.name == "ray" else "sshd, through which node 0 starts processes on this node,"

    def __post_init__(self) -> None:
        if self.min_nodes is not None and not 1 <= self.min_nodes <= self.nodes:
            raise ValueError(f"min_nodes must be an integer from 1 to the value of nodes, {self.nodes}")
        if not re.fullmatch(r"0*[1-9][0-9]{0,5}|gpus", self.processes_per_node):
            raise ValueError(f'processes_per_node "{self.processes_per_node}" must be a number ≥ 1 or "gpus"')
        if not all(self.mpirun_options):
            raise ValueError("mpirun_options must not contain an empty word")


@dataclass(frozen=True, kw_only=True)
class ReadinessProbe(DeclaredTable):
    """An HTTP request that tests whether the server is ready. A probe succeeds if its response has a status from 200 to 399.
    Without this table, the server is ready when its first port accepts a connection."""

    path: Annotated[RequestPath, Example("/ping")]
    """URL path of the probe's request."""
    port: Annotated[Port | None, Example(8080)] = None
    """Port of the probe's request. Unset: the server's first port."""
    scheme: Annotated[Literal["http", "https", "HTTP", "HTTPS"], Example("https")] = "http"
    """The scheme. Certificates are not verified."""
    initial_delay_seconds: Annotated[int, in_range(0, 86_400), Example(10)] = 10
    """Seconds before the first probe."""
    period_seconds: Annotated[int, in_range(1, 86_400), Example(10)] = 10
    """Seconds between probes."""
    timeout_seconds: Annotated[int, in_range(1, 86_400), Example(1)] = 1
    """Time limit for one probe (seconds)."""
    success_threshold: Annotated[int, in_range(1, 1000), Example(1)] = 1
    """Number of successful probes in a row after which the server is ready."""
    failure_threshold: Annotated[int, in_range(1, 1000), Example(3)] = 3
    """Accepted but ignored. The client waits up to `limits.join`, however many probes fail."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server under test, which node 1 runs: the `[server]` table. Either `argv` or `script` is set."""

    ports: tuple[Port, ...]
    """Ports on which the server listens."""
    argv: tuple[str, ...] = ()
    """The command that starts the server, with its arguments."""
    script: str | None = None
    """The text of a script that starts the server."""
    env: dict[VariableName, str] = field(default_factory=dict)
    """Environment variables of the server, which replace the variables of `[benchmark]`."""
    readiness_probe: ReadinessProbe | None = None

    def __post_init__(self) -> None:
        if not self.ports or len(set(self.ports)) < len(self.ports):
            raise ValueError("ports must be one or more different ports")

    def environment(self, address: str) -> dict[str, str]:
        """Return the environment variables that tell the client the server's address and ports."""
        first, *others = map(str, self.ports)
        numbered = {f"INFERENCE_SERVER_PORT_{number}": port for number, port in enumerate(others, 1)}
        return {"INFERENCE_SERVER_HOST": address, "INFERENCE_SERVER_PORT": first, **numbered}
