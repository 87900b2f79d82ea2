"""Runs AdaptDL's replicas on every node. The replicas save their state, exit and are started again when nodes
join or leave: https://adaptdl.readthedocs.io

Scripts run unchanged. Each node starts a spawner, which starts one replica for each slot of the node. The
agent is AdaptDL's supervisor (`peers/adaptdl_supervisor.py`). Each restart of the replicas is a generation of
the job.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.peers import Peer
from bai_agent.job.record_types import Count
from bai_agent.light_dataclass import dataclass
from bai_agent.strategy import adaptdl_spawner
from bai_agent.strategy.failure import Cause, Remains, left_note
from bai_agent.strategy.launch import LAUNCHER_FOLDER, Launch, Needs, Setup
from bai_agent.strategy.torchrun import pytorch_environment

VERSION = "0.2.11"
"""Version of AdaptDL that is known to work with this strategy. AdaptDL gets this version as the version of
its scheduler, and compares it with its own version."""
_FAILURE = "replica.json"
_SPAWNER = (sys.executable, "-I", "-S", adaptdl_spawner.__file__)


class AdaptDl:
    """Starts a spawner on each node. The spawner runs the benchmark's command once per replica."""

    def check(self, job: Job) -> None:
        if not job.is_elastic:
            raise DescriptorError(
                "[strategy] min_nodes: adaptdl runs on a range of nodes, but min_nodes is missing; for a fixed number, set it to nodes"
            )
        if job.checkpoint is None or job.checkpoint.shared:
            raise DescriptorError(
                "[checkpoint]: adaptdl needs a folder that bai copies to all nodes; set path, and leave out shared"
            )

    def setup(self, job: Job, rank: int) -> Setup:
        return Setup(
            needs=Needs(
                modules={
                    "adaptdl": f"install AdaptDL for that Python (the package adaptdl, version {VERSION})",
                    "requests": "install the package requests for that Python: AdaptDL needs it",
                    "torch": "install PyTorch for that Python (the package torch): AdaptDL needs it",
                },
                own_program=adaptdl_spawner.__file__,
            ),
            versions={"adaptdl": (VERSION,)},
        )

    def mismatch(self, peers: Sequence[Peer]) -> str | None:
        return None

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        first = sum(peer.slots for peer in peers[: me.rank])
        grace = f"{job.limits.grace.total_seconds():g}"
        return Launch(
            argv=(*_SPAWNER, str(first), str(me.slots), grace, "--", *command),
            env=_environment(job, me, peers),
            needs=Needs(
                cpus=me.slots * (job.strategy.cpus_per_process or 0), own_program=adaptdl_spawner.__file__
            ),
        )

    def explain(self, job: Job, remains: Remains, me: Peer, peers: Sequence[Peer]) -> Cause | None:
        note = left_note(_Note, remains, path=_FAILURE)
        if note is None:
            return None
        return Cause(
            process=f"replica {note.rank} (local rank {note.local})",
            code=note.code,
            signal=note.signal,
            failed=note.time,
        )


def _environment(job: Job, me: Peer, peers: Sequence[Peer]) -> Mapping[str, str]:
    """Return the AdaptDL variables that are the same for all replicas of a node. The agent adds further
    variables with the supervisor's address."""
    environment = {
        "ADAPTDL_CHECKPOINT_PATH": "$(BAI_CHECKPOINT_DIR)",
        "ADAPTDL_MASTER_ADDR": peers[0].address,
        "ADAPTDL_MASTER_PORT": str(peers[0].port),
        "ADAPTDL_NUM_NODES": str(len(peers)),
        "ADAPTDL_NUM_REPLICAS": str(sum(peer.slots for peer in peers)),
        "ADAPTDL_NUM_RESTARTS": "$(BAI_GENERATION)",
        "ADAPTDL_SCHED_VERSION": VERSION,
        adaptdl_spawner.FAILURE_FILE: f"$({LAUNCHER_FOLDER})/{_FAILURE}",
    }
    # AdaptDL's checkpoints contain more than weights. Without this variable, PyTorch 2.6 and later refuses to
    # load such checkpoints.
    weights = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    return {**environment, **pytorch_environment(job, me, alone=len(peers) == 1, more=weights)}


@dataclass(frozen=True, kw_only=True)
class _Note:
    """The spawner's note about the first replica that failed."""

    rank: Count
    local: Count
    code: Count | None
    signal: Count | None
    time: Count
