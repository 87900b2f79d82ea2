"""examples/torch-digits with real PyTorch: two nodes on this machine learn together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import wait_until
from image_pythons import hosts_version, pytorch
from kafka_brokers import Broker
from local_cli import LocalCli, open_local_cli
from torch_digits import EXAMPLES, assert_measured_once, assert_trained_together

EPOCHS = 2


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LocalCli]:
    with open_local_cli(tmp_path) as cli:
        yield cli


def test_two_nodes_under_torchrun_train_one_model(cli: LocalCli, kafka: Broker) -> None:
    job = f"torch-{uuid.uuid4().hex[:8]}"
    python = pytorch(hosts_version()) / "bin" / "python"

    run = f"run {EXAMPLES / 'torchrun.toml'} --on local --nodes 2 --job-id {job} --set env.python={python} -- --epochs {EPOCHS}"
    with cli.start(*run.split(), env={"BAI_KAFKA_BROKERS": kafka.address}) as bai:
        shown, said = bai.communicate(timeout=400)

    assert bai.returncode == 0, shown + said
    record = cli.record(job)
    rundirs = [cli.store / record.node(rank).place for rank in (0, 1)]
    assert_trained_together([(each / "output.log").read_text() for each in rundirs], epochs=EPOCHS)
    lines = {rank: (each / "metrics.jsonl").read_text().splitlines() for rank, each in enumerate(rundirs)}
    records = {rank: [json.loads(line) for line in each] for rank, each in lines.items()}
    assert_measured_once(kafka, job, records, epochs=EPOCHS)
    kept = [cli.store / job / "artifacts" / f"rank-{rank}" / "runs" / "model.pt" for rank in (0, 1)]
    assert all(each.stat().st_size > 100_000 for each in kept)


def test_an_elastic_training_continues_after_a_kill_and_all_processes_stop_at_the_same_step(
    cli: LocalCli,
) -> None:
    python = pytorch(hosts_version()) / "bin" / "python"
    run = f"run {EXAMPLES / 'elastic.toml'} --on local --nodes 2:2 --job-id elastic --set env.python={python}"
    more = "--set restart.backoff=100ms -- --steps 100000 --save-every 10"
    with cli.start(*run.split(), *more.split()) as bai:
        try:
            logs = [cli.store / cli.record("elastic").node(rank).place / "output.log" for rank in (0, 1)]
            wait_until(lambda: "step=25 " in text_of(logs[0]), seconds=120)
            # One process of two is killed: both are started again, and go on from the last checkpoint.
            os.kill(process_of(cli, 1), signal.SIGKILL)
            wait_until(lambda: text_of(logs[0]).count(" generation=1 ") > 20, seconds=120)
            assert cli.bai("cancel", "elastic").code == 0
            shown, said = bai.communicate(timeout=120)
        finally:
            bai.kill()

    assert bai.returncode == 4, shown + said
    log = text_of(logs[0])
    trained = re.findall(r"^step=(\d+) loss=(\S+) .* generation=(\d) nodes=2$", log, re.MULTILINE)
    steps = {number: [int(step) for step, _, of in trained if of == number] for number in "01"}
    losses = [float(loss) for _, loss, _ in trained]
    for found in steps.values():
        assert found == list(range(found[0], found[0] + len(found)))
    # From a checkpoint: not from the beginning, and with what had been learned.
    start = int(re.findall(r"^generation=1 .* goes on after step (\d+)$", log, re.MULTILINE)[0])
    assert 10 <= start <= steps["0"][-1]
    assert start % 10 == 0
    assert steps["1"][0] == start + 1
    assert sum(losses[-10:]) < sum(losses[:10]) * 0.75
    # All have stopped after the same step, and it is saved.
    assert f"asked to stop, stopped after step {steps['1'][-1]}\n" in log
    assert cli.bai("fetch", "elastic", cli.folder, "--checkpoint").code == 0
    [kept] = cli.folder.glob("checkpoint-1-*/training.pt")
    load = f"import torch; print(torch.load({str(kept)!r}, weights_only=True)['step'])"
    done = subprocess.run([python, "-c", load], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) == steps["1"][-1]


def test_a_process_counts_only_processes_on_its_own_machine() -> None:
    python = pytorch(hosts_version()) / "bin" / "python"
    asked = {
        ("", "0", "1", "2"): (1, 2),  # torchrun alone
        ("127.0.0.1,127.0.0.1,127.0.0.1", "2", "1", "2"): (5, 6),
        ("10.0.0.1,10.0.0.2,10.0.0.3", "1", "1", "2"): (1, 2),
        ("10.0.0.2,10.0.0.1,10.0.0.2", "2", "0", "4"): (4, 8),
    }
    names = ("BAI_NODE_ADDRS", "BAI_NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    ask = [
        f"os.environ.update({dict(zip(names, each, strict=True))}); print(*train.place_on_machine())"
        for each in asked
    ]
    code = "\n".join(["import os, train", *ask])

    done = subprocess.run(
        [python, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, timeout=120, check=True
    )

    assert [tuple(map(int, each.split())) for each in done.stdout.splitlines()] == list(asked.values())


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def process_of(cli: LocalCli, node: int) -> int:
    """Return the training's process on a node: a child of its torchrun."""
    started = json.loads((cli.store / cli.record("elastic").node(node).place / "started.json").read_text())
    children = [
        each
        for file in Path("/proc", str(started["pid"]), "task").glob("*/children")
        for each in file.read_text().split()
    ]
    [found] = [
        int(each) for each in children if b"train_elastic.py" in Path("/proc", each, "cmdline").read_bytes()
    ]
    return found
