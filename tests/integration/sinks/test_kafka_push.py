from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from agent_runs import wait_until
from kafka_brokers import Broker
from metric_files import append_records, kafka_job, new_run, sequence

from bai_agent.errors import ConnectError
from bai_agent.job.run_directory import now_ms
from bai_agent.sinks.kafka import connection
from bai_agent.sinks.kafka.connection import connect
from bai_agent.sinks.kafka.pusher import KafkaPusher

SLACK_S = 15
"""Of a scheduler that shares two cores with much else; without a deadline each of these would go on for ever."""


def soon() -> float:
    """A deadline that is there for the case of failure only."""
    return time.monotonic() + 180


def test_messages_arrive_once_in_order_with_the_expected_content(
    kafka: Broker, free_topic: str, tmp_path: Path
) -> None:
    rundir = new_run(tmp_path)
    started = now_ms()
    append_records(rundir, range(3))
    pusher = KafkaPusher(kafka_job(kafka.address, free_topic), rundir, rank=2)

    pusher.start()
    append_records(rundir, range(3, 5000))
    delivery = pusher.finish(soon())

    messages = kafka.read(free_topic)
    assert (delivery.delivered, delivery.undelivered, delivery.error) == (5000, 0, None)
    assert sequence(messages) == list(range(5000))
    assert {message.key for message in messages} == {b"client-1"}
    assert messages[7].headers == [("job", b"job-1"), ("rank", b"2"), ("seq", b"7")]
    assert messages[7].timestamp >= started, "retention counts from the delivery, however old a record is"
    assert json.loads(messages[7].value) == {
        "name": "loss",
        "value": 3.5,
        "timestamp": 1_700_000_000_007,
        "labels": {"task_name": "hello", "action-id": "action-1", "client-id": "client-1"},
    }


def test_a_record_arrives_during_the_run(kafka: Broker, free_topic: str, tmp_path: Path) -> None:
    rundir = new_run(tmp_path)
    pusher = KafkaPusher(kafka_job(kafka.address, free_topic), rundir, rank=0)
    pusher.start()

    for seq in range(5):
        append_records(rundir, [seq])
        wait_until(lambda: pusher.delivered == seq + 1)  # noqa: B023 called at once
        assert sequence(kafka.read(free_topic)) == list(range(seq + 1))

    assert pusher.finish(soon()).undelivered == 0


def test_a_missing_topic_is_created(kafka: Broker, free_topic_name: str, tmp_path: Path) -> None:
    rundir = new_run(tmp_path)
    append_records(rundir, range(10))
    pusher = KafkaPusher(kafka_job(kafka.address, free_topic_name), rundir, rank=0)

    pusher.start()
    delivery = pusher.finish(soon())

    assert delivery.delivered == 10
    messages = kafka.read(free_topic_name)
    assert sequence(messages) == list(range(10))
    assert len({message.partition for message in messages}) == 1, "one client's messages stay in order"


def test_several_nodes_may_create_the_topic_at_once(
    kafka: Broker, free_topic_name: str, tmp_path: Path
) -> None:
    pushers = []
    for rank in range(4):
        rundir = new_run(tmp_path / str(rank))
        append_records(rundir, range(10))
        pushers.append(KafkaPusher(kafka_job(kafka.address, free_topic_name), rundir, rank=rank))

    for pusher in pushers:
        pusher.start()
    deliveries = [pusher.finish(soon()) for pusher in pushers]

    assert [delivery.delivered for delivery in deliveries] == [10, 10, 10, 10]


def test_a_broker_that_is_unreachable_for_ten_seconds_loses_nothing(
    own_kafka: Broker, tmp_path: Path
) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(100))
    own_kafka.create_topic("metrics", partitions=1)
    pusher = KafkaPusher(kafka_job(own_kafka.address, "metrics"), rundir, rank=0)
    pusher.start()
    wait_until(lambda: pusher.delivered == 100)

    own_kafka.stop()
    for seq in range(100, 200):
        append_records(rundir, [seq])
        time.sleep(0.1)
    own_kafka.start()
    append_records(rundir, range(200, 300))
    delivery = pusher.finish(soon())

    assert (delivery.delivered, delivery.undelivered, delivery.error) == (300, 0, None)
    # A connection that breaks between write and answer repeats what was under way, and only that.
    assert list(dict.fromkeys(sequence(own_kafka.read("metrics")))) == list(range(300))


def test_a_broker_that_is_never_reachable_does_not_delay_the_end_of_a_run(tmp_path: Path) -> None:
    rundir = new_run(tmp_path)
    append_records(rundir, range(1000))
    append_records(rundir, range(1000, 1010), src="host")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        pusher = KafkaPusher(kafka_job(address, "metrics"), rundir, rank=0)

        pusher.start()
        wait_until(lambda: pusher.error is not None)
        deadline = time.monotonic() + 2
        delivery = pusher.finish(deadline)

    assert time.monotonic() < deadline + SLACK_S
    assert (delivery.delivered, delivery.undelivered) == (0, 1000)
    assert delivery.error is not None
    assert address in delivery.error
    assert "ECONNREFUSED" in delivery.error


def test_a_broker_that_never_answers_does_not_delay_the_end_of_a_run(tmp_path: Path) -> None:
    rundir = new_run(tmp_path)
    append_records(rundir, range(10))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pusher = KafkaPusher(kafka_job(f"127.0.0.1:{silent.getsockname()[1]}", "metrics"), rundir, rank=0)

        pusher.start()
        deadline = time.monotonic() + 2
        delivery = pusher.finish(deadline)

        assert time.monotonic() < deadline + SLACK_S
        assert (delivery.delivered, delivery.undelivered) == (0, 10)
        assert delivery.error is not None


def test_a_broker_that_hangs_midway_does_not_delay_the_end_of_a_run(
    own_kafka: Broker, tmp_path: Path
) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(10))
    pusher = KafkaPusher(kafka_job(own_kafka.address, "metrics"), rundir, rank=0)
    pusher.start()
    wait_until(lambda: pusher.delivered == 10)
    pid = json.loads((own_kafka.dir / "kafka.json").read_text())["pid"]

    os.kill(pid, signal.SIGSTOP)
    try:
        # On a busy machine its threads go on for a moment.
        wait_until(
            lambda: all(") T " in each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/stat"))
        )
        append_records(rundir, range(10, 30))
        deadline = time.monotonic() + 3
        delivery = pusher.finish(deadline)
        ended = time.monotonic()
    finally:
        os.kill(pid, signal.SIGCONT)

    assert ended < deadline + SLACK_S
    assert (delivery.delivered, delivery.undelivered) == (10, 20)
    assert delivery.error is not None


def test_with_no_records_an_absent_broker_causes_no_delay_and_no_error(tmp_path: Path) -> None:
    pusher = KafkaPusher(kafka_job("127.0.0.1:1", "metrics"), new_run(tmp_path), rank=0)
    pusher.start()

    delivery = pusher.finish(time.monotonic() + 3600)

    assert (delivery.delivered, delivery.undelivered, delivery.error) == (0, 0, None)


def test_a_restarted_agent_continues_at_the_last_sent_record(
    kafka: Broker, free_topic: str, tmp_path: Path
) -> None:
    rundir = new_run(tmp_path)
    append_records(rundir, range(2500))
    first = KafkaPusher(kafka_job(kafka.address, free_topic), rundir, rank=0)
    first.start()
    assert first.finish(soon()).delivered == 2500

    append_records(rundir, range(2500, 3000))
    second = KafkaPusher(kafka_job(kafka.address, free_topic), rundir, rank=0)
    assert second.delivered == 2500
    second.start()
    delivery = second.finish(soon())

    assert (delivery.delivered, delivery.undelivered) == (3000, 0)
    assert sequence(kafka.read(free_topic)) == list(range(3000))


def test_refused_messages_are_counted_and_later_ones_are_sent(
    kafka: Broker, free_topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(free_topic_name, partitions=1, **{"max.message.bytes": "2000"})
    rundir = new_run(tmp_path)
    refused = {0, 501, 502, 999}
    for seq in range(1000):
        append_records(rundir, [seq], name="x" * 5000 if seq in refused else "loss")
    pusher = KafkaPusher(kafka_job(kafka.address, free_topic_name), rundir, rank=0)

    pusher.start()
    delivery = pusher.finish(soon())

    assert sequence(kafka.read(free_topic_name)) == [seq for seq in range(1000) if seq not in refused]
    assert (delivery.delivered, delivery.undelivered) == (996, 4)
    assert delivery.error is not None
    assert "refused 4" in delivery.error


def test_a_message_larger_than_any_request_is_skipped_and_later_ones_are_sent(
    kafka: Broker, free_topic: str, tmp_path: Path
) -> None:
    rundir = new_run(tmp_path)
    append_records(rundir, [0])
    # 400 kB in the file; five times that as the escapes of JSON.
    line = json.dumps(
        {"seq": 1, "src": "emit", "name": "é" * 200_000, "value": 1, "timestamp": 1}, ensure_ascii=False
    )
    with rundir.metrics.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    append_records(rundir, [2])
    pusher = KafkaPusher(kafka_job(kafka.address, free_topic), rundir, rank=0)

    pusher.start()
    delivery = pusher.finish(soon())

    assert sequence(kafka.read(free_topic)) == [0, 2]
    assert (delivery.delivered, delivery.undelivered) == (2, 1)


def test_malformed_metric_lines_are_counted(kafka: Broker, free_topic: str, tmp_path: Path) -> None:
    rundir = new_run(tmp_path)
    append_records(rundir, [0])
    with rundir.metrics.open("a") as file:
        file.write("{broken\n")
    append_records(rundir, [1])
    pusher = KafkaPusher(kafka_job(kafka.address, free_topic), rundir, rank=0)

    pusher.start()
    delivery = pusher.finish(soon())

    assert sequence(kafka.read(free_topic)) == [0, 1]
    assert pusher.malformed == 1
    assert (delivery.delivered, delivery.undelivered) == (2, 1)


def test_failed_connection_attempts_leak_no_threads_or_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_BOOTSTRAP_MS", 200)
    # pytest keeps every record that it captures, and with it the exception and the socket.
    library = logging.getLogger("kafka")
    monkeypatch.setattr(library, "handlers", [])
    monkeypatch.setattr(library, "propagate", False)
    wanted = kafka_job("127.0.0.1:1", "metrics").kafka
    assert wanted is not None

    def attempt() -> tuple[int, int]:
        with pytest.raises(ConnectError):
            connect(wanted, client_id="test")
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    attempt()
    threads, descriptors = attempt()
    for _ in range(10):
        threads_after, descriptors_after = attempt()

    # What a test before this one left in the process may still come and go; ten attempts would leave ten.
    assert threads_after < threads + 5
    assert descriptors_after < descriptors + 5
