"""What a node starts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from bai_agent.job.peers import Peer
from bai_agent.light_dataclass import dataclass, field


class Role(Enum):
    """What a node's part in the job is."""

    COMPUTE = "compute"
    """It ends when what it started has ended."""
    SERVE = "serve"
    """Another node starts processes through it; it ends well when the coordinator says that the job has."""


LAUNCHER_FOLDER = "BAI_LAUNCHER_FOLDER"
"""In a value of `Launch.env`, `$(BAI_LAUNCHER_FOLDER)` is a folder of this run: what a launcher leaves there about a failure is
given to the strategy's `explain`. The benchmark does not have it as a variable."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a launch needs beside the benchmark's own; looked up on the machine right before the start."""

    folders: tuple[str, ...] = ()
    """Where the program (`argv[0]`) may be beside the benchmark's PATH."""
    program: str | None = None
    """What to do where the program is not there: "install it with …"."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules that the benchmark's Python must have, and what to do about each that it has not."""
    cpus: int = 0
    """How many CPUs the node's processes are to have together."""
    cores: int = 0
    """The same in cores: where one runs several threads it counts once."""
    own_program: str | None = None
    """File of ours that the agent's Python runs as the benchmark's user, around each process."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a node of several must have before it joins: nothing starts anywhere where one lacks it."""

    program: str | None = None
    """Looked for, as `needs` says, and asked for its version, which the others learn: the `engine` of a `Peer`."""
    needs: Needs = Needs()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Versions of the benchmark's modules that are known to work; the user is warned of another one."""
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
    """A command and its environment, as the shim starts them."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the benchmark's environment. `$(NAME)` in a value is one of that environment's."""
    needs: Needs = Needs()
    role: Role = Role.COMPUTE
    ssh: Ssh | None = None
    on_each_node: tuple[str, ...] = ()
    """In front of a command of `[repeat]`: runs it on each node. Empty: each node runs it itself."""
