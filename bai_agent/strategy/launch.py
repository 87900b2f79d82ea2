"""What a node starts."""

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
    """Another node uses what it runs; it ends well when the coordinator says that the job has."""


LAUNCHER_FOLDER = "BAI_LAUNCHER_FOLDER"
"""In a value of `Launch.env`, `$(BAI_LAUNCHER_FOLDER)` is a folder of this run: what a launcher leaves there about a failure is
given to the strategy's `explain`. The benchmark does not have it as a variable."""

RUN_TOKEN = "BAI_RUN_TOKEN"  # noqa: S105 - a name
"""In a value of `Launch.env`, `$(BAI_RUN_TOKEN)` is a secret that the nodes of this generation share; "" if there is one node. The
benchmark does not have it as a variable."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a launch in addition to the benchmark's own; looked up on the machine just before the
    start."""

    folders: tuple[str, ...] = ()
    """Folders in which the program (`argv[0]`) is searched after the benchmark's PATH."""
    program: str | None = None
    """Advice if the program is missing: "install it with …"."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules that the benchmark's Python must have, and what to do about each that it has not."""
    cpus: int = 0
    """Number of CPUs for all of the node's processes together."""
    cores: int = 0
    """Number of cores for them: a core that runs several threads counts once."""
    own_program: str | None = None
    """File of ours that the agent's Python runs as the benchmark's user, around each process."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Requirements of one of several nodes before it joins: if one node lacks something, nothing starts on
    any node."""

    program: str | None = None
    """Looked for, as `needs` says, and asked for its version, which the others learn: the `engine` of a `Peer`."""
    needs: Needs = Needs()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Versions of the benchmark's modules that are known to work; the user is warned of another one."""
    ports: tuple[int, ...] = ()
    """Ports on which the node will listen: nothing may listen there before."""
    ssh: bool = False
    """Whether the coordinator logs in to the others: each node makes a key, and the others learn its public part."""


@dataclass(frozen=True, kw_only=True)
class SshTo:
    """`ssh ADDRESS` logs in to each of these, with the key that this node made; the launch waits until all of them answer."""

    hosts: tuple[Peer, ...]


@dataclass(frozen=True, kw_only=True)
class SshFrom:
    """`sshd` is what the node starts: it lets in who has one key, into the benchmark's environment of this node."""

    address: str
    port: int
    public_key: str
    """Of the key."""


Ssh: TypeAlias = SshTo | SshFrom


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command and its environment, in the form in which the shim starts them."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the benchmark's environment. `$(NAME)` in a value is one of that environment's."""
    needs: Needs = Needs()
    role: Role = Role.COMPUTE
    ssh: Ssh | None = None
    server: Peer | None = None
    """Node whose server must be ready before the start, as the job's `[server]` says."""
    on_each_node: tuple[str, ...] = ()
    """Prefix for a command of `[repeat]`, which runs the command on each node. Empty: each node runs it
    itself."""
