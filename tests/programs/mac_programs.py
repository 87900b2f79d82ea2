"""Runs programs as on a Mac, without the features that only Linux has."""

from __future__ import annotations

from pathlib import Path

_SITECUSTOMIZE = """
import fcntl, os, select, signal, socket, sys, sysconfig, types

sysconfig.get_config_vars()  # read once, from a file of the real system's
sys.platform = "darwin"
_ONLY_LINUX = {
    os: (
        "pipe2 pidfd_open memfd_create eventfd copy_file_range splice posix_fadvise posix_fallocate setns unshare "
        "sched_getaffinity sched_setaffinity getxattr setxattr listxattr getrandom O_TMPFILE O_PATH O_DIRECT "
        "fdatasync preadv2 pwritev2 getresuid setresuid PRIO_DARWIN"
    ),
    signal: "pidfd_send_signal sigwaitinfo sigtimedwait SIGRTMIN SIGRTMAX SIGPWR",
    select: "epoll EPOLLIN",
    socket: "AF_NETLINK AF_PACKET AF_ALG SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK",
    fcntl: "F_SETPIPE_SZ F_GETPIPE_SZ F_OFD_SETLK F_ADD_SEALS F_NOTIFY",
}
for _module, _names in _ONLY_LINUX.items():
    for _name in _names.split():
        if hasattr(_module, _name):
            delattr(_module, _name)

_linux = os.uname()
os.uname = lambda: os.uname_result(("Darwin", _linux.nodename, "24.0.0", "Darwin Kernel", "arm64"))
_proxies = types.ModuleType("_scproxy")
_proxies._get_proxy_settings = _proxies._get_proxies = dict
sys.modules["_scproxy"] = _proxies


def _without_proc(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc/", "/sys/", "/dev/shm/sem.")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])
    if event == "import" and arguments[0] in ("spwd", "ossaudiodev", "_posixshmem"):
        raise ModuleNotFoundError(arguments[0])


sys.addaudithook(_without_proc)
"""


def mac(folder: Path) -> dict[str, str]:
    """Return variables with which a Python, and all Pythons that it starts, take this machine for a Mac."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    return {"PYTHONPATH": str(folder)}
