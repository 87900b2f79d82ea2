"""Several nodes of a job, each with its own agent on this machine: they join, end together and write one result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from agent_runs import result_of, wait_until
from node_agents import Nodes
from small_cgroups import small_cgroup
from stand_in_torchrun import RECORDED

SAY_WHO = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on node", os.environ["BAI_NODE_RANK"])
print("coordinator", os.environ["MASTER_ADDR"] == os.environ["BAI_MASTER_ADDR"], os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    print("loss=0.5")
"""
LOSS = [{"name": "loss", "pattern": r"loss=(\S+)", "required": True}]


def test_nodes_find_each_other_and_write_one_result(make: Callable[..., Nodes]) -> None:
    nodes = make(SAY_WHO, nodes=3, metrics=LOSS, strategy={"processes_per_node": "2"})

    nodes.start_all(2, 1, 0)

    assert [nodes.wait(rank) for rank in range(3)] == [0, 0, 0]
    result = nodes.result
    assert (result["outcome"], result["metrics"]["per_metric"]) == ("succeeded", {"loss": 1})
    logs = [(nodes.rundir(rank) / "output.log").read_text() for rank in range(3)]
    said = sorted(line for log in logs for line in log.splitlines() if line.startswith("rank"))
    assert said == [f"rank {rank} of 6 on node {rank // 2}" for rank in range(6)]
    assert len({line for log in logs for line in log.splitlines() if line.startswith("coordinator")}) == 1
    assert "join" in result["phases"]
    assert [each["rank"] for each in result["own_usage"]] == [0, 1, 2]
    assert all(each["extractor"]["cpu_seconds"] > 0 for each in result["own_usage"])


def test_the_first_node_that_fails_is_the_cause_and_ends_the_others(make: Callable[..., Nodes]) -> None:
    nodes = make(
        """
import os, sys, time
print("begun", flush=True)
if os.environ["BAI_NODE_RANK"] == "1":
    time.sleep(1)
    print("no such weights", flush=True)
    sys.exit(7)
time.sleep(100)
""",
        nodes=3,
    )

    nodes.start_all(0, 1, 2)

    assert [nodes.wait(rank) for rank in range(3)] == [1, 1, 5]
    assert (nodes.result["outcome"], nodes.result["exit_code"]) == ("failed", 1)
    assert nodes.result["sentence"].startswith("Node 1: ")
    assert nodes.result["sentence"].endswith(": process 1 (local rank 0) exited with code 7.")
    assert nodes.result["last_lines"] == ["begun", "no such weights"]
    assert result_of(nodes.rundir(2))["outcome"] == "peer_failed"
    assert "Node 1" in result_of(nodes.rundir(2))["sentence"]


ONE_RAISES = (
    RECORDED
    + """
import time
def main():
    print("begun", os.environ["RANK"], flush=True)
    if os.environ["RANK"] == "3":
        time.sleep(0.5)
        raise ValueError("bad weights")
    time.sleep(100)
recorded(main)
"""
)


def test_the_process_that_raises_is_named_with_its_exception(make: Callable[..., Nodes]) -> None:
    nodes = make(ONE_RAISES, strategy={"processes_per_node": "2"})

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in (0, 1)] == [1, 1]
    assert nodes.result["outcome"] == "failed"
    sentence = nodes.result["sentence"]
    assert sentence.startswith("Node 1: The benchmark failed after ")
    assert sentence.endswith(": process 3 (local rank 1) exited with code 1: ValueError: bad weights.")
    assert nodes.result["last_lines"][-1] == "ValueError: bad weights"
    assert "ChildFailedError" not in "".join(nodes.result["last_lines"])


FAIL_TOGETHER = (
    RECORDED
    + """
import socket
def main():
    port = int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        server = socket.create_server(("127.0.0.1", port))
        peer, _ = server.accept()
        if not peer.recv(1):
            raise RuntimeError("connection closed by peer")
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    time.sleep(0.5)
    {end}
recorded(main)
"""
)


@pytest.mark.usefixtures("_no_memory_killer")
@pytest.mark.parametrize(
    ("end", "outcome", "said"),
    [
        ('raise ValueError("bad weights")', "failed", "exited with code 1: ValueError: bad weights."),
        ("os.kill(os.getpid(), 9)", "killed", "was ended by SIGKILL, which bai did not send."),
    ],
)
def test_the_process_that_failed_first_is_named_as_the_cause(
    make: Callable[..., Nodes], end: str, outcome: str, said: str
) -> None:
    """The coordinator's process fails within milliseconds, and its launcher may see that first."""
    nodes = make(FAIL_TOGETHER.replace("{end}", end))

    nodes.start_all(0, 1)

    assert nodes.wait(0) == nodes.result["exit_code"]
    nodes.wait(1)
    assert nodes.result["outcome"] == outcome
    assert nodes.result["sentence"].startswith("Node 1: ")
    assert nodes.result["sentence"].endswith(f": process 1 (local rank 0) {said}")


@pytest.mark.root
def test_a_process_that_runs_out_of_memory_is_named_with_its_node(
    make: Callable[..., Nodes],
) -> None:
    nodes = make(
        """
import os, time
print("begun", flush=True)
if os.environ["RANK"] == "1":
    block = bytearray(900_000_000)
time.sleep(100)
"""
    )
    with small_cgroup(400_000_000) as members:
        nodes.start(0)
        nodes.start(1, inside=members)

        assert nodes.wait(0) == 6
        nodes.wait(1)
    assert nodes.result["outcome"] == "oom"
    assert nodes.result["sentence"].startswith("Node 1: The benchmark ran out of memory")
    assert "process 1 (local rank 0) ended by SIGKILL" in nodes.result["sentence"]


def test_torchrun_restarts_failed_processes_on_all_nodes(make: Callable[..., Nodes]) -> None:
    nodes = make(
        """
import os, sys
count = os.environ["BAI_RESTARTS"]
print("start", count, "rank", os.environ["RANK"], "on node", os.environ["BAI_NODE_RANK"])
if count == "0":
    sys.exit(7)
print("loss=0.5")
""",
        strategy={"max_restarts": 1},
        metrics=LOSS,
    )

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0]
    assert (nodes.result["outcome"], nodes.result["metrics"]["per_metric"]) == ("succeeded", {"loss": 2})
    output = (nodes.rundir(0) / "output.log").read_text()
    said = [line for line in output.splitlines() if line.startswith(("start", "loss"))]
    assert said == ["start 0 rank 0 on node 0", "start 1 rank 0 on node 0", "loss=0.5"]


def test_the_no_output_limit_ignores_a_silent_node_while_another_prints(make: Callable[..., Nodes]) -> None:
    nodes = make(
        """
import os, time
print("begun", flush=True)
if os.environ["BAI_NODE_RANK"] == "0":
    for step in range(20):
        print("loss=0.5", flush=True)
        time.sleep(0.5)
else:
    time.sleep(10)
""",
        # A busy machine stops one that prints for a while.
        limits={"no_output": "6s"},
    )

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0]
    assert nodes.result["outcome"] == "succeeded"


USES_SOCKETS = """
import os, sys, time
from pathlib import Path
print("ip-10-0-0-7:7614:7691 [0] NCCL INFO Using network Socket", flush=True)
deadline = time.monotonic() + 120
while not Path(sys.argv[0]).with_name("go").exists() and time.monotonic() < deadline:
    time.sleep(0.02)
"""


def test_a_benchmark_that_uses_tcp_instead_of_the_requested_efa_causes_a_warning(
    make: Callable[..., Nodes],
) -> None:
    nodes = make(USES_SOCKETS, strategy={"efa": True})
    nodes.start_all(0, 1)

    def warned() -> bool:
        events = nodes.rundir(0) / "events.jsonl"
        return events.exists() and b"NCCL uses sockets (NET/Socket)" in events.read_bytes()

    wait_until(warned)
    assert nodes.agents[0].poll() is None
    (nodes.folder / "go").touch()

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0]
    assert nodes.result["transports"] == {"NCCL": ["NET/Socket"]}
    assert [each.partition(":")[0] for each in nodes.result["warnings"]] == ["Node 0", "Node 1"]


def test_a_job_that_is_silent_on_all_nodes_reaches_the_no_output_limit(make: Callable[..., Nodes]) -> None:
    nodes = make("import time; time.sleep(100)", limits={"no_output": "2s"})

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in (0, 1)] == [3, 5]
    assert (nodes.result["outcome"], nodes.result["exit_code"]) == ("no_output", 3)


def test_artifacts_with_the_same_name_on_several_nodes_are_stored_per_rank(
    make: Callable[..., Nodes],
) -> None:
    nodes = make(
        "import os; open('weights.txt', 'w').write(os.environ['RANK'])",
        output={"artifacts": ["weights.txt"]},
    )

    nodes.start_all(0, 1)

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0]
    kept = nodes.store / "job" / "artifacts"
    assert [(kept / f"rank-{rank}" / "weights.txt").read_text() for rank in (0, 1)] == ["0", "1"]
    assert nodes.result["artifacts"] == {"files": 2, "bytes": 2}
