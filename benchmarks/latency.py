"""How long a line takes from its print to a message that can be read from Kafka, through a whole `bai-agent run`.

    python benchmarks/latency.py [--lines 1000] [--rate 50]

A real broker (`scripts/kafka`) and a real run: the benchmark prints the time of its clock, the agent's parts do the rest,
and a consumer of the topic looks at the same clock when it has the message. So the figures hold the print, the extractor,
the pusher, the broker and the consumer. The lines of the first seconds, in which the agent still connects, are shown apart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

ROOT = Path(__file__).parents[1]
METRIC = "printed_at"
SETTLED_SECONDS = 3

PRINTER = f"""
import sys, time
lines, rate = int(sys.argv[1]), float(sys.argv[2])
start = time.monotonic()
for number in range(lines):
    time.sleep(max(0, start + number / rate - time.monotonic()))
    print(f"step {{number}} {METRIC}={{time.time_ns() // 1000}}")
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=50, help="lines a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="latency-") as name, broker(Path(name) / "kafka") as address:
        printed = measure(Path(name), address, lines=options.lines, rate=options.rate)
    first = min(printed)
    early = [delay for when, delay in printed.items() if when - first < SETTLED_SECONDS]
    settled = [delay for when, delay in printed.items() if when - first >= SETTLED_SECONDS]
    print(f"{len(printed)} lines, {options.rate:g} a second; line printed -> message read, milliseconds")
    print("| | p50 | p99 | max |")
    print("|---|---|---|---|")
    for title, delays in (("first seconds", early), ("after that", settled)):
        if len(delays) >= 2:
            cuts = statistics.quantiles(delays, n=100, method="inclusive")
            print(f"| {title} | {1000 * cuts[49]:.0f} | {1000 * cuts[98]:.0f} | {1000 * max(delays):.0f} |")
    return 0


def measure(folder: Path, address: str, *, lines: int, rate: float) -> dict[float, float]:
    """Run the job; return for each line when it was printed (seconds since the epoch), and how long it took to arrive."""
    topic = f"latency-{uuid.uuid4()}"
    consumer = waiting_consumer(address, topic)
    job = {
        "version": 1,
        "job": {"id": "latency"},
        "benchmark": {"argv": [sys.executable, "-c", PRINTER, str(lines), str(rate)], "inherit_env": True},
        "metrics": [{"name": METRIC, "pattern": METRIC + r"=(\d+)"}],
        "host_metrics": {"enabled": False},
        "kafka": {"brokers": [address], "topic": topic},
    }
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    command = [
        sys.executable,
        "-m",
        "bai_agent",
        "run",
        str(folder / "job.toml"),
        "--dir",
        str(folder / "run"),
        "--quiet",
    ]
    # What users have: the agent itself sees to it that lines are written as they are printed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    agent = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    arrived: dict[float, float] = {}
    deadline = time.monotonic() + lines / rate + 60
    try:
        while len(arrived) < lines:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {len(arrived)} of {lines} lines arrived; is the machine very busy?")
            batches = consumer.poll(timeout_ms=200)
            now = time.time()
            for batch in batches.values():
                for message in batch:
                    record = json.loads(message.value)
                    if record["name"] == METRIC:
                        when = record["value"] / 1e6
                        arrived[when] = now - when
        if agent.wait(timeout=60) != 0:
            raise SystemExit(f"the agent ended with exit code {agent.returncode}")
    finally:
        consumer.close(autocommit=False)
        if agent.poll() is None:
            agent.terminate()
            agent.wait(timeout=60)
    return arrived


def waiting_consumer(address: str, topic: str) -> KafkaConsumer:
    """Return a consumer that stands at the end of the new `topic`, and hears of every message at once."""
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}}, wait_for_metadata=True)
    admin.close()
    consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False, fetch_min_bytes=1)
    consumer.assign([TopicPartition(topic, number) for number in range(3)])
    consumer.seek_to_beginning()
    consumer.poll(timeout_ms=1000)
    return consumer


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A broker of our own; yields its address."""
    script = [sys.executable, str(ROOT / "scripts" / "kafka")]
    started = subprocess.run(
        [*script, "start", "--dir", str(folder)], stdout=subprocess.PIPE, text=True, timeout=900, check=True
    )
    try:
        yield started.stdout.strip()
    finally:
        subprocess.run([*script, "stop", "--dir", str(folder)], timeout=120, check=True)


if __name__ == "__main__":
    sys.exit(main())
