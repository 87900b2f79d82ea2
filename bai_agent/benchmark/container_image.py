"""Finds podman, and pulls the image of the benchmark's container, if the job descriptor names an image.

The engine is podman, because its containers are descendants of the shim and write directly into the
benchmark's log. Docker is not used, because containers of a docker daemon are not descendants of the shim and
do not write into the log directly.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from bai_agent.benchmark.children import run_in_session
from bai_agent.benchmark.environment import DEFAULT_PATH
from bai_agent.benchmark.orphans import kill_marked
from bai_agent.benchmark.programs import ProgramOutput, ask
from bai_agent.decode import parse_json, shown_value
from bai_agent.errors import NoAnswerError, RecordError, ServiceError, SetupError
from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import RunDir, write_atomic
from bai_agent.light_dataclass import dataclass
from bai_agent.shim.proc import RUN_MARKER

_OLDEST = (4, 1)
"""Oldest version of podman that supports both `--log-driver=passthrough` and CDI (CDI makes GPUs available in
containers)."""
_ANSWER_S = 120.0
"""Time limit for one command of the engine (seconds). A command waits if other containers have locked the
engine's storage."""
_GPU = Path("/dev/nvidiactl")
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_GPU_DEVICES = "nvidia.com/gpu"
_LAST_BYTES = 16384
_INSTALL = (
    "install the package podman (Debian, Ubuntu from 24.04: apt-get install podman; Amazon Linux 2023: dnf install spal-release, "
    "then dnf install podman)"
)


@dataclass(frozen=True, kw_only=True)
class Container:
    """The container engine and the image of a job, which were found on this machine."""

    podman: str
    image: str
    """Id of the image. The image's name is not used, because the name can refer to another image later."""
    environment: Mapping[str, str]
    """The image's own environment variables."""


def bring_image(
    job: Job, rundir: RunDir, *, deadline: float, stopping: Callable[[], bool], on_instance: bool
) -> None:
    """Make sure that the engine and the job's image are on this machine. Raises SetupError, Stopped.

    deadline: time of the monotonic clock. An image that is already on this machine is used unchanged.
    """
    podman, image = find_podman(), job.benchmark.container
    assert image is not None
    # A pull that a killed agent started would continue in parallel with this pull, so it is killed. A pull
    # has its own mark, because a pull with the run's mark would be taken for a process of the benchmark.
    kill_marked(str(rundir.image_pull_log))
    rundir.registry_login.unlink(missing_ok=True)
    rundir.image_pull_log.unlink(missing_ok=True)
    if _GPU.exists():
        _require_gpu_devices(may_write=on_instance)
    found = ask_podman(podman, ["image", "exists", _brought(rundir) or image])
    if found.code not in (0, 1):
        raise SetupError(f"podman does not work on this machine: {last_words(found.text)}")
    if found.code == 1:
        rundir.image.unlink(missing_ok=True)
        _pull(podman, image, rundir, deadline=deadline, stopping=stopping)
    write_atomic(rundir.image, find_container(image, rundir).image.encode())


def _brought(rundir: RunDir) -> str | None:
    """Return the id of the image that bring_image() found or pulled. Return None if the file contains no id
    or bring_image() wrote no file."""
    with suppress(OSError, ValueError), rundir.image.open() as file:
        if re.fullmatch(r"[0-9a-f]{1,64}", name := file.read(100)):
            return name
    return None


def find_podman() -> str:
    """Return the path of a podman whose version is new enough. Raises SetupError."""
    podman = shutil.which("podman", path=os.environ.get("PATH") or DEFAULT_PATH)
    if podman is None:
        raise SetupError(f"[env] container: podman is not on this machine; {_INSTALL}")
    _require_version(podman)
    return podman


@cache
def _require_version(podman: str) -> None:
    """Raise SetupError if the engine is too old. The engine's version is queried only once per process,
    however many arms and generations a job has."""
    said = ask_podman(podman, ["--version"]).text
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST:
        raise SetupError(
            f"[env] container: {podman} is {shown_value(said.strip())}, but version {'.'.join(map(str, _OLDEST))} or later is "
            "needed; choose a machine image with a newer system"
        )


def find_container(name: str, rundir: RunDir) -> Container:
    """Return a `Container` for the image that was pulled for the run. Raises SetupError."""
    podman = find_podman()
    try:
        argv = [podman, "image", "inspect", _brought(rundir) or name]
        said = ask(argv, env=os.environ, timeout_s=_ANSWER_S)
        if said.code != 0:
            raise SetupError(f'[env] container: image "{name}" cannot be found on this machine any more')
        (about,) = parse_json(said.text, where="the answer of podman image inspect")
        variables = dict(each.split("=", 1) for each in about["Config"].get("Env") or [] if "=" in each)
        # With a name that ends in an asterisk, `--env` would pass all variables whose names begin with the
        # text before the asterisk.
        environment = {name: value for name, value in variables.items() if name and "*" not in name}
        return Container(podman=podman, image=str(about["Id"]), environment=environment)
    except (NoAnswerError, RecordError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise SetupError(
            f'[env] container: image "{name}" cannot be found on this machine: {error}'
        ) from error


def gpu_devices() -> str | None:
    """Return all GPUs of this machine as an argument of `--device`; None if the machine has no GPU."""
    return f"{_GPU_DEVICES}=all" if _GPU.exists() else None


def _require_gpu_devices(*, may_write: bool) -> None:
    """Make the machine's GPUs available to the engine, or raise SetupError."""
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
            problem = last_words(made.text)
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
            env = {**os.environ, RUN_MARKER: str(output)}
            code = run_in_session(argv, log, env=env, deadline=deadline, stopping=stopping)
        if code != 0:
            raise SetupError(f"{failure}: {last_words(output.read_text(errors='replace')[-_LAST_BYTES:])}")
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"{failure} within limits.pull_timeout; check that this machine can reach the registry"
        ) from None
    except (OSError, ServiceError) as error:
        is_denied = isinstance(error, ServiceError) and error.code == "AccessDeniedException"
        advice = "; the role of the machine needs the policy AmazonEC2ContainerRegistryReadOnly"
        raise SetupError(f"{failure}: {error}{advice if is_denied else ''}") from error
    finally:
        login.unlink(missing_ok=True)
        output.unlink(missing_ok=True)


def _log_in(image: str, file: Path) -> Sequence[str]:
    """Return the options with which a pull logs in to the image's registry. The password is in a file, not in
    an argument."""
    # Imported here, because few images are in a registry of ECR, and the HTTP client would load 40 modules.
    from bai_agent.aws.registry_login import ecr_login, ecr_region

    if ecr_region(image) is None:
        return ()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(ecr_login(image))
    return (f"--authfile={file}",)


def ask_podman(podman: str, words: Sequence[str], *, timeout_s: float = _ANSWER_S) -> ProgramOutput:
    """Run podman; return its output and its error messages. Raises SetupError if podman cannot be run or does
    not end in time."""
    try:
        return ask([podman, *words], env=os.environ, timeout_s=timeout_s, with_stderr=True)
    except NoAnswerError as error:
        raise SetupError(f"[env] container: {error}") from error


def last_words(text: str) -> str:
    """Return the last line of podman's messages, for the user."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return shown_value(lines[-1].removeprefix("Error: ")) if lines else "it says nothing"
