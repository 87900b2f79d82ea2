"""Types that describe what a node starts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from bai_agent.job.peers import Peer
from bai_agent.light_dataclass import dataclass, field


class Role(Enum):
    """The part of a node in the job."""

    COMPUTE = "compute"
    """The node ends when its own processes have ended."""
    SERVE = "serve"
    """Another node uses the program that this node runs. The node's part succeeds when the coordinator reports
    that the job succeeded."""


LAUNCHER_FOLDER = "BAI_LAUNCHER_FOLDER"
"""In a value of `Launch.env`, `$(BAI_LAUNCHER_FOLDER)` is replaced by the path of a folder of this run. The
strategy's `explain` gets the files that a launcher writes there about a failure. The benchmark does not have
the variable."""

RUN_TOKEN = "BAI_RUN_TOKEN"  # noqa: S105 - a name
"""In a value of `Launch.env`, `$(BAI_RUN_TOKEN)` is replaced by a secret that the nodes of this generation
share, or by "" if there is one node. The benchmark does not have the variable."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a launch in addition to the benchmark's own. The requirements are checked on the
    machine just before the start."""

    folders: tuple[str, ...] = ()
    """Folders in which the program (`argv[0]`) is searched after the benchmark's PATH."""
    program: str | None = None
    """Advice if the program is missing, such as "install it with …"."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules that the benchmark's Python must have, each with advice if the module is missing."""
    cpus: int = 0
    """Number of CPUs for all of the node's processes together."""
    cores: int = 0
    """Number of cores for all of the node's processes together. A core with several hardware threads counts
    once."""
    own_program: str | None = None
    """One of bai's own files, which the agent's Python runs as the benchmark's user around each process."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Requirements that one of several nodes must meet before it joins. If a node does not meet these
    requirements, nothing starts on any node."""

    program: str | None = None
    """Program that must exist on the node, looked up as in `Needs`. The program's version is published to the
    other nodes as `engine` of a `Peer`."""
    needs: Needs = Needs()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Versions of the benchmark's modules that are known to work. Any other version causes a warning."""
    ports: tuple[int, ...] = ()
    """Ports on which the node will listen. The ports must be free before."""
    ssh: bool = False
    """Whether the coordinator logs in to the other nodes by SSH. If so, each node makes a key and publishes
    the key's public part."""


@dataclass(frozen=True, kw_only=True)
class SshTo:
    """Nodes to which this node logs in with `ssh ADDRESS` and its own key. The launch waits until all these
    nodes answer."""

    hosts: tuple[Peer, ...]


@dataclass(frozen=True, kw_only=True)
class SshFrom:
    """Says that the node starts `sshd`, which accepts logins with a single key and gives them the benchmark's
    environment of this node."""

    address: str
    port: int
    public_key: str
    """Public part of the accepted key."""


Ssh: TypeAlias = SshTo | SshFrom


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command and its environment, as the shim starts them."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the benchmark's environment. `$(NAME)` in a value is replaced by a variable
    of that environment."""
    needs: Needs = Needs()
    role: Role = Role.COMPUTE
    ssh: Ssh | None = None
    server: Peer | None = None
    """Node whose server must be ready before the start, as the job's `[server]` says."""
    on_each_node: tuple[str, ...] = ()
    """Prefix that makes a command of `[repeat]` run on each node. Empty if each node runs the command
    itself."""
