"""Nodes of a multi-node job that `bai` has started on this machine: their files, and the loss of a node."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

from agent_runs import is_alive
from local_cli import LocalCli


def node_folder(cli: LocalCli, job_id: str, node: int) -> Path:
    """Return the run directory of a node."""
    return cli.store / cli.record(job_id).node(node).place


def node_output(cli: LocalCli, job_id: str, node: int) -> str:
    """Return the benchmark's output on a node."""
    path = node_folder(cli, job_id, node) / "output.log"
    return path.read_text() if path.exists() else ""


def kill_node(cli: LocalCli, job_id: str, node: int) -> None:
    """Kill all processes of a node at once, as if its machine was powered off."""
    folder = node_folder(cli, job_id, node)
    found = [int(json.loads((folder / "ready.json").read_text())["pid"])]
    for file in folder.glob("**/started.json"):
        started = json.loads(file.read_text())
        found += [started["shim_pid"], started["pid"]]
    for pid in found:
        if is_alive(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
