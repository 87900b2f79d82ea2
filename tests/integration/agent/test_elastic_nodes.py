"""Elastic jobs: a node that is lost, leaves, comes back or joins ends the generation, and the next one begins with those that are there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from agent_runs import events_of, result_of, wait_until
from instance_services import Services
from mpi_node_agents import MpiNodes
from node_agents import WAIT_FOR_BEGUN, Nodes

UNTIL_TOLD = """
import os, time
from pathlib import Path
names = "GENERATION NODE NODE_RANK NUM_NODES MIN_NODES MAX_NODES RESTARTS".split()
with open("starts", "a") as file:
    file.write(" ".join(os.environ["BAI_" + each] for each in names) + "\\n")
print("begun " + os.environ["BAI_GENERATION"], flush=True)
while not Path({flag!r}).exists():
    time.sleep(0.05)
print("loss=0.5")
"""
"""A benchmark that runs until there is a file `flag`, and writes down how each generation was started."""
WAIT_S = 120
ELASTIC = {"pause": "1s"}


class Job:
    """An elastic job whose benchmark runs until `finish`."""

    def __init__(
        self, folder: Path, make: Callable[..., Nodes], *, least: int, most: int, **tables: Any
    ) -> None:
        self._flag = folder / "go"
        tables = {"elastic": ELASTIC, "metrics": [{"name": "loss", "pattern": r"loss=(\S+)"}], **tables}
        self.nodes = make(
            tables.pop("program", UNTIL_TOLD).format(flag=str(self._flag)),
            nodes=most,
            strategy={"min_nodes": least, **tables.pop("strategy", {})},
            **tables,
        )

    @property
    def control(self) -> Path:
        return self.nodes.store / "job" / "attempts" / "0" / "control"

    def start(self, *nodes: int) -> None:
        """Start nodes, and wait until their benchmark runs in one generation."""
        self.nodes.start_all(*nodes)
        self.wait(0, *nodes)

    def wait(self, generation: int, *nodes: int) -> None:
        """Wait until a generation runs on these nodes."""
        for node in nodes:
            wait_until(self.nodes.printed(node, f"begun {generation}"), seconds=WAIT_S)

    def finish(self) -> None:
        self._flag.touch()

    def scale(self, number: int, nodes: int) -> None:
        """Ask for another number of nodes."""
        folder = self.control.parent / "requests"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.json").write_text(json.dumps({"desired": nodes}))

    def starts(self, node: int) -> list[str]:
        """Return how each generation was started on a node: number, node, rank and nodes."""
        with suppress(FileNotFoundError):
            lines = (self.nodes.rundir(node) / "work" / "starts").read_text().splitlines()
            return [" ".join(each.split()[:4]) for each in lines]
        return []

    def decided(self, generation: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.control / f"generation-{generation:06}.json").read_bytes())
        return found


@pytest.fixture
def job(tmp_path: Path, make: Callable[..., Nodes]) -> Callable[..., Job]:
    def made(least: int, most: int, **tables: Any) -> Job:
        return Job(tmp_path, make, least=least, most=most, **tables)

    return made


def test_an_elastic_job_that_loses_no_node_succeeds_in_one_generation(job: Callable[..., Job]) -> None:
    it = job(2, 3)
    it.start(0, 1, 2)
    it.finish()

    assert [it.nodes.wait(each) for each in range(3)] == [0, 0, 0]
    assert it.nodes.result["outcome"] == "succeeded"
    assert [it.starts(each) for each in range(3)] == [["0 0 0 3"], ["0 1 1 3"], ["0 2 2 3"]]


def test_a_lost_node_ends_the_generation_and_the_next_runs_without_it(
    job: Callable[..., Job],
) -> None:
    it = job(2, 3)
    it.start(0, 1, 2)

    it.nodes.lose(1)
    it.wait(1, 0, 2)
    it.finish()

    assert [it.nodes.wait(each) for each in (0, 2)] == [0, 0]
    result = it.nodes.result
    assert result["outcome"] == "succeeded"
    assert [it.starts(each) for each in (0, 2)] == [["0 0 0 3", "1 0 0 2"], ["0 2 2 3", "1 2 1 2"]]
    assert it.decided(1)["sentence"] == "Node 1 sent no heartbeat."
    assert "Node 1 (127.0.0.1) was lost." in result["warnings"]
    assert sum(each["type"] == "generation" for each in events_of(it.nodes.rundir(2))) == 1


BREAKS = UNTIL_TOLD.replace(
    "time.sleep(0.05)",
    "time.sleep(0.05)\n    if Path({flag!r} + 'gone').exists() and os.environ['BAI_GENERATION'] == '0':\n        raise SystemExit('connection reset by peer')",
)
"""The same, whose first generation fails once a node is said to be gone."""


def test_a_failure_caused_by_a_dead_node_starts_the_next_generation_before_the_silence_limit(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    it = job(1, 3, program=BREAKS, limits={"peer_silence": "10m"})
    it.start(0, 1, 2)

    it.nodes.lose(1)
    (tmp_path / "gogone").touch()

    it.wait(1, 0, 2)
    assert it.decided(1)["nodes"] == [1]
    assert it.decided(1)["ledger"]["restarts"] == 0


def test_the_next_living_member_becomes_leader_if_the_leader_is_lost(job: Callable[..., Job]) -> None:
    it = job(1, 3)
    it.start(0, 1, 2)

    # Two at once, and the first two in order
    it.nodes.lose(0, 1)
    it.wait(1, 2)
    it.finish()

    assert it.nodes.wait(2) == 0
    assert it.starts(2) == ["0 2 2 3", "1 2 0 1"]
    assert it.decided(1)["nodes"] == [0, 1]
    assert (it.nodes.result["outcome"], it.nodes.result["lost"]) == ("succeeded", [0, 1])


def test_a_hung_leader_that_wakes_ends_its_processes_and_joins_again(job: Callable[..., Job]) -> None:
    it = job(1, 2)
    it.start(0, 1)

    it.nodes.hang(0)
    it.wait(1, 1)
    it.nodes.hang(0, hung=False)
    it.wait(2, 0, 1)
    it.finish()

    assert [it.nodes.wait(each) for each in (0, 1)] == [0, 0]
    assert it.nodes.result["outcome"] == "succeeded"
    # The others keep their order.
    assert it.starts(0) == ["0 0 0 2", "2 0 1 2"]
    assert it.starts(1) == ["0 1 1 2", "1 1 0 1", "2 1 0 2"]


def test_with_too_few_nodes_the_job_waits_and_continues_with_a_new_node(job: Callable[..., Job]) -> None:
    it = job(2, 2)
    it.start(0, 1)

    it.nodes.lose(1)
    wait_until(lambda: (it.control / "generation-000001.json").exists(), seconds=WAIT_S)
    assert it.decided(1)["kind"] == "park"
    it.nodes.start(1)
    it.wait(2, 0, 1)
    it.finish()

    assert [it.nodes.wait(each) for each in (0, 1)] == [0, 0]
    assert it.starts(0) == ["0 0 0 2", "2 0 0 2"]
    assert it.starts(1) == ["0 1 1 2", "2 1 1 2"]


def test_a_job_that_waits_in_vain_for_enough_nodes_fails_as_peer_lost(job: Callable[..., Job]) -> None:
    it = job(2, 2, elastic={"wait": "3s"})
    it.start(0, 1)

    it.nodes.lose(1)

    assert it.nodes.wait(0) == 5
    result = it.nodes.result
    assert (result["outcome"], result["lost"]) == ("peer_lost", [1])
    assert result["sentence"] == "1 of at least 2 nodes was left for 3s."


def test_nodes_join_and_leave_as_an_elastic_job_is_scaled(job: Callable[..., Job]) -> None:
    saves = 'if os.environ["BAI_NODE"] != "2":\n    Path("model.pt").touch()\n'
    output = {"artifacts": ["*.pt"]}
    it = job(1, 3, program=UNTIL_TOLD + saves, elastic={"nodes": 1, "pause": "1s"}, output=output)
    it.start(0)

    it.scale(0, 3)
    it.nodes.start_all(1, 2)
    wait_until(lambda: any("3" in each.split()[3] for each in it.starts(0)), seconds=WAIT_S)
    it.scale(1, 9)
    it.scale(2, 2)

    # The highest number leaves, and has succeeded.
    assert it.nodes.wait(2) == 0
    left = json.loads((it.nodes.rundir(2) / "result.json").read_bytes())
    assert (left["outcome"], left["sentence"], left["warnings"]) == (
        "succeeded",
        "This node left because the job was scaled down.",
        [],
    )
    newest = len(list(it.control.glob("begin-*")))
    wait_until(lambda: it.starts(1)[-1:] != [] and it.starts(1)[-1].endswith(" 1 1 2"), seconds=WAIT_S)
    it.finish()
    assert [it.nodes.wait(each) for each in (0, 1)] == [0, 0]
    assert newest
    assert it.nodes.result["outcome"] == "succeeded"
    # Nothing was lost.
    ends = [each["outcome"] for each in it.nodes.result["generations"]]
    assert ends == [*["interrupted"] * (len(ends) - 1), "succeeded"]
    assert it.nodes.result["warnings"] == []
    assert it.starts(0)[-1].endswith(" 0 0 2")
    # A node that came later says what it runs on too.
    assert "cpu" in json.loads((it.nodes.rundir(1) / "environment.json").read_bytes())


FAILS = (
    WAIT_FOR_BEGUN.replace("{", "{{").replace("}", "}}")
    + """
g = int(os.environ["BAI_GENERATION"])
with open("starts", "a") as file:
    file.write(f"{{g}} {{os.environ['BAI_NODE']}} {{os.environ['BAI_NODE_RANK']}} {{os.environ['BAI_NUM_NODES']}}\\n")
print(f"begun {{g}}", flush=True)
print("loss=1", flush=True)
begin()
if os.environ["BAI_NODE"] == "1" and g < {times}:
    wait_for_begun()
    print("no such weights", flush=True)
    sys.exit(7)
if g < {times}:
    time.sleep(100)
"""
)


@pytest.mark.parametrize(("times", "outcome"), [(2, "succeeded"), (9, "failed")])
def test_a_failed_elastic_job_is_restarted_with_the_same_members(
    job: Callable[..., Job], times: int, outcome: str
) -> None:
    it = job(1, 2, program=FAILS.replace("{times}", str(times)), restart={"max_restarts": 2, "backoff": "0s"})

    it.nodes.start_all(0, 1)

    assert [it.nodes.wait(each) for each in (0, 1)] == ([0, 0] if outcome == "succeeded" else [1, 1])
    result = it.nodes.result
    assert result["outcome"] == outcome
    assert it.starts(1) == ["0 1 1 2", "1 1 1 2", "2 1 1 2"]
    assert "restarted 2 times" in result["sentence"]
    if outcome == "failed":
        assert result["sentence"].startswith("Node 1: ")
        assert result["last_lines"][-1] == "no such weights"


@pytest.mark.parametrize("parked", [False, True])
def test_a_cancel_ends_a_job_that_runs_or_waits(job: Callable[..., Job], parked: bool) -> None:
    it = job(2, 2)
    it.start(0, 1)
    if parked:
        it.nodes.lose(1)
        wait_until(lambda: (it.control / "generation-000001.json").exists(), seconds=WAIT_S)

    (it.nodes.store / "job" / "cancel.json").write_text("{}")

    assert [it.nodes.wait(each) for each in ([0] if parked else [0, 1])] == ([4] if parked else [4, 4])
    assert it.nodes.result["outcome"] == "cancelled"


def test_max_runtime_includes_waiting_time(job: Callable[..., Job], tmp_path: Path) -> None:
    # The failure that a lost node causes has it missed at once, not only when it was silent long enough.
    it = job(2, 2, program=BREAKS, limits={"max_runtime": "30s"})
    it.start(0, 1)
    it.nodes.lose(1)
    (tmp_path / "gogone").touch()

    assert it.nodes.wait(0) == 3
    assert it.nodes.result["outcome"] == "max_runtime"
    assert it.decided(1)["kind"] == "park"


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("moment", ["joined", "decided", "failed", "ended", "settled", "begun", "started"])
def test_an_agent_killed_between_two_generations_continues_the_change(
    job: Callable[..., Job], node: int, moment: str
) -> None:
    it = job(1, 2, program=FAILS.replace("{times}", "1"), restart={"max_restarts": 2, "backoff": "0s"})
    attempt, own = it.control.parent, it.nodes.rundir(node)
    reached = {
        "joined": attempt / f"joined/{node}.json",
        "decided": it.control / "generation-000000.json",
        "failed": it.nodes.rundir(1) / "exit.json",
        "ended": own / "exit.json",
        "settled": it.control / "generation-000001.json",
        "begun": it.control / "begin-000001.json",
        "started": own / "generations/1/started.json",
    }[moment]
    it.nodes.start_all(0, 1)
    wait_until(reached.exists, seconds=WAIT_S)
    it.nodes.kill(node)

    it.nodes.start(node)

    assert [it.nodes.wait(each) for each in (0, 1)] == [0, 0]
    assert it.nodes.result["outcome"] == "succeeded"
    for each in (0, 1):
        assert it.starts(each) == [f"0 {each} {each} 2", f"1 {each} {each} 2"]
    # No number twice, and none more than was decided.
    assert sorted(each.name for each in it.control.glob("generation-*")) == [
        f"generation-{each:06}.json" for each in range(3)
    ]


def test_a_node_with_a_spot_notice_leaves_and_the_others_continue(job: Callable[..., Job]) -> None:
    services = Services(metadata={"instance-life-cycle": "spot", "local-ipv4": "127.0.0.1"})
    server = services.serve()
    try:
        it = job(1, 2)
        it.nodes.options = {1: ["--instance-id", "i-1"]}
        it.nodes.start(0)
        it.nodes.start(1, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": services.url})
        it.wait(0, 0, 1)

        at = datetime.now(timezone.utc) + timedelta(seconds=110)
        services.metadata["spot/instance-action"] = json.dumps(
            {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        )

        assert it.nodes.wait(1) == 5
        assert result_of(it.nodes.rundir(1))["outcome"] == "interrupted"
        it.wait(1, 0)
        it.finish()
        assert it.nodes.wait(0) == 0
    finally:
        server.shutdown()
        server.server_close()
    assert (it.decided(1)["why"], it.decided(1)["planned"]) == ("left", True)
    assert it.starts(0) == ["0 0 0 2", "1 0 0 1"]
    assert it.nodes.result["outcome"] == "succeeded"
    assert any("takes this spot instance back" in each for each in it.nodes.result["warnings"])


MPI = """
echo "$BAI_GENERATION $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE" >> starts
echo "begun $BAI_GENERATION"
while [ ! -e {flag} ]; do sleep 0.1; done
echo loss=0.5
"""


@pytest.mark.parametrize("lost", [0, 1])
def test_the_first_remaining_node_starts_mpirun(tmp_path: Path, lost: int) -> None:
    flag = tmp_path / "go"
    argv = ["/bin/sh", "-c", MPI.format(flag=flag).replace("$", "$$")]
    nodes = MpiNodes(
        tmp_path,
        argv,
        strategy={"min_nodes": 1},
        elastic=ELASTIC,
        metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}],
    )
    left = 1 - lost
    try:
        for node in (0, 1):
            nodes.start(node)
        wait_until(lambda: all((nodes.rundir(each) / "work/starts").exists() for each in (0, 1)))

        nodes.lose(lost)
        wait_until(
            lambda: "1 0 1" in (nodes.rundir(left) / "work/starts").read_text().splitlines(), seconds=WAIT_S
        )
        flag.touch()
        assert nodes.wait(left) == 0
    finally:
        nodes.close()
    assert nodes.result["outcome"] == "succeeded"
    assert (nodes.rundir(left) / "work/starts").read_text().splitlines() == [f"0 {left} 2", "1 0 1"]


LOGS_IN = """
for each in $(echo "$BAI_NODE_ADDRS" | tr , ' '); do
    [ "$each" = "$BAI_MASTER_ADDR" ] || ssh "$each" 'echo "$BAI_GENERATION $BAI_NODE_RANK" >> starts' || exit
done
echo "begun $BAI_GENERATION"
while [ ! -e {flag} ]; do sleep 0.1; done
"""
"""A command that starts something on the other nodes by SSH, as an mpirun of its own."""


def test_only_the_first_remaining_node_may_log_in_to_others_by_ssh(tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", LOGS_IN.format(flag=tmp_path / "go").replace("$", "$$")]
    strategy = {"min_nodes": 2, "launch": "user"}
    nodes = MpiNodes(tmp_path, argv, nodes=3, strategy=strategy, elastic=ELASTIC)
    try:
        nodes.start_all(0, 1, 2)
        wait_until(nodes.printed(0, "begun 0"), seconds=WAIT_S)
        assert [each for each in range(3) if may_log_in(nodes, each, generation=0)] == [0]

        nodes.lose(0)
        wait_until(nodes.printed(1, "begun 1"), seconds=WAIT_S)
        assert [each for each in range(3) if may_log_in(nodes, each, generation=1)] == [1]
        (tmp_path / "go").touch()
        assert [nodes.wait(each) for each in (1, 2)] == [0, 0]
    finally:
        nodes.close()
    assert nodes.result["outcome"] == "succeeded"
    assert (nodes.rundir(2) / "work" / "starts").read_text().splitlines() == ["0 2", "1 1"]


def may_log_in(nodes: MpiNodes, node: int, *, generation: int) -> bool:
    """Return whether the last node's sshd of a generation takes the key of `node`."""
    control = nodes.store / "job" / "attempts" / "0" / "control"
    server = json.loads((control / f"begin-{generation:06}.json").read_bytes())["peers"][-1]
    key, port = nodes.rundir(node) / "ssh" / "key", str(server["port"])
    options = ["BatchMode=yes", "IdentitiesOnly=yes", "IdentityAgent=none", "StrictHostKeyChecking=no"]
    options += ["UserKnownHostsFile=/dev/null", "ConnectTimeout=20", "LogLevel=ERROR"]
    words = [word for each in options for word in ("-o", each)]
    done = subprocess.run(
        ["ssh", "-F", "none", "-i", str(key), "-p", port, *words, server["address"], "true"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 or "Permission denied" in done.stderr, done.stderr
    return done.returncode == 0
