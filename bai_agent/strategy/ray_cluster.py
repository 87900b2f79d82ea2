"""Runs Ray on every node. The benchmark's command runs on the first node and uses all nodes:
https://docs.ray.io

Ray itself continues with nodes that join, and without nodes that leave. Only the loss of the first node,
which runs Ray's head, ends a generation of the job.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.peers import COORDINATOR, Peer
from bai_agent.job.record_types import Count, Text
from bai_agent.light_dataclass import dataclass
from bai_agent.strategy import ray_node
from bai_agent.strategy.each_node import loopback_address, require_one_process
from bai_agent.strategy.failure import Cause, Remains, left_note
from bai_agent.strategy.launch import LAUNCHER_FOLDER, RUN_TOKEN, Launch, Needs, Role, Setup

VERSION = "2.60.0"
"""Version of Ray that is known to work with this strategy."""
_ADVICE = f"install Ray for the benchmark's Python (the package ray, version {VERSION})"
_FAILURE = "ray.json"
_ALONE = "127.0.0.1"
"""Address of a node in a job that never has other nodes."""
_PROGRAM = (sys.executable, "-I", "-S", ray_node.__file__)


class Ray:
    """Starts Ray's head and the benchmark's command on the first node, and only Ray on the other nodes."""

    def check(self, job: Job) -> None:
        require_one_process(
            job,
            "ray starts the command once, on the first node",
            "Ray starts the processes of its tasks itself",
        )
        if job.repeat is not None and job.strategy.nodes > 1:
            raise DescriptorError(
                "[repeat]: ray on several nodes runs the command once, because the other nodes join Ray only once; "
                "remove it, or use one node"
            )

    def setup(self, job: Job, rank: int) -> Setup:
        needs = Needs(program=_ADVICE, modules={"ray": _ADVICE}, own_program=ray_node.__file__)
        return Setup(program="ray", needs=needs, versions={"ray": (VERSION,)})

    def mismatch(self, peers: Sequence[Peer]) -> str | None:
        engines = sorted({each.engine for each in peers if each.engine is not None})
        if len(engines) < 2:
            return None
        return (
            f"The nodes have different versions of Ray, which do not work together: {' and '.join(engines)}."
        )

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        is_head = me.rank == COORDINATOR
        on_this_machine = me.instance_id is None
        # The address is given explicitly. Without an address, Ray on a node that never has other nodes would
        # use the machine's first address.
        addresses = [
            loopback_address(job, each.node) if each.address == _ALONE else each.address for each in peers
        ]
        options = {
            "role": "head" if is_head else "worker",
            "address": addresses[me.rank],
            "port": str(peers[0].port),
            "nodes": ",".join(addresses),
            "least": str(job.strategy.min_nodes or len(peers)),
            "join": f"{job.limits.join.total_seconds():g}",
            "share": str(job.strategy.nodes if on_this_machine else 1),
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        return Launch(
            argv=(*_PROGRAM, *words, "--", *(command if is_head else ())),
            env={
                ray_node.TOKEN: f"$({RUN_TOKEN})",
                ray_node.FAILURE_FILE: f"$({LAUNCHER_FOLDER})/{_FAILURE}",
            },
            needs=Needs(modules={"ray": _ADVICE}, own_program=ray_node.__file__),
            role=Role.COMPUTE if is_head else Role.SERVE,
        )

    def local_address(self, job: Job, node: int) -> str:
        return loopback_address(job, node)

    def explain(self, job: Job, remains: Remains, me: Peer, peers: Sequence[Peer]) -> Cause | None:
        note = left_note(_Note, remains, path=_FAILURE)
        if note is None:
            return None
        message = " ".join(note.message.split())
        return Cause(process="Ray", code=remains.code, message=message, failed=note.time)


@dataclass(frozen=True, kw_only=True)
class _Note:
    """The note in which `ray_node.py` explains why Ray does not work."""

    message: Text
    time: Count
