"""Nodes of a job that are killed, hang or never come: the others end, and one result says so."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agent_runs import events_of, result_of, wait_until
from node_agents import UNTIL_TOLD, Nodes

LOSS = [{"name": "loss", "pattern": r"loss=(\S+)", "required": True}]


def running(make: Callable[..., Nodes], tmp_path: Path, *, nodes: int, **tables: Any) -> Nodes:
    """Return the nodes of a job whose benchmark runs on all of them, and never ends."""
    job = make(UNTIL_TOLD.format(flag=str(tmp_path / "never")), nodes=nodes, **tables)
    job.start_all(*range(nodes))
    for rank in range(nodes):
        wait_until(job.printed(rank, "begun"))
    return job


def count(nodes: Nodes, rank: int, kind: str, **details: str) -> int:
    """Return how often a node has written such an event."""
    wanted = {"type": kind, **details}.items()
    found = events_of(nodes.rundir(rank)) if (nodes.rundir(rank) / "events.jsonl").exists() else []
    return len([each for each in found if wanted <= each.items()])


@contextmanager
def held_back() -> Iterator[tuple[str, threading.Event]]:
    """Serve a file; yield its address, and what lets it go."""
    let_go = threading.Event()

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            let_go.wait(60)
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"data")

        def do_HEAD(self) -> None:
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            return

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                return

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/data.bin", let_go
        let_go.set()
        server.shutdown()


def test_agents_killed_in_each_phase_continue_and_start_nothing_twice(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    flag = tmp_path / "go"
    with held_back() as (address, let_go):
        nodes = make(
            UNTIL_TOLD.format(flag=str(flag)), metrics=LOSS, sources=[{"src": address, "path": "data.bin"}]
        )
        joined = nodes.store / "job" / "attempts" / "0" / "joined"

        # In the middle of the pull
        nodes.start_all(0, 1)
        for rank in (0, 1):
            wait_until(lambda rank=rank: count(nodes, rank, "phase", phase="pull"))  # type: ignore[misc]
            nodes.kill(rank)
        let_go.set()

        # In that of the join: each waits for the other one
        for rank in (0, 1):
            nodes.start(rank)
            wait_until((joined / f"{rank}.json").exists)
            nodes.kill(rank)

        # And in that of the run
        nodes.start_all(0, 1)
        for rank in (0, 1):
            wait_until(nodes.printed(rank, "begun"))
            nodes.kill(rank)
        nodes.start_all(1, 0)
        wait_until(lambda: all(count(nodes, rank, "agent_started") == 4 for rank in (0, 1)))
        flag.touch()

        assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0]
    assert (nodes.result["outcome"], nodes.result["metrics"]["per_metric"]) == ("succeeded", {"loss": 2})
    for rank in (0, 1):
        assert (nodes.rundir(rank) / "output.log").read_text().count("begun") == 1
        assert count(nodes, rank, "benchmark_started") == 1


@pytest.mark.parametrize(("come", "missing"), [((0, 2), 1), ((1,), 0)])
def test_a_node_that_never_joins_is_named(
    make: Callable[..., Nodes], come: tuple[int, ...], missing: int
) -> None:
    nodes = make("print('loss=0.5')", nodes=len(come) + 1, limits={"join": "8s"})

    nodes.start_all(*come)

    assert [nodes.wait(rank) for rank in come] == [5] * len(come)
    assert (nodes.result["outcome"], nodes.result["lost"]) == ("join_failed", [missing])
    assert f"Node {missing} sent no heartbeat for limits.join (8s)" in nodes.result["sentence"]
    assert f"Node {missing}" in result_of(nodes.rundir(come[-1]))["sentence"]


def test_workers_that_are_lost_or_hang_end_the_job(make: Callable[..., Nodes], tmp_path: Path) -> None:
    nodes = running(make, tmp_path, nodes=3)

    nodes.lose(1)
    nodes.hang(2)

    # Both are named, and the node that is left has ended
    assert nodes.wait(0) == 5
    result = nodes.result
    assert (result["outcome"], result["lost"]) == ("peer_lost", [1, 2])
    said = [result["sentence"], *result["warnings"]]
    for rank in (1, 2):
        assert f"Node {rank} (127.0.0.1) sent no heartbeat for 20 s." in said
    own = json.loads((nodes.store / "job" / "attempts" / "0" / "ended" / "0.json").read_bytes())
    assert (own["outcome"], own["benchmark"]["signal"]) == ("peer_lost", signal.SIGTERM)

    # And one that wakes up ends too, and changes nothing
    nodes.hang(2, hung=False)
    assert nodes.wait(2) == 5
    assert nodes.processes(2) == []
    assert result_of(nodes.rundir(2))["outcome"] == "peer_lost"
    assert nodes.result == result


def test_workers_write_the_result_if_the_coordinator_is_lost(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    nodes = running(make, tmp_path, nodes=3)

    nodes.lose(0)

    assert [nodes.wait(rank) for rank in (1, 2)] == [5, 5]
    assert (nodes.result["outcome"], nodes.result["lost"]) == ("peer_lost", [0])
    assert "Node 0 (127.0.0.1), the coordinator, sent no heartbeat for 20 s" in nodes.result["sentence"]


def test_a_failure_that_follows_from_a_lost_node_is_not_named_as_the_cause(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    # Given a worker whose benchmark ends at once when the coordinator's machine goes
    breaks = """
import os, sys, time
from pathlib import Path
print("begun", flush=True)
while os.environ["BAI_NODE_RANK"] == "0" or not Path({flag!r}).exists():
    time.sleep(0.05)
sys.exit("connection reset by peer")
"""
    flag = tmp_path / "gone"
    nodes = make(breaks.format(flag=str(flag)))
    nodes.start_all(0, 1)
    for rank in (0, 1):
        wait_until(nodes.printed(rank, "begun"))

    nodes.lose(0)
    flag.touch()

    assert nodes.wait(1) == 5
    assert (nodes.result["outcome"], nodes.result["lost"]) == ("peer_lost", [0])
    assert "Node 0 (127.0.0.1)" in nodes.result["sentence"]
