"""Replaces Ray, whose head takes many seconds to start: a program and a module `ray` with Ray's options.

The head listens at its port, and the other nodes connect to it. The file `nodes` of a shared folder has the
addresses of the running nodes. The arguments and the token of each start are written into the folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VERSION = "2.60.0"
_PROGRAM = r"""#!{python}
import json, os, signal, socket, sys, threading, time
from pathlib import Path

shared = Path({shared!r})
if sys.argv[1:] == ["--version"]:
    print("ray, version {version}")
    sys.exit()
options = dict(each[2:].partition("=")[::2] for each in sys.argv[2:])
is_head, address = "head" in options, options["node-ip-address"]
token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
what = dict(
    argv=sys.argv[1:],
    pid=os.getpid(),
    token=token.read_text(),
    mode=oct(token.stat().st_mode),
    env={{name: value for name, value in os.environ.items() if name.startswith(("RAY_", "BAI_RAY_"))}},
)
(shared / f"started-{{address}}").write_text(json.dumps(what))
told = (shared / "told").read_text().split() if (shared / "told").exists() else []
if "fails" in told:
    sys.exit("ConnectionError: this Ray is broken")
if "hangs" in told:
    time.sleep(3600)

def end(*_):
    (shared / "nodes" / address).unlink(missing_ok=True)
    (shared / f"ended-{{address}}").touch()
    os._exit(0)

signal.signal(signal.SIGTERM, end)
if is_head:
    server = socket.create_server((address, int(options["port"])))
else:
    host, port = options["address"].split(":")
    socket.create_connection((host, int(port)), timeout=60)
(shared / "nodes" / address).write_text(str(os.getpid()))
print("Ray runtime started.", flush=True)
while True:
    time.sleep(0.05)
"""
_MODULE = """
import os, socket
from pathlib import Path

def init(address, **_):
    host, port = address.split(":")
    assert os.environ["RAY_AUTH_MODE"] == "token"
    socket.create_connection((host, int(port)), timeout=60).close()

def nodes():
    return [dict(NodeManagerAddress=each.name, Alive=is_alive(each)) for each in Path({nodes!r}).iterdir()]

def is_alive(node):
    try:
        return Path("/proc", node.read_text(), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False
"""
_METADATA = "Metadata-Version: 2.1\nName: ray\nVersion: {version}\n"


class StandInRay:
    """Files of the stand-in in a folder."""

    def __init__(self, folder: Path, *, version: str = VERSION) -> None:
        self.shared = folder / "shared-ray"
        self.programs, self.packages = self.shared / "bin", self.shared / "packages"
        for each in (self.programs, self.packages, self.shared / "nodes"):
            each.mkdir(parents=True)
        program = self.programs / "ray"
        program.write_text(_PROGRAM.format(python=sys.executable, shared=str(self.shared), version=version))
        program.chmod(0o755)
        (self.packages / "ray.py").write_text(_MODULE.format(nodes=str(self.shared / "nodes")))
        metadata = self.packages / f"ray-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(_METADATA.format(version=version))

    @property
    def env(self) -> dict[str, str]:
        """Variables with which a benchmark finds the stand-in."""
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.packages),
        }

    def tell(self, *words: str) -> None:
        """Make each later start fail (`fails`) or hang (`hangs`)."""
        (self.shared / "told").write_text(" ".join(words))

    def nodes(self) -> list[str]:
        """Return the addresses of the running nodes."""
        return sorted(each.name for each in (self.shared / "nodes").iterdir())
