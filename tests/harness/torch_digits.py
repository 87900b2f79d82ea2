"""Checks the results of examples/torch-digits trained by two nodes, wherever they ran."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafka_brokers import Broker

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch-digits"
NAMES = ["accuracy", "loss", "share_loss", "throughput"]


class Measured(NamedTuple):
    """A record in a node's file or in Kafka."""

    rank: str
    process_rank: str | None
    seq: int
    name: str
    value: float


def records_in(stored: Mapping[str, bytes], ranks: Sequence[int] = (0, 1)) -> dict[int, list[Any]]:
    """Return the records of the nodes, by rank. stored: objects of the job."""
    found: dict[int, list[Any]] = {}
    for rank in ranks:
        keys = [key for key in sorted(stored) if key.startswith(f"attempts/0/nodes/{rank}/metrics/")]
        found[rank] = [json.loads(line) for key in keys for line in stored[key].splitlines()]
    return found


def assert_trained_together(logs: Sequence[str], *, epochs: int) -> None:
    """Check that both processes learned from different images, and ended with equal weights and less loss.

    logs: logs of the nodes, by rank.
    """
    weights = [re.findall(r"^weights of process (\d): ([0-9a-f]{16})$", log, re.MULTILINE) for log in logs]
    assert [[process for process, _ in each] for each in weights] == [["0"], ["1"]], logs
    assert len({checksum for each in weights for _, checksum in each}) == 1
    shares = [re.findall(r" share_loss=(\S+) of (\d+) images$", log, re.MULTILINE) for log in logs]
    assert [len(each) for each in shares] == [epochs, epochs]
    # Each process saw one half of the images, and the halves differ.
    sizes = [{int(size) for _, size in each} for each in shares]
    assert all(6000 < size < 7000 for each in sizes for size in each)
    assert all(mine != others for (mine, _), (others, _) in zip(*shares, strict=True))
    losses = [float(value) for value in re.findall(r"^epoch=\d+ step=\d+ loss=(\S+)", logs[0], re.MULTILINE)]
    assert len(losses) == epochs
    assert losses[-1] < losses[0] / 2


def assert_measured_once(
    kafka: Broker, job: str, records: Mapping[int, Sequence[Any]], *, epochs: int
) -> None:
    """Check that Kafka has each record of both nodes' benchmarks once, with the node's rank.

    records: records of metrics.jsonl, by rank.
    """
    sent = assert_sent_once(kafka, job, records)
    count = {rank: [each.name for each in sent if each.rank == rank] for rank in ("0", "1")}
    assert sorted(count["0"]) == sorted(NAMES * epochs)
    assert count["1"] == ["share_loss"] * epochs


def assert_sent_once(kafka: Broker, job: str, records: Mapping[int, Sequence[Any]]) -> list[Measured]:
    """Check that Kafka has each record of the nodes once, with its node's and process's rank; return them."""
    stored = [
        Measured(
            str(rank), each.get("labels", {}).get("process_rank"), each["seq"], each["name"], each["value"]
        )
        for rank, found in records.items()
        for each in found
        if each["src"].partition("/")[0] == "log"
    ]
    sent = [
        _measured(each) for each in kafka.read("BAI_METRICS") if dict(each.headers)["job"] == job.encode()
    ]
    sent = [each for each in sent if each.name in NAMES and int(each.rank) in records]
    assert sorted(sent, key=repr) == sorted(stored, key=repr)
    return sent


def _measured(message: Any) -> Measured:
    value, headers = json.loads(message.value), dict(message.headers)
    rank = headers["rank"].decode()
    assert value["labels"]["rank"] == rank
    process_rank = value["labels"].get("process_rank")
    return Measured(rank, process_rank, int(headers["seq"]), value["name"], value["value"])
