"""Latency from the print of a line to Kafka: a whole `bai-agent run`, and a program with its own Kafka producer.

    python benchmarks/latency.py [--rates 50 1000 9000 40000 80000 0] [--seconds 10] [--rounds 3]

A real broker (`scripts/kafka`) records the time at which the broker appended each message (LogAppendTime). The message contains
the time of the print. The figures therefore include print, extractor, pusher, network and broker. The consumer starts after the
run, because a consumer in Python would need more CPU time than all other programs together. The peer is kafka-python alone,
without files and without an agent. Instead of printing a line, the peer passes the same bytes, key, headers and partition to its
own producer (acks=all, idempotent, linger 5 ms). Agent and peer run in turns, one round after the other. Both programs send one
line, wait until all connections are open, and then keep the rate. Rate 0 means 100,000 lines without pauses. After the run, all
messages are read and counted. The messages must be in the order of their lines. The last columns show the bottleneck: the CPU
time per line of the program, of agent with extractor, and of the broker. The sum of these three CPU times, multiplied by the
rate, is the number of cores that all programs need.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_job import finish, start_agent, write_job
from goals import print_figure
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from bai_agent.job.run_directory import RunDir

ROOT = Path(__file__).parents[1]
METRIC = "printed_at"
ZERO_US = time.time_ns() // 1000
"""Time from which the times in messages are counted (µs), so that the numbers have as many digits as a benchmark's numbers."""
SETTLED_SECONDS = 3
BURST = 100_000
BURST_ROW = "burst"
PARTITIONS = 3
END_SECONDS = 300

LINES = f"""
import sys, time
lines, rate = int(sys.argv[1]), float(sys.argv[2])
def keep_rate(say):
    say(0)
    time.sleep({SETTLED_SECONDS})
    start = time.monotonic()
    for number in range(1, lines + 1):
        # A sleep of no time takes the kernel's slack for timers, 50 µs.
        if rate and (early := start + number / rate - time.monotonic()) > 0:
            time.sleep(early)
        say(number)
    print(lines / (time.monotonic() - start), file=sys.stderr)
"""

PRINTER = f"""{LINES}
keep_rate(lambda number: print(f"step {{number}} {METRIC}={{time.time_ns() // 1000 - {ZERO_US}}}"))
"""

SENDER = f"""{LINES}
from kafka import KafkaProducer
address, topic = sys.argv[3:]
producer = KafkaProducer(bootstrap_servers=address, acks="all", enable_idempotence=True, linger_ms=5, batch_size=768 * 1024)
labels = '{{"action-id": "benchmark", "client-id": "local"}}'
def say(number):
    now = time.time_ns()
    value = f'{{{{"name": "{METRIC}", "value": {{now // 1000 - {ZERO_US}}}, "timestamp": {{now // 1000000}}, "labels": {{labels}}}}}}'
    headers = [("job", b"benchmark"), ("rank", b"0"), ("seq", b"%d" % number)]
    producer.send(topic, key=b"local", value=value.encode(), headers=headers)
keep_rate(say)
producer.flush()
producer.close()
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Results of one run: lines per second that were printed, and delays (seconds)."""

    rate: float
    first: float
    delays: list[float]
    cpu: Sequence[float]
    """CPU time of the program, of agent with extractor, and of the broker (seconds)."""


@dataclass(frozen=True)
class Broker:
    """A broker of our own."""

    address: str
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time that the broker has used so far (seconds)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 1000, 9000, 40_000, 80_000, 0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    print(f"load before: {os.getloadavg()[0]:.1f}\n")
    print(
        "| lines a second | | printed, lines a second | first line, ms | p50, ms | p99, ms | max, ms "
        "| µs of CPU a line: program | agent | broker | cores in all |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="latency-") as name, run_broker(Path(name) / "kafka") as broker:
        for rate in options.rates:
            lines = int(rate * options.seconds) or BURST
            runs: dict[str, list[Measured]] = {"agent": [], "peer": []}
            for number in range(options.rounds):
                folder = Path(name) / f"{rate:g}-{number}"
                folder.mkdir()
                runs["agent"].append(measure_agent(folder, broker, lines=lines, rate=rate))
                runs["peer"].append(measure_peer(broker, lines=lines, rate=rate))
            for title, measured in runs.items():
                print_row(f"{rate:,.0f}" if rate else BURST_ROW, title, measured)
            if rate:
                sent = statistics.median(run.rate for run in runs["peer"])
                case = f"{rate:,.0f} lines a second; the peer: {1000 * worst(runs['peer']):.0f} ms, {sent:,.0f} lines a second"
                figures[case] = [1000 * worst([run]) for run in runs["agent"]]
            ratio = worst(runs["agent"]) / worst(runs["peer"])
            print(f"| | agent's p99 as a ratio to the peer's | | | | {ratio:.2f} | | | | | |", flush=True)
    print(f"\nload after: {os.getloadavg()[0]:.1f}")
    for case, delays in figures.items():
        print_figure("kafka-p99", delays, case=case)


def print_row(rate: str, title: str, runs: Sequence[Measured]) -> None:
    cuts = [statistics.quantiles(run.delays, n=100, method="inclusive") for run in runs]
    each_line = [[1e6 * seconds / (len(run.delays) + 1) for seconds in run.cpu] for run in runs]
    cores = [sum(parts) * run.rate / 1e6 for parts, run in zip(each_line, runs, strict=True)]
    columns = [
        f"{statistics.median(run.rate for run in runs):,.0f}",
        *(
            f"{1000 * statistics.median(values):.0f}"
            for values in (
                [run.first for run in runs],
                [cut[49] for cut in cuts],
                [cut[98] for cut in cuts],
                [max(run.delays) for run in runs],
            )
        ),
        *(f"{statistics.median(values):.1f}" for values in zip(*each_line, strict=True)),
        "" if rate == BURST_ROW else f"{statistics.median(cores):.2f}",
    ]
    print(f"| {rate} | {title} | {' | '.join(columns)} |", flush=True)


def worst(runs: Sequence[Measured]) -> float:
    """Return the median of the runs' p99."""
    return statistics.median(statistics.quantiles(run.delays, n=100, method="inclusive")[98] for run in runs)


def measure_agent(folder: Path, broker: Broker, *, lines: int, rate: float) -> Measured:
    """Run a job whose benchmark prints."""
    topic = make_topic(broker.address)
    before = broker.cpu_seconds()
    job = write_job(
        folder,
        [sys.executable, "-c", PRINTER, str(lines), str(rate)],
        buffering="line",
        metrics=[{"name": METRIC, "pattern": METRIC + r"=(\d+)"}],
        host_metrics={"enabled": False},
        kafka={"brokers": [broker.address], "topic": topic},
        limits={"drain": f"{END_SECONDS}s"},
    )
    rundir = folder / "run"
    ended = finish(start_agent(job, rundir), rundir)
    (own,) = json.loads((rundir / "result.json").read_bytes())["own_usage"]
    cpu = (
        ended["user_seconds"] + ended["system_seconds"],
        sum(own[program]["cpu_seconds"] for program in ("agent", "extractor", "shim")),
        broker.cpu_seconds() - before,
    )
    printed = [line for line in RunDir(rundir).output.read_text().splitlines() if METRIC not in line]
    return arrived(broker.address, topic, lines=lines, rate=float(printed[-1]), cpu=cpu)


def measure_peer(broker: Broker, *, lines: int, rate: float) -> Measured:
    """Run the peer, which sends the lines that the benchmark would print."""
    topic = make_topic(broker.address)
    command = [sys.executable, "-c", SENDER, str(lines), str(rate), broker.address, topic]
    before, own = broker.cpu_seconds(), children_seconds()
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=END_SECONDS, check=True)
    cpu = (children_seconds() - own, 0.0, broker.cpu_seconds() - before)
    return arrived(broker.address, topic, lines=lines, rate=float(ended.stderr.splitlines()[-1]), cpu=cpu)


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def arrived(address: str, topic: str, *, lines: int, rate: float, cpu: Sequence[float]) -> Measured:
    """Read the whole topic, and return the latency of each message. Raises SystemExit unless all messages are there, in order and
    in one partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=5000,
    )
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    left = sum(consumer.end_offsets(partitions).values())
    times: list[tuple[float, float]] = []
    used = set()
    while left:
        batches = consumer.poll(timeout_ms=1000)
        if not batches:
            raise SystemExit(f"{left} messages of {topic} cannot be read")
        for partition, messages in batches.items():
            used.add(partition)
            left -= len(messages)
            for message in messages:
                record = json.loads(message.value)
                if record["name"] == METRIC:
                    times.append(((ZERO_US + record["value"]) / 1e6, message.timestamp / 1e3))
    consumer.close(autocommit=False)
    printed = [each for each, _ in times]
    if len(times) != lines + 1 or printed != sorted(printed) or len(used) != 1:
        raise SystemExit(
            f"{len(times)} messages for {lines + 1} lines, in {len(used)} partitions; is one missing?"
        )
    # The broker's clock has milliseconds: a message cannot be there before its print.
    delays = [max(0.0, appended - print_time) for print_time, appended in times]
    return Measured(rate=rate, first=delays[0], delays=delays[1:], cpu=cpu)


def make_topic(address: str) -> str:
    """Make a topic whose messages have the time at which the broker appended them."""
    topic = f"latency-{uuid.uuid4()}"
    admin = KafkaAdminClient(bootstrap_servers=address)
    settings = {
        "num_partitions": PARTITIONS,
        "replication_factor": 1,
        "configs": {"message.timestamp.type": "LogAppendTime"},
    }
    admin.create_topics({topic: settings}, wait_for_metadata=True)
    admin.close()
    return topic


@contextmanager
def run_broker(folder: Path) -> Iterator[Broker]:
    """Run a broker of our own."""
    script = [sys.executable, str(ROOT / "scripts" / "kafka")]
    started = subprocess.run(
        [*script, "start", "--dir", str(folder)], stdout=subprocess.PIPE, text=True, timeout=900, check=True
    )
    try:
        pid = json.loads((folder / "kafka.json").read_bytes())["pid"]
        yield Broker(started.stdout.strip(), pid)
    finally:
        subprocess.run([*script, "stop", "--dir", str(folder)], timeout=120, check=True)


if __name__ == "__main__":
    main()
