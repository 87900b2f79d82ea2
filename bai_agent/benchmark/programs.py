"""Runs programs of this machine to query information, with limits on time and output and without a shell. Also recognises static
programs.

A library cannot be preloaded into a static program, so bai cannot make a static program write its output line
by line.
"""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bai_agent.benchmark.children import has_ended, kill_session
from bai_agent.decode import decode
from bai_agent.errors import NoAnswerError, RecordError
from bai_agent.files.pipes import read_to_end
from bai_agent.files.user_rights import User, process_options
from bai_agent.light_dataclass import dataclass
from bai_agent.shim.proc import all_processes, descendants

_MOST_BYTES = 1 << 20
"""Maximum number of bytes that are read of a program's output."""
_TICK_S = 0.005

_PT_INTERP = 3
_HEADER, _PROGRAM_HEADER = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
"""Header of 64-bit ELF files, little-endian, as on x86_64 and aarch64: elf(5)."""
_MOST_HEADERS = 256

MOST_DISTRIBUTIONS = 2000
"""Maximum number of distributions (Python packages) that a Python lists."""
_PYTHON_MARK = "bai: this Python is "
# The name of a distribution's folder contains the distribution's name and version. importlib.metadata reads a
# file for each distribution, which takes several times as long. Syntax of Python 3.6: the benchmark's Python
# may be older than the agent's.
DESCRIBE_PYTHON = r"""
import json, os, re, site, sys
sources = {sys.executable, os.path.realpath(sys.executable), os.path.join(sys.prefix, "pyvenv.cfg")}
for name in ("sitecustomize", "usercustomize"):
    sources.add(getattr(sys.modules.get(name), "__file__", None))
def listed(folder):
    found = {}
    sources.add(os.path.abspath(folder or os.curdir))
    try:
        names = sorted(os.listdir(folder or os.curdir))
    except OSError:
        return found
    for name in names[:20000]:
        stem, kind = os.path.splitext(name)
        if kind == ".pth":
            sources.add(os.path.join(folder, name))
        if kind not in (".dist-info", ".egg-info"):
            continue
        project, _, version = stem.partition("-")
        version = re.sub(r"-py\d.*$", "", version)
        if not version:
            for part in ("METADATA", "PKG-INFO", ""):
                path = os.path.join(folder, name, part) if part else os.path.join(folder, name)
                sources.add(path)
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
    return found
packages = getattr(site, "getsitepackages", list)()
# A venv that sees its Python's packages sees the user's (~/.local) too, and pip takes those for installed.
installed = packages + [getattr(site, "getusersitepackages", str)()]
folders = {each: listed(each) for each in sys.path + installed}
distributions = {}
for each in reversed(sys.path):
    distributions.update(folders[each])
about = {
    "executable": sys.executable or "", "version": sys.version.split()[0], "tag": sys.implementation.cache_tag or "",
    "prefix": sys.prefix, "venv": sys.prefix != sys.base_prefix, "packages": packages,
    "distributions": distributions, "installed": [folders[each] for each in installed],
    "sources": sorted(filter(None, sources)),
}
sys.stdout.write("\n" + MARK + json.dumps(about) + "\n")
""".replace("MOST", str(MOST_DISTRIBUTIONS)).replace("MARK", repr(_PYTHON_MARK))
"""Program that prints a description of the Python that runs it; `read_description` reads its output."""


@dataclass(frozen=True, kw_only=True)
class PythonDescription:
    """A Python's description of itself."""

    executable: str
    version: str
    tag: str
    """Tag of the Python's byte code, such as "cpython-312"."""
    prefix: str
    venv: bool
    """Whether the Python belongs to a virtual environment."""
    packages: list[str]
    """The Python's own folders of packages."""
    distributions: dict[str, str]
    """Versions of the distributions that `import` finds, by normalised name."""
    installed: list[dict[str, str]]
    """Versions of the distributions in each folder of `packages` and in the user's own folder of packages, by
    normalised name."""
    sources: list[str]
    """Paths of the files and folders that the description depends on."""


def read_description(output: str, *, python: str) -> PythonDescription:
    """Find the description that `DESCRIBE_PYTHON` printed. Other lines of the output, printed by a loader or
    start-up files, are ignored.

    Raises NoAnswerError.
    """
    for line in output.splitlines():
        _, mark, rest = line.partition(_PYTHON_MARK)
        if mark:
            with suppress(RecordError):
                return decode(PythonDescription, rest, where=python)
    raise NoAnswerError(f"{python} is not a Python that describes itself: it printed {output[:200]!r}")


@dataclass(frozen=True)
class ProgramOutput:
    """Output of a program, and the program's exit code (negative: the signal that ended the program)."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        """Lines that are not blank, stripped."""
        return [line.strip() for line in self.text.split("\n") if line.strip()]


def ask(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    user: User | None = None,
    cwd: Path = Path("/"),
    with_stderr: bool = False,
) -> ProgramOutput:
    """Run a program to its end. Raises NoAnswerError. The processes that the program started are stopped when
    the program ends or reaches its time limit.

    subprocess.run is not used, because subprocess.run waits without a limit, even after its timeout, for
    every process that has the pipe open.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with process_options(user, cwd) as options:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if with_stderr else subprocess.DEVNULL,
                env=dict(env),
                start_new_session=True,
                **options,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoAnswerError(f"{argv[0]} does not run: {error}") from error
    assert child.stdout is not None
    try:
        with child.stdout:
            said = read_to_end(child.stdout.fileno(), timeout_s=timeout_s, most=_MOST_BYTES)
        while not has_ended(child):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_TICK_S)
    except TimeoutError:
        raise NoAnswerError(f"{argv[0]} did not answer within {timeout_s:g} s") from None
    finally:
        kill_session(child)
    return ProgramOutput(child.returncode, said.decode(errors="replace"))


def find_program(name: str, *, path: str) -> str | None:
    """Return the path of the program that a shell with the given PATH would start as `name`. Return None if
    no program has this name."""
    # shutil.which is not used, because shutil loads all compression libraries.
    places = [name] if "/" in name else [f"{each.rstrip('/')}/{name}" for each in path.split(":") if each]
    return next((each for each in places if os.access(each, os.X_OK) and not Path(each).is_dir()), None)


def static_program(shim: int) -> str | None:
    """Return the name of a static program among the processes that the shim started. Return None if no
    process is a static program."""
    for process in descendants({shim}, all_processes()):
        program = Path(f"/proc/{process.pid}/exe")
        if is_static(program):
            try:
                return program.readlink().name
            except OSError:  # the process is gone
                continue
    return None


def is_static(path: Path) -> bool:
    """Return whether a file is a program without a dynamic linker; False if the file cannot be read."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or header[:6] != b"\x7fELF\x02\x01":
                return False
            fields = _HEADER.unpack(header)
            start, size, count = fields[5], fields[9], fields[10]
            if size < _PROGRAM_HEADER.size or not 0 < count <= _MOST_HEADERS:
                return False
            file.seek(start)
            table = file.read(size * count)
    except (OSError, OverflowError, ValueError):
        return False
    kinds = [
        struct.unpack_from("<I", table, index)[0]
        for index in range(0, len(table) - _PROGRAM_HEADER.size + 1, size)
    ]
    return bool(kinds) and _PT_INTERP not in kinds
