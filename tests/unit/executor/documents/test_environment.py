"""`bai status -v` shows the environment of a job, whatever its record contains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from handmade_job import HandmadeJob
from hypothesis import given
from hypothesis import strategies as st
from local_cli import LocalCli, local_cli

from executor.documents.machines import environment_facts
from executor.records.machine_facts import NodeEnvironment

ENVIRONMENT = {
    "version": 1,
    "rank": 0,
    "instance": {"id": "i-01", "type": "p4d.24xlarge", "image_id": "ami-01", "market": "spot"},
    "system": {"kernel": "6.1.0", "distribution": "Ubuntu 22.04.5 LTS", "cloud_init": "24.4"},
    "cpu": {"model": "Xeon", "count": 96, "usable": 48, "numa_nodes": 2, "governors": ["powersave"]},
    "memory": {"total_bytes": 2**40, "swap_used_bytes": 0},
    "gpus": {
        "driver": "550.1",
        "cuda": "12.4",
        "devices": [{"name": "A100", "memory_bytes": 40 * 2**30, "power_limit_watts": 400.0}] * 8,
    },
    "python": {
        "version": "3.11.9",
        "executable": "/opt/pytorch/bin/python3",
        "packages": {"torch": "2.4.0", "numpy": "2.1.0"},
        "distributions": {"torch": "2.4.0", "numpy": "2.1.0", "idna": "3.13"},
    },
    "software": {"nccl": "2.21.5", "open_mpi": {"version": "4.1.6"}},
    "load": {"average": [0.5, 0.25, 0.125], "busiest": [{"name": "apt", "user": "root", "cores": 0.75}]},
    "missing": {"cloud_init": "did not answer in time"},
    "warnings": ["The governor is slow."],
}


@pytest.fixture
def cli(tmp_path: Path) -> LocalCli:
    return local_cli(tmp_path)


@pytest.fixture
def job(cli: LocalCli) -> HandmadeJob:
    made = HandmadeJob(cli.store)
    made.ends()
    return made


def write(job: HandmadeJob, content: bytes) -> None:
    (job.node / "environment.json").write_bytes(content)


def test_status_shows_important_facts_only_if_verbose(cli: LocalCli, job: HandmadeJob) -> None:
    write(job, json.dumps(ENVIRONMENT).encode())

    shown = cli.bai("status", "last", "-v").stdout

    for text in (
        "p4d.24xlarge, i-01, spot",
        "Ubuntu 22.04.5 LTS",
        "96 processors (48 usable), 2 NUMA nodes, governor powersave",
        "8 x A100",
        "driver 550.1, CUDA 12.4",
        "torch 2.4.0, numpy 2.1.0, 3 distributions in all",
        "Open MPI 4.1.6, NCCL 2.21.5",
        "apt (root) 0.75 cores",
        "cloud_init: did not answer in time",
        "The governor is slow.",
    ):
        assert text in shown
    assert "idna" not in shown
    assert "A100" not in cli.bai("status", "last").stdout


def test_json_contains_all_facts(cli: LocalCli, job: HandmadeJob) -> None:
    write(job, json.dumps(ENVIRONMENT).encode())

    (node,) = json.loads(cli.bai("status", "last", "-v", "--json").stdout)["environments"]

    assert node == {"attempt": 0, "rank": 0, "environment": ENVIRONMENT, "trouble": None}
    assert "environments" not in json.loads(cli.bai("status", "last", "--json").stdout)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "has written no environment.json"),
        (b"{", "environment.json is not JSON"),
        (b"\xff\0", "environment.json is not JSON"),
        (b"[" * 100_000, "environment.json is not JSON"),
        (b"[]", "environment.json is not a JSON object"),
    ],
    ids=["missing", "cut", "binary", "deep", "list"],
)
def test_status_names_an_environment_record_that_cannot_be_read(
    cli: LocalCli, job: HandmadeJob, content: bytes | None, said: str
) -> None:
    if content is not None:
        write(job, content)

    answer = cli.bai("status", "last", "--verbose")

    assert answer.code == 0
    assert said in answer.stdout
    assert "Traceback" not in answer.stderr


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "devices", "packages", "average", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*ENVIRONMENT, "mounts", "network", "agent"]), ANYTHING, max_size=6))
def test_any_content_is_shown_without_an_error(facts: dict[str, Any]) -> None:
    node = NodeEnvironment(attempt=0, rank=0, environment=facts)

    assert all(len(each.text) <= 1000 for each in environment_facts(node))


def test_the_warnings_of_all_nodes_are_shown_of_a_job_of_many(cli: LocalCli) -> None:
    many = HandmadeJob(cli.store, nodes=20)
    for rank in range(20):
        facts = {"container": {"image": ("f" if rank == 18 else "0") * 64}}
        write(many.on(rank), json.dumps(facts).encode())

    shown = json.loads(cli.bai("status", "last", "--json").stdout)["machine_warnings"]

    assert [each["ranks"] for each in shown] == [[*range(18), 19], [18]]
