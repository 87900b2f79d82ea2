"""Checks that this node fulfils the requirements of the job's strategy, before the nodes connect to each
other."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from bai_agent.benchmark.environment import command, find_user, prepare_environment, working_folder
from bai_agent.benchmark.launch_needs import meet_needs, unknown_versions
from bai_agent.benchmark.openssh import public_key, require_openssh
from bai_agent.benchmark.programs import ask
from bai_agent.errors import NoAnswerError, SetupError
from bai_agent.files.user_rights import User
from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import RunDir, make_folder
from bai_agent.light_dataclass import dataclass
from bai_agent.strategy.launch import Launch, Setup

_VERSION_SECONDS = 60.0
"""Time limit for a program on a cold disk to print its version (seconds)."""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """Information about this node that the other nodes read."""

    public_key: str | None = None
    engine: str | None = None
    warnings: tuple[str, ...] = ()
    """Warnings about parts of the set-up that may not work."""


def set_up_node(
    job: Job,
    rundir: RunDir,
    setup: Setup,
    *,
    serves: bool | None,
    may_install: bool,
    scripts: Path | None,
    stopping: Callable[[], bool],
) -> NodeFacts:
    """Make everything available that `setup` requires, and return information about this node for the other
    nodes. Raises SetupError, Stopped.

    serves: True if other nodes log in to this node, False if this node logs in to other nodes, None if both.
    may_install: whether this machine only runs this job, so that bai may install packages.
    """
    _require_free(setup.ports)
    if job.benchmark.container is not None:
        return NodeFacts()  # the programs are in the container's image
    user = find_user(job.benchmark.user)
    # The search for programs depends neither on secrets nor on the other nodes.
    env = prepare_environment(job, rundir, scripts=scripts, secrets={}, base=os.environ, user=user)
    make_folder(rundir.work, private=rundir.path)
    cwd = working_folder(job, rundir, scripts=scripts)
    launch = Launch(argv=(setup.program or "sh",), needs=setup.needs)
    words = command(job, rundir.script, env=env)
    argv = meet_needs(launch, command=words, env=env, cwd=cwd, user=user)
    engine = None if setup.program is None else _version(argv[0], env, user)
    warnings = tuple(unknown_versions(setup.versions, command=words, env=env, cwd=cwd, user=user))
    if not setup.ssh:
        return NodeFacts(engine=engine, warnings=warnings)
    require_openssh(serves=serves, path=env["PATH"], may_install=may_install, user=user, stopping=stopping)
    key = public_key(rundir, user=user, path=env["PATH"])
    return NodeFacts(engine=engine, public_key=key, warnings=warnings)


def _require_free(ports: Sequence[int]) -> None:
    """Raise SetupError if another program listens on one of the server's ports, because the client would
    mistake that program's answers for the server's answers."""
    for port in ports:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            # With SO_REUSEADDR, a connection that has just ended does not block its port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
                probe.listen(1)
            except PermissionError:
                continue  # a low port, for which the server may have rights
            except OSError as error:
                raise SetupError(
                    f"port {port} of the server is taken on this machine: {error.strerror}; another program listens there"
                ) from error


def _version(program: str, env: Mapping[str, str], user: User | None) -> str:
    """Return the first line that `program --version` prints. Raises SetupError."""
    try:
        answer = ask([program, "--version"], env=env, user=user, timeout_s=_VERSION_SECONDS, with_stderr=True)
    except NoAnswerError as error:
        raise SetupError(f"{program} could not be asked for its version: {error}") from error
    said = next(iter(answer.lines), "nothing")
    if answer.code:
        raise SetupError(f"{program} cannot report its version: it printed {said[:200]}")
    # The key has the form in which the other nodes read it from a `Peer`.
    return "".join(
        each if each.isascii() and (each.isalnum() or each in " ().,+~_-") else "_" for each in said
    )[:100]
