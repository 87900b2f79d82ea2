"""What each node of a Ray cluster starts, and how a failure of Ray itself is explained."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity, Repeat
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.peers import Members, Peer, generation_token
from bai_agent.strategy import SetsUp, explain_failure, strategy_of
from bai_agent.strategy.failure import Cause, LeftFile, Remains
from bai_agent.strategy.launch import Launch, Role

PEERS = [
    Peer(rank=0, address="10.0.0.7", port=4711, node=2, instance_id="i-2", engine="ray, version 2.60.0"),
    Peer(rank=1, address="10.0.0.2", port=4712, node=0, instance_id="i-0", engine="ray, version 2.60.0"),
]
COMMAND = ("python3", "train.py", "--epochs", "3")
NOTE = {"message": "the port 1 is taken", "time": 1_700_000_000_000}


def job(**table: Any) -> Job:
    return Job(
        job=Identity(id="j"),
        benchmark=Benchmark(argv=COMMAND),
        strategy=StrategyTable(name="ray", **{"nodes": 2, "min_nodes": 1, **table}),
        limits=Limits(join=timedelta(minutes=2)),
    )


def launched(rank: int, its: Job | None = None, peers: list[Peer] = PEERS) -> Launch:
    its = its or job()
    return strategy_of(its).launch(its, COMMAND, peers[rank], peers)


def options(launch: Launch) -> dict[str, str]:
    words = launch.argv[4 : launch.argv.index("--")]
    return dict(each.removeprefix("--").split("=", 1) for each in words)


def test_the_first_node_runs_ray_head_and_command_and_the_others_are_workers() -> None:
    head, worker = launched(0), launched(1)

    shared = {"port": "4711", "nodes": "10.0.0.7,10.0.0.2", "least": "1", "join": "120", "share": "1"}
    assert options(head) == {"role": "head", "address": "10.0.0.7", **shared}
    assert options(worker) == {"role": "worker", "address": "10.0.0.2", **shared}
    assert (head.argv[-5:], worker.argv[-1]) == (("--", *COMMAND), "--")
    assert (head.role, worker.role) == (Role.COMPUTE, Role.SERVE)


def test_a_fixed_ray_job_requires_all_its_nodes() -> None:
    assert options(launched(0, job(min_nodes=None)))["least"] == "2"


def test_ray_nodes_on_one_machine_share_it_and_have_separate_addresses() -> None:
    here = [Peer(rank=rank, address=f"127.5.4.{rank}", port=4711) for rank in (0, 1)]

    assert options(launched(1, job(nodes=4), here))["share"] == "4"
    # Ray would take another address of the machine for 127.0.0.1.
    (alone,) = options(launched(0, peers=[Peer(rank=0, address="127.0.0.1", port=4711)]))["nodes"].split(",")
    assert alone.startswith("127.")
    assert alone != "127.0.0.1"


def test_a_single_first_node_listens_at_an_address_that_later_nodes_can_reach() -> None:
    alone = options(launched(0, peers=PEERS[:1]))

    assert (alone["address"], alone["nodes"]) == ("10.0.0.7", "10.0.0.7")


def test_the_ray_token_is_passed_in_a_variable_and_not_in_an_argument() -> None:
    assert launched(0).env["BAI_RAY_TOKEN"] == "$(BAI_RUN_TOKEN)"


def test_nodes_of_a_generation_share_a_token_that_differs_from_their_key() -> None:
    members = Members(peers=tuple(PEERS), key=b"k" * 32)
    first = generation_token(members, 0)

    assert first == generation_token(members, 0)
    assert len({first, generation_token(members, 1), members.key.hex() if members.key else ""}) == 3
    assert generation_token(Members(peers=(PEERS[0],)), 0) == ""


def test_each_node_needs_ray_and_another_version_is_a_warning() -> None:
    strategy = strategy_of(job())
    assert isinstance(strategy, SetsUp)
    setup = strategy.setup(job(), 1)

    assert (setup.program, list(setup.needs.modules), setup.versions) == (
        "ray",
        ["ray"],
        {"ray": ("2.60.0",)},
    )
    assert "the package ray" in (setup.needs.program or "")


def test_nodes_with_different_versions_of_ray_do_not_start() -> None:
    strategy = strategy_of(job())
    assert isinstance(strategy, SetsUp)
    other = Peer(rank=1, address="10.0.0.2", engine="ray, version 2.9.0")

    assert strategy.mismatch(PEERS) is None
    assert strategy.mismatch([PEERS[0], other]) == (
        "The nodes have different versions of Ray, which do not work together: ray, version 2.60.0 and ray, version 2.9.0."
    )


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (json.dumps(NOTE), Cause(process="Ray", code=1, message=str(NOTE["message"]), failed=1_700_000_000_000)),
        (json.dumps({**NOTE, "message": "two\n lines"}), Cause(process="Ray", code=1, message="two lines", failed=1_700_000_000_000)),
        ("{", None),
        ('{"message": 1, "time": 2}', None),
    ],
)  # fmt: skip
def test_a_recorded_failure_of_ray_itself_is_the_cause(content: str, cause: Cause | None) -> None:
    files = [
        LeftFile(path="other.json", content=json.dumps(NOTE), modified=0),
        LeftFile(path="ray.json", content=content, modified=0),
    ]

    assert explain_failure(job(), Remains(log="", code=1, files=files), PEERS[0], PEERS) == cause
    assert explain_failure(job(), Remains(log="", code=1, files=files[:1]), PEERS[0], PEERS) is None


@pytest.mark.parametrize("processes", ["2", "gpus"])
def test_ray_refuses_more_than_one_process_per_node(processes: str) -> None:
    with pytest.raises(
        DescriptorError, match=r"\[strategy\] processes_per_node: ray starts the command once"
    ):
        strategy_of(job(processes_per_node=processes))


def test_ray_refuses_repeated_runs_on_several_nodes() -> None:
    one, two = (
        Job(
            job=Identity(id="j"),
            benchmark=Benchmark(argv=COMMAND),
            strategy=StrategyTable(name="ray", nodes=nodes),
            repeat=Repeat(runs=2),
        )
        for nodes in (1, 2)
    )

    strategy_of(one)
    with pytest.raises(DescriptorError, match=r"\[repeat\]: ray on several nodes"):
        strategy_of(two)
