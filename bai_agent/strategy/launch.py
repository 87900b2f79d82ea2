"""Types that describe what a node starts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from bai_agent.job.peers import Peer
from bai_agent.light_dataclass import dataclass, field


class Role(Enum):
    """What a node does in the job: compute, or serve other nodes."""

    COMPUTE = "compute"
    """A node whose part of the job ends when its own processes have ended."""
    SERVE = "serve"
    """A node that runs a program for another node, such as a server. The node succeeds when the coordinator
    reports that the job succeeded."""


LAUNCHER_FOLDER = "BAI_LAUNCHER_FOLDER"
"""In a value of `Launch.env`, `$(BAI_LAUNCHER_FOLDER)` is replaced by the path of the launcher's folder of
this run. The strategy's `explain` gets the files that a launcher writes into this folder. The benchmark does
not get the variable BAI_LAUNCHER_FOLDER."""

RUN_TOKEN = "BAI_RUN_TOKEN"  # noqa: S105 - a name
"""In a value of `Launch.env`, `$(BAI_RUN_TOKEN)` is replaced by a secret that the nodes of this generation
share. If the job has one node, the replacement is "". The benchmark does not get the variable
BAI_RUN_TOKEN."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a launch, in addition to the requirements of the benchmark itself. The agent checks the
    launch's requirements right before the start."""

    folders: tuple[str, ...] = ()
    """Folders in which the launch's program (`argv[0]`) is looked up, after the benchmark's PATH."""
    program: str | None = None
    """Advice for the user if the program is missing, such as "install it with …"."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules that the benchmark's Python must have. The value for a module is advice for the user if the
    module is missing."""
    cpus: int = 0
    """Number of CPUs that all processes of the node need together."""
    cores: int = 0
    """Number of CPU cores that all processes of the node need together. A core with several hardware threads
    counts once."""
    own_program: str | None = None
    """One of bai's own programs, which starts each process of the benchmark. The agent's Python runs the
    program as the benchmark's user."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Requirements that a node must meet before it joins a job of several nodes. If one node does not meet
    its requirements, the benchmark is not started on any node."""

    program: str | None = None
    """Program that must exist on the node: on the benchmark's PATH or in `needs.folders`. The node publishes
    the program's version to the other nodes, as `engine` of its `Peer`."""
    needs: Needs = Needs()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Versions of modules of the benchmark's Python that are known to work, by module. A version that is not
    listed causes a warning."""
    ports: tuple[int, ...] = ()
    """Ports on which the node will listen, and which must be free before the node joins."""
    ssh: bool = False
    """Whether the coordinator logs in to the other nodes by SSH. For these logins, each node creates a key
    pair and publishes the public key."""


@dataclass(frozen=True, kw_only=True)
class SshTo:
    """Nodes to which this node logs in with `ssh ADDRESS` and its own key. The launch waits until all nodes
    in `hosts` accept a login."""

    hosts: tuple[Peer, ...]


@dataclass(frozen=True, kw_only=True)
class SshFrom:
    """Requirement that this node starts `sshd`, which accepts only logins with the key `public_key`. Programs
    that are started through `sshd` get the benchmark's environment on this node."""

    address: str
    port: int
    public_key: str
    """Public key that `sshd` accepts."""


Ssh: TypeAlias = SshTo | SshFrom


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The command that the shim starts on a node, with its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the benchmark's environment. `$(NAME)` in a value is replaced by the value
    of the benchmark's variable NAME."""
    needs: Needs = Needs()
    role: Role = Role.COMPUTE
    ssh: Ssh | None = None
    server: Peer | None = None
    """Node whose server must be ready before the start. The job's `[server]` table says when the server is
    ready."""
    on_each_node: tuple[str, ...] = ()
    """Words that are put before a command of `[repeat]`, so that the command runs on each node. Empty if each
    node runs the commands of `[repeat]` itself."""
