"""Writes `metrics.jsonl` as the extractor would, and makes a job that sends it to Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.job.run_directory import RunDir


def kafka_job(address: str, topic: str, **settings: Any) -> Job:
    return Job(
        job=Identity(id="job-1", action_id="action-1", client_id="client-1", labels={"task_name": "hello"}),
        benchmark=Benchmark(argv=("true",)),
        kafka=Kafka(brokers=(address,), topic=topic, **settings),
    )


def new_run(folder: Path) -> RunDir:
    rundir = RunDir(folder)
    rundir.path.mkdir(parents=True, exist_ok=True)
    return rundir


def append_records(rundir: RunDir, numbers: Iterable[int], **changes: Any) -> None:
    """Append one record for each of `numbers`. Its `seq` is the number, and its value is half of that."""
    with rundir.metrics.open("a") as file:
        file.writelines(
            json.dumps(
                {
                    "seq": seq, "src": "log", "off": 80 * seq, "i": 0, "k": 0, "name": "loss", "value": seq / 2,
                    "units": "", "timestamp": 1_700_000_000_000 + seq, **changes,
                },
                separators=(",", ":"),
            )
            + "\n"
            for seq in numbers
        )  # fmt: skip


def sequence(messages: Iterable[Any]) -> list[int]:
    """Return the `seq` header of each message."""
    return [int(dict(message.headers)["seq"]) for message in messages]
