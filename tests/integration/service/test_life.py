"""The messages that users of the service get about a job from its launch to its end, with real agents in place of machines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_runs import environment, python_job, start_agent
from moto_aws import REGION
from sandbox.fake_aws.iam.identities import SETUP
from service_events import CLIENT, DATASET, cancel_event, fetcher_event
from service_runs import DASHBOARD, KillPoint, ServiceRuns

LAUNCHED = [
    ("PENDING", "Processing benchmark submission request..."),
    ("SUCCEEDED", "Benchmark successfully created..."),
    ("PENDING", "Benchmark starting"),
]
RUNNING = ("RUNNING", "Benchmark running")
FINISHED = ("SUCCEEDED", "Benchmark finished successfully")
FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)\n"


def metrics(job_id: str) -> tuple[str, str]:
    address = DASHBOARD.replace("{action_id}", job_id)
    return "METRICS AVAILABLE", f"Metrics available for job {job_id} at {address}"


@contextmanager
def agent(
    service: ServiceRuns, folder: Path, job_id: str, program: str = "print('x')", **tables: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start what the machine of a launched job would run; it ends with the block."""
    mine = folder / job_id
    mine.mkdir(parents=True)
    store = {"url": f"s3://{service.aws.bucket}/jobs", "region": REGION}
    job = python_job(mine, program, name=job_id, store=store, **tables)
    started = start_agent(job, mine / "run", env=environment(**service.aws.environment(SETUP)))
    try:
        yield started
    finally:
        started.terminate()
        started.wait(timeout=60)


def copy_record(service: ServiceRuns, source: str, target: str) -> None:
    """Give a job what an agent has written for another."""
    s3, bucket = service.aws.client("s3", SETUP), service.aws.bucket
    prefix = f"jobs/{source}/"
    # The result comes last, as an agent writes it.
    wanted = [each for each in service.keys(prefix) if "/nodes/0/" in each]
    for key in (*wanted, f"{prefix}result.json"):
        to = f"jobs/{target}/{key.removeprefix(prefix)}"
        s3.copy_object(Bucket=bucket, Key=to, CopySource={"Bucket": bucket, "Key": key})


def wait_said(service: ServiceRuns, job_id: str, last: tuple[str, str]) -> list[tuple[str, str]]:
    service.wait(lambda: last in service.statuses(job_id), f"{last} of {job_id}")
    return service.statuses(job_id)


def wait_closed(service: ServiceRuns) -> None:
    service.wait(lambda: not service.keys("open/"), "that nothing is open")


def test_all_statuses_of_a_job_are_sent_in_order(service: ServiceRuns, tmp_path: Path) -> None:
    service.start()
    service.publish("fetcher", fetcher_event(action_id="job-1", payload={"datasets": [DATASET]}))
    (launched,) = service.wait_messages("executor", 1)

    with agent(service, tmp_path, "job-1") as running:
        assert running.wait(timeout=120) == 0
        wait_closed(service)

    assert service.statuses("job-1") == [
        *LAUNCHED,
        ("PENDING", "Downloading data"),
        RUNNING,
        metrics("job-1"),
        FINISHED,
        metrics("job-1"),
    ]
    for message in service.messages("status")[2:]:
        assert message["payload"]["src_event"] == launched
        (ourselves,) = message["visited"]
        assert (ourselves["svc"], message["type"]) == ("ec2-executor", service.topics["status"])
        assert message["client_id"] == CLIENT
    assert 'bai_serve_statuses_total{status="RUNNING"} 1.0' in service.get("/metrics")[1]


def test_each_outcome_of_a_job_has_its_own_message(service: ServiceRuns, tmp_path: Path) -> None:
    ids = ["failing", "slow", "cancelled", "terminated"]
    service.start()
    service.publish("fetcher", *(fetcher_event(action_id=each, client_id=each) for each in ids))
    service.wait_messages("executor", len(ids))

    ec2 = service.aws.client("ec2", SETUP)
    (mine,) = [
        each["InstanceId"]
        for each in service.aws.instances()
        if {"Key": "bai:job-id", "Value": "terminated"} in each["Tags"]
    ]
    ec2.terminate_instances(InstanceIds=[mine])
    with (
        agent(service, tmp_path, "failing", "import sys\nsys.exit(3)"),
        agent(service, tmp_path, "slow", FOREVER, limits={"max_runtime": "1s"}),
        agent(service, tmp_path, "cancelled", FOREVER),
    ):
        wait_said(service, "cancelled", RUNNING)
        service.publish("cmd_submit", cancel_event(["cancelled"], client_id="cancelled"))
        wait_closed(service)

    assert service.statuses("slow") == [
        *LAUNCHED,
        RUNNING,
        metrics("slow"),
        ("FAILED", "Benchmark failed - Max runtime exceeded"),
    ]
    assert service.statuses("cancelled") == [
        *LAUNCHED,
        RUNNING,
        metrics("cancelled"),
        ("SUCCEEDED", "Execution successfully cancelled..."),
        ("CANCELED", "Benchmark cancelled - watch ended"),
    ]
    *_, (status, text) = service.statuses("failing")
    assert (status, text.partition(":")[0]) == ("FAILED", "Benchmark failed")
    assert "3" in text
    *before, (status, text) = service.statuses("terminated")
    assert before == LAUNCHED
    assert status == "FAILED"
    assert text.startswith(f"Benchmark failed: Somebody terminated {mine}")


def test_a_job_whose_machine_never_boots_fails_at_the_boot_limit(service: ServiceRuns) -> None:
    # given machines that hang before their user data is read, one of them beyond the bound for that
    ages = {"late": timedelta(minutes=61), "early": timedelta(minutes=58)}
    service.aws.hang(b"[    0.512000] VFS: Cannot open root device\r\n", ages)
    service.start()

    service.publish("fetcher", *(fetcher_event(action_id=each, client_id=each) for each in ages))

    service.wait(lambda: "FAILED" in dict(service.statuses("late")), "its end")
    service.wait(lambda: LAUNCHED[-1] in service.statuses("early"), "the launch of the other one")
    status, text = service.statuses("late")[-1]
    assert text.startswith("Benchmark failed: i-")
    assert "was launched 1h1m" in text
    assert "never ran its user data: " in text
    assert "Cannot open root device" in text
    assert [status, *service.statuses("late")[:-1]] == ["FAILED", *LAUNCHED]
    # and it is gone, while the other one may still come
    (left,) = service.aws.instances()
    assert {"Key": "bai:job-id", "Value": "early"} in left["Tags"]
    assert service.statuses("early") == LAUNCHED


@pytest.fixture
def lived(service: ServiceRuns, tmp_path: Path) -> str:
    """A job whose record an agent has written, all of it, without the service."""
    with agent(service, tmp_path, "lived") as running:
        assert running.wait(timeout=120) == 0
    return "lived"


def told(job_id: str) -> list[tuple[str, str]]:
    return [*LAUNCHED, RUNNING, metrics(job_id), FINISHED, metrics(job_id)]


def test_a_service_killed_between_two_statuses_sends_the_same_messages(
    service: ServiceRuns, lived: str
) -> None:
    steps = (
        ("PutObject", "service/{}/outbox/30-running.json", False),
        ("PutObject", "service/{}/outbox/30-running.sent", True),
        ("PutObject", "service/{}/outbox/90-end.json", False),
        ("PutObject", "service/{}/outbox/90-end.sent", True),
        ("PutObject", "service/{}/closed.json", False),
        ("DeleteObjects", "open/{}/event.json", True),
    )
    ids = [f"kill-{number}" for number, _ in enumerate(steps)]
    service.start()
    service.publish("fetcher", *(fetcher_event(action_id=each, client_id=each) for each in ids))
    service.wait(lambda: all(LAUNCHED[-1] in service.statuses(each) for each in ids), "the launches")
    service.kill_at(
        *(
            KillPoint(action=action, key=f"{service.aws.bucket}/{key.format(job_id)}", before=before)
            for job_id, (action, key, before) in zip(ids, steps, strict=True)
        )
    )
    for each in ids:
        copy_record(service, lived, each)
    service.wait_killed()

    service.start()
    wait_closed(service)

    for job_id in ids:
        assert service.statuses(job_id) == told(job_id)


def test_two_services_report_each_change_once(service: ServiceRuns, lived: str) -> None:
    ids = [f"job-{number}" for number in range(4)]
    service.start()
    with service.cli.start("serve", stdout=sys.stderr, stderr=sys.stderr) as other:
        try:
            for each in ids:
                service.publish("fetcher", fetcher_event(action_id=each, client_id=each), key=each)
            service.wait_messages("executor", len(ids))
            for each in ids:
                copy_record(service, lived, each)
            wait_closed(service)
        finally:
            other.terminate()
            assert other.wait(timeout=60) == 0

    for each in ids:
        assert service.statuses(each) == told(each)
