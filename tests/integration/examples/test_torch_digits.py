"""examples/torch-digits with real PyTorch: two nodes on this machine learn together."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_pythons import hosts_version, pytorch
from kafka_brokers import Broker
from local_cli import LocalCli, open_local_cli
from torch_digits import EXAMPLES, assert_measured_once, assert_trained_together

EPOCHS = 2


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LocalCli]:
    with open_local_cli(tmp_path) as cli:
        yield cli


def test_two_nodes_under_torchrun_learn_together(cli: LocalCli, kafka: Broker) -> None:
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
