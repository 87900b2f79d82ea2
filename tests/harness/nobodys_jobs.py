"""Runs jobs whose agent is root's and whose benchmark is the user "nobody"'s, and acts as that user."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

from agent_runs import run_agent, write_job


def nobody() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def as_nobody(script: str, *arguments: str | Path, cwd: Path) -> int:
    """Run a script as a process of the benchmark's user could do now; return the exit code."""
    drop = ["setpriv", f"--reuid={nobody().pw_uid}", f"--regid={nobody().pw_gid}", "--clear-groups"]
    command = [*drop, "sh", "-c", script, "sh", *arguments]
    return subprocess.run(command, cwd=cwd, timeout=60, check=False).returncode


def what_is_in(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return owner, permissions, size and time of a folder and of everything below it."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        found[str(path)] = (
            status.st_uid,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_nlink,
        )
    return found


def node_of(folder: Path) -> Path:
    return folder / "store" / "job" / "attempts" / "0" / "nodes" / "0"


def nobodys_job(folder: Path, argv: list[str], **tables: Any) -> Path:
    return write_job(
        folder,
        argv,
        benchmark={"user": "nobody", **tables.pop("benchmark", {})},
        store={"url": (folder / "store").as_uri()},
        **tables,
    )


def run_job(job: Path, node: Path, **more: Any) -> int:
    """Run an agent to its end; return its exit code."""
    code = run_agent(job, node, **more)
    assert (node / "result.json").exists(), job.with_suffix(".out").read_text()
    return code


def scripts_source(scripts: Path) -> dict[str, Any]:
    return {"kind": "scripts", "src": scripts.as_uri(), "path": ".", "directory": True}


def left_in(node: Path, name: str, script: str, *arguments: str | Path) -> None:
    """Run a script as the benchmark's user in one of its folders, before the agent uses this folder."""
    for each in (node, *node.parents):
        if each.name == "store":
            break
        each.mkdir(mode=0o755, parents=True, exist_ok=True)
        each.chmod(0o755)
    (node / name).mkdir()
    os.chown(node / name, nobody().pw_uid, nobody().pw_gid)
    as_nobody(script, *arguments, cwd=node / name)
