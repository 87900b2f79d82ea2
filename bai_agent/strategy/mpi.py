"""Runs Open MPI's launcher, for MPI programs and Horovod: https://docs.open-mpi.org and
https://horovod.readthedocs.io/en/stable/mpi.html

Node 0 starts `mpirun`, which logs in to the other nodes by SSH, and also runs processes of the benchmark. All
nodes except node 0 start sshd.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Mapping, Sequence

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import ARM
from bai_agent.job.descriptor.strategy_tables import MpiLaunch
from bai_agent.job.peers import COORDINATOR, Peer
from bai_agent.strategy import mpi_process, ssh_steps
from bai_agent.strategy.failure import Cause, Remains
from bai_agent.strategy.launch import Launch, Needs, Role, Setup, SshFrom, SshTo
from bai_agent.strategy.mpi_failure import explain
from bai_agent.strategy.mpi_process import RUN

_FOLDERS = ("/opt/amazon/openmpi/bin", "/opt/amazon/openmpi5/bin", "/opt/openmpi/bin")
"""Folders of Open MPI in AWS's images: two from the EFA installer, and one in AWS's containers."""

_AS_ROOT = {
    # Without OMPI_ALLOW_RUN_AS_ROOT and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM, mpirun refuses to run as root. These
    # variables have no effect for other users.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Open MPI 5 uses PRRTE's launcher.
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}

_PROCESS = (sys.executable, "-I", "-S", mpi_process.__file__)
"""Words that are put before the benchmark's command, so that each process writes its output to a file of its
own; see `mpi_process.py`."""

_SSH_STEPS = (sys.executable, "-I", "-S", ssh_steps.__file__)

_FOR_USERS_MPIRUN = {
    # If the benchmark's command starts mpirun itself, these variables replace the options that bai would pass
    # to mpirun (Open MPI 4 and 5).
    "OMPI_MCA_orte_default_hostfile": "$(BAI_HOSTFILE)",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_prte_default_hostfile": "$(BAI_HOSTFILE)",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}

_FROM_LAUNCHER_ALONE = {
    # With 64 or more nodes, mpirun would let nodes log in to further nodes, but only node 0 has the key.
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
}

_ON_ITS_NODE = ("/bin/sh", "-c", 'cd -- "$BAI_WORK_PATH" && exec "$@"', "sh")
"""Starts a process in the working folder of its own node. mpirun would use the working folder of node 0,
which possibly does not exist on other nodes."""

_ENGINE = re.compile(r"mpirun \(Open MPI\) (?P<version>(?P<major>[0-9]+)\.\S+)")


class Mpi:
    """One `mpirun` starts all processes of the benchmark on all nodes. Several nodes on the same machine are
    treated as one node with all of their processes."""

    modules: Mapping[str, str] = {}

    def check(self, job: Job) -> None:
        return

    def setup(self, job: Job, rank: int) -> Setup:
        # A command that starts mpirun itself can use an mpirun that is not on PATH.
        users = job.strategy.launch is MpiLaunch.USER and (rank == COORDINATOR or job.is_elastic)
        needs = self._needs(job)
        return Setup(program=None if users else "mpirun", needs=needs, ssh=True)

    def mismatch(self, peers: Sequence[Peer]) -> str | None:
        if strangers := [peer for peer in peers if peer.public_key is None]:
            return f"{strangers[0].title} has published no SSH key, because its agent has another version."
        found: dict[str, tuple[Peer, str]] = {}
        for peer in peers:
            if peer.engine is None:
                continue
            known = _ENGINE.fullmatch(peer.engine)
            if known is None:
                return f"The mpirun of {peer.mention} is not Open MPI's: its version is {peer.engine}."
            found.setdefault(known["major"], (peer, known["version"]))
        if len(found) < 2:
            return None
        which = " and ".join(f"{version} on {peer.mention}" for peer, version in found.values())
        return f"The nodes have different versions of Open MPI, which do not work together: {which}."

    def explain(self, job: Job, remains: Remains, me: Peer, peers: Sequence[Peer]) -> Cause | None:
        users = job.strategy.launch is MpiLaunch.USER
        return explain(remains.log, peers, ends=remains.processes, code=remains.code if users else None)

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        if me.rank != COORDINATOR:
            return self._serve(me, peers[COORDINATOR])
        alone = len(peers) == 1
        ssh = None if alone else SshTo(hosts=tuple(peers[1:]))
        ours = _AS_ROOT if alone else {**_AS_ROOT, **_FROM_LAUNCHER_ALONE, **_interfaces(job, peers)}
        if job.strategy.launch is MpiLaunch.USER:
            ours = {**ours, **_FOR_USERS_MPIRUN}
        env = {name: value for name, value in ours.items() if name not in job.benchmark.env}
        addresses = tuple(peer.address for peer in peers[1:])
        shown = [name for name in _handed_on(job) if name not in job.benchmark.secrets]
        each = () if alone else (*_SSH_STEPS, *addresses, "--", *shown, "--")
        if job.strategy.launch is MpiLaunch.USER:
            return Launch(
                argv=tuple(command),
                env=env,
                needs=Needs(modules=self.modules),
                ssh=ssh,
                on_each_node=each,
            )
        slots = sum(peer.slots for peer in peers)
        # The number after a host decides how many processes run on it, whatever its number of cores.
        # Processes are not bound to cores, because bound processes of two jobs would share the same cores.
        hosts = ",".join(f"{'127.0.0.1' if alone else peer.address}:{peer.slots}" for peer in peers)
        options = ["--host", hosts, *_binding(job), "-np", str(slots), *job.strategy.mpirun_options]
        if not alone:
            # The other nodes have the rest of the environment already, except for secrets, which are never
            # written to a disk. mpirun gets only names of variables, because values would be visible in ps.
            options += [word for name in _handed_on(job) for word in ("-x", name)]
        started = [*([] if alone else _ON_ITS_NODE), *_PROCESS, *command]
        return Launch(
            argv=("mpirun", *options, *started),
            env=env,
            needs=self._needs(job),
            ssh=ssh,
            on_each_node=each,
        )

    def _serve(self, me: Peer, launcher: Peer) -> Launch:
        assert launcher.public_key is not None  # see mismatch
        return Launch(
            argv=("sshd",),
            role=Role.SERVE,
            ssh=SshFrom(address=me.address, port=me.port, public_key=launcher.public_key),
        )

    def _needs(self, job: Job) -> Needs:
        table = job.strategy
        # With "gpus", the number of processes is not known here, so one process is assumed.
        processes = int(table.processes_per_node) if table.processes_per_node.isdecimal() else 1
        return Needs(
            folders=_FOLDERS,
            program="install Open MPI (Debian, Ubuntu: openmpi-bin)",
            modules=self.modules,
            cores=processes * (table.cpus_per_process or 0),
            own_program=mpi_process.__file__,
        )


class Horovod(Mpi):
    """The strategy `mpi` for programs that use Horovod."""

    modules: Mapping[str, str] = {
        "horovod": "install Horovod for that Python (the package horovod, built for its PyTorch by scripts/horovod)"
    }


def _handed_on(job: Job) -> list[str]:
    """Return the variables that mpirun must pass to the other nodes. The sshd of the other nodes does not
    have these variables, or has other values."""
    names = set(job.benchmark.secrets)
    if job.repeat is not None:
        names.add(RUN)
    if ARM in job.benchmark.env:
        names |= set(job.benchmark.env)
    return sorted(names)


def _binding(job: Job) -> tuple[str, ...]:
    if job.strategy.cpus_per_process is not None:
        return ("--map-by", f"slot:PE={job.strategy.cpus_per_process}", "--bind-to", "core")
    return () if "--bind-to" in job.strategy.mpirun_options else ("--bind-to", "none")


def _interfaces(job: Job, peers: Sequence[Peer]) -> dict[str, str]:
    """Return the variables that make Open MPI use the nodes' network instead of a container engine's bridge.

    A variable is left out if the job itself includes or excludes networks, because Open MPI does not allow
    both. Without a range of addresses, PRRTE, the launcher of Open MPI 5, tries all networks.
    """
    try:
        addresses = [int(ipaddress.IPv4Address(peer.address)) for peer in peers]
    except ValueError:  # names, or IPv6
        return {}
    differing = (min(addresses) ^ max(addresses)).bit_length()
    network = ipaddress.IPv4Network((min(addresses) >> differing << differing, 32 - differing))
    said = " ".join((*job.benchmark.env, *job.strategy.mpirun_options))
    return {
        f"OMPI_MCA_{each}_tcp_if_include": str(network)
        for each in ("btl", "oob")
        if f"{each}_tcp_if_" not in said
    }
