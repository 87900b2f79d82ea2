"""The strategies `mpi` and `horovod` on several nodes, each with an address of its own on this machine: real sshd, real Open MPI."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_runs import (
    events_of,
    is_alive,
    records_of,
    result_of,
    wait_until,
)
from mpi_node_agents import MpiNodes
from small_cgroups import small_cgroup


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., MpiNodes]]:
    made: list[MpiNodes] = []

    def nodes(script: str, **tables: Any) -> MpiNodes:
        made.append(MpiNodes(tmp_path, ["/bin/sh", "-c", script.replace("$", "$$")], **tables))
        return made[-1]

    yield nodes
    for each in made:
        each.close()


SAY_WHO = """
echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on node $BAI_NODE_RANK in $(pwd) with $WORD $TOKEN"
[ "$OMPI_COMM_WORLD_RANK" != 0 ] || echo loss=0.5
"""
LOSS = [{"name": "loss", "pattern": r"loss=(\S+)", "required": True}]
WORDS = {"WORD": "it's a\nword", "ODD": '$(id) `id` "'}


def said(nodes: MpiNodes, *, ranks: int) -> list[str]:
    return [
        f"rank {rank} of {ranks} on node {rank * 2 // ranks} in {nodes.rundir(rank * 2 // ranks) / 'work'} with it's a"
        for rank in range(ranks)
    ]


def test_one_mpirun_starts_processes_on_both_nodes(make: Callable[..., MpiNodes]) -> None:
    nodes = make(
        SAY_WHO,
        metrics=[*LOSS, {"name": "of", "pattern": r"rank \d of (\d+)"}],
        strategy={"processes_per_node": "2"},
        benchmark={"env": WORDS, "secrets": {"TOKEN": "env:PLANTED"}},
    )

    assert nodes.run({0: {"PLANTED": "s3cret-0"}, 1: {"PLANTED": "s3cret-0"}}) == [0, 0]

    assert sorted(line for line in nodes.output().splitlines() if line.startswith("rank")) == said(
        nodes, ranks=4
    )
    assert nodes.output().count("word s3cret-0") == 4
    result = nodes.result
    assert (result["outcome"], result["metrics"]["per_metric"]) == ("succeeded", {"loss": 1, "of": 4})
    # Each node has the numbers of its own processes
    assert [ranks_of(nodes, rank) for rank in (0, 1)] == [["0", "1"], ["2", "3"]]
    assert result_of(nodes.rundir(1))["outcome"] == "succeeded"
    assert not any((nodes.rundir(rank) / "ssh").exists() for rank in (0, 1))


def ranks_of(nodes: MpiNodes, rank: int) -> list[str]:
    """Return which processes a node has numbers of."""
    records = records_of(nodes.rundir(rank))
    return sorted(each["labels"]["process_rank"] for each in records if each["name"] == "of")


def test_a_command_that_starts_mpirun_itself_reaches_both_nodes(make: Callable[..., MpiNodes]) -> None:
    inner = (
        """'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on node $BAI_NODE_RANK with $WORD"'"""
    )
    nodes = make(f"mpirun -np 2 /bin/sh -c {inner}", strategy={"launch": "user"}, benchmark={"env": WORDS})

    assert nodes.run() == [0, 0], nodes.output()

    lines = [line for line in nodes.output().splitlines() if line.startswith("rank")]
    assert sorted(lines) == [f"rank {rank} of 2 on node {rank} with it's a" for rank in (0, 1)]
    assert nodes.result["outcome"] == "succeeded"


def test_the_no_output_limit_ignores_a_silent_worker_while_the_launcher_prints(
    make: Callable[..., MpiNodes],
) -> None:
    steps = "[ $OMPI_COMM_WORLD_RANK != 0 ] || for step in $(seq 20); do echo step=$step; sleep 0.5; done"
    # A busy machine takes seconds to start mpirun, and stops one that prints for a while.
    nodes = make(steps, limits={"no_output": "8s"})

    assert nodes.run() == [0, 0]
    assert nodes.result["outcome"] == "succeeded"


UNTIL_TOLD = "echo begun on $BAI_NODE_RANK; until [ -e {flag} ]; do sleep 0.1; done"


def begun(nodes: MpiNodes) -> Callable[[], bool]:
    return lambda: all(f"begun on {rank}" in nodes.output() for rank in (0, 1))


def test_restarted_agents_of_mpi_nodes_reuse_their_ssh_keys(
    make: Callable[..., MpiNodes], tmp_path: Path
) -> None:
    flag = tmp_path / "go"
    nodes = make(UNTIL_TOLD.format(flag=flag))
    joined = nodes.store / "job" / "attempts" / "0" / "joined"

    # While the launcher waits for its worker
    nodes.start(0)
    wait_until((joined / "0.json").exists)
    key = json.loads((joined / "0.json").read_bytes())["public_key"]
    nodes.kill(0)
    nodes.start(0)
    nodes.start(1)
    wait_until(begun(nodes))
    assert json.loads((joined / "0.json").read_bytes())["public_key"] == key

    # And while the benchmark runs
    for rank in (0, 1):
        nodes.kill(rank)
        nodes.start(rank)
    wait_until(lambda: all(len(agents_started(nodes, rank)) >= 2 for rank in (0, 1)))
    flag.touch()

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0]
    assert nodes.result["outcome"] == "succeeded"
    # mpirun may add warnings of its own, such as that its ssh had begun before it set its process group
    begins = [line for line in nodes.output().splitlines() if line.startswith("begun")]
    assert sorted(begins) == ["begun on 0", "begun on 1"]


def agents_started(nodes: MpiNodes, rank: int) -> list[Any]:
    return [each for each in events_of(nodes.rundir(rank)) if each["type"] == "agent_started"]


@pytest.mark.usefixtures("_no_memory_killer")
def test_the_death_of_a_workers_sshd_fails_the_job(make: Callable[..., MpiNodes], tmp_path: Path) -> None:
    nodes = make(UNTIL_TOLD.format(flag=tmp_path / "never"))
    nodes.start(0)
    nodes.start(1)
    wait_until(begun(nodes))

    os.kill(json.loads((nodes.rundir(1) / "started.json").read_bytes())["pid"], signal.SIGKILL)

    assert nodes.wait(1) == 5
    assert nodes.wait(0) != 0
    assert result_of(nodes.rundir(1))["outcome"] == "lost"
    sentence = json.loads((nodes.store / "job/attempts/0/ended/1.json").read_bytes())["sentence"]
    assert sentence.startswith("sshd, through which node 0 starts processes on this node, ended by itself")
    assert "SIGKILL" in sentence
    assert nodes.result["outcome"] == "lost"
    assert nodes.result["sentence"].startswith("Node 1: sshd, ")


def test_a_process_that_fails_is_named_with_its_node(make: Callable[..., MpiNodes]) -> None:
    nodes = make(
        "echo begun; [ $OMPI_COMM_WORLD_RANK = 0 ] || { sleep 1; echo no such weights; exit 7; }; exec sleep 100"
    )

    assert nodes.run() == [1, 1]

    assert nodes.result["outcome"] == "failed"
    assert nodes.result["sentence"].endswith("process 1 on node 1 (i-1, 127.0.0.2) exited with code 7."), (
        nodes.output()
    )
    assert nodes.result["sentence"].startswith("Node 1: The benchmark failed after ")
    assert nodes.result["last_lines"] == ["begun", "no such weights"]
    assert result_of(nodes.rundir(1))["outcome"] == "failed"


def test_the_node_of_the_first_failure_is_the_cause(make: Callable[..., MpiNodes]) -> None:
    # Process 1 exits with a code of its own when mpirun ends it
    script = (
        "echo begun $OMPI_COMM_WORLD_RANK; trap 'exit 9' TERM; "
        "[ $OMPI_COMM_WORLD_RANK = 1 ] || { sleep 1; exit 4; }; while :; do sleep 0.1; done"
    )
    nodes = make(script)

    assert nodes.run() == [1, 5]

    assert nodes.result["sentence"].endswith("process 0 on node 0 (i-0, 127.0.0.1) exited with code 4.")
    assert nodes.result["last_lines"] == ["begun 0"]
    assert result_of(nodes.rundir(1))["outcome"] == "peer_failed"


def test_a_lost_worker_is_named_instead_of_mpiruns_message(
    make: Callable[..., MpiNodes], tmp_path: Path
) -> None:
    nodes = make(UNTIL_TOLD.format(flag=tmp_path / "never"))
    nodes.start(0)
    nodes.start(1)
    wait_until(begun(nodes))

    nodes.lose(1)

    assert nodes.wait(0) == 5
    assert nodes.result["outcome"] == "peer_lost"
    assert nodes.result["sentence"] == "Node 1 (i-1, 127.0.0.2) sent no heartbeat for 20 s."


@pytest.mark.root
def test_a_workers_process_that_ran_out_of_memory_is_the_cause(make: Callable[..., MpiNodes]) -> None:
    fill = "exec python3 -c 'all = [bytearray(2**20) for _ in range(10**6)]'"
    nodes = make(f"echo begun; [ $OMPI_COMM_WORLD_RANK = 0 ] || {fill}; exec sleep 100")
    with small_cgroup(400_000_000) as members:
        nodes.start(0)
        nodes.start(1, inside=members)

        assert nodes.wait(0) == 6
        nodes.wait(1)

    assert nodes.result["outcome"] == "oom"
    assert nodes.result["sentence"].startswith("Node 1: The benchmark ran out of memory")


@pytest.mark.parametrize("rank", [0, 1])
def test_cancelling_a_job_ends_the_mpi_processes_of_all_nodes(
    make: Callable[..., MpiNodes], tmp_path: Path, rank: int
) -> None:
    nodes = make("echo pid=$$; " + UNTIL_TOLD.format(flag=tmp_path / "never"))
    nodes.start(0)
    nodes.start(1)
    wait_until(begun(nodes))

    # The launcher hears of it first, or the node that serves it
    (nodes.rundir(rank) / "cancel.json").write_text("{}")

    assert nodes.wait(rank) == 4
    assert nodes.wait(1 - rank) != 0
    pids = [int(line[4:]) for line in nodes.output().splitlines() if line.startswith("pid=")]
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    assert nodes.result["outcome"] == "cancelled"
    assert not any((nodes.rundir(rank) / "ssh").exists() for rank in (0, 1))


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return folder


def test_nodes_with_different_versions_of_open_mpi_do_not_start(
    make: Callable[..., MpiNodes], tmp_path: Path
) -> None:
    nodes = make("echo begun")
    other = program(tmp_path / "bin", "mpirun", 'echo "mpirun (Open MPI) 5.0.3"')

    assert nodes.run({1: {"PATH": f"{other}:{os.environ['PATH']}"}}) == [5, 5]

    assert nodes.result["outcome"] == "join_failed"
    sentence = nodes.result["sentence"]
    assert sentence.startswith(
        "The nodes have different versions of Open MPI, which do not work together: 4."
    )
    assert "node 0 (i-0, 127.0.0.1) and 5.0.3 on node 1 (i-1, 127.0.0.2)" in sentence
    assert nodes.output() == ""


@pytest.mark.parametrize(("rank", "package"), [(1, "openmpi-bin"), (1, "scripts/horovod")])
def test_no_node_starts_if_one_node_lacks_open_mpi_or_horovod(
    make: Callable[..., MpiNodes], tmp_path: Path, rank: int, package: str
) -> None:
    # Given a node without Open MPI, or with a Python that has no Horovod
    strategy = "mpi" if package == "openmpi-bin" else "horovod"
    folder = program(tmp_path / "bin", "sh", 'exec /bin/sh "$@"')
    python = program(tmp_path / "python", "python3", f'exec {sys.executable} "$@"')
    nodes = MpiNodes(tmp_path, ["python3", "-c", "print('begun')"], strategy={"name": strategy})
    has_horovod = tmp_path / "modules" / "horovod"
    has_horovod.mkdir(parents=True)
    (has_horovod / "__init__.py").touch()
    whole = {"PATH": f"{python}:{os.environ['PATH']}", "PYTHONPATH": str(has_horovod.parent)}
    lacks = {"PATH": f"{python}:{folder}"} if strategy == "mpi" else {"PATH": whole["PATH"]}

    try:
        codes = nodes.run({0: whole, rank: lacks})
    finally:
        nodes.close()

    assert codes == [5, 5]
    assert nodes.result["outcome"] == "prepare_failed"
    assert nodes.result["sentence"].startswith(f"Node {rank}: ")
    assert package in nodes.result["sentence"]
    assert nodes.output() == ""
