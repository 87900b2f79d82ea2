"""Metrics are log events in a log group of CloudWatch Logs (moto's), read back with boto3."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from agent_runs import events_of, wait_until
from emf_schema import checked, values_of
from instance_services import ACCESS_KEY, Services
from local_cli import local_cli
from metric_files import append_records, new_run
from s3_gate import Gate, open_gate, s3_server

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.sink_tables import CloudWatch
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks import sinks_of
from bai_agent.sinks.cloudwatch_sink import CloudWatchSink

GROUP = "/bai/metrics"
POLICY = Path(__file__).parents[3] / "executor/backends/ec2/iam/cloudwatch.json"


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def gate(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    with open_gate(moto) as gate:
        for name, value in {
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": gate.url,
            "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }.items():
            monkeypatch.setenv(name, value)
        yield gate


@pytest.fixture
def logs(moto: str, gate: Gate) -> Any:
    client = boto3.client(
        "logs",
        endpoint_url=f"http://{moto}",
        region_name="eu-central-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    client.create_log_group(logGroupName=GROUP)
    return client


def documents(logs: Any, stream: str) -> list[dict[str, Any]]:
    """All documents of a log stream, in its order."""
    found: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    while True:
        page = logs.get_log_events(
            logGroupName=GROUP, logStreamName=stream, startFromHead=True, limit=10_000, **token
        )
        if not page["events"]:
            return found
        found += [checked(event["message"]) for event in page["events"]]
        token = {"nextToken": page["nextForwardToken"]}


def sink_of(rundir: RunDir, **table: Any) -> CloudWatchSink:
    identity = Identity(id="job-1", action_id="a", client_id="c", labels={"task_name": "digits"})
    cloudwatch = CloudWatch(**{"log_group": GROUP, **table})
    job = Job(job=identity, benchmark=Benchmark(argv=("true",)), cloudwatch=cloudwatch)
    (sink,) = sinks_of(job, rundir, rank=0, redactor=Redactor())
    assert isinstance(sink, CloudWatchSink)
    return sink


def now_ms() -> int:
    return time.time_ns() // 10**6


def test_a_runs_metrics_are_in_its_log_stream(tmp_path: Path, logs: Any) -> None:
    cli = local_cli(tmp_path)
    descriptor = cli.descriptor(
        "for n in range(3): print(f'loss={n / 2}')", more=f'[cloudwatch]\nlog_group = "{GROUP}"'
    )

    done = cli.bai("run", descriptor, "--job-id", "whole-run")

    assert done.code == 0, done.stdout + done.stderr
    found = documents(logs, "whole-run/0")
    assert [value for each in found if "loss" in each for value in values_of(each, "loss")] == [0, 0.5, 1]
    assert {each["action-id"] for each in found} == {"whole-run"}
    (told,) = (
        each
        for each in events_of(cli.rundir("whole-run").path)
        if each["type"] == "delivery" and each["sink"] == "CloudWatch"
    )
    metrics = [
        (each, metric["Name"]) for each in found for metric in each["_aws"]["CloudWatchMetrics"][0]["Metrics"]
    ]
    assert told["delivered"] == sum(len(values_of(each, name)) for each, name in metrics)
    assert told["undelivered"] == 0


def test_many_values_arrive_in_order_each_once(tmp_path: Path, logs: Any) -> None:
    rundir = new_run(tmp_path / "run")
    now = now_ms()
    for n in range(0, 5000, 500):
        append_records(rundir, range(n, n + 500), timestamp=now + n)
    sink = sink_of(rundir)
    sink.start()

    told = sink.finish(time.monotonic() + 60)

    assert (told.delivered, told.undelivered, told.warnings) == (5000, 0, ())
    found = documents(logs, "job-1/0")
    assert [value for each in found for value in values_of(each, "loss")] == [n / 2 for n in range(5000)]


def test_a_restarted_agent_sends_only_new_values_to_cloudwatch(tmp_path: Path, logs: Any) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(3), timestamp=now_ms())
    first = sink_of(rundir)
    first.start()
    first.finish(time.monotonic() + 30)
    append_records(rundir, range(3, 5), timestamp=now_ms())

    second = sink_of(rundir)
    second.start()
    told = second.finish(time.monotonic() + 30)

    assert (told.delivered, told.undelivered) == (5, 0)
    found = documents(logs, "job-1/0")
    assert [value for each in found for value in values_of(each, "loss")] == [0, 0.5, 1, 1.5, 2]


def test_a_missing_log_group_is_reported_and_waited_for(tmp_path: Path, logs: Any) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(3), timestamp=now_ms())
    sink = sink_of(rundir, log_group="later")
    sink.start()
    sink.flush_soon()
    wait_until(lambda: sink.error)
    assert (
        "the log group later does not exist; create it: aws logs create-log-group --log-group-name later"
        in str(sink.error)
    )

    refused = sink.finish(time.monotonic() + 30)
    assert (refused.delivered, refused.undelivered) == (0, 3)
    assert "3 of 3 values did not reach CloudWatch: the log group later does not exist" in refused.warnings[0]

    logs.create_log_group(logGroupName="later")
    again = sink_of(rundir, log_group="later")
    again.start()
    assert again.finish(time.monotonic() + 30).delivered == 3


def test_throttled_events_are_sent_again(tmp_path: Path, logs: Any, gate: Gate) -> None:
    answers = [(400, b'{"__type": "ThrottlingException", "message": "Rate exceeded"}')] * 2
    gate.refuse = lambda _method, _path: answers.pop() if answers else None
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(3), timestamp=now_ms())
    sink = sink_of(rundir)
    sink.start()

    told = sink.finish(time.monotonic() + 60)

    assert (told.delivered, told.undelivered) == (3, 0)
    found = documents(logs, "job-1/0")
    assert [value for each in found for value in values_of(each, "loss")] == [0, 0.5, 1]


def test_events_that_cloudwatch_calls_too_old_are_counted(tmp_path: Path, logs: Any, gate: Gate) -> None:
    # As the API's reference has it, the index is exclusive; moto's is not.
    rejected = json.dumps({"rejectedLogEventsInfo": {"tooOldLogEventEndIndex": 1}}).encode()
    answers = iter([None, (200, rejected)])
    gate.refuse = lambda _method, _path: next(answers, None)
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(2), timestamp=now_ms() - 20 * 24 * 3600 * 1000)
    append_records(rundir, range(2, 5), timestamp=now_ms())
    sink = sink_of(rundir)
    sink.start()

    told = sink.finish(time.monotonic() + 30)

    assert (told.delivered, told.undelivered) == (3, 2)
    assert "CloudWatch refuses 2 of them" in str(told.error)
    found = documents(logs, "job-1/0")
    assert [value for each in found for value in values_of(each, "loss")] == [1, 1.5, 2]


def test_an_instance_signs_with_its_role(tmp_path: Path, logs: Any, gate: Gate) -> None:
    services = Services(metadata={"placement/region": "eu-central-1"})
    server = services.serve()
    environment = {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": services.url,
        "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": gate.url,
        # A person's own configuration is none of an instance's.
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(3), timestamp=now_ms())
    job = Job(
        job=Identity(id="job-1"), benchmark=Benchmark(argv=("true",)), cloudwatch=CloudWatch(log_group=GROUP)
    )
    try:
        sink = CloudWatchSink(job, rundir, rank=0, environment=environment)
        sink.start()
        told = sink.finish(time.monotonic() + 30)
    finally:
        server.shutdown()
        server.server_close()

    assert (told.delivered, told.undelivered) == (3, 0), told.error
    assert set(gate.access_keys) == {ACCESS_KEY}
    assert set(gate.regions) == {"eu-central-1"}


def test_the_policy_allows_exactly_the_requests_made(tmp_path: Path, logs: Any, gate: Gate) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(3), timestamp=now_ms())
    sink = sink_of(rundir)
    sink.start()
    sink.finish(time.monotonic() + 30)

    (statement,) = json.loads(POLICY.read_text())["Statement"]
    asked = {target.removeprefix("Logs_20140328.") for target in gate.targets if target}
    assert {f"logs:{action}" for action in asked} == set(statement["Action"])
