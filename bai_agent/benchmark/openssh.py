"""OpenSSH for one job: its programs, this node's keys, and the files that ssh and sshd are told with. All of it goes when the run ends."""

from __future__ import annotations

import logging
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bai_agent.benchmark.children import wait_within
from bai_agent.benchmark.environment import DEFAULT_PATH, SetupError
from bai_agent.benchmark.programs import NoAnswerError, ask
from bai_agent.benchmark.ssh_config import CLIENTS, KEY, SSHD_CONFIG, client_files, server_files
from bai_agent.benchmark.user_access import give_to, open_way
from bai_agent.job.run_directory import RunDir, make_folder, write_atomic
from bai_agent.job.user_rights import User
from bai_agent.strategy.launch import SshFrom, SshTo

log = logging.getLogger(__name__)

_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/bin", "/usr/local/bin", "/bin")
"""Where the programs may be beside the benchmark's PATH."""
_INSTALL_SECONDS = 300.0
"""For all that it takes together."""
_LAST_BYTES = 2000
"""Of what an installer printed, in our log."""
_KEYGEN_SECONDS = 30.0
_RUN_SSHD = Path("/run/sshd")
"""Debian's sshd does not start as root without this folder, which only its service makes."""
_PLAIN = re.compile(r"[A-Za-z0-9/._+,=@-]+")
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""What a process that another node starts here has of the agent's own environment; the rest may hold secrets."""
_INSTALLERS: Mapping[str, Sequence[str]] = {
    "apt-get": (
        "apt-get -o DPkg::Lock::Timeout=120 update",
        "apt-get -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends openssh-server openssh-client",
    ),
    "dnf": ("dnf --assumeyes install openssh-server openssh-clients",),
    "zypper": ("zypper --non-interactive install openssh",),
    "yum": ("yum --assumeyes install openssh-server openssh-clients",),
    "apk": ("apk add openssh",),
}


def require_openssh(
    *,
    serves: bool,
    path: str,
    may_install: bool,
    user: User | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Find what a node that logs in to others, or one that `serves` them, needs of OpenSSH. Raises SetupError, Stopped.

    may_install: this machine is the job's alone; what is missing is installed, once, by its distribution's package manager.
    path: the benchmark's. `user` may put programs there, so those that run as root are not looked for on it.
    """
    own_path = path if user is None else DEFAULT_PATH
    wanted = {"ssh-keygen": own_path, "sshd" if serves else "ssh": path}
    missing = [each for each, where in wanted.items() if _find(each, where) is None]
    tried = ""
    if missing and may_install and os.geteuid() == 0:
        tried = _install(own_path, stopping)
        missing = [each for each, where in wanted.items() if _find(each, where) is None]
    if missing:
        raise SetupError(
            f"{missing[0]} is not on this machine (looked at: PATH, {', '.join(_FOLDERS)}){tried}; install OpenSSH "
            "(Debian, Ubuntu: openssh-server; Amazon Linux, Fedora: openssh-server openssh-clients)"
        )


def public_key(rundir: RunDir, *, user: User | None, path: str) -> str:
    """Return the public part of this node's key, which is made where it is not there. Raises SetupError.

    The key itself belongs to the benchmark's user, and never leaves this machine. Its folder stays ours: nobody else can replace
    what we write there.
    """
    folder = rundir.ssh
    key = folder / KEY
    public = key.with_suffix(".pub")
    if not public.exists():
        # What a kill left may be a half.
        key.unlink(missing_ok=True)
        make_folder(folder, private=rundir.path)
        _keygen(key, path if user is None else DEFAULT_PATH)
    if user is not None:
        open_way(folder, top=folder)
        give_to(user, key)
    # A third word would be a comment.
    return " ".join(public.read_text().split()[:2])


def ready_server(
    server: SshFrom,
    rundir: RunDir,
    *,
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    inherited: Mapping[str, str],
    cwd: Path,
    user: User | None,
) -> tuple[str, ...]:
    """Write the files of an sshd, and return its command. What it starts has `env`, less secrets and what is only `inherited`.

    Raises SetupError.
    """
    sshd = _require("sshd", env["PATH"])
    _require_plain(rundir.ssh)
    if user is None and os.geteuid() == 0:
        _RUN_SSHD.mkdir(mode=0o755, exist_ok=True)
    account = _account(user)
    handed_on = {
        name: value
        for name, value in env.items()
        if name not in secrets and (name in _INHERITED or inherited.get(name) != value)
    }
    use_pam = user is None and _is_locked(account)
    files = server_files(rundir.ssh, server, account=account, use_pam=use_pam, env=handed_on, cwd=cwd)
    _write(files, rundir, user)
    # It starts itself anew for each connection, by this name: the whole path.
    return (str(sshd), "-D", "-e", "-f", str(rundir.ssh / SSHD_CONFIG))


def ready_client(client: SshTo, rundir: RunDir, *, env: Mapping[str, str], user: User | None) -> str:
    """Write the files with which `ssh ADDRESS` reaches the others, and return the PATH on which that `ssh` is. Raises SetupError."""
    _require_plain(rundir.ssh)
    _write(client_files(rundir.ssh, client.hosts, ssh=_require("ssh", env["PATH"])), rundir, user)
    return f"{rundir.ssh / CLIENTS}:{env['PATH']}"


def discard_ssh(rundir: RunDir) -> None:
    """Delete the keys and all that was written for ssh and sshd."""
    shutil.rmtree(rundir.ssh, ignore_errors=True)


def _find(program: str, path: str) -> Path | None:
    found = shutil.which(program, path=":".join([path, *_FOLDERS]))
    return None if found is None else Path(found).absolute()


def _require(program: str, path: str) -> Path:
    found = _find(program, path)
    if found is None:
        raise SetupError(f"{program} was on this machine when the node joined, and has gone")
    return found


def _require_plain(folder: Path) -> None:
    if _PLAIN.fullmatch(str(folder)) is None:
        raise SetupError(
            f"sshd cannot be told of files in {folder}: its path may hold letters, digits and / . _ + , = @ - alone; "
            "keep the job elsewhere (--store or BAI_STORE; bai-agent: --dir)"
        )


def _account(user: User | None) -> str:
    if user is not None:
        return user.name
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise SetupError(
            f"sshd lets only accounts in, and the user id {os.geteuid()} has none on this machine; name one with [env] user"
        ) from None


def _is_locked(account: str) -> bool:
    """Return whether the account's password is locked, with which sshd lets nobody in, unless PAM decides."""
    with suppress(OSError):
        for line in Path("/etc/shadow").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == account:
                return rest.startswith("!")
    return False


def _write(files: Mapping[str, str], rundir: RunDir, user: User | None) -> None:
    for name, text in files.items():
        path = rundir.ssh / name
        make_folder(path.parent, private=rundir.path)
        write_atomic(path, text.encode(errors="surrogateescape"))
        path.chmod(0o700 if text.startswith("#!") else 0o600)
        if user is not None:
            open_way(path.parent, top=rundir.ssh)
            give_to(user, path)


def _keygen(key: Path, path: str) -> None:
    command = [str(_require("ssh-keygen", path)), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
    try:
        answer = ask(command, env=os.environ, timeout_s=_KEYGEN_SECONDS, with_stderr=True)
    except NoAnswerError as error:
        raise SetupError(f"ssh-keygen could not make a key for this job: {error}") from error
    if answer.code:
        said = " ".join(answer.text.split())
        raise SetupError(f"ssh-keygen could not make a key for this job: {said[:300]}")


def _install(path: str, stopping: Callable[[], bool]) -> str:
    """Install OpenSSH from this machine's distribution, if its package manager is a known one; return what failed of that, for a
    sentence."""
    commands = next((each for name, each in _INSTALLERS.items() if shutil.which(name, path=path)), ())
    if not commands:
        return ""
    log.info("OpenSSH is missing; installing it")
    deadline = time.monotonic() + _INSTALL_SECONDS
    # The service that comes along is not wanted: it would let in whoever has a password here.
    hidden = "systemctl mask --runtime ssh.service ssh.socket sshd.service"
    if shutil.which("systemctl", path=path):
        _run_installer(hidden.split(), path, deadline, stopping)
    tries = (_run_installer(each.split(), path, deadline, stopping) for each in commands)
    failures = [failure for failure in tries if failure]
    return f", and could not be installed ({failures[-1]})" if failures else ""


def _run_installer(command: Sequence[str], path: str, deadline: float, stopping: Callable[[], bool]) -> str:
    """Return what failed; "" where nothing did. deadline: of `time.monotonic()`. Raises Stopped."""
    # The job's own PATH need not have what a package manager starts.
    env = {"PATH": f"{path}:{DEFAULT_PATH}", "HOME": "/root", "LANG": "C.UTF-8"}
    env["DEBIAN_FRONTEND"] = "noninteractive"
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        try:
            code = wait_within(child, deadline=deadline, stopping=stopping)
        except subprocess.TimeoutExpired:
            return f"{command[0]} was not done after {_INSTALL_SECONDS:.0f} s, and was ended"
        if not code:
            return ""
        output.seek(max(0, output.seek(0, os.SEEK_END) - _LAST_BYTES))
        text = output.read().decode(errors="replace")
    log.warning("%s ended with %d: %s", command[0], code, text)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    return f"{command[0]} ended with {code}: {last[:200]}".removesuffix(": ")
