"""What the strategies of mpirun ask a node to start."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.strategy_tables import MpiLaunch, StrategyTable
from bai_agent.job.peers import Peer
from bai_agent.strategy import SetsUp, role_of, strategy_of
from bai_agent.strategy.launch import Launch, Role, SshFrom, SshTo

ME = Peer(rank=0, address="127.0.0.1", slots=4)
COMMAND = ("python3", "train.py")


def job(**table: object) -> Job:
    return Job(
        job=Identity(id="j"),
        benchmark=Benchmark(argv=COMMAND),
        strategy=StrategyTable(**table),  # type: ignore[arg-type]
    )


def peers(*addresses: str, engines: Sequence[str | None] = ()) -> list[Peer]:
    keys = [f"ssh-ed25519 {chr(ord('A') + rank) * 68}" for rank in range(len(addresses))]
    found = [
        Peer(rank=rank, address=address, slots=2, port=4000 + rank, public_key=keys[rank])
        for rank, address in enumerate(addresses)
    ]
    return [
        dataclasses.replace(each, engine=engine)
        for each, engine in zip(found, engines or [None] * len(found), strict=True)
    ]


NODES = peers("10.0.1.5", "10.0.1.200", "10.0.2.7")


def launched(rank: int, found: Sequence[Peer] = NODES, **table: object) -> Launch:
    described = job(name="mpi", nodes=len(found), **table)
    return strategy_of(described).launch(described, COMMAND, found[rank], found)


def test_the_launcher_runs_mpirun_for_all_nodes_and_workers_run_sshd() -> None:
    launcher = launched(0)
    worker = launched(2)

    assert launcher.argv[:3] == ("mpirun", "--host", "10.0.1.5:2,10.0.1.200:2,10.0.2.7:2")
    assert launcher.argv[-2:] == COMMAND
    assert "6" in launcher.argv
    assert launcher.ssh == SshTo(hosts=tuple(NODES[1:]))
    key = NODES[0].public_key
    assert key is not None
    assert worker.ssh == SshFrom(address="10.0.2.7", port=4002, public_key=key)
    described = job(name="mpi", nodes=3)
    assert [role_of(described, each, NODES) for each in NODES] == [Role.COMPUTE, Role.SERVE, Role.SERVE]


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (("10.0.1.5", "10.0.1.200", "10.0.2.7"), "10.0.0.0/22"),
        (("127.0.0.1", "127.0.0.2"), "127.0.0.0/30"),
        (("10.0.0.1", "10.0.0.1"), "10.0.0.1/32"),
        (("0.0.0.1", "255.0.0.1"), "0.0.0.0/0"),
        (("one.example", "10.0.0.1"), None),
        (("fd00::1", "fd00::2"), None),
    ],
)
def test_open_mpi_uses_the_network_of_the_nodes(addresses: tuple[str, ...], network: str | None) -> None:
    assert launched(0, peers(*addresses)).env.get("OMPI_MCA_btl_tcp_if_include") == network


@pytest.mark.parametrize("launch", list(MpiLaunch))
def test_mpirun_gets_no_networks_to_use_if_the_job_excludes_some(launch: MpiLaunch) -> None:
    # Open MPI uses no TCP at all where it is told of networks to use and of others not to use.
    described = job(
        name="mpi", nodes=2, launch=launch, mpirun_options=("--mca", "btl_tcp_if_exclude", "lo,docker0")
    )
    variables = {"OMPI_MCA_oob_tcp_if_exclude": "lo", "OMPI_MCA_hwloc_base_binding_policy": "core"}
    described = dataclasses.replace(
        described, benchmark=dataclasses.replace(described.benchmark, env=variables)
    )

    env = strategy_of(described).launch(described, COMMAND, NODES[0], NODES[:2]).env

    assert not [name for name in env if "tcp_if_include" in name]
    assert not variables.keys() & env.keys()


def test_mpirun_gets_options_and_names_of_secrets_before_the_command() -> None:
    table = StrategyTable(
        name="mpi", nodes=2, processes_per_node="2", mpirun_options=("--bind-to", "core", "-v")
    )
    described = dataclasses.replace(job(name="mpi"), strategy=table)
    secrets = {"TOKEN": "env:TOKEN", "A_KEY": "env:KEY"}
    described = dataclasses.replace(
        described, benchmark=dataclasses.replace(described.benchmark, secrets=secrets)
    )

    argv = strategy_of(described).launch(described, COMMAND, NODES[0], NODES[:2]).argv

    assert argv.count("--bind-to") == 1
    start = argv.index("-np")
    assert argv[start + 2 : start + 9] == ("--bind-to", "core", "-v", "-x", "A_KEY", "-x", "TOKEN")


def test_processes_are_bound_to_cores_if_cpus_per_process_is_set() -> None:
    launch = launched(0, processes_per_node="3", cpus_per_process=4)

    assert " ".join(launch.argv[3:7]) == "--map-by slot:PE=4 --bind-to core"
    assert launch.needs.cores == 12


def test_an_mpirun_started_by_the_command_gets_its_options_from_the_environment() -> None:
    launch = launched(0, launch=MpiLaunch.USER)

    assert launch.argv == COMMAND
    assert launch.env["OMPI_MCA_orte_default_hostfile"] == "$(BAI_HOSTFILE)"
    assert launch.env["OMPI_MCA_plm_rsh_no_tree_spawn"] == "1"
    assert launch.ssh == SshTo(hosts=tuple(NODES[1:]))


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        (("mpirun (Open MPI) 4.1.4", "mpirun (Open MPI) 4.1.7a1"), None),
        ((None, "mpirun (Open MPI) 5.0.7"), None),
        (
            ("mpirun (Open MPI) 4.1.4", "mpirun (Open MPI) 5.0.7"),
            "4.1.4 on node 0 (10.0.0.1) and 5.0.7 on node 1 (10.0.0.2)",
        ),
        (
            ("mpirun (Open MPI) 4.1.4", "HYDRA build details_"),
            "mpirun of node 1 (10.0.0.2) is not Open MPI's",
        ),
    ],
)
def test_incompatible_versions_of_open_mpi_are_named(
    engines: tuple[str | None, ...], said: str | None
) -> None:
    strategy = strategy_of(job(name="mpi", nodes=2))
    assert isinstance(strategy, SetsUp)

    found = strategy.mismatch(peers("10.0.0.1", "10.0.0.2", engines=engines))

    assert (found is None) if said is None else (found is not None and said in found)


def test_a_node_without_an_ssh_key_is_named() -> None:
    strategy = strategy_of(job(name="mpi", nodes=2))
    assert isinstance(strategy, SetsUp)

    found = strategy.mismatch([NODES[0], dataclasses.replace(NODES[1], public_key=None)])

    assert found is not None
    assert found.startswith("Node 1 (10.0.1.200) has published no SSH key")


def test_horovod_needs_its_module_and_mpi_none() -> None:
    needs = {
        name: strategy_of(job(name=name)).launch(job(name=name), COMMAND, ME, [ME]).needs
        for name in ("mpi", "horovod")
    }

    assert list(needs["mpi"].modules) == []
    assert list(needs["horovod"].modules) == ["horovod"]


@pytest.mark.parametrize("name", ["mpi", "horovod"])
def test_open_mpi_is_searched_in_each_folder_of_the_efa_installer(name: str) -> None:
    folders = strategy_of(job(name=name)).launch(job(name=name), COMMAND, ME, [ME]).needs.folders

    assert [each for each in folders if "/amazon/" in each] == [
        "/opt/amazon/openmpi/bin",
        "/opt/amazon/openmpi5/bin",
    ]
