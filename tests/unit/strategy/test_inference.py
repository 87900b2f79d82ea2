"""What a server and its client start, and which parts of the job belong to each."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bai_agent.benchmark.node_setup import set_up_node
from bai_agent.errors import DescriptorError, SetupError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity, Output, Repeat
from bai_agent.job.descriptor.metric_tables import Metric, OfRun, Repaint
from bai_agent.job.descriptor.restart_tables import Checkpoint, Restart
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.descriptor.strategy_tables import ReadinessProbe, Server, StrategyTable
from bai_agent.job.descriptor_file import parse_job
from bai_agent.job.peers import Peer
from bai_agent.job.run_directory import RunDir
from bai_agent.strategy import SetsUp, node_environment, strategy_of
from bai_agent.strategy.launch import Launch, Role
from executor.planning.job_toml import job_toml

CLIENT, SERVER = (Peer(rank=rank, address=f"10.0.0.{rank + 1}") for rank in range(2))
PEERS = [CLIENT, SERVER]
SCRIPTS = Source(src="s3://b/scripts.tar", path=".", kind=SourceKind.SCRIPTS)
DATA = Source(src="s3://b/data", path="data")
MODEL = Source(src="s3://b/model", path="model", server=True)
LATENCY = Metric(name="latency", pattern=r"latency (\d+)", required=True)
SERVED = Metric(name="served", pattern=r"served (\d+)", after="^begin", server=True)
JOB = Job(
    job=Identity(id="j", labels={"team": "a"}),
    benchmark=Benchmark(argv=("client",), env={"SIZE": "1"}, secrets={"TOKEN": "ssm:/t"}, cwd="sub"),
    strategy=StrategyTable(name="inference", nodes=2),
    server=Server(
        ports=(8080, 8081, 8082),
        argv=("serve",),
        env={"MODEL": "m"},
        readiness_probe=ReadinessProbe(path="/ping", port=8081, scheme="HTTPS"),
    ),
    sources=(SCRIPTS, DATA, MODEL),
    metrics=(LATENCY, SERVED),
    repeat=Repeat(runs=3),
    output=Output(artifacts=("out/*",)),
)


def test_the_launch_of_the_client_names_the_server_to_wait_for() -> None:
    strategy = strategy_of(JOB)

    assert strategy.launch(JOB, ("client",), CLIENT, PEERS) == Launch(argv=("client",), server=SERVER)
    assert strategy.launch(JOB, ("serve",), SERVER, PEERS) == Launch(argv=("serve",), role=Role.SERVE)


def test_the_client_finds_host_and_ports_in_its_environment() -> None:
    found = node_environment(JOB, CLIENT, PEERS, hostfile="/hosts")

    assert {name: value for name, value in found.items() if name.startswith("INFERENCE")} == {
        "INFERENCE_SERVER_HOST": "10.0.0.2",
        "INFERENCE_SERVER_PORT": "8080",
        "INFERENCE_SERVER_PORT_1": "8081",
        "INFERENCE_SERVER_PORT_2": "8082",
    }


def test_client_and_server_each_have_their_own_command_data_and_label() -> None:
    client, server = JOB.of_node(0), JOB.of_node(1)

    assert (client.benchmark, client.repeat, client.output) == (JOB.benchmark, JOB.repeat, JOB.output)
    assert client.sources == (SCRIPTS, DATA)
    assert client.job.labels == {"team": "a", "role": "client"}
    assert (server.benchmark.argv, server.benchmark.env, server.benchmark.cwd) == (
        ("serve",),
        {"MODEL": "m"},
        None,
    )
    assert server.benchmark.secrets == JOB.benchmark.secrets
    assert (server.repeat, server.output) == (None, Output())
    assert server.sources == (SCRIPTS, MODEL)
    assert server.job.labels == {"team": "a", "role": "server"}


def test_metrics_are_searched_only_in_the_output_of_their_own_node() -> None:
    lines = ["latency 1", "begin", "served 2", LATENCY.unsearched().pattern, "of another node's output"]
    for node, wanted in enumerate(JOB.metrics):
        own = JOB.of_node(node).metrics
        matching = [each.name for each in own if any(_matches(each, line) for line in lines)]

        assert matching == [wanted.name]
        # Both know all names: a required metric is missing if neither has seen it.
        assert [(each.name, each.required) for each in own] == [("latency", True), ("served", False)]


def test_a_metric_that_is_not_searched_obeys_no_key_about_lines() -> None:
    above = replace(LATENCY, after="^begin", until="^end", context=("of (?P<test>.)",), repaint=Repaint.LAST)
    as_json = replace(LATENCY, pattern="", json="a.b", json_step="s", json_labels=("c",))
    of_run = replace(LATENCY, pattern="", of_run=OfRun.WALL_TIME, units="s")

    found = {replace(each.unsearched(), units="") for each in (LATENCY, above, as_json, of_run)}

    assert len(found) == 1


def _matches(metric: Metric, line: str) -> bool:
    return re.search(metric.pattern, line) is not None


def test_a_job_without_a_server_is_the_same_on_all_nodes() -> None:
    job = Job(job=Identity(id="j"), benchmark=Benchmark(argv=("a",)))

    assert job.of_node(1) is job


def test_the_server_is_written_to_and_read_from_the_job_descriptor() -> None:
    assert parse_job(job_toml(JOB).encode(), where="job.toml") == JOB


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"server": None}, r"\[server\] is required by the strategy inference"),
        ({"strategy": StrategyTable()}, r"\[server\] is required by the strategy inference"),
        ({"strategy": StrategyTable(name="inference", nodes=3)}, "nodes must be 2"),
        ({"strategy": StrategyTable(name="inference", nodes=2, min_nodes=1)}, "nodes must be 2"),
        ({"repeat": None, "restart": Restart(max_restarts=1)}, r"\[restart\] and \[checkpoint\] are not for"),
        ({"repeat": None, "checkpoint": Checkpoint(path="c")}, r"\[restart\] and \[checkpoint\] are not for"),
    ],
)
def test_inference_refuses_a_job_with_unsupported_settings(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(JOB, **changes)


@pytest.mark.parametrize("ports", [(), (80, 80)])
def test_a_server_without_ports_or_with_equal_ports_is_refused(ports: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ports must be one or more different ports"):
        Server(ports=ports, argv=("serve",))


def test_inference_refuses_more_than_one_process_per_node() -> None:
    table = StrategyTable(name="inference", nodes=2, processes_per_node="gpus")

    with pytest.raises(DescriptorError, match='it must be 1, not "gpus"'):
        strategy_of(replace(JOB, strategy=table))


@pytest.fixture
def set_up(rundir: RunDir) -> Callable[[int, int], None]:
    """Returns a function that sets up the node `rank` of a job whose server has this port."""

    def set_up(rank: int, port: int) -> None:
        server = Server(ports=(port,), argv=("serve",))
        job = replace(JOB, benchmark=Benchmark(argv=("true",), env=dict(os.environ)), server=server).of_node(
            rank
        )
        strategy = strategy_of(job)
        assert isinstance(strategy, SetsUp)
        rundir.path.mkdir(parents=True, exist_ok=True)
        set_up_node(
            job,
            rundir,
            strategy.setup(job, rank),
            serves=None,
            may_install=False,
            scripts=None,
            stopping=lambda: False,
        )

    return set_up


def test_a_server_port_in_use_is_reported_before_the_nodes_join(set_up: Callable[[int, int], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(SetupError, match=f"port {port} of the server is taken on this machine"):
            set_up(1, port)
        set_up(0, port)  # the client's machine
    set_up(1, port)
