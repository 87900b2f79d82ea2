"""The benchmark's environment, command, folder and user."""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import bai_agent
from bai_agent.errors import SetupError
from bai_agent.files.user_rights import User, user_of_entry, user_rights
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import ARM, Benchmark, Buffering
from bai_agent.job.descriptor.source_tables import SourceKind
from bai_agent.job.run_directory import RunDir, write_atomic
from bai_agent.shim.proc import RUN_MARKER

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIFO_WAIT_SECONDS = 60
"""Seconds that the client library waits for the FIFO of emitted metrics. The FIFO exists before the benchmark
starts."""

STARTUP = Path(__file__).parent / "startup"
"""Folder that is added to PYTHONPATH. The folder's sitecustomize.py sets how Python buffers its output."""

IMAGE_PYTHONS = (Path("/opt/pytorch/bin/python"), Path("/opt/tensorflow/bin/python"))
"""Pythons of the frameworks in AWS's deep learning images. A Python in this list is the benchmark's default
Python if no other Python in this list exists."""

_STDBUF_FOLDERS = (
    "/usr/libexec/coreutils",  # Debian, Ubuntu, Fedora, Amazon Linux
    "/usr/lib/coreutils",
    "/usr/lib64/coreutils",
    "/usr/lib/x86_64-linux-gnu/coreutils",
    "/usr/lib/aarch64-linux-gnu/coreutils",
)
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_REFERENCE_IN_VARIABLE = re.compile(r"\$(\$\()|\$\(([^)]*)\)")


def find_user(name: str | None) -> User | None:
    """Return the user account of the benchmark; None if the benchmark runs as the agent's user. Raises
    SetupError."""
    if name is None:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise SetupError(
            f'[benchmark] user "{name}" does not exist on this machine; create it or leave the key out'
        ) from None
    return None if entry.pw_uid == os.geteuid() else user_of_entry(entry)


def prepare_environment(
    job: Job,
    rundir: RunDir,
    *,
    scripts: Path | None,
    secrets: Mapping[str, str],
    base: Mapping[str, str],
    node: Mapping[str, str] = MappingProxyType({}),
    user: User | None = None,
) -> dict[str, str]:
    """Return the benchmark's whole environment.

    `base`: the agent's own environment, which the benchmark inherits if the job sets `inherit_env`.
    `secrets`: resolved secrets. `scripts`: the folder of the scripts, if any. `node`: variables that describe
    the nodes. A variable of the job overrides one of `base`, a secret overrides both, and a variable that bai
    sets overrides all others.
    """
    benchmark = job.benchmark
    env = _without_ours(base) if benchmark.inherit_env else {"LANG": "C.UTF-8"}
    env.update(_account(env, user))
    env["PATH"] = env.get("PATH") or DEFAULT_PATH
    if benchmark.buffering is Buffering.TIMED:
        env.pop("PYTHONUNBUFFERED", None)  # the caller's value would override the job's own setting
    contract = {
        "BENCHMARK_AI": "fifo",
        "BENCHMARK_AI_FIFO_FILEPATH": str(rundir.fifo),
        "BENCHMARK_AI_FIFO_MAX_WAIT_TIME": str(FIFO_WAIT_SECONDS),
        **({"BAI_SCRIPTS_PATH": str(scripts)} if scripts is not None else {}),
        "BAI_JOB_ID": job.job.id,
        **node,
        RUN_MARKER: str(rundir.path),
    }
    _put_variables(env, benchmark.env, {**secrets, **contract})
    env.update(secrets)
    _put_python_first(env, benchmark, rundir)
    _set_buffering(env, benchmark.buffering, user)
    env.update(contract)
    return env


def _put_variables(env: dict[str, str], variables: Mapping[str, str], later: Mapping[str, str]) -> None:
    """Put the job's variables into `env`. `$(NAME)` in a value is replaced by the variable NAME of `later`,
    or else of `env`. `$(NAME)` with an unknown name is not replaced, and `$$(` gives a literal `$(`."""
    for name, text in variables.items():
        env[name] = _expand_in_variable(text, {**env, **later})


def _expand_in_variable(text: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return match[1] or known.get(match[2], match[0])

    return _REFERENCE_IN_VARIABLE.sub(value, text)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace each `$(NAME)` in `text` by the variable's value, as Kubernetes does in a container's command.

    `$(NAME)` with an unknown name is not replaced. `$$` becomes `$`, so `$$(NAME)` gives a literal `$(NAME)`.
    A `$(NAME)` in a variable's value is not expanded. These rules are those of Kubernetes, "Define a Command
    and Arguments for a Container".
    """

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return env.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def command(job: Job, file: Path, *, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the job's command, expanded. If the job has a script, the script is written to `file`, and
    `argv` are the script's arguments."""
    expanded = tuple(expand(argument, env) for argument in job.benchmark.argv)
    script = job.benchmark.script
    if script is None:
        return expanded
    write_atomic(file, script.encode())
    file.chmod(0o700)
    interpreter = () if script.startswith("#!") else ("/bin/sh",)
    return (*interpreter, str(file), *expanded)


def scripts_folder(job: Job, rundir: RunDir) -> Path | None:
    """Return the scripts' folder; None if the job has no scripts."""
    has_scripts = any(source.kind is SourceKind.SCRIPTS for source in job.sources)
    return rundir.scripts if has_scripts else None


def workspaces(job: Job, rundir: RunDir) -> list[tuple[Job, RunDir]]:
    """Return each arm of the job as a job with the arm's run directory, if arms have their own folders.
    Otherwise return the job itself with its run directory."""
    arms = job.arms_apart
    return [(job.of_arm(each), rundir.of_arm(each.name)) for each in arms] or [(job, rundir)]


def working_folder(job: Job, rundir: RunDir, *, scripts: Path | None) -> Path:
    """Return the folder in which the benchmark starts."""
    if job.benchmark.cwd is not None:
        return rundir.work / job.benchmark.cwd
    return scripts if scripts is not None else rundir.work


def make_command_executable(
    argv: tuple[str, ...], *, scripts: Path | None, cwd: Path, user: User | None
) -> None:
    """Make a command in the scripts' folder executable for all users who may read the command. The scripts'
    folder is bai's own copy.

    Archives and object stores lose the x bit, but users of the benchmark service expect a command in the
    scripts' folder to run.
    """
    if scripts is None or not argv or "/" not in argv[0]:
        return
    with suppress(OSError), user_rights(user):  # the start of the command reports the error
        file = (cwd / argv[0]).resolve(strict=True)
        mode = file.stat().st_mode
        if file.is_file() and not mode & 0o100 and file.is_relative_to(scripts.resolve()):
            file.chmod(stat.S_IMODE(mode) | 0o100 | (mode & 0o444) >> 2)


def benchmark_python(benchmark: Benchmark) -> Path | None:
    """Return the Python that the job chose, which is the first Python on the benchmark's PATH. None if any
    Python on PATH may be used."""
    if benchmark.python is not None:
        return Path(benchmark.python)
    found = [python for python in IMAGE_PYTHONS if python.exists()]
    return found[0] if len(found) == 1 and not benchmark.inherit_env else None


def _without_ours(base: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment without the variables of the agent itself and of a surrounding run of another job."""
    env = {name: value for name, value in base.items() if name not in ("BAI_REPEAT", ARM)}
    ours = Path(bai_agent.__file__).resolve().parent.parent
    theirs = [
        entry for entry in env.pop("PYTHONPATH", "").split(":") if entry and Path(entry).resolve() != ours
    ]
    if theirs:
        env["PYTHONPATH"] = ":".join(theirs)
    return env


def _account(env: Mapping[str, str], user: User | None) -> dict[str, str]:
    if user is not None:
        return {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    if env.get("HOME"):
        return {}
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container's arbitrary uid
        return {"HOME": "/"}
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


def _put_python_first(env: dict[str, str], benchmark: Benchmark, rundir: RunDir) -> None:
    python = benchmark_python(benchmark)
    first = [] if python is None else [python.parent]
    if benchmark.requirements is not None:
        first.insert(0, rundir.venv / "bin")
    if not first:
        return
    env["PATH"] = ":".join([*map(str, first), env["PATH"]])
    env.pop("PYTHONHOME", None)
    env.pop("VIRTUAL_ENV", None)
    environment = first[0].parent
    if (environment / "pyvenv.cfg").exists():
        env["VIRTUAL_ENV"] = str(environment)


def _set_buffering(env: dict[str, str], buffering: Buffering, user: User | None) -> None:
    """Set how Python and C buffer output. By default, Python and C programs buffer output to a file and write
    it in large blocks. Without this setting, the output would not appear live, and a SIGTERM would lose the
    last block."""
    if buffering is Buffering.OWN:
        return
    env["BAI_BUFFERING"] = buffering.value
    # A program such as pip may fail if a folder of PYTHONPATH is below a folder that the program's user
    # cannot enter.
    with suppress(PermissionError), user_rights(user):
        STARTUP.stat()
        env["PYTHONPATH"] = ":".join(filter(None, [str(STARTUP), env.get("PYTHONPATH", "")]))
    if buffering is Buffering.LINE:
        env.setdefault("PYTHONUNBUFFERED", "1")
        library = next(
            (path for folder in _STDBUF_FOLDERS if (path := Path(folder, "libstdbuf.so")).exists()), None
        )
        if library is not None and "LD_PRELOAD" not in env:
            env["LD_PRELOAD"] = str(library)
            env.setdefault("_STDBUF_O", "L")
