"""Finds the programs and modules that a strategy's launch needs, or reports what to install."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bai_agent.benchmark.programs import ask, find_program
from bai_agent.decode import shown_value
from bai_agent.errors import NoAnswerError, SetupError
from bai_agent.files.user_rights import User
from bai_agent.strategy.launch import Launch

_LOOK_SECONDS = 60.0
"""Time limit for a Python to start and find a module on a cold disk (seconds)."""

_HAS_MODULE = (
    "import importlib.util, sys; sys.exit(41 if importlib.util.find_spec(sys.argv[1]) is None else 0)"
)
_NOT_THERE = 41
_VERSION_OF = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


def meet_needs(
    launch: Launch, *, command: Sequence[str], env: Mapping[str, str], cwd: Path, user: User | None
) -> tuple[str, ...]:
    """Return the command line of the launch. If the launch's program is not on PATH, the command line
    contains the program's full path. Raises SetupError.

    command: the benchmark's own command, which `user` starts in the environment `env` and the folder `cwd`.
    """
    needs, argv = launch.needs, launch.argv
    cpus = os.sched_getaffinity(0)
    _require(needs.cpus, len(cpus), "CPUs")
    _require(needs.cores, len({_siblings(cpu) for cpu in cpus}), "cores")
    if needs.own_program is not None and user is not None:
        _require_own_program(needs.own_program, user)
    # A program on PATH is started by its name, because an mpirun that is started with a folder puts this
    # folder in front of its processes' PATH.
    if needs.program is not None and find_program(argv[0], path=env["PATH"]) is None:
        found = find_program(argv[0], path=":".join(needs.folders))
        if found is None:
            places = ", ".join(["PATH", *needs.folders])
            raise SetupError(f"{argv[0]} is not on this machine (looked at: {places}); {needs.program}")
        argv = (found, *argv[1:])
    python = find_program(command[0], path=env["PATH"]) if _is_python(command[0]) else None
    if python is not None:
        for module, advice in needs.modules.items():
            if not _has(python, module, env=env, cwd=cwd, user=user):
                raise SetupError(f'the benchmark\'s Python, {python}, has no module "{module}"; {advice}')
    return argv


def unknown_versions(
    versions: Mapping[str, Sequence[str]],
    *,
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    user: User | None,
) -> list[str]:
    """Return a warning for each package of the benchmark's Python whose version is not known to work.

    versions: the versions that are known to work, by package. The list is empty if the command is not a
    Python, or if the command's Python does not report versions.
    """
    python = find_program(command[0], path=env["PATH"]) if _is_python(command[0]) else None
    if python is None:
        return []
    warnings = []
    for package, known in versions.items():
        found = _version(python, package, env=env, cwd=cwd, user=user)
        if found is not None and found not in known:
            warnings.append(
                f"The benchmark's Python has {package} {shown_value(found)}, which was never tested; {', '.join(known)} works."
            )
    return warnings


def _version(
    python: str, package: str, *, env: Mapping[str, str], cwd: Path, user: User | None
) -> str | None:
    with suppress(NoAnswerError):
        answer = ask(
            [python, "-c", _VERSION_OF, package], env=env, cwd=cwd, user=user, timeout_s=_LOOK_SECONDS
        )
        if answer.code == 0 and answer.lines:
            return answer.lines[-1]
    return None


def _require(wanted: int, found: int, what: str) -> None:
    if wanted > found:
        raise SetupError(
            f"the benchmark's processes need {wanted} {what} on this node, which has {found}; "
            "lower hardware.distributed.cpus_per_process or processes_per_instance"
        )


def _require_own_program(program: str, user: User) -> None:
    """Raise SetupError if the benchmark's user cannot run one of bai's programs with the agent's Python."""
    look = [sys.executable, "-I", "-S", "-c", "import sys; open(sys.argv[1]).close()", program]
    with suppress(NoAnswerError):
        if ask(look, env={}, user=user, timeout_s=_LOOK_SECONDS).code == 0:
            return
    raise SetupError(
        f'[benchmark] user "{user.name}" cannot run {program} with the Python of bai-agent, {Path(sys.executable).resolve()}, which '
        "starts the benchmark's processes: install bai-agent and its Python where that user may enter, not below /root"
    )


def _siblings(cpu: int) -> str:
    """Return the kernel's list of the logical CPUs that share a core."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:  # a container may hide it
        return str(cpu)


def _is_python(program: str) -> bool:
    """Return whether `program` has the name of a Python interpreter. Modules that are needed by other
    programs cannot be checked."""
    return re.fullmatch(r"python[0-9.]*", Path(program).name) is not None


def _has(python: str, module: str, *, env: Mapping[str, str], cwd: Path, user: User | None) -> bool:
    """Return whether `python` finds `module`. The check does not import the module, because an import may
    take long. Raises SetupError."""
    try:
        answer = ask(
            [python, "-c", _HAS_MODULE, module], env=env, cwd=cwd, user=user, timeout_s=_LOOK_SECONDS
        )
    except NoAnswerError as error:
        raise SetupError(f"{python} could not be asked for the module {module}: {error}") from error
    return answer.code != _NOT_THERE
