"""Builds the command that starts the benchmark in a container, and removes the container."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from bai_agent.benchmark.container_image import Container, ask_podman, find_podman, gpu_devices, last_words
from bai_agent.benchmark.environment import STARTUP
from bai_agent.benchmark.prepared_shim import SHIM
from bai_agent.errors import SetupError
from bai_agent.files.user_rights import User
from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import RunDir
from bai_agent.shim.container_run import CIDFILE, PIDFILE
from bai_agent.shim.proc import RUN_MARKER

_RUN = SHIM.with_name("container_run.py")
_REMOVAL_S = 60.0
_CGROUPS = Path("/sys/fs/cgroup")
_SHARED_MEMORY = "--mount=type=bind,src=/dev/shm,dst=/dev/shm"
_STEERS_ENGINE = re.compile(
    r"PATH|HOME|TMPDIR|_?(LD|XDG|DBUS|PODMAN|CONTAINERS?|LIBCONTAINER)_.*|STORAGE_(DRIVER|OPTS)|REGISTRY_AUTH_FILE|NOTIFY_SOCKET"
    r"|LISTEN_(FDS|PID|FDNAMES)|GO(DEBUG|GC|MAXPROCS|MEMLIMIT|TRACEBACK|COVERDIR)"
)
"""Names of environment variables that would affect the container engine itself or a program that the engine
starts."""
_CAP_SYS_RESOURCE = 24
"""capabilities(7)"""


def own_environment(env: Mapping[str, str], job: Job, container: Container) -> dict[str, str]:
    """Return the environment variables that the benchmark gets in a container, selected from the variables
    that it would get on this machine."""
    written = {*job.benchmark.env, *job.benchmark.secrets, *container.environment}
    ours = {"HOME", "USER", "LOGNAME", "LD_PRELOAD", "_STDBUF_O"}
    return {name: value for name, value in env.items() if name in written or name not in ours}


def contained(
    container: Container,
    job: Job,
    rundir: RunDir,
    *,
    env: Mapping[str, str],
    cwd: Path,
    user: User | None,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the prefix that starts a command in the container, and the environment in which to run the
    prefixed command.

    env: the benchmark's environment, from own_environment(). Raises SetupError.
    """
    steering = [name for name in env if _STEERS_ENGINE.fullmatch(name)]
    for name in _with_secrets(job):
        if name in steering:
            table = "secrets" if name in job.benchmark.secrets else "vars"
            raise SetupError(
                f"[env.{table}] {name}: podman would use this variable for itself, so bai would pass it as a visible argument, but it contains a secret; "
                "use another name"
            )
    uid, gid, groups = (user.uid, user.gid, user.groups) if user is not None else (0, 0, ())
    options = [
        "--rm",
        "--replace",
        f"--name={_name(rundir)}",
        f"--pidfile={rundir.shim_folder / PIDFILE}",
        f"--cidfile={rundir.shim_folder / CIDFILE}",
        "--pull=never",
        "--log-driver=passthrough",
        "--cgroups=no-conmon",
        "--pids-limit=-1",
        *(f"--ulimit={each}" for each in _limits()),
        "--network=host",
        # A podman that runs as a user would mount the host's /dev/mqueue, but some machines have no
        # /dev/mqueue.
        "--ipc=host" if os.geteuid() == 0 or Path("/dev/mqueue").exists() else _SHARED_MEMORY,
        # In the host's pid namespace, the container's first process handles signals like any other process.
        "--pid=host",
        # Without seccomp and similar filters, a benchmark has the same system calls and the same speed as
        # outside a container.
        *(
            f"--security-opt={each}"
            for each in ("label=disable", "apparmor=unconfined", "seccomp=unconfined")
        ),
        "--http-proxy=false",
        "--entrypoint=",
        f"--user={uid}:{gid}",
        *(f"--group-add={each}" for each in groups if each != gid),
        *([f"--device={devices}"] if (devices := gpu_devices()) else []),
        *(f"--mount={each}" for each in _mounts(job, rundir, env)),
        f"--workdir={cwd}",
        # Arguments contain only the names of variables, because other users can see a process's arguments.
        *(f"--env={name}={env[name]}" if name in steering else f"--env={name}" for name in sorted(env)),
        "--env=BAI_REPEAT",
    ]
    words = (
        sys.executable,
        "-I",
        "-S",
        str(_RUN),
        str(rundir.shim_folder),
        container.podman,
        *_GLOBAL,
        "run",
        *options,
    )
    return (*words, container.image), {
        **os.environ,
        **{name: value for name, value in env.items() if name not in steering},
        RUN_MARKER: str(rundir.path),
    }


def _with_secrets(job: Job) -> Iterable[str]:
    """Return the names of the job's variables whose values contain a secret."""
    found = [*job.benchmark.secrets]
    # The value of each variable may refer to variables that are listed before it.
    for name, text in job.benchmark.env.items():
        if any(f"$({each})" in text for each in found):
            found.append(name)
    return found


def remove_container(rundir: RunDir) -> str | None:
    """Remove the container of a run whose processes have ended. Return a warning if the removal failed.

    An engine that was killed with SIGKILL cannot remove its container itself.
    """
    try:
        done = ask_podman(
            find_podman(),
            [*_GLOBAL, "rm", "--force", "--ignore", "--time=0", _name(rundir)],
            timeout_s=_REMOVAL_S,
        )
    except SetupError as error:
        return str(error)
    _remove_cgroups(rundir)
    return None if done.code == 0 else f"The container could not be removed: {last_words(done.text)}"


def _remove_cgroups(rundir: RunDir) -> None:
    """Remove the empty cgroups that podman leaves if its monitor was killed."""
    with suppress(OSError, ValueError), (rundir.shim_folder / CIDFILE).open() as file:
        name = file.read(100)
        if re.fullmatch(r"[0-9a-f]{64}", name):
            # Both versions of cgroups are searched. Version 1 has one hierarchy per controller.
            for above in ("", "*/"):
                for folder in _CGROUPS.glob(f"{above}libpod_parent/libpod-{name}"):
                    with suppress(OSError):
                        folder.rmdir()


_GLOBAL = ("--cgroup-manager=cgroupfs",)
"""Options that give the container a cgroup without systemd, because its processes are moved into the
benchmark's cgroup."""


def _name(rundir: RunDir) -> str:
    return "bai-" + hashlib.sha256(os.fsencode(rundir.shim_folder)).hexdigest()[:20]


def _mounts(job: Job, rundir: RunDir, env: Mapping[str, str]) -> Iterable[str]:
    """Return the job's folders as arguments of `--mount`, at the same paths as on this machine.

    env: the benchmark's environment, which contains the path of its checkpoint folder. Raises SetupError.
    """
    places = [rundir.path, *(Path(each.path) for each in job.sources)]
    places += [Path(each.target) for each in job.mounts]
    if job.checkpoint is not None:
        folder = Path(env["BAI_CHECKPOINT_DIR"])
        # On a shared file system, the checkpoint folders of earlier generations are in the same parent folder
        # as the checkpoint folder of this generation.
        places.append(folder.parent if job.checkpoint.shared else folder)
    wanted = list(dict.fromkeys(each for each in places if each.is_absolute()))
    wanted = [each for each in wanted if not any(each != top and each.is_relative_to(top) for top in wanted)]
    for place in [*wanted, STARTUP]:
        if re.search(r'[,"\n]', str(place)):
            raise SetupError(
                f"{place} cannot be mounted in a container: its path has a comma, a quote or a line break"
            )
    yield f"type=bind,src={STARTUP},dst={STARTUP},ro=true"
    for place in wanted:
        if not place.exists():
            raise SetupError(
                f"{place} does not exist on this machine, and a container would lose what is written there; create it"
            )
        yield f"type=bind,src={place},dst={place}"


def _limits() -> list[str]:
    """Return the resource limits of this process as arguments of `--ulimit`. podman's default limits would
    exceed what some machines allow.

    Locked memory is unlimited if this process may lift the limit, because EFA and NCCL lock their buffers.
    """
    # podman lowers its own limit of processes to pid_max. No machine can run more processes than pid_max.
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = [each if 0 <= each < most else most for each in resource.getrlimit(resource.RLIMIT_NPROC)]
    memory = (-1, -1) if _may_lift_limits() else (resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],) * 2
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        f"{name}={soft}:{hard}"
        for name, (soft, hard) in {"memlock": memory, "nofile": files, "nproc": processes}.items()
    ]


def _may_lift_limits() -> bool:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return os.geteuid() == 0 and found is not None and bool(int(found[1], 16) >> _CAP_SYS_RESOURCE & 1)
