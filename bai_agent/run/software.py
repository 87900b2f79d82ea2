"""What software a benchmark runs on: the packages of its Python, Open MPI, and the libraries below them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bai_agent.benchmark.environment import DEFAULT_PATH, STARTUP, find_user, prepare_environment
from bai_agent.benchmark.proc import RUN_MARKER
from bai_agent.benchmark.programs import NoAnswerError, ask
from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import RunDir
from bai_agent.job.user_rights import User
from bai_agent.run.host_facts import Facts, present, read_text, short

SYSTEM_PATH = DEFAULT_PATH
CHILD_SECONDS = 2.0
"""For a child to say all that it has to say."""
_DISTRIBUTIONS = 2000
"""How many distributions are listed at most."""
_PYTHON = re.compile(r"python(?:\d(?:\.\d{1,2})?)?")
_CLOUD_INIT = "from cloudinit.version import version_string; print(version_string())"
_VERSION = re.compile(r"\d+\.\d[\w.+-]*")

IMPORTANT = (
    "torch",
    "horovod",
    "numpy",
    "tensorflow",
    "jax",
    "jaxlib",
    "mpi4py",
    "transformers",
    "deepspeed",
    "mxnet",
    "scipy",
    "triton",
)
"""Packages whose versions explain numbers; those that begin with `nvidia-nccl`, `nvidia-cudnn` and `nvidia-cuda-runtime` count too."""
_IMPORTANT_STARTS = ("nvidia-nccl", "nvidia-cudnn", "nvidia-cuda-runtime")

_MARK = "bai-describes-python:"
# Names of folders tell names and versions: importlib.metadata would read a file for each, and takes several times as long.
# Nothing newer than Python 3.6: the benchmark's Python may be older than the agent's.
_DESCRIBE = r"""
import json, os, re, sys
found = {}
for folder in sys.path:
    try:
        names = sorted(os.listdir(folder or os.curdir))
    except OSError:
        continue
    for name in names[:20000]:
        stem, kind = os.path.splitext(name)
        if kind not in (".dist-info", ".egg-info"):
            continue
        project, _, version = stem.partition("-")
        version = re.sub(r"-py\d.*$", "", version)
        if not version:
            for part in ("METADATA", "PKG-INFO", ""):
                path = os.path.join(folder, name, part) if part else os.path.join(folder, name)
                if not os.path.isfile(path):
                    continue
                with open(path, "rb") as file:
                    head = file.read(4096).decode("utf-8", "replace")
                match = re.search(r"(?m)^Version:[ \t]*(\S+)", head)
                version = match.group(1) if match else ""
                break
        found.setdefault(re.sub(r"[-_.]+", "-", project).lower()[:100], version[:100])
        if len(found) >= MOST:
            break
about = {"executable": sys.executable, "version": sys.version.split()[0], "prefix": sys.prefix, "found": found}
sys.stdout.write("\n" + MARK + json.dumps(about) + "\n")
"""
_PROGRAM = _DESCRIBE.replace("MOST", str(_DISTRIBUTIONS)).replace("MARK", repr(_MARK))

_OPEN_MPI = ("opt/amazon/openmpi/bin/mpirun", "opt/amazon/openmpi5/bin/mpirun")
"""Where AWS's EFA installer puts Open MPI: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html"""
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
    """Return the benchmark's environment without its secrets, for asking its programs, and its user. Raises SetupError."""
    user = find_user(job.benchmark.user)
    env = prepare_environment(job, rundir, scripts=scripts, secrets={}, base=os.environ, user=user)
    # Not a process of the benchmark's, and nothing that it prints is to be changed.
    for name in (RUN_MARKER, "BAI_BUFFERING", "BENCHMARK_AI", "LD_PRELOAD"):
        env.pop(name, None)
    path = [each for each in env.pop("PYTHONPATH", "").split(":") if each and each != str(STARTUP)]
    if path:
        env["PYTHONPATH"] = ":".join(path)
    return env, user


def find_python(job: Job, *, env: Mapping[str, str], cwd: Path) -> str | None:
    """Return the Python that the benchmark runs: the first one that its command or its script's first line names, else
    the `python3` of its PATH; None where there is none."""
    words = list(job.benchmark.argv)
    first = (job.benchmark.script or "").partition("\n")[0]
    if first.startswith("#!"):
        with suppress(ValueError):
            words = shlex.split(first[2:])
    named = next((word for word in words if _PYTHON.fullmatch(Path(word).name)), "python3")
    if "/" in named:
        return str(cwd / named)
    return shutil.which(named, path=env.get("PATH")) or shutil.which("python3", path=env.get("PATH"))


def python_facts(python: str, *, env: Mapping[str, str], user: User | None) -> Facts:
    """Return version and distributions of a Python. Raises NoAnswerError."""
    quiet = {**env, "PYTHONDONTWRITEBYTECODE": "1"}
    for line in ask(
        [python, "-c", _PROGRAM], env=quiet, user=user, timeout_s=CHILD_SECONDS
    ).text.splitlines():
        _, mark, rest = line.partition(_MARK)
        with suppress(ValueError, RecursionError):
            about = json.loads(rest) if mark else None
            if isinstance(about, dict):
                return _python_facts(about)
    raise NoAnswerError(f"{python} is not a Python that describes itself")


def _python_facts(about: Mapping[str, Any]) -> Facts:
    found = about.get("found")
    distributions = {
        short(name): short(version)
        for name, version in sorted(found.items() if isinstance(found, dict) else ())[:_DISTRIBUTIONS]
        if isinstance(version, str)
    }
    return present(
        {
            "executable": short(str(about.get("executable", ""))),
            "version": short(str(about.get("version", ""))),
            "prefix": short(str(about.get("prefix", ""))),
            "packages": {
                name: version
                for name, version in distributions.items()
                if name in IMPORTANT or name.startswith(_IMPORTANT_STARTS)
            },
            "distributions": distributions,
        }
    )


def open_mpi(*, env: Mapping[str, str], user: User | None, root: Path = Path("/")) -> Facts:
    """Return version and place of the `mpirun` that the benchmark finds, else of AWS's; {} where there is none.

    Raises NoAnswerError.
    """
    found = shutil.which("mpirun", path=env.get("PATH"))
    found = found or next((str(root / each) for each in _OPEN_MPI if (root / each).exists()), None)
    if found is None:
        return {}
    said = ask([found, "--version"], env=env, user=user, timeout_s=CHILD_SECONDS).text
    version = _VERSION.search(said)
    return present(
        {"mpirun": found, "version": version[0] if version else None, "says": short(said.partition("\n")[0])}
    )


def cloud_init_version(*, env: Mapping[str, str]) -> str:
    """Return cloud-init's version; "" where there is none. Raises NoAnswerError."""
    found = shutil.which("cloud-init", path=env.get("PATH"))
    if found is None:
        return ""
    said = ""
    # The program itself loads all of cloud-init before it says so: a third of a second, just before a benchmark.
    interpreter = read_text(Path(found), 256).partition("\n")[0]
    if interpreter.startswith("#!") and "python" in interpreter:
        with suppress(NoAnswerError):
            asked = ask([*interpreter[2:].split(), "-c", _CLOUD_INIT], env=env, timeout_s=CHILD_SECONDS)
            said = asked.text if asked.code == 0 else ""
    said = said or ask([found, "--version"], env=env, timeout_s=CHILD_SECONDS).text
    version = _VERSION.search(said)
    return version[0] if version else ""


def libraries(root: Path) -> Facts:
    """Return the versions of NCCL, libfabric, cuDNN, CUDA and the EFA installer, as far as files name them."""
    found: Facts = {name: _library_version(root, start) for name, start in _LIBRARIES.items()}
    efa = re.search(
        r"EFA installer version:\s*([\w.+-]+)", read_text(root / "opt/amazon/efa_installed_packages")
    )
    found["efa_installer"] = short(efa[1]) if efa else None
    with suppress(ValueError, RecursionError, AttributeError):
        cuda = json.loads(read_text(root / "usr/local/cuda/version.json")).get("cuda", {}).get("version")
        found["cuda_toolkit"] = short(cuda) if isinstance(cuda, str) else None
    module = read_text(root / "sys/module/efa/version")
    found["efa_driver"] = short(module) or None
    return present(found)


def _library_version(root: Path, start: str) -> str | None:
    for folder in _LIBRARY_FOLDERS:
        if version := _longest(path.name.removeprefix(start) for path in (root / folder).glob(f"{start}*")):
            return version
    return None


def _longest(versions: Iterable[str]) -> str | None:
    """Return the version that says most: of `2`, `2.18.5` the latter."""
    known = [each for each in versions if re.fullmatch(r"\d{1,6}(?:\.\d{1,6}){0,3}", each)]
    return max(
        known, key=lambda each: (each.count("."), [int(part) for part in each.split(".")]), default=None
    )
