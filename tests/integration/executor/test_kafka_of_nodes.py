"""Two nodes push to one topic: each number is there once, with the rank of its node, as `bai metrics` has it."""

from __future__ import annotations

import json
import os
from dataclasses import replace

from kafka_brokers import Broker
from local_cli import LocalCli
from stand_in_torchrun import put_torchrun

PRINTS_AND_EMITS = """
import json, os
rank = int(os.environ["BAI_NODE_RANK"])
for step in range(200):
    print(f"loss={1000 * rank + step}")
with open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w") as fifo:
    fifo.write(json.dumps({"done": rank}) + chr(10))
"""


def test_each_value_of_two_nodes_arrives_in_kafka_once_with_its_rank(
    cli: LocalCli, kafka: Broker, free_topic: str
) -> None:
    path = f"{put_torchrun(cli.folder)}:{os.environ['PATH']}"
    nodes = replace(cli, environment={**cli.environment, "PATH": path})
    table = f'[kafka]\nbrokers = ["{kafka.address}"]\ntopic = "{free_topic}"\n'

    answer = nodes.bai(
        "run",
        nodes.descriptor(PRINTS_AND_EMITS, strategy="torchrun", more=table),
        "--nodes",
        "2",
        "--job-id",
        "two",
    )

    assert answer.code == 0, answer.stderr
    messages = kafka.read(free_topic)
    values = [json.loads(each.value) for each in messages]
    headers = [dict(each.headers) for each in messages]
    assert {each["job"] for each in headers} == {b"two"}
    assert [each["labels"]["rank"] for each in values] == [each["rank"].decode() for each in headers]
    keys = [(each["rank"], each["seq"]) for each in headers]
    assert len(keys) == len(set(keys))
    for rank in range(2):
        mine = [each for each in values if each["labels"]["rank"] == str(rank)]
        losses = [each["value"] for each in mine if each["name"] == "loss"]
        assert sorted(losses) == [1000 * rank + step for step in range(200)]
        assert [each["value"] for each in mine if each["name"] == "done"] == [rank]
    # And `bai metrics` has the same ones, no others
    records = nodes.bai("metrics", "two", "--json").objects
    kept = [(each["name"], each["value"], each["labels"]["rank"]) for each in records]
    pushed = [(each["name"], each["value"], each["labels"]["rank"]) for each in values]
    assert sorted(kept) == sorted(pushed)
    assert nodes.result("two")["kafka"] == {"delivered": len(messages), "undelivered": 0, "error": None}
