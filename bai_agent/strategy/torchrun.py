"""PyTorch's launcher on every node: https://docs.pytorch.org/docs/stable/elastic/run.html"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.peers import Peer
from bai_agent.strategy.failure import Cause, Remains
from bai_agent.strategy.launch import LAUNCHER_FOLDER, Launch, Needs
from bai_agent.strategy.torchrun_failure import OWN_FILE, explain


class Torchrun:
    """`torchrun` on each node; the coordinator's holds the store in which they meet.

    Its rendezvous is static: ranks are ours. A restart is a new torchrun on each node. The benchmark's
    command is started unchanged, as each of the processes.
    """

    def check(self, job: Job) -> None:
        if job.repeat is not None and job.strategy.max_restarts:
            raise DescriptorError(
                "[strategy] max_restarts: a job with [repeat] is not restarted, as a run that was restarted measures nothing; "
                "remove one of them"
            )

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        options = {
            "nnodes": str(len(peers)),
            "nproc-per-node": str(me.slots),
            **_static(job, me, peers),
            "rdzv-id": f"{job.job.id}-{job.job.attempt}",
            "local-addr": me.address,
            "max-restarts": "0",
            "monitor-interval": "0.1",
            # torchrun passes on the output of the processes unchanged.
            "redirects": "0",
            "tee": "0",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        return Launch(
            argv=("torchrun", *words, "--no-python", "--", *command),
            env=_environment(job, me, alone=len(peers) == 1),
            needs=Needs(
                program="install PyTorch (the package torch) where the benchmark's PATH finds it, or name its Python with [env] python",
                cpus=me.slots * (job.strategy.cpus_per_process or 0),
            ),
        )

    def explain(self, job: Job, remains: Remains, me: Peer, peers: Sequence[Peer]) -> Cause | None:
        return explain(remains, me, peers)


def _static(job: Job, me: Peer, peers: Sequence[Peer]) -> Mapping[str, str]:
    coordinator = peers[0]
    return {
        "node-rank": str(me.rank),
        "rdzv-backend": "static",
        "rdzv-conf": f"timeout={_join_seconds(job)}",
        "master-addr": coordinator.address,
        "master-port": str(coordinator.port),
    }


def _join_seconds(job: Job) -> int:
    """All nodes have met when it begins; a rendezvous of no time at all would be none."""
    return max(1, int(job.limits.join.total_seconds()))


def _environment(job: Job, me: Peer, *, alone: bool) -> Mapping[str, str]:
    # By a variable, since the value of an option would have to be known here.
    environment = {
        "PET_LOG_DIR": f"$({LAUNCHER_FOLDER})",
        "TORCHELASTIC_ERROR_FILE": f"$({LAUNCHER_FOLDER})/{OWN_FILE}",
    }
    if "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" not in job.benchmark.env:
        # Else it ends its processes 30 s after SIGTERM, however long they may take (PyTorch 2.12 and later read this).
        environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(job.limits.grace.total_seconds()))
    if job.strategy.cpus_per_process is not None and "OMP_NUM_THREADS" not in job.benchmark.env:
        # torchrun binds processes to the CPUs near their GPUs, or not at all; unset, it makes this 1 where there are several.
        environment["OMP_NUM_THREADS"] = str(job.strategy.cpus_per_process)
    if not alone and me.interface is not None and "GLOO_SOCKET_IFNAME" not in job.benchmark.env:
        # Gloo looks up the host's own name, and uses the loopback address if the name is unknown, or /etc/hosts maps it
        # so.
        environment["GLOO_SOCKET_IFNAME"] = me.interface
    return environment
