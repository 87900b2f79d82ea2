"""PyTorch's launcher on every node: https://docs.pytorch.org/docs/stable/elastic/run.html"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bai_agent.job.descriptor import Job
from bai_agent.job.peers import Peer
from bai_agent.strategy.failure import Cause, Remains
from bai_agent.strategy.launch import LAUNCHER_FOLDER, Launch, Needs
from bai_agent.strategy.torchrun_failure import OWN_FILE, explain


class Torchrun:
    """`torchrun` on each node; the coordinator's holds the store in which they meet.

    Without restarts its rendezvous is static: ranks are ours. With restarts it is c10d: torchrun gives ranks by the order of
    addresses, and anew at each restart. The benchmark's command is started as it stands, as each of the processes.
    """

    def check(self, job: Job) -> None:
        return

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        restarts = job.strategy.max_restarts
        rendezvous = _c10d(job, me, peers) if restarts else _static(job, me, peers)
        options = {
            "nnodes": str(len(peers)),
            "nproc-per-node": str(me.slots),
            **rendezvous,
            "rdzv-id": f"{job.job.id}-{job.job.attempt}",
            "local-addr": me.address,
            "max-restarts": str(restarts),
            "monitor-interval": "0.1",
            # What the processes print is printed here, as it is.
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
        return explain(remains, me, peers, ranks_are_ours=not job.strategy.max_restarts)


def _static(job: Job, me: Peer, peers: Sequence[Peer]) -> Mapping[str, str]:
    coordinator = peers[0]
    return {
        "node-rank": str(me.rank),
        "rdzv-backend": "static",
        "rdzv-conf": f"timeout={_join_seconds(job)}",
        "master-addr": coordinator.address,
        "master-port": str(coordinator.port),
    }


def _c10d(job: Job, me: Peer, peers: Sequence[Peer]) -> Mapping[str, str]:
    coordinator = peers[0]
    settings = {
        "is_host": str(me.rank == coordinator.rank).lower(),
        "join_timeout": _join_seconds(job),
        # How long it waits for more than the fewest nodes: there are as many as the most.
        "last_call_timeout": 1,
        "close_timeout": 30,
        # So long, too, a node waits for the coordinator's torchrun to begin: what stands before a run may take longer there.
        "read_timeout": max(60, _join_seconds(job)),
        # A node whose torchrun is silent for 15 s has left.
        "keep_alive_interval": 5,
        "keep_alive_max_attempt": 3,
    }
    return {
        "rdzv-backend": "c10d",
        "rdzv-endpoint": f"{coordinator.address}:{coordinator.port}",
        "rdzv-conf": ",".join(f"{name}={value}" for name, value in settings.items()),
    }


def _join_seconds(job: Job) -> int:
    """All nodes have met when it begins; a rendezvous of no time at all would be none."""
    return max(1, int(job.limits.join.total_seconds()))


def _environment(job: Job, me: Peer, *, alone: bool) -> Mapping[str, str]:
    # By a variable, as an option's value would have to be known here.
    environment = {
        "PET_LOG_DIR": f"$({LAUNCHER_FOLDER})",
        "TORCHELASTIC_ERROR_FILE": f"$({LAUNCHER_FOLDER})/{OWN_FILE}",
    }
    if job.strategy.max_restarts:
        # With a store that its processes share, a node that joins again breaks all (PyTorch 2.13 and 2.15).
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if job.strategy.cpus_per_process is not None and "OMP_NUM_THREADS" not in job.benchmark.env:
        # torchrun binds processes to the CPUs near their GPUs, or not at all; unset, it makes this 1 where there are several.
        environment["OMP_NUM_THREADS"] = str(job.strategy.cpus_per_process)
    if not alone and me.interface is not None and "GLOO_SOCKET_IFNAME" not in job.benchmark.env:
        # Gloo asks for the address of the host's own name, and takes the loopback's where nobody knows it, or /etc/hosts says so.
        environment["GLOO_SOCKET_IFNAME"] = me.interface
    return environment
