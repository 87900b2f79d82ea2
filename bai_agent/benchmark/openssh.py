"""Sets up OpenSSH for one job. A node's keys and the files of ssh and sshd are in one folder, which is
deleted after the run.

The machine's own configuration of OpenSSH is neither read nor changed. Sources: sshd_config(5),
ssh_config(5), sshd(8) for known_hosts and authorized_keys.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bai_agent.benchmark.children import run_in_session
from bai_agent.benchmark.environment import DEFAULT_PATH
from bai_agent.benchmark.programs import ask
from bai_agent.benchmark.user_access import give_to, open_way
from bai_agent.errors import NoAnswerError, SetupError
from bai_agent.files.user_rights import User
from bai_agent.job.peers import Peer
from bai_agent.job.run_directory import RunDir, make_folder, write_atomic
from bai_agent.strategy.launch import SshFrom, SshTo

log = logging.getLogger(__name__)

KEY = "key"
"""File name of this node's SSH key, which is the node's client key or the host key of its sshd. `key.pub` is
the public part of the key."""
SSHD_CONFIG = "sshd_config"
CLIENTS = "bin"
"""Name of the folder that is added to PATH. The `ssh` in this folder uses the SSH configuration of this
job."""
_ENTER = "enter"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/bin", "/usr/local/bin", "/bin")
"""Folders in which OpenSSH's programs are searched after the folders of the benchmark's PATH."""
_INSTALL_SECONDS = 300.0
"""Time limit for the installation of OpenSSH (seconds)."""
_LAST_BYTES = 2000
"""Number of bytes of an installer's output that are logged."""
_KEYGEN_SECONDS = 30.0
_RUN_SSHD = Path("/run/sshd")
"""Folder without which Debian's sshd does not start as root. Only Debian's system service of sshd creates the
folder."""
_PLAIN = re.compile(r"[A-Za-z0-9/._+,=@-]+")
_INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
)
"""Variables of the agent's environment that are passed to processes that another node starts on this node.
Other variables are not passed, because they may contain secrets."""
_APT = "apt-get -o DPkg::Lock::Timeout=120"
_INSTALLERS = {
    "apt-get": f"{_APT} update; {_APT} install --yes --no-install-recommends openssh-server openssh-client",
    "dnf": "dnf --assumeyes install openssh-server openssh-clients",
    "zypper": "zypper --non-interactive install openssh",
    "yum": "yum --assumeyes install openssh-server openssh-clients",
    "apk": "apk add openssh",
}
"""Command that installs OpenSSH, by package manager."""
_NO_SERVICE = "systemctl mask --runtime ssh.service ssh.socket sshd.service; "
"""Command that keeps the packaged ssh service from starting. The packaged service would accept logins of
every user who has a password on this machine."""


def require_openssh(
    *,
    serves: bool | None,
    path: str,
    may_install: bool,
    user: User | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Find the OpenSSH programs of a node that logs in to other nodes, or that `serves` other nodes (None:
    both). Raises SetupError, Stopped.

    may_install: whether the package manager may install missing programs, because this machine only runs this
    job. path: the benchmark's PATH. Programs that run as root are not searched in this PATH, because `user`
    can write to its folders.
    """
    own_path = path if user is None else DEFAULT_PATH
    roles = ("ssh", "sshd") if serves is None else ("sshd" if serves else "ssh",)
    wanted = {"ssh-keygen": own_path, **dict.fromkeys(roles, path)}
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
    """Return the public part of this node's key, creating the key if needed. Raises SetupError.

    The private key belongs to the benchmark's user and never leaves this machine. The folder of the key
    belongs to the agent's user, so that no other user can replace the key's files.
    """
    folder = rundir.ssh
    key = folder / KEY
    public = key.with_suffix(".pub")
    if not public.exists():
        # A kill may have left an incomplete key.
        key.unlink(missing_ok=True)
        make_folder(folder, private=rundir.path)
        _keygen(key, path if user is None else DEFAULT_PATH)
    if user is not None:
        open_way(folder, top=folder)
        give_to(user, key)
    # A third word of the public key would be a comment.
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
    """Write the files of an sshd, and return its command. Processes that the sshd starts get the variables of
    `env`, except secrets and variables that have the same value in `inherited`.

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
    # sshd starts a copy of itself by this path for each connection, so the path must be absolute.
    return (str(sshd), "-D", "-e", "-f", str(rundir.ssh / SSHD_CONFIG))


def ready_client(client: SshTo, rundir: RunDir, *, env: Mapping[str, str], user: User | None) -> str:
    """Write the files with which `ssh ADDRESS` reaches the other nodes. Return the PATH on which this `ssh`
    is found. Raises SetupError."""
    _require_plain(rundir.ssh)
    _write(client_files(rundir.ssh, client.hosts, ssh=_require("ssh", env["PATH"])), rundir, user)
    return f"{rundir.ssh / CLIENTS}:{env['PATH']}"


def _find(program: str, path: str) -> Path | None:
    found = shutil.which(program, path=":".join([path, *_FOLDERS]))
    return None if found is None else Path(found).absolute()


def _require(program: str, path: str) -> Path:
    found = _find(program, path)
    if found is None:
        raise SetupError(f"{program} was on this machine when the node joined, but is gone now")
    return found


def _require_plain(folder: Path) -> None:
    if _PLAIN.fullmatch(str(folder)) is None:
        raise SetupError(
            f"sshd cannot use files in {folder}: its path may only contain letters, digits and / . _ + , = @ -; "
            "keep the job elsewhere (--store or BAI_STORE; bai-agent: --dir)"
        )


def _account(user: User | None) -> str:
    if user is not None:
        return user.name
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise SetupError(
            f"sshd needs a user account, and the user id {os.geteuid()} has no account on this machine; set [env] user to an account"
        ) from None


def _is_locked(account: str) -> bool:
    """Return whether the account's password is locked. sshd without PAM rejects all logins to a locked
    account."""
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
    """Install OpenSSH with this machine's package manager, if bai supports this package manager. Return the
    reason of a failure as a part of a sentence; "" if the installation succeeded.

    Raises Stopped.
    """
    manager = next((name for name in _INSTALLERS if shutil.which(name, path=path)), None)
    if manager is None:
        return ""
    log.info("OpenSSH is missing; installing it")
    line = (_NO_SERVICE if shutil.which("systemctl", path=path) else "") + _INSTALLERS[manager]
    # A package manager starts further programs, which the job's own PATH may lack.
    env = {
        "PATH": f"{path}:{DEFAULT_PATH}",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    with tempfile.TemporaryFile() as output:
        deadline = time.monotonic() + _INSTALL_SECONDS
        try:
            code = run_in_session(
                ["/bin/sh", "-c", line], output, env=env, deadline=deadline, stopping=stopping
            )
        except subprocess.TimeoutExpired:
            return f", and could not be installed ({manager} did not finish within {_INSTALL_SECONDS:.0f} s, and was ended)"
        output.seek(max(0, output.seek(0, os.SEEK_END) - _LAST_BYTES))
        text = output.read().decode(errors="replace")
    if not code:
        return ""
    log.warning("%s ended with %d: %s", manager, code, text)
    last = next((each.strip() for each in reversed(text.splitlines()) if each.strip()), "")
    why = f"{manager} ended with {code}: {last[:200]}".removesuffix(": ")
    return f", and could not be installed ({why})"


def server_files(
    folder: Path, server: SshFrom, *, account: str, use_pam: bool, env: Mapping[str, str], cwd: Path
) -> dict[str, str]:
    """Return the files of an sshd as a dictionary from name to text. The sshd only admits the holder of one
    key, as `account`.

    Each command starts in `cwd`. Its environment is `env`, without variables whose names are invalid in a
    shell. use_pam: must be True if the account's password is locked.
    """
    address = f"[{server.address}]" if ":" in server.address else server.address
    config = {
        "ListenAddress": f"{address}:{server.port}",
        "HostKey": folder / KEY,
        "AuthorizedKeysFile": folder / "authorized_keys",
        # StrictModes checks the owners of all folders above, and a job store may be in a folder that others
        # can write. The check is not needed, because only the account can access the folder of these files.
        "StrictModes": "no",
        "UsePAM": "yes" if use_pam else "no",
        "AllowUsers": account,
        "PermitRootLogin": "prohibit-password",
        "AuthenticationMethods": "publickey",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "DisableForwarding": "yes",
        "PermitTTY": "no",
        "PermitUserRC": "no",
        "PidFile": "none",
        "UseDNS": "no",
        "PrintMotd": "no",
        "LogLevel": "ERROR",
        "ForceCommand": folder / _ENTER,
    }
    assigned = [shlex.quote(f"{name}={value}") for name, value in env.items() if _VARIABLE.fullmatch(name)]
    enter = [
        "#!/bin/sh",
        f"cd -- {shlex.quote(str(cwd))} || exit",
        # Variables are not set by `export`, because names that a shell reserves, such as bash's UID, would
        # end this script.
        " ".join(["exec /usr/bin/env", *assigned, '/bin/sh -c "$SSH_ORIGINAL_COMMAND"']),
    ]
    return {
        SSHD_CONFIG: _lines(f"{name} {value}" for name, value in config.items()),
        "authorized_keys": _lines([server.public_key]),
        _ENTER: _lines(enter),
    }


def client_files(folder: Path, hosts: Sequence[Peer], *, ssh: Path) -> dict[str, str]:
    """Return the files of an `ssh` as a dictionary from name to text. The `ssh` logs in to `hosts` and trusts
    only their published keys.

    ssh: path of the machine's own ssh program. For hosts that are not in `hosts`, `ssh` uses the user's and
    the machine's usual configuration.
    """
    addresses = [peer.address for peer in hosts]
    config = []
    for peer in hosts:
        config += [f"Host {peer.address}", f"    Port {peer.port}"]
    known_hosts = folder / "known_hosts"
    config += [
        f"Host {' '.join(addresses)}",
        f"    IdentityFile {folder / KEY}",
        "    IdentitiesOnly yes",
        "    IdentityAgent none",
        f"    UserKnownHostsFile {known_hosts}",
        "    GlobalKnownHostsFile none",
        "    StrictHostKeyChecking yes",
        "    UpdateHostKeys no",
        "    BatchMode yes",
        "    ConnectTimeout 20",
        "    LogLevel ERROR",
        f"Host * {' '.join(f'!{each}' for each in addresses)}",
        "    Include ~/.ssh/config",
        "    Include /etc/ssh/ssh_config",
    ]
    config_file = folder / "ssh_config"
    return {
        config_file.name: _lines(config),
        known_hosts.name: _lines(f"[{peer.address}]:{peer.port} {peer.public_key}" for peer in hosts),
        f"{CLIENTS}/ssh": _lines(["#!/bin/sh", f'exec {ssh} -F {config_file} "$@"']),
    }


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
