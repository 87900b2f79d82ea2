"""The pusher's process is killed at random moments, while records are being written."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from agent_runs import wait_until
from kafka_brokers import Broker
from metric_files import append_records, kafka_job, new_run, sequence
from source_tree import TEST_FOLDERS

from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.backlog import MAX_RECORDS, read_progress
from bai_agent.sinks.kafka.pusher import KafkaPusher
from bai_agent.sinks.kafka.send import MAX_IN_FLIGHT

PUSH = """
import sys, time
from pathlib import Path
from metric_files import kafka_job
from bai_agent.sinks.kafka.pusher import KafkaPusher
from bai_agent.job.run_directory import RunDir
folder, address, topic = sys.argv[1:]
pusher = KafkaPusher(kafka_job(address, topic), RunDir(Path(folder)), rank=0)
pusher.start()
end = time.monotonic() + 120
while time.monotonic() < end and sum(batch.handed > 0 for batch in list(pusher._window.outgoing)) < 3:
    time.sleep(0.001)
if time.monotonic() < end:
    print("three batches are in flight", flush=True)
    time.sleep(end - time.monotonic())
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_after_kills_each_value_arrives_and_at_most_three_batches_arrive_twice(
    kafka: Broker, free_topic: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    rundir = new_run(tmp_path)
    total, kills = 30_000, 6
    written = 0
    for _ in range(kills):
        append_records(rundir, range(written, written + total // kills))
        written += total // kills
        child = start_pusher(rundir, kafka.address, free_topic)
        before = read_progress(rundir.kafka_offset).delivered
        deadline = time.monotonic() + 60
        while read_progress(rundir.kafka_offset).delivered == before:
            assert time.monotonic() < deadline, "nothing was delivered for 60 s"
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=60)

    last = KafkaPusher(kafka_job(kafka.address, free_topic), rundir, rank=0)
    last.start()
    delivery = last.finish(time.monotonic() + 60)

    arrived = sequence(kafka.read(free_topic))
    assert (delivery.delivered, delivery.undelivered, delivery.error) == (total, 0, None)
    assert list(dict.fromkeys(arrived)) == list(range(total)), "all, in the order in which they were written"
    steps_back = [then - now for then, now in pairwise(arrived) if now <= then]
    assert len(steps_back) <= kills
    assert all(step < MAX_IN_FLIGHT * MAX_RECORDS for step in steps_back), "no more than three batches"


def test_a_kill_with_three_batches_in_flight_loses_nothing(own_kafka: Broker, tmp_path: Path) -> None:
    rundir = new_run(tmp_path / "run")
    own_kafka.create_topic("metrics", partitions=1)
    total = 5 * MAX_RECORDS
    append_records(rundir, range(10))
    child = start_pusher(rundir, own_kafka.address, "metrics")
    wait_until(lambda: read_progress(rundir.kafka_offset).delivered == 10)
    pid = json.loads((own_kafka.dir / "kafka.json").read_text())["pid"]

    os.kill(pid, signal.SIGSTOP)
    try:
        append_records(rundir, range(10, total))
        assert child.stdout is not None
        # It says so itself.
        assert child.stdout.readline() == b"three batches are in flight\n"
        child.kill()
        child.wait(timeout=60)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert read_progress(rundir.kafka_offset).delivered == 10
    last = KafkaPusher(kafka_job(own_kafka.address, "metrics"), rundir, rank=0)
    last.start()
    delivery = last.finish(time.monotonic() + 60)

    arrived = sequence(own_kafka.read("metrics"))
    assert (delivery.delivered, delivery.undelivered, delivery.error) == (total, 0, None)
    assert list(dict.fromkeys(arrived)) == list(range(total)), "all, in the order in which they were written"
    assert len(arrived) - total <= MAX_IN_FLIGHT * MAX_RECORDS


def start_pusher(rundir: RunDir, address: str, topic: str) -> subprocess.Popen[bytes]:
    environment = {"PYTHONPATH": TEST_FOLDERS, "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", PUSH, str(rundir.path), address, topic]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def test_the_stored_offset_never_exceeds_the_acknowledged_records(own_kafka: Broker, tmp_path: Path) -> None:
    rundir = new_run(tmp_path / "run")
    own_kafka.create_topic("metrics", partitions=1)
    append_records(rundir, range(10))
    pusher = KafkaPusher(kafka_job(own_kafka.address, "metrics"), rundir, rank=0)
    pusher.start()
    deadline = time.monotonic() + 60
    while pusher.delivered < 10:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    acknowledged = rundir.metrics.stat().st_size

    own_kafka.stop()
    append_records(rundir, range(10, 20))
    delivery = pusher.finish(time.monotonic() + 2)

    assert json.loads(rundir.kafka_offset.read_text())["offset"] == acknowledged
    assert (delivery.delivered, delivery.undelivered) == (10, 10)
