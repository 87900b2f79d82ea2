"""Fetches the files of one commit of a Git repository, only by https, and without running any program that
the repository names.

Git's configuration of the user and the system is ignored, so no credentials, credential helpers, hooks,
filters (LFS) or rewritten addresses are used. Submodules are not fetched.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from bai_agent.light_dataclass import dataclass
from executor.errors import UsageError

FETCH_SECONDS = 600.0
"""Longest time for fetching a commit and checking out its files, together (seconds)."""
MOST_BYTES = 8 << 30
"""Largest total size of the repository, its files and git's output (bytes)."""
_LOOK_SECONDS, _TICK_SECONDS = 1.0, 0.02
_MOST_PRINTED = 1 << 16
"""Number of bytes at the end of git's output that are read."""
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LONGEST_ERROR = 300
_SETTINGS = (
    "protocol.allow=never",
    "protocol.https.allow=always",
    "credential.helper=",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.fsmonitor=false",
    "core.symlinks=true",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    # git gives up before the deadline if the server sends nothing for some time.
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=60",
)
_PASSED_ON = (
    "PATH", "TMPDIR", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy",
    "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""Environment variables that are passed on to git: PATH, proxies and certificates."""
_LOGIN = re.compile(
    r"could not read (Username|Password)|terminal prompts disabled|Authentication failed|error: 40[13]"
)
_NO_REPOSITORY = re.compile(r"repository '.*' not found|error: 404|not valid: is this a git repository")
_NO_REF = re.compile(r"couldn't find remote ref|not our ref|unadvertised object|no such remote ref", re.I)


@dataclass(frozen=True, kw_only=True)
class GitFiles:
    """The files of a commit, or of one of its folders."""

    commit: str
    folder: Path


class _GitError(Exception):
    """A command of git failed; the message is what the command printed."""


def fetch_files(
    address: str, ref: str | None, folder: str | None, place: Path, *, environment: Mapping[str, str]
) -> GitFiles:
    """Fetch the files of the commit that `ref` names into the empty folder `place`.

    address: https address of the repository. ref: branch, tag or full commit; if None, the default branch.
    folder: relative path of the folder to fetch; if None, all files are fetched. environment: the caller's
    environment variables. Raises UsageError, OSError.
    """
    repository = _Repository(
        place, address, deadline=time.monotonic() + FETCH_SECONDS, environment=environment
    )
    try:
        commit = repository.fetch(ref)
        return GitFiles(commit=commit, folder=repository.check_out(commit, folder))
    except FileNotFoundError as error:
        if error.filename != "git":
            raise
        raise UsageError(
            "the program git is not installed; install it, or name a folder with path"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"the repository did not arrive within {FETCH_SECONDS:g} s; clone the repository, and name its folder in [ml.script] path"
        ) from error
    except _GitError as error:
        raise UsageError(_reason(str(error), ref)) from error


class _Repository:
    """A new repository without configuration, and the folder for its files."""

    def __init__(self, place: Path, address: str, *, deadline: float, environment: Mapping[str, str]) -> None:
        self._git, self._files, self._home = place / "git", place / "files", place / "home"
        self._place = place
        self._address = address
        self._deadline = deadline
        self._environment = {
            **{name: environment[name] for name in _PASSED_ON if name in environment},
            "HOME": str(self._home),
            "LC_ALL": "C",
            "GIT_DIR": str(self._git),
            "GIT_ALLOW_PROTOCOL": "https",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_LITERAL_PATHSPECS": "1",
        }

    def fetch(self, ref: str | None) -> str:
        """Fetch the commit that `ref` names; return the commit's hash."""
        self._home.mkdir()
        self._files.mkdir()
        self._ask("init", "--quiet", "--template=")
        options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules")
        self._ask("fetch", *options, "--", self._address, ref or "HEAD")
        return self._ask("rev-parse", "--verify", "FETCH_HEAD^{commit}").strip()

    def check_out(self, commit: str, folder: str | None) -> Path:
        """Write the files of a commit, or of one of its folders, to disk. Return the folder that contains the
        files. Raises UsageError."""
        wanted = PurePosixPath(folder or ".")
        try:
            kind = self._ask("cat-file", "-t", f"{commit}:{wanted if wanted.name else ''}").strip()
        except _GitError:
            kind = ""
        if kind != "tree":
            raise UsageError(f"the commit {commit} has no folder {wanted}")
        place = ("--work-tree", str(self._files))
        try:
            self._ask(*place, "checkout", "--quiet", "--force", commit, "--", str(wanted))
        except _GitError as error:
            if "did not match any file" not in str(error):
                raise
            raise UsageError(f"the commit {commit} has no files") from error
        # The folder with the files is marked as a repository's root, so that ignore files in the folders
        # above it are not read.
        (self._files / wanted / ".git").mkdir(exist_ok=True)
        return self._files / wanted

    def _ask(self, *arguments: str) -> str:
        """Run git in a session of its own and return its output. If git does not exit in time, its process
        group is killed. Raises _GitError, UsageError, TimeoutExpired, OSError."""
        settings = [part for each in _SETTINGS for part in ("-c", each)]
        with (
            (self._place / "output").open("w+b") as output,
            (self._place / "errors").open("w+b") as errors,
            subprocess.Popen(
                ["git", *settings, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=self._home,
                env=self._environment,
                start_new_session=True,
            ) as process,
        ):
            try:
                self._await(process)
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
            if process.wait():
                raise _GitError(_end_of(errors))
            return _end_of(output)

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for git, and meanwhile check the size of what git writes. Raises UsageError,
        TimeoutExpired."""
        next_look = 0.0
        while True:
            # The exit of git is checked before the size, so that the last check of the size covers everything
            # that git has written.
            has_ended = _has_ended(process)
            if has_ended or time.monotonic() >= next_look:
                self._require_size()
                next_look = time.monotonic() + _LOOK_SECONDS
            if has_ended:
                return
            if time.monotonic() >= self._deadline:
                raise subprocess.TimeoutExpired(process.args, FETCH_SECONDS)
            time.sleep(_TICK_SECONDS)

    def _require_size(self) -> None:
        if _size(self._place) > MOST_BYTES:
            raise UsageError(
                f"the repository has more than {MOST_BYTES / (1 << 30):g} GiB; clone the repository, and name its folder in [ml.script] path"
            )


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether git has exited. The function leaves git unreaped if possible, because a reaped process's
    session id can be reused."""
    if not hasattr(os, "waitid"):  # `os.waitid` is missing on a Mac before Python 3.13.
        return process.poll() is not None
    # If the program that started `bai` ignores SIGCHLD, the kernel has already reaped git.
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    return True


def _size(folder: Path) -> int:
    """Return the total size of all files below `folder` (bytes). The files may change during the call."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 - of each of very many
    return total


def _end_of(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_PRINTED))
    return file.read(_MOST_PRINTED).decode(errors="replace")


def _reason(printed: str, ref: str | None) -> str:
    """Return the reason why a fetch failed, read from the output of git."""
    if _NO_REF.search(printed):
        wanted = f'branch, tag or full commit "{ref}"' if ref is not None else "default branch"
        return f"the repository has no {wanted}; correct ref"
    if _LOGIN.search(printed):
        return "the repository does not exist or needs a login, and bai has no login; clone the repository, and name its folder in [ml.script] path"
    if _NO_REPOSITORY.search(printed):
        return "there is no repository; correct the address"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    last = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
    shown = "".join(each if each.isprintable() else "?" for each in last)[:_LONGEST_ERROR]
    return f"the repository cannot be fetched: {shown or 'git failed and said nothing'}"
