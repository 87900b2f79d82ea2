"""The benchmark's container, if its job names an image: the engine, the image, and the command around the benchmark's own.

The engine is podman: its container is below the shim, and writes into the benchmark's own log. A docker daemon's is neither.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bai_agent.benchmark.children import wait_within
from bai_agent.benchmark.environment import DEFAULT_PATH, STARTUP
from bai_agent.benchmark.prepared_shim import SHIM
from bai_agent.benchmark.programs import ProgramOutput, ask
from bai_agent.decode import parse_json, shown_value
from bai_agent.errors import NoAnswerError, RecordError, ServiceError, SetupError
from bai_agent.files.user_rights import User
from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import RunDir, write_atomic
from bai_agent.light_dataclass import dataclass
from bai_agent.shim.container_run import CIDFILE, PIDFILE
from bai_agent.shim.proc import RUN_MARKER

_RUN = SHIM.with_name("container_run.py")
_OLDEST = (4, 1)
"""First podman with CDI, the devices of GPUs, and with `--log-driver=passthrough`."""
_ANSWER_S = 120.0
"""Seconds for an answer of the engine, whose storage other containers may have locked."""
_REMOVAL_S = 60.0
_CGROUPS = Path("/sys/fs/cgroup")
_GPU = Path("/dev/nvidiactl")
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_GPU_DEVICES = "nvidia.com/gpu"
_LAST_BYTES = 16384
_INSTALL = (
    "install the package podman (Debian, Ubuntu from 24.04: apt-get install podman; Amazon Linux 2023: dnf install spal-release, "
    "then dnf install podman)"
)
_SHARED_MEMORY = "--mount=type=bind,src=/dev/shm,dst=/dev/shm"
_STEERS_ENGINE = re.compile(
    r"PATH|HOME|TMPDIR|_?(LD|XDG|DBUS|PODMAN|CONTAINERS?|LIBCONTAINER)_.*|STORAGE_(DRIVER|OPTS)|REGISTRY_AUTH_FILE|NOTIFY_SOCKET"
    r"|LISTEN_(FDS|PID|FDNAMES)|GO(DEBUG|GC|MAXPROCS|MEMLIMIT|TRACEBACK|COVERDIR)"
)
"""Names of variables that the engine itself, or a program that it starts, would obey."""
_CAP_SYS_RESOURCE = 24
"""capabilities(7)"""


@dataclass(frozen=True, kw_only=True)
class Container:
    """The engine and the image of a job, found on this machine."""

    podman: str
    image: str
    """Id of the image: the name may mean another image later."""
    environment: Mapping[str, str]
    """The image's own."""


def bring_image(
    job: Job, rundir: RunDir, *, deadline: float, stopping: Callable[[], bool], on_instance: bool
) -> None:
    """Make sure that the engine and the job's image are on this machine. Raises SetupError, Stopped.

    deadline: of the monotonic clock. An image that is here is taken as it is.
    """
    podman, image = find_podman(), job.benchmark.container
    assert image is not None
    if _GPU.exists():
        _require_gpu_devices(may_write=on_instance)
    found = _ask(podman, ["image", "exists", _brought(rundir) or image])
    if found.code not in (0, 1):
        raise SetupError(f"podman does not work on this machine: {_last_words(found.text)}")
    if found.code == 1:
        rundir.image.unlink(missing_ok=True)
        _pull(podman, image, rundir, deadline=deadline, stopping=stopping)
    write_atomic(rundir.image, find_container(image, rundir).image.encode())


def _brought(rundir: RunDir) -> str | None:
    """Return the id of the image that bring_image() found or brought; None if it did not, or if the file has no id."""
    with suppress(OSError, ValueError), rundir.image.open() as file:
        if re.fullmatch(r"[0-9a-f]{1,64}", name := file.read(100)):
            return name
    return None


def find_podman() -> str:
    """Return the path of a podman that is new enough. Raises SetupError."""
    podman = shutil.which("podman", path=os.environ.get("PATH") or DEFAULT_PATH)
    if podman is None:
        raise SetupError(f"[env] container: podman is not on this machine; {_INSTALL}")
    said = _ask(podman, ["--version"]).text
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST:
        raise SetupError(
            f"[env] container: {podman} is {shown_value(said.strip())}, and {'.'.join(map(str, _OLDEST))} is the oldest that "
            "works; choose an image with a newer system"
        )
    return podman


def find_container(name: str, rundir: RunDir) -> Container:
    """Return the container of an image, which was brought for the run. Raises SetupError."""
    podman = find_podman()
    try:
        said = ask(
            [podman, "image", "inspect", _brought(rundir) or name], env=os.environ, timeout_s=_ANSWER_S
        )
        if said.code != 0:
            raise SetupError(f'[env] container: image "{name}" cannot be found on this machine any more')
        (about,) = parse_json(said.text, where="the answer of podman image inspect")
        variables = dict(each.split("=", 1) for each in about["Config"].get("Env") or [] if "=" in each)
        # `--env` would take a name with an asterisk for all names of the engine's environment that begin so.
        environment = {name: value for name, value in variables.items() if name and "*" not in name}
        return Container(podman=podman, image=str(about["Id"]), environment=environment)
    except (NoAnswerError, RecordError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise SetupError(
            f'[env] container: image "{name}" cannot be found on this machine: {error}'
        ) from error


def own_environment(env: Mapping[str, str], job: Job, container: Container) -> dict[str, str]:
    """Return the variables of the benchmark that hold in a container, out of those that hold on this machine."""
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
    """Return the words before a command that start it in the container, and the environment of these words.

    env: the benchmark's, from own_environment(). Raises SetupError.
    """
    steering = [name for name in env if _STEERS_ENGINE.fullmatch(name)]
    for name in _with_secrets(job):
        if name in steering:
            table = "secrets" if name in job.benchmark.secrets else "vars"
            raise SetupError(
                f"[env.{table}] {name}: podman itself would obey this variable, so it is given as an argument, and it has a secret; "
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
        # A user's podman would mount the host's /dev/mqueue, which not every machine has.
        "--ipc=host" if os.geteuid() == 0 or Path("/dev/mqueue").exists() else _SHARED_MEMORY,
        # The first process has the signals of any other one, and process ids are those of this machine.
        "--pid=host",
        # The system calls and the speed of a program without a container.
        *(
            f"--security-opt={each}"
            for each in ("label=disable", "apparmor=unconfined", "seccomp=unconfined")
        ),
        "--http-proxy=false",
        "--entrypoint=",
        f"--user={uid}:{gid}",
        *(f"--group-add={each}" for each in groups if each != gid),
        *([f"--device={_GPU_DEVICES}=all"] if _GPU.exists() else []),
        *(f"--mount={each}" for each in _mounts(job, rundir, env)),
        f"--workdir={cwd}",
        # By name: values are not for the eyes of other users.
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
    """Return the names of the job's variables whose values have a secret."""
    found = [*job.benchmark.secrets]
    # Each one may use those before it.
    for name, text in job.benchmark.env.items():
        if any(f"$({each})" in text for each in found):
            found.append(name)
    return found


def remove_container(rundir: RunDir) -> str | None:
    """Remove the container of a run whose processes have ended; return a warning if that failed.

    After a SIGKILL the engine could not do it itself.
    """
    try:
        done = _ask(
            find_podman(),
            [*_GLOBAL, "rm", "--force", "--ignore", "--time=0", _name(rundir)],
            timeout_s=_REMOVAL_S,
        )
    except SetupError as error:
        return str(error)
    _remove_cgroups(rundir)
    return None if done.code == 0 else f"The container could not be removed: {_last_words(done.text)}"


def _remove_cgroups(rundir: RunDir) -> None:
    """Remove the empty cgroups that podman leaves if its monitor was killed."""
    with suppress(OSError, ValueError), (rundir.shim_folder / CIDFILE).open() as file:
        name = file.read(100)
        if re.fullmatch(r"[0-9a-f]{64}", name):
            # Version 2 and version 1, which has a hierarchy for each controller.
            for above in ("", "*/"):
                for folder in _CGROUPS.glob(f"{above}libpod_parent/libpod-{name}"):
                    with suppress(OSError):
                        folder.rmdir()


_GLOBAL = ("--cgroup-manager=cgroupfs",)
"""The container gets a cgroup without systemd's help: its processes are moved into the benchmark's."""


def _name(rundir: RunDir) -> str:
    return "bai-" + hashlib.sha256(os.fsencode(rundir.shim_folder)).hexdigest()[:20]


def _mounts(job: Job, rundir: RunDir, env: Mapping[str, str]) -> Iterable[str]:
    """Return the folders of the job, at the paths that they have on this machine, as `--mount` takes them.

    env: the benchmark's, which names the folder of its checkpoints. Raises SetupError.
    """
    places = [rundir.path, *(Path(each.path) for each in job.sources)]
    places += [Path(each.target) for each in job.mounts]
    if job.checkpoint is not None:
        folder = Path(env["BAI_CHECKPOINT_DIR"])
        # On a shared file system those of earlier generations are beside it.
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
    """Return the limits of this process as `--ulimit` takes them. The engine's defaults are beyond what some machines allow.

    Locked memory has none if we may lift it, since EFA and NCCL lock their buffers.
    """
    # podman lowers its own to pid_max, more than which no machine has.
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


def _require_gpu_devices(*, may_write: bool) -> None:
    """Make the engine know the machine's GPUs, or raise SetupError."""
    if any(_GPU_DEVICES in _text(file) for folder in _CDI_FOLDERS for file in folder.glob("*")):
        return
    make = ["nvidia-ctk", "cdi", "generate", f"--output={_CDI_FOLDERS[0]}/nvidia.yaml"]
    advice = f"run `sudo {' '.join(make)}` (package nvidia-container-toolkit)"
    problem = "no CDI file describes them"
    if may_write and (program := shutil.which(make[0], path=DEFAULT_PATH)) is not None:
        try:
            _CDI_FOLDERS[0].mkdir(parents=True, exist_ok=True)
            made = ask([program, *make[1:]], env=os.environ, timeout_s=_ANSWER_S, with_stderr=True)
        except (NoAnswerError, OSError) as error:
            problem = str(error)
        else:
            if made.code == 0:
                return
            problem = _last_words(made.text)
    raise SetupError(f"[env] container: podman does not know the GPUs of this machine: {problem}; {advice}")


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _pull(podman: str, image: str, rundir: RunDir, *, deadline: float, stopping: Callable[[], bool]) -> None:
    login, output = rundir.registry_login, rundir.image_pull_log
    failure = f'[env] container: image "{image}" could not be pulled'
    try:
        argv = [podman, "pull", "--quiet", *_log_in(image, login), image]
        with output.open("wb") as log:
            output.chmod(0o600)
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ),
                start_new_session=True,
            )
        if wait_within(child, deadline=deadline, stopping=stopping) != 0:
            raise SetupError(f"{failure}: {_last_words(output.read_text(errors='replace')[-_LAST_BYTES:])}")
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"{failure} within limits.pull_timeout; does the registry answer this machine?"
        ) from None
    except ServiceError as error:
        advice = "the role of the machine needs the policy AmazonEC2ContainerRegistryReadOnly"
        raise SetupError(f"{failure}: {error}; {advice}") from error
    except OSError as error:
        raise SetupError(f"{failure}: {error}") from error
    finally:
        login.unlink(missing_ok=True)
        output.unlink(missing_ok=True)


def _log_in(image: str, file: Path) -> Sequence[str]:
    """Return the options of a pull for the login at the image's registry: a file, so that no password is an argument."""
    # Imported here: few images are there, and an HTTP client is 40 modules.
    from bai_agent.aws.registry_login import ecr_login, ecr_region

    if ecr_region(image) is None:
        return ()
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(ecr_login(image))
    return (f"--authfile={file}",)


def _ask(podman: str, words: Sequence[str], *, timeout_s: float = _ANSWER_S) -> ProgramOutput:
    try:
        return ask([podman, *words], env=os.environ, timeout_s=timeout_s, with_stderr=True)
    except NoAnswerError as error:
        raise SetupError(f"[env] container: {error}") from error


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return shown_value(lines[-1].removeprefix("Error: ")) if lines else "it says nothing"
