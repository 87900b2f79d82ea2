"""Waiting for the other nodes to let the launcher in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from run_contexts import ScriptedStopSource, SteppingClock, make_context

from bai_agent.benchmark.start import Order
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.run_directory import RunDir
from bai_agent.nodes.peer_services import wait_for_hosts
from bai_agent.runtime.stop import RunEndedError, StopReason

HOSTS = tuple(Peer(rank=rank, address=f"10.0.0.{rank}", port=4000 + rank) for rank in (1, 2))


def order(folder: Path, ssh: str) -> Order:
    """Return the order of a launch whose `ssh` is a script for sh."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{ssh}\n")
    program.chmod(0o755)
    env: Mapping[str, str] = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    return Order(argv=("mpirun",), env=env, cwd=folder, grace=timedelta(seconds=1), hosts=HOSTS)


def test_a_host_that_refuses_the_login_is_named_in_a_sentence(rundir: RunDir, tmp_path: Path) -> None:
    words = 'case $1 in 10.0.0.2) echo "root@10.0.0.2: Permission denied (publickey)." >&2; exit 255;; esac'

    with pytest.raises(RunEndedError) as ended:
        wait_for_hosts(make_context(rundir, clock=SteppingClock(step=10.0)), order(tmp_path, words))

    assert ended.value.reason.outcome is Outcome.JOIN_FAILED
    assert ended.value.reason.message == (
        "Node 2 (10.0.0.2) accepted no SSH login of node 0 at port 4002 within 60 s: root@10.0.0.2: Permission denied "
        "(publickey). Nodes must reach each other on all ports."
    )


def test_a_host_that_answers_late_is_waited_for(rundir: RunDir, tmp_path: Path) -> None:
    words = f"[ -e {tmp_path}/$1 ] || {{ : > {tmp_path}/$1; exit 255; }}"

    wait_for_hosts(make_context(rundir), order(tmp_path, words))

    assert all((tmp_path / peer.address).exists() for peer in HOSTS)


def test_a_stop_ends_the_wait_for_ssh_to_the_other_nodes(rundir: RunDir, tmp_path: Path) -> None:
    stop = ScriptedStopSource(StopReason(Outcome.PEER_FAILED, "Node 1: sshd ended."), after=2)

    with pytest.raises(RunEndedError, match="sshd ended"):
        wait_for_hosts(make_context(rundir, sources=[stop]), order(tmp_path, "sleep 0.3; exit 255"))
