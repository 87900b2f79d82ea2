"""`[repeat]` with several nodes under Open MPI: real agents, sshd and mpirun, one mpirun for each run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_runs import records_of, result_of, wait_until
from local_cli import local_cli
from mpi_node_agents import MpiNodes

# Each process notes its start, emits a value whose line never ends, and prints two.
PROGRAM = """
import json, os, sys, time
run, rank = os.environ["BAI_REPEAT"], os.environ["OMPI_COMM_WORLD_RANK"]
with open("starts", "a") as file:
    file.write(run + chr(10))
if os.path.exists(sys.argv[1] + "/pause-" + run):
    print("pausing in", run, "on", rank, flush=True)
    while os.path.exists(sys.argv[1] + "/pause-" + run):
        time.sleep(0.02)
number = 100 * int(run.rpartition("-")[2]) + 10 * int(rank)
with open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w") as fifo:
    fifo.write(json.dumps({"emitted": number}))
print("value", number)
sys.stdout.write(f"value {number + 1}")
sys.stdout.flush()
sys.exit(7 * int(os.path.exists(f"{sys.argv[1]}/fail-{run}-{rank}")))
"""
VALUE = [{"name": "value", "pattern": r"value (\d+)"}]
EMITS = "import os; open(os.environ['BENCHMARK_AI_FIFO_FILEPATH'], 'w').write('{\"emitted\": 5}\\n')"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., MpiNodes]]:
    made: list[MpiNodes] = []

    def nodes(
        *touched: str, repeat: dict[str, Any], argv: list[str] | None = None, **tables: Any
    ) -> MpiNodes:
        script = tmp_path / "program.py"
        script.write_text(PROGRAM)
        for name in touched:
            (tmp_path / name).touch()
        command = argv or [sys.executable, str(script), str(tmp_path)]
        made.append(MpiNodes(tmp_path, command, repeat=repeat, metrics=VALUE, **tables))
        return made[-1]

    yield nodes
    for each in made:
        each.close()


def found(nodes: MpiNodes, rank: int, name: str = "value") -> dict[tuple[int, str], list[float]]:
    """Return what a node has of a metric, by run and process."""
    values: dict[tuple[int, str], list[float]] = {}
    for each in records_of(nodes.rundir(rank)):
        if each["name"] == name:
            key = each["repeat"], each.get("labels", {}).get("process_rank", "")
            values.setdefault(key, []).append(each["value"])
    return values


def starts(nodes: MpiNodes, rank: int) -> list[str]:
    return (nodes.rundir(rank) / "work" / "starts").read_text().split()


def assert_right(nodes: MpiNodes, *, runs: int) -> None:
    """Check that each run was started once on each node, and that each node has its process's values of each, once."""
    for rank in (0, 1):
        assert [each for each in starts(nodes, rank) if each.isdecimal()] == [str(run) for run in range(runs)]
        base = {run: 100 * run + 10 * rank for run in range(runs)}
        assert found(nodes, rank) == {(run, str(rank)): [base[run], base[run] + 1] for run in range(runs)}
        assert found(nodes, rank, "emitted") == {(run, ""): [base[run]] for run in range(runs)}


def test_each_run_of_all_nodes_has_its_own_values(make: Callable[..., MpiNodes]) -> None:
    around = f'echo "$BAI_REPEAT on $BAI_NODE_RANK" >> around; echo value 5; {sys.executable} -c "{EMITS}"'
    step = ["/bin/sh", "-c", around.replace("$", "$$")]
    nodes = make(repeat={"runs": 3, "warmup_runs": 1, "prepare": step, "cleanup": step})

    assert nodes.run() == [0, 0], nodes.output()

    assert_right(nodes, runs=3)
    for rank in (0, 1):
        said = (nodes.rundir(rank) / "work" / "around").read_text().splitlines()
        assert said == [f"{run} on {rank}" for run in ("warmup-0", "0", "1", "2") for _ in range(2)]
    result = nodes.result
    assert (result["outcome"], "3 times" in result["sentence"]) == ("succeeded", True)
    assert [(each["repeat"], each["outcome"]) for each in result["repeats"]] == [
        (run, "succeeded") for run in range(3)
    ]
    assert result_of(nodes.rundir(1))["outcome"] == "succeeded"


def test_agents_killed_during_and_between_runs_lose_and_duplicate_no_record(
    make: Callable[..., MpiNodes], tmp_path: Path
) -> None:
    nodes = make("pause-1", "hold", repeat={"runs": 4, "cleanup": hold_after(tmp_path, run=2)})
    nodes.start(0)
    nodes.start(1)
    for over in ("pause-1", "hold"):
        what = {"pause-1": "pausing in 1 on 1", "hold": "holding on 1"}[over]
        wait_until(nodes.printed(0, what))
        for rank in (0, 1):
            nodes.kill(rank)
            nodes.start(rank)
        (tmp_path / over).unlink()

    assert [nodes.wait(rank) for rank in (0, 1)] == [0, 0], nodes.output()

    assert_right(nodes, runs=4)
    assert [each["repeat"] for each in nodes.result["repeats"]] == [0, 1, 2, 3]


def hold_after(folder: Path, *, run: int) -> list[str]:
    """Return a command that holds the series up after a run, while there is a file `hold`."""
    words = (
        f'[ "$BAI_REPEAT" != {run} ] || {{ echo holding on $BAI_NODE_RANK; '
        f"while [ -e {folder}/hold ]; do sleep 0.05; done; }}"
    )
    return ["/bin/sh", "-c", words.replace("$", "$$")]


def test_a_process_that_fails_is_named_with_its_run(make: Callable[..., MpiNodes]) -> None:
    nodes = make("fail-1-1", repeat={"runs": 3})

    assert nodes.run() == [1, 1]

    assert starts(nodes, 0) == starts(nodes, 1) == ["0", "1"]
    result = nodes.result
    assert result["outcome"] == "failed"
    assert result["sentence"].startswith("Node 1: The benchmark failed after ")
    assert result["sentence"].endswith(": in run 2, process 1 on node 1 (i-1, 127.0.0.2) exited with code 7.")
    assert result["last_lines"] == ["value 110", "value 111"]
    assert [each["outcome"] for each in result["repeats"]] == ["succeeded", "failed"]


def test_runs_continue_after_one_failed_on_a_node(make: Callable[..., MpiNodes]) -> None:
    nodes = make("fail-1-0", repeat={"runs": 3, "keep_going": True})

    assert nodes.run() == [1, 5]

    assert_right(nodes, runs=3)
    assert nodes.result["sentence"].startswith("Node 0: Run 2 of 3: ")
    assert [each["outcome"] for each in nodes.result["repeats"]] == ["succeeded", "failed", "succeeded"]


def test_a_prepare_command_that_fails_on_a_worker_ends_the_repeated_job(
    make: Callable[..., MpiNodes],
) -> None:
    words = '[ "$BAI_REPEAT on $BAI_NODE_RANK" != "1 on 1" ] || exit 9'
    nodes = make(repeat={"runs": 3, "prepare": ["/bin/sh", "-c", words.replace("$", "$$")]})

    assert nodes.run() == [1, 5]

    assert starts(nodes, 0) == starts(nodes, 1) == ["0"]
    assert nodes.result["sentence"] == (
        "Node 0: [repeat] prepare failed before run 2 of 3: it exited with code 9."
    )
    assert "[bai] on 127.0.0.2 the command exited with code 9" in nodes.output()


def test_mpi_runs_are_repeated_until_the_confidence_interval_is_narrow(make: Callable[..., MpiNodes]) -> None:
    words = "echo value $((100 + $BAI_REPEAT % 2 + 5 * $OMPI_COMM_WORLD_RANK))"
    argv = ["/bin/sh", "-c", words.replace("$", "$$")]
    nodes = make(repeat={"runs": 40, "until": 0.02, "metric": "value"}, argv=argv)

    assert nodes.run() == [0, 0]

    runs = len(nodes.result["repeats"])
    assert 10 <= runs < 40
    assert {key[0] for key in found(nodes, 1)} == set(range(runs))
    assert not [each for each in nodes.result["warnings"] if "[repeat]" in each]


def test_the_users_own_mpirun_is_started_for_each_run(make: Callable[..., MpiNodes]) -> None:
    inner = """'echo "value $BAI_NODE_RANK"'"""
    argv = ["/bin/sh", "-c", f"mpirun -np 2 /bin/sh -c {inner}".replace("$", "$$")]
    nodes = make(repeat={"runs": 3}, argv=argv, strategy={"launch": "user"})

    assert nodes.run() == [0, 0]

    values = {run: sorted(each) for (run, _), each in found(nodes, 0).items()}
    assert values == {run: [0, 1] for run in range(3)}
    assert found(nodes, 1) == {}


def test_arms_alternate_in_the_same_order_on_all_nodes(make: Callable[..., MpiNodes]) -> None:
    script = 'echo "$BAI_ARM $WHICH on $BAI_NODE_RANK" >> arms\n'
    arms = [{"name": name, "script": script, "env": {"WHICH": f"is {name}"}} for name in ("old", "new")]
    step = ["/bin/sh", "-c", script.replace("arms", "around").replace("$", "$$")]
    nodes = make(repeat={"runs": 4, "arms": arms, "seed": 3, "prepare": step, "cleanup": step})

    assert nodes.run() == [0, 0], nodes.output()

    told = [each["arm"] for each in nodes.result["repeats"]]
    assert sorted(told) == ["new", "new", "old", "old"]
    for rank in (0, 1):
        expected = [f"{arm} is {arm} on {rank}" for arm in told]
        assert (nodes.rundir(rank) / "work" / "arms").read_text().splitlines() == expected
        around = (nodes.rundir(rank) / "work" / "around").read_text().splitlines()
        assert around == [each for each in expected for _ in range(2)]


def test_commands_of_arms_need_no_x_bit_on_any_node(make: Callable[..., MpiNodes], tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("old", "new"):
        file = scripts / f"{name}.sh"
        file.write_text(f"#!/bin/sh\necho value 1\necho {name} >> $BAI_RUN_DIR/arms\n")
        file.chmod(0o644)
    arms = [{"name": name, "argv": [f"./{name}.sh"]} for name in ("old", "new")]
    nodes = make(
        repeat={"runs": 2, "arms": arms},
        argv=["./old.sh"],
        sources=[{"src": f"{scripts.as_uri()}/", "path": ".", "kind": "scripts"}],
    )

    assert nodes.run() == [0, 0], nodes.output()

    for rank in (0, 1):
        assert sorted((nodes.rundir(rank) / "arms").read_text().split()) == ["new", "old"]


def test_local_mpi_nodes_repeat_each_run_as_one_node(tmp_path: Path) -> None:
    cli = local_cli(tmp_path)
    code = "import os\nprint('loss=' + os.environ['BAI_REPEAT'] + '.' + os.environ['OMPI_COMM_WORLD_RANK'])"
    file = cli.descriptor(
        code, strategy="mpi", more="[repeat]\nruns = 3\n[hardware.distributed]\nnum_instances = 2\n"
    )

    done = cli.bai("run", file, "--job-id", "again")

    assert done.code == 0, done.stdout + done.stderr
    shown = cli.bai("metrics", "again", "--json").stdout.splitlines()
    records = [each for each in map(json.loads, shown) if each["name"] == "loss"]
    assert sorted((each["repeat"], each["labels"]["process_rank"], each["value"]) for each in records) == [
        (run, str(rank), run + rank / 10) for run in range(3) for rank in range(2)
    ]
    # And what the runs say together is the mean over their processes
    summary = [line.split()[:3] for line in (done.stdout + done.stderr).splitlines()]
    assert ["loss", "3", "1.050"] in summary
