"""`bai run` with the strategy each_node: the command runs once on each node, and finds the others by BAI_NODE_ADDRS."""

from __future__ import annotations

import json

import pytest
from agent_runs import wait_until
from local_cli import LocalCli
from local_nodes import kill_node, node_folder, node_output
from stand_in_training import TRAINS

MEETS = """
import os, socket, sys, time
from concurrent.futures import ThreadPoolExecutor
addresses, rank = os.environ["BAI_NODE_ADDRS"].split(","), int(os.environ["BAI_NODE_RANK"])
others = [each for each in addresses if each != addresses[rank]]

def hear(_):
    peer, _ = server.accept()
    with peer:
        return peer.makefile().readline().strip()

def greet(address):
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((address, 7000), 60) as peer:
                peer.sendall(b"node %d\\n" % rank)
                return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)

with socket.create_server((addresses[rank], 7000)) as server, ThreadPoolExecutor(8) as pool:
    server.settimeout(60)
    heard = pool.map(hear, others)
    for each in others:
        greet(each)
    print(f"node {rank} of {os.environ['BAI_NUM_NODES']} heard", *sorted(heard), flush=True)
print("loss=0.5")
"""
"""Listens at this node's own address, on the same port as all others, and greets them."""
WAIT_S = 120
CHECKPOINT = """
[checkpoint]
path = "checkpoints"
every = "1s"
"""
# What torchrun would say to each process.
TRAINS_ALONE = (
    """
import os
os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["BAI_NODE_RANK"], os.environ["BAI_NUM_NODES"]
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = os.environ["BAI_NODE_ADDRS"].split(",")[0], "7001"
"""
    + TRAINS
)


def test_nodes_find_each_other_by_the_addresses_in_their_environment(cli: LocalCli) -> None:
    file = cli.descriptor(MEETS, strategy="each_node")

    answer = cli.bai("run", file, "--nodes", "3", "--job-id", "one", "--json")

    objects = [json.loads(line) for line in answer.stdout.splitlines()]
    assert (answer.code, objects[-1]["outcome"]) == (0, "succeeded"), answer.stdout + answer.stderr
    assert objects[-1]["metrics"]["per_metric"] == {"loss": 3}
    for rank in range(3):
        heard = " ".join(f"node {other}" for other in range(3) if other != rank)
        assert f"node {rank} of 3 heard {heard}\n" in node_output(cli, "one", rank)


def test_the_failure_of_one_node_ends_the_others(cli: LocalCli) -> None:
    code = MEETS + "sys.exit('no such weights') if rank == 0 else time.sleep(600)\n"

    answer = cli.bai("run", cli.descriptor(code, strategy="each_node"), "--nodes", "2", "--job-id", "one")

    result = cli.result("one")
    assert (answer.code, result["outcome"]) == (1, "failed")
    assert result["sentence"].startswith("Node 0: The benchmark failed")
    assert result["last_lines"][-1] == "no such weights"
    ended = json.loads((node_folder(cli, "one", 1) / "result.json").read_text())
    assert ended["outcome"] == "peer_failed"


@pytest.mark.parametrize("lost", [0, 1])
def test_an_elastic_job_continues_without_a_killed_node(cli: LocalCli, lost: int) -> None:
    limits = 'grace = "10s"\npeer_silence = "20s"'
    file = cli.descriptor(TRAINS_ALONE, limits=limits, strategy="each_node", more=CHECKPOINT)
    left = [each for each in range(3) if each != lost]
    assert (
        cli.bai("run", file, "--job-id", "e1", "--nodes", "2:3", "--detach", "--", cli.go_file, "0.05").code
        == 0
    )
    events = node_folder(cli, "e1", 0) / "events.jsonl"
    wait_until(lambda: "step=20 " in node_output(cli, "e1", 0), seconds=WAIT_S)
    wait_until(lambda: '"checkpoint"' in events.read_text(), seconds=WAIT_S)

    kill_node(cli, "e1", lost)
    for rank, node in enumerate(left):
        goes_on = f"generation=1 node={node} rank={rank} of 2 goes on after step "
        wait_until(lambda: goes_on in node_output(cli, "e1", node), seconds=WAIT_S)  # noqa: B023
    cli.go_file.touch()

    assert cli.bai("status", "e1", "--wait").code == 0
    result = cli.result("e1")
    assert (result["outcome"], result["lost"]) == ("succeeded", [lost])
    assert [each["members"] for each in result["generations"]] == [[0, 1, 2], left]
    said = node_output(cli, "e1", left[0]).partition("generation=1 ")[2]
    assert int(said.partition("goes on after step ")[2].partition(",")[0]) >= 10
