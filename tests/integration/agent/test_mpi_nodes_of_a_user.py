"""Several nodes under Open MPI whose benchmark runs as another user: real sshd, and agents of root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import records_of, result_of, wait_until
from mpi_node_agents import MpiNodes

import bai_agent

pytestmark = pytest.mark.root

_USER, _UID = "somebody", 64321
_SAY_WHO = """
echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on node $BAI_NODE_RANK is $(id -u) with $TOKEN"
echo "made by $OMPI_COMM_WORLD_RANK" > made-$OMPI_COMM_WORLD_RANK
until [ -e {flag} ]; do sleep 0.1; done
[ "$OMPI_COMM_WORLD_RANK" != 0 ] || echo loss=0.5
"""


@pytest.fixture
def flag(folder: Path) -> Path:
    return folder / "go"


@pytest.fixture
def nodes(folder: Path, flag: Path) -> Iterator[MpiNodes]:
    """Two nodes whose benchmark is the user's; only their agents see that account."""
    script = _SAY_WHO.format(flag=flag).replace("$", "$$")
    made = MpiNodes(
        folder,
        ["/bin/sh", "-c", script],
        benchmark={"user": _USER, "secrets": {"TOKEN": "env:PLANTED"}},
        metrics=[{"name": "loss", "pattern": r"loss=(\S+)", "required": True}],
        output={"artifacts": ["made-*"]},
    )
    accounts = folder / "passwd"
    accounts.write_text(f"{Path('/etc/passwd').read_text()}{_USER}:x:{_UID}:{_UID}::{folder}:/bin/sh\n")
    # In mounts of the agent's own the machine's accounts stay as they are, and its Python is where the user may enter.
    python = folder / "python"
    python.mkdir()
    program = Path(os.path.realpath(sys.executable)).relative_to(sys.base_prefix)
    mounts = f'mount --bind {accounts} /etc/passwd && mount --bind {sys.base_prefix} {python} && cd {folder} && exec "$@"'
    made.command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        mounts,
        "sh",
        str(python / program),
        "-m",
        "bai_agent",
        "run",
    ]
    shutil.copytree(Path(bai_agent.__file__).parent, folder / "program" / "bai_agent")
    made.env["PYTHONPATH"] = ":".join([str(folder / "program"), *filter(None, sys.path)])
    yield made
    made.close()


def test_processes_of_another_user_run_on_both_nodes(nodes: MpiNodes, flag: Path) -> None:
    for rank in (0, 1):
        nodes.start(rank, {"PLANTED": "s3cret"})
    _wait_for_both(nodes)
    daemons = [_owners(rundir=nodes.rundir(rank)) for rank in (0, 1)]
    flag.touch()

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0], nodes.output()

    lines = [line for line in nodes.output().splitlines() if line.startswith("rank")]
    assert sorted(lines) == [f"rank {rank} of 2 on node {rank} is {_UID} with s3cret" for rank in (0, 1)]
    assert nodes.result["outcome"] == "succeeded"
    assert [each["value"] for each in records_of(nodes.rundir(0)) if each["name"] == "loss"] == [0.5]
    # What runs the benchmark is the user's, and its sshd too: root lends it no rights.
    assert daemons == [{_UID}, {_UID}]
    for rank in (0, 1):
        made = nodes.rundir(rank) / "work" / f"made-{rank}"
        assert (made.stat().st_uid, made.read_text()) == (_UID, f"made by {rank}\n")
        assert not (nodes.rundir(rank) / "ssh").exists()
        assert result_of(nodes.rundir(rank))["outcome"] == "succeeded"


def test_killed_agents_of_another_users_nodes_continue(nodes: MpiNodes, flag: Path) -> None:
    for rank in (0, 1):
        nodes.start(rank, {"PLANTED": "s3cret"})
    _wait_for_both(nodes)
    for rank in (0, 1):
        nodes.kill(rank)
        nodes.start(rank, {"PLANTED": "s3cret"})
    flag.touch()

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0], nodes.output()

    assert nodes.output().count("with s3cret") == 2
    assert nodes.result["outcome"] == "succeeded"


def test_the_sshd_of_a_node_rejects_an_unknown_key(nodes: MpiNodes, flag: Path, folder: Path) -> None:
    for rank in (0, 1):
        nodes.start(rank, {"PLANTED": "s3cret"})
    _wait_for_both(nodes)
    told = json.loads((nodes.store / "job" / "attempts" / "0" / "joined" / "1.json").read_bytes())
    key = folder / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=60)

    for account in (_USER, "root"):
        options = [
            f"UserKnownHostsFile={folder / 'hosts'}",
            "StrictHostKeyChecking=no",
            "NumberOfPasswordPrompts=0",
        ]
        words = [word for each in options for word in ("-o", each)]
        place = ["-p", str(told["port"]), "-i", str(key), f"{account}@{told['address']}"]
        tried = subprocess.run(
            ["ssh", "-F", "none", *words, *place, "id"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (tried.returncode, tried.stdout) == (255, "")
        assert "Permission denied (publickey)" in tried.stderr

    flag.touch()
    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0], nodes.output()


def test_a_user_who_cannot_read_the_agents_python_files_is_reported(nodes: MpiNodes, folder: Path) -> None:
    (folder / "program").chmod(0o700)

    assert nodes.run({rank: {"PLANTED": "s3cret"} for rank in (0, 1)}) == [5, 5]

    file = folder / "program" / "bai_agent" / "strategy" / "mpi_process.py"
    assert f'user "{_USER}" cannot run {file} with the Python of bai-agent' in nodes.result["sentence"]
    assert "not below /root" in nodes.result["sentence"]


def _wait_for_both(nodes: MpiNodes) -> None:
    wait_until(lambda: nodes.output().count("with s3cret") == 2 or nodes.agents[0].poll() is not None)
    assert nodes.agents[0].poll() is None, (nodes.output(), nodes.result["sentence"])


def _owners(*, rundir: Path) -> set[int]:
    """Return the users of all processes that have a node's mark."""
    listed = subprocess.run(
        ["ps", "-eo", "uid=,pid="], capture_output=True, text=True, check=True, timeout=60
    )
    owners = set()
    for line in listed.stdout.splitlines():
        uid, pid = map(int, line.split())
        try:
            environment = Path("/proc", str(pid), "environ").read_bytes()
        except OSError:
            continue
        if f"BAI_RUN_DIR={rundir}".encode() in environment.split(b"\0"):
            owners.add(uid)
    return owners
