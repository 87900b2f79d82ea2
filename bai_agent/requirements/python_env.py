"""Installs the scripts' requirements into a venv for the job. Programs in the venv can also import the
packages of the benchmark's own Python."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from bai_agent.benchmark.children import Stopped, run_in_session
from bai_agent.benchmark.environment import STARTUP, benchmark_python, find_user, prepare_environment
from bai_agent.benchmark.orphans import kill_marked
from bai_agent.benchmark.programs import DESCRIBE_PYTHON, PythonDescription, read_description
from bai_agent.benchmark.user_access import give_to
from bai_agent.errors import BusyError, NoAnswerError, PullError
from bai_agent.files.user_rights import User, folder_owner, open_as, process_options, user_rights
from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import RunDir, make_folder, read_json, write_json
from bai_agent.requirements.venv_cache import CachedVenv
from bai_agent.shim.proc import RUN_MARKER

log = logging.getLogger(__name__)

_LAST_LINES = 5
_LAST_BYTES = 16384
_LARGEST = 16 << 20
"""Largest requirements file (bytes). Without this limit a sparse file could fill the memory."""
_LAST_CHARACTERS = 400
_FORMAT = 2
"""Version of the layout of cached venvs. Cached venvs with another layout version are not used."""

_PIP_FILES = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
"""Paths of pip's configuration files. pip also reads files in the Python's own folder and those that
XDG_CONFIG_HOME and PIP_CONFIG_FILE name: https://pip.pypa.io/en/stable/topics/configuration/
"""
_PIP_PATHS = ("find-links", "constraint", "requirement", "editable", "target", "prefix")
"""Options of pip that name files or folders, whose content can change."""

# https://pip.pypa.io/en/stable/reference/requirements-file-format/
_INCLUDE = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s*=\s*|\s*)(\S+)")
_OPTION = re.compile(
    r"(?:-i|--index-url|--extra-index-url|--trusted-host|--no-binary|--only-binary|--use-feature)(?:\s*=\s*|\s+)\S+"
    r"|--pre|--prefer-binary|--require-hashes"
)
_PACKAGE = re.compile(
    r"""
    [A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?      # its name
    \s*(?:\[[A-Za-z0-9._,\s-]*\])?                  # extras
    \s*\(?\s*(?:(?:[<>!~=]=?=?)\s*[A-Za-z0-9.*+!_-]+\s*,?\s*)*\)?
    \s*(?:;[^@]*?)?                                 # when it is needed
    (?:\s+--hash[=\s]\S+)*
    """,
    re.VERBOSE,
)
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar|tar\.\w+|tgz|tbz|txz|tlz)$", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s+)#.*$")


def install_requirements(
    job: Job,
    rundir: RunDir,
    *,
    deadline: float,
    stopping: Callable[[], bool],
    base: Mapping[str, str] = os.environ,
    cache: Path | None = None,
) -> None:
    """Install the job's requirements file into `rundir.venv`, unless the requirements are already installed.

    cache: folder of cached venvs (`bai_agent.requirements.venv_cache`). If the requirements name only
    packages of an index, `rundir.venv` is a link to a cached venv. Requirements with paths or addresses can
    have different content in each job. deadline: on the monotonic clock. pip's output goes to
    requirements.log. Returns early if `stopping()` is true. The whole installation runs as the benchmark's
    user, because packages can run code of their own during installation. Raises PullError with pip's last
    lines, and SetupError.
    """
    assert job.benchmark.requirements is not None
    user = find_user(job.benchmark.user)
    requirements = rundir.scripts / job.benchmark.requirements
    try:
        with os.fdopen(open_as(user, requirements), "rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise PullError(f"[benchmark] requirements: {requirements}: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise PullError(f"[benchmark] requirements: {requirements}: has more than {_LARGEST:,} bytes")
    digest = hashlib.sha256(content).hexdigest()
    env = prepare_environment(job, rundir, scripts=rundir.scripts, secrets={}, base=base, user=user)
    # The job's venv is removed from PATH, so that the benchmark's own Python is found.
    env["PATH"] = env["PATH"].removeprefix(f"{rundir.venv / 'bin'}:")
    env.pop("VIRTUAL_ENV", None)
    named = benchmark_python(job.benchmark)
    python = str(named) if named else shutil.which("python3", path=env["PATH"])
    if python is None:
        raise PullError(
            f"{requirements} cannot be installed: there is no python3 on the benchmark's PATH ({env['PATH']}); "
            "install one or set [benchmark] python"
        )
    whole = {"requirements": digest, "python": python}
    done = rundir.venv / "complete.json"
    with user_rights(user):
        if not rundir.venv.is_symlink() and read_json(done) == whole:
            return
    run = _Runner(rundir, env, deadline, stopping, user)
    kept = None
    with suppress(Stopped):
        if cache is not None and user is None:
            kept = _kept_venv(cache, python, requirements, env=env, run=run)
        if kept is None or not _take(kept, python, requirements, rundir=rundir, run=run):
            _clear(rundir.venv, user)
            if user is not None:
                make_folder(rundir.venv, private=rundir.path)
                give_to(user, rundir.venv)
            _build(python, requirements, venv=rundir.venv, run=run)
            with user_rights(user):
                write_json(done, whole)


def _kept_venv(
    cache: Path, python: str, requirements: Path, *, env: Mapping[str, str], run: _Runner
) -> CachedVenv | None:
    """Return the cached venv that all jobs with the same Python, requirements and pip settings share. None if
    the content of the venv depends on more than the Python, the requirements and the pip settings."""
    texts = index_requirements(requirements)
    configuration = _pip_configuration(env)
    # pip treats packages on PYTHONPATH as installed, but the packages there can change.
    path = [each for each in env.get("PYTHONPATH", "").split(":") if each and each != str(STARTUP)]
    if texts is None or configuration is None or path:
        return None
    about = _describe(python, run)
    configuration.append(_content(Path(about.prefix, "pip.conf")))
    facts = [
        _FORMAT,
        python,
        os.path.realpath(python),
        [about.version, about.tag, about.prefix, about.venv, about.packages, about.installed],
        platform.machine(),
        [text for _, text in texts],
        configuration,
    ]
    return CachedVenv(cache, hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32])


def _take(kept: CachedVenv, python: str, requirements: Path, *, rundir: RunDir, run: _Runner) -> bool:
    """Make `rundir.venv` a link to the cached venv `kept`, which is created if needed. Return False if the
    cached venv cannot be used."""
    try:
        with kept.lock(waiting=run.may_wait):
            if not kept.is_complete():
                if kept.in_use():
                    return False  # a benchmark has installed something into it
                kill_marked(str(kept.venv))  # the pip of a killed agent would continue to write
                kept.remove()
                _build(python, requirements, venv=kept.venv, run=run)
                kept.complete()
            kept.use(rundir)
            _clear(rundir.venv, None)
            rundir.venv.symlink_to(kept.venv)
    except BusyError:
        run.check()
        return False
    except OSError as error:
        log.warning("no venv can be kept in %s: %s", kept.cache, error)
        return False
    return True


def _pip_configuration(env: Mapping[str, str]) -> list[str] | None:
    """Return all of the user's settings for pip, from variables and files. None if a setting names a file or
    folder, because its content can change."""
    variables = sorted(f"{name}={value}" for name, value in env.items() if name.startswith("PIP_"))
    home = env.get("HOME", "/")
    files = [Path(each.replace("~", home, 1)) for each in _PIP_FILES]
    for name, rest in (("XDG_CONFIG_HOME", "pip/pip.conf"), ("PIP_CONFIG_FILE", "")):
        if env.get(name):
            files.append(Path(env[name], rest))
    texts = [_content(file) for file in files]
    for word in _PIP_PATHS:
        if f"PIP_{word.upper().replace('-', '_')}" in env or any(word in text for text in texts):
            return None
    return [*variables, *texts]


def _content(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _clear(venv: Path, user: User | None) -> None:
    if venv.is_symlink():
        venv.unlink()
        return
    kill_marked(str(venv))  # the pip of a killed agent would continue to write
    if venv.exists():
        _remove(venv, user)


def _remove(venv: Path, user: User | None) -> None:
    """Delete a venv that is a folder. Raises OSError."""
    if user is None:
        shutil.rmtree(venv)
        return
    with user_rights(user):
        for each in list(venv.iterdir()):
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()
    # The venv's folder itself is removed with the agent's rights, because its parent folder belongs to the
    # agent's user.
    venv.rmdir()


def discard_requirements(rundir: RunDir) -> None:
    """Delete the job's venv after the run, because a venv can have hundreds of MB. If the venv is cached,
    only the link is deleted.

    requirements.log remains as a record. Files that cannot be deleted stay, with a warning in the log.
    """
    try:
        if rundir.venv.is_symlink():
            rundir.venv.unlink()  # the cache is for the next job
        else:
            _remove(rundir.venv, folder_owner(rundir.venv))
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s could not be deleted: %s", rundir.venv, error)


def _build(python: str, requirements: Path, *, venv: Path, run: _Runner) -> None:
    """Create the venv `venv`, which must not exist, and install the requirements into it."""
    run.mark(venv)
    about = _describe(python, run)
    run(
        [python, "-m", "venv", "--without-pip", "--system-site-packages", str(venv)],
        f"{python} cannot make a venv",
    )
    inside = str(venv / "bin" / "python")
    if about.venv:
        # If the benchmark's Python is in a venv, --system-site-packages gives access to the packages of that
        # venv's base Python only.
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in about.packages]
        with user_rights(run.user):
            (packages,) = venv.glob("lib/python*/site-packages")
            (packages / "parent_venv.pth").write_text("".join(lines))
    # This command only imports a module of pip, because a start of pip itself takes as long as most
    # installations.
    if not run.succeeds([inside, "-c", "import pip.__main__"]):
        minor = about.version.rpartition(".")[0]
        run(
            [inside, "-m", "ensurepip"],
            f"{python} has no pip; install it (Debian, Ubuntu: apt-get install python3-pip, or python{minor}-venv)",
        )
    install = ["install", "--no-input", "--disable-pip-version-check", "--timeout", "30", "--retries", "5"]
    run([inside, "-m", "pip", *install, "-r", str(requirements)], f"{requirements} could not be installed")


def _describe(python: str, run: _Runner) -> PythonDescription:
    said = run.output([python, "-c", DESCRIBE_PYTHON], f"{python} does not run")
    try:
        return read_description(said, python=python)
    except NoAnswerError as error:
        raise PullError(str(error)) from error


class _Runner:
    """Runs the commands of an installation one after the other, until a deadline. The output of all commands
    goes into one log."""

    def __init__(
        self,
        rundir: RunDir,
        env: Mapping[str, str],
        deadline: float,
        stopping: Callable[[], bool],
        user: User | None,
    ) -> None:
        self.user = user
        self._log = rundir.requirements_log
        self._cwd = rundir.scripts
        self._env = dict(env)
        self.mark(rundir.venv)
        self._deadline = deadline
        self._stopping = stopping
        self._log.touch(mode=0o600)
        self._log.write_bytes(b"")

    def mark(self, venv: Path) -> None:
        """Mark all later commands with the venv `venv`, so that their processes can be found after a kill."""
        self._env[RUN_MARKER] = str(venv)

    def may_wait(self) -> bool:
        """Return whether time is left before the deadline, and the run may continue."""
        return time.monotonic() < self._deadline and not self._stopping()

    def check(self) -> None:
        """Raise Stopped if the run must end, and PullError if the deadline has passed."""
        if self._stopping():
            raise Stopped
        if not self.may_wait():
            raise PullError(
                "the requirements were not installed within limits.pull_timeout: another job is installing the same requirements"
            )

    def __call__(self, argv: list[str], failure: str) -> None:
        """Run a command that must succeed. Raises PullError("<failure>: <its last lines>") or Stopped."""
        if not self.succeeds(argv):
            raise PullError(f"{failure}: {self._last_lines()} (all of it: {self._log})")

    def output(self, argv: list[str], failure: str) -> str:
        """Run a command that must succeed, and return its output."""
        start = self._log.stat().st_size
        self(argv, failure)
        return self._log.read_bytes()[start:].decode(errors="replace")

    def succeeds(self, argv: list[str]) -> bool:
        with self._log.open("ab") as log:
            try:
                with process_options(self.user, self._cwd) as options:
                    code = run_in_session(
                        argv, log, env=self._env, deadline=self._deadline, stopping=self._stopping, **options
                    )
            except OSError as error:
                log.write(f"{argv[0]}: {error.strerror}\n".encode())
                return False
            except subprocess.TimeoutExpired:
                raise PullError(
                    f"the requirements were not installed within limits.pull_timeout: {self._last_lines()} "
                    f"(all of it: {self._log})"
                ) from None
        return code == 0

    def _last_lines(self) -> str:
        """Return the lines of pip's output that begin with "ERROR:", or the last lines if pip printed no such
        line."""
        text = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
        cause = " / ".join(dict.fromkeys(errors or lines[-_LAST_LINES:]))
        return cause if len(cause) <= _LAST_CHARACTERS else f"{cause[:_LAST_CHARACTERS]}…"


def index_requirements(path: Path) -> list[tuple[str, str]] | None:
    """Return the path and the text of the requirements file and of each included file, if the files name only
    packages of a package index.

    Return None if a file cannot be read. Also return None if a file names a path, an address, a checkout, a
    folder of archives, a variable or anything else.
    """
    found: dict[Path, str] = {}
    waiting = [path]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        try:
            found[each] = each.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return None
        if "${" in found[each]:
            return None
        for line in _lines(found[each]):
            if include := _INCLUDE.fullmatch(line):
                if "://" in include[1]:
                    return None
                waiting.append(each.parent / include[1])
            elif not _names_a_package(line) and not _OPTION.fullmatch(line):
                return None
    return [(str(each), text) for each, text in found.items()]


def _lines(text: str) -> list[str]:
    joined = re.sub(r"\\\r?\n", " ", text)
    return [line for raw in joined.splitlines() if (line := _COMMENT.sub("", raw).strip())]


def _names_a_package(line: str) -> bool:
    return _PACKAGE.fullmatch(line) is not None and not _ARCHIVE.search(re.split(r"[\[;(<>=!~\s]", line)[0])
