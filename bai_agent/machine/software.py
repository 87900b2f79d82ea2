"""Facts about the software that a benchmark uses: the packages of its Python, Open MPI, and libraries."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from bai_agent import __version__
from bai_agent.benchmark.environment import STARTUP, find_user, prepare_environment
from bai_agent.benchmark.programs import (
    DESCRIBE_PYTHON,
    MOST_DISTRIBUTIONS,
    ask,
    find_program,
    read_description,
)
from bai_agent.decode import decode
from bai_agent.errors import NoAnswerError, RecordError
from bai_agent.files.user_rights import User
from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import RunDir
from bai_agent.light_dataclass import dataclass
from bai_agent.machine.host_facts import Facts, present, read_text, short
from bai_agent.runtime.user_cache import AnswerCache
from bai_agent.shim.proc import RUN_MARKER

CHILD_SECONDS = 2.0
"""Time limit for a child process to answer (seconds)."""
_PYTHON_VARIABLES = ("PYTHON", "LD_", "HOME")
"""Prefixes of environment variables that influence which packages a Python finds."""
_LAUNCHER_VARIABLES = ("PYENV", "PATH")
"""Prefixes of environment variables that influence which Python a script starts."""
_PYTHON = re.compile(r"python(?:\d(?:\.\d{1,2})?)?")
_CLOUD_INIT = "from cloudinit.version import version_string; print(version_string())"
_VERSION = re.compile(r"\d+\.\d[\w.+-]*")

IMPORTANT = (
    "torch", "horovod", "adaptdl", "ray", "numpy", "tensorflow", "jax", "jaxlib", "mpi4py", "transformers",
    "deepspeed", "mxnet", "scipy", "triton",
)  # fmt: skip
"""Packages whose versions explain a benchmark's numbers, in addition to packages whose names begin with one
of `_IMPORTANT_STARTS`."""
_IMPORTANT_STARTS = ("nvidia-nccl", "nvidia-cudnn", "nvidia-cuda-runtime")

_OPEN_MPI = ("opt/amazon/openmpi/bin/mpirun", "opt/amazon/openmpi5/bin/mpirun")
"""`mpirun` of AWS's EFA installer: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html"""
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
    "usr/local/cuda/lib",
    "usr/local/cuda/lib64",
    "opt/amazon/efa/lib64",
    "opt/amazon/efa/lib",
)
_LIBRARIES = {"nccl": "libnccl.so.", "libfabric": "libfabric.so.", "cudnn": "libcudnn.so."}


def benchmark_environment(
    job: Job, rundir: RunDir, *, scripts: Path | None
) -> tuple[dict[str, str], User | None]:
    """Return the environment in which the benchmark's programs are queried, and the benchmark's user.

    The environment is the benchmark's environment without secrets. Raises SetupError.
    """
    user = find_user(job.benchmark.user)
    env = prepare_environment(job, rundir, scripts=scripts, secrets={}, base=os.environ, user=user)
    # Variables of the benchmark's own processes are removed, because the queried program is no process of the
    # benchmark and its output must not be changed.
    for name in (RUN_MARKER, "BAI_BUFFERING", "BENCHMARK_AI", "LD_PRELOAD"):
        env.pop(name, None)
    path = [each for each in env.pop("PYTHONPATH", "").split(":") if each and each != str(STARTUP)]
    if path:
        env["PYTHONPATH"] = ":".join(path)
    return env, user


def find_python(job: Job, *, env: Mapping[str, str], cwd: Path) -> str | None:
    """Return the benchmark's Python; None if no Python is found, or if the Python is in a container's image.

    The benchmark's Python is the first Python that the script's first line (or the command) names, else
    `python3` on the PATH.
    """
    if job.benchmark.container is not None:
        return None
    words = list(job.benchmark.argv)
    first = (job.benchmark.script or "").partition("\n")[0]
    if first.startswith("#!"):
        with suppress(ValueError):
            words = shlex.split(first[2:])
    named = next((word for word in words if _PYTHON.fullmatch(Path(word).name)), "python3")
    if "/" in named:
        return str(cwd / named)
    return find_program(named, path=env["PATH"]) or find_program("python3", path=env["PATH"])


def python_facts(
    python: str, *, env: Mapping[str, str], user: User | None, cache: AnswerCache | None = None
) -> Facts:
    """Return the version and the distributions (installed packages) of a Python. Raises NoAnswerError."""
    # The cache is not used for another user, because root must not open files that this user can replace.
    launcher = None if cache is None or user is not None else _launcher_files(python)
    if cache is None or launcher is None:
        return _ask_python(python, env=env, user=user)[0]
    starts = (*_PYTHON_VARIABLES, *(_LAUNCHER_VARIABLES if launcher else ()))
    named = {name: value for name, value in env.items() if name.startswith(starts)}
    question = {"python": python, "env": named, "agent": __version__}
    if (known := cache.find(question)) is not None:
        return known
    asked_at = time.time()
    facts, sources = _ask_python(python, env=env, user=user)
    if not launcher and os.path.realpath(str(facts.get("executable"))) != os.path.realpath(python):
        return facts  # a wrapper program that chooses a Python by unknown files
    cache.keep(question, facts, sources=[python, *launcher, *sources], asked_at=asked_at)
    return facts


def _launcher_files(python: str) -> list[str] | None:
    """Return the files that determine which Python a wrapper script starts; None if these files are unknown.

    The function knows only the files of pyenv's wrapper scripts, for programs that are queried in the folder
    "/": https://github.com/pyenv/pyenv#understanding-python-version-selection
    """
    text = read_text(Path(python), 4096)
    if not text.startswith("#!"):
        return []
    folder = Path(python).parent
    is_pyenv = folder.name == "shims" and "pyenv" in text
    return [str(folder.parent / "version"), "/.python-version"] if is_pyenv else None


def _ask_python(python: str, *, env: Mapping[str, str], user: User | None) -> tuple[Facts, list[str]]:
    """Return the facts of a Python, and the paths on which these facts depend. Raises NoAnswerError."""
    quiet = {**env, "PYTHONDONTWRITEBYTECODE": "1"}
    said = ask([python, "-c", DESCRIBE_PYTHON], env=quiet, user=user, timeout_s=CHILD_SECONDS)
    about = read_description(said.text, python=python)
    distributions = {
        short(name): short(version)
        for name, version in sorted(about.distributions.items())[:MOST_DISTRIBUTIONS]
    }
    facts = present(
        {
            "executable": short(about.executable),
            "version": short(about.version),
            "prefix": short(about.prefix),
            "packages": {
                name: version
                for name, version in distributions.items()
                if name in IMPORTANT or name.startswith(_IMPORTANT_STARTS)
            },
            "distributions": distributions,
        }
    )
    return facts, about.sources


def open_mpi(*, env: Mapping[str, str], user: User | None, root: Path = Path("/")) -> Facts:
    """Return version and path of the benchmark's `mpirun`, else of AWS's `mpirun`. Return {} if no `mpirun`
    is found.

    Raises NoAnswerError.
    """
    found = find_program("mpirun", path=env["PATH"])
    found = found or next((str(root / each) for each in _OPEN_MPI if (root / each).exists()), None)
    if found is None:
        return {}
    said = ask([found, "--version"], env=env, user=user, timeout_s=CHILD_SECONDS).text
    version = _VERSION.search(said)
    return present(
        {"mpirun": found, "version": version[0] if version else None, "says": short(said.partition("\n")[0])}
    )


def cloud_init_version(*, env: Mapping[str, str]) -> str:
    """Return cloud-init's version; "" if there is none. Raises NoAnswerError."""
    found = find_program("cloud-init", path=env["PATH"])
    if found is None:
        return ""
    said = ""
    # `cloud-init --version` is only the last resort, because it first loads all of cloud-init, which takes a
    # third of a second just before the benchmark.
    interpreter = read_text(Path(found), 256).partition("\n")[0]
    if interpreter.startswith("#!") and "python" in interpreter:
        with suppress(NoAnswerError):
            asked = ask([*interpreter[2:].split(), "-c", _CLOUD_INIT], env=env, timeout_s=CHILD_SECONDS)
            said = asked.text if asked.code == 0 else ""
    said = said or ask([found, "--version"], env=env, timeout_s=CHILD_SECONDS).text
    version = _VERSION.search(said)
    return version[0] if version else ""


@dataclass(frozen=True, kw_only=True)
class _CudaVersion:
    version: str


@dataclass(frozen=True, kw_only=True)
class _Cuda:
    cuda: _CudaVersion


def libraries(root: Path) -> Facts:
    """Return the versions of NCCL, libfabric, cuDNN, CUDA and the EFA installer, as far as file names contain them."""
    found: Facts = {}
    for folder in _LIBRARY_FOLDERS:
        with suppress(OSError), os.scandir(root / folder) as entries:
            names = [each.name for each in entries]
            for name, start in _LIBRARIES.items():
                there = (each.removeprefix(start) for each in names if each.startswith(start))
                found[name] = found.get(name) or _longest(there)
    installed = read_text(root / "opt/amazon/efa_installed_packages")
    efa = re.search(r"EFA installer version:\s*([\w.+-]+)", installed)
    found["efa_installer"] = short(efa[1]) if efa else None
    # Images with only a part of the toolkit have no version.json, but a link to its folder.
    folder = os.path.realpath(root / "usr/local/cuda")
    found["cuda_toolkit"] = _longest([Path(folder).name.removeprefix("cuda-")])
    with suppress(RecordError):
        cuda = decode(_Cuda, read_text(root / "usr/local/cuda/version.json"), where="version.json").cuda
        found["cuda_toolkit"] = short(cuda.version)
    found["efa_driver"] = short(read_text(root / "sys/module/efa/version"))
    return present(found)


def _longest(versions: Iterable[str]) -> str | None:
    """Return the most exact of several versions: `2.18.5` rather than `2`."""
    known = [each for each in versions if re.fullmatch(r"\d{1,6}(?:\.\d{1,6}){0,3}", each)]
    return max(
        known, key=lambda each: (each.count("."), [int(part) for part in each.split(".")]), default=None
    )
