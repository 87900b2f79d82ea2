"""Commands, hostile events, a broker that goes away, and two services at once."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from kafka_brokers import Broker
from moto_aws import MotoAws
from sandbox.fake_aws.calls import Call
from service_burst import ASSIGNMENTS, figure, run_burst, unanswered
from service_events import DATASET, cancel_event, encoded, fetcher_event
from service_runs import ServiceRuns, open_service_runs

RUN = "aws.ec2.run_instances"
HOSTILE: tuple[dict[str, Any], ...] = (
    {"data": {"sources": [{"src": "file:///etc/shadow", "path": "/d"}]}},
    {"ml.script": {"path": "/"}},
    {"aws.ec2.instance_profile": "admin"},
    {"env.secrets": {"X": "env:AWS_SECRET_ACCESS_KEY"}},
    {"output.metrics": [{"name": "a", "units": "u", "pattern": "("}]},
    {"ml.benchmark_code": ["a", "list"]},
    {"hardware.instance_type": {"a": "table"}},
    {f"{RUN}.UserData": "IyEvYmluL3No"},
    {f"{RUN}.IamInstanceProfile": {"Name": "admin"}},
    {"info.labels": "text"},
    {"data": {"sources": [{"src": "../../etc/shadow", "path": "/d"}]}},
    {"data": {"sources": [{"src": "s3://bucket/key", "path": "/a/../../etc/cron.d/x"}]}},
    {"data": "text"},
    {"aws.ec2.security_groups": ["sg-1"]},
    {"env.user": "root"},
    {"kafka": {"brokers": ["evil:9092"]}},
    {"store": {"url": "s3://another/jobs"}},
    {"end": {"commands": ["rm -rf /"]}},
    {"hardware.strategy": "torchrun", "hardware.distributed": {"num_instances": 10**400}},
    {"hardware": [1, 2]},
    {"output": 7},
    {"output.metrics": [{"name": f"m{n}", "units": "u", "pattern": "x"} for n in range(1001)]},
    {"ml.benchmark_code": "echo 'x"},
    {"ml.script": {"script": "../../x"}},
    {f"{RUN}.NetworkInterfaces": [{"SubnetId": "subnet-1"}]},
    {"limits": {"max_runtime": "for ever"}},
)
"""Descriptors that must not run; some ask for what is the service's, the others are mistaken."""
MOST_GROWTH = 50 * 2**20
"""Bytes, of memory."""
LARGE = 5_000_000
"""Bytes; the topic takes more here than a broker's usual megabyte."""


def test_a_job_is_cancelled_on_command(service: ServiceRuns) -> None:
    service.start()
    service.publish(
        "fetcher", fetcher_event(action_id="parent"), fetcher_event(action_id="child", parent="parent")
    )
    service.wait_messages("executor", 2)

    service.publish(
        "cmd_submit",
        cancel_event({"target_action_id": "parent", "cascade": True}, action_id="c-1"),
        cancel_event(["parent"], action_id="c-2", client_id="mallory"),
        cancel_event({"target": "parent"}, action_id="c-3"),
        cancel_event({}, action_id="c-4", command="__init__"),
        cancel_event(["nobody"], action_id="c-5"),
    )
    answers = {each["action_id"]: each["payload"] for each in service.wait_messages("cmd_return", 4)}

    assert {name: each["return_code"] for name, each in answers.items()} == {
        "c-1": 0,
        "c-2": 1,
        "c-3": 2,
        "c-5": 1,
    }
    assert answers["c-1"]["message"] == "Cancel command processed successfully"
    assert answers["c-1"]["cmd_submit"] == cancel_event(
        {"target_action_id": "parent", "cascade": True}, action_id="c-1"
    )
    for job_id in ("parent", "child"):
        assert service.answers(job_id)[-1] == ("SUCCEEDED", "Execution successfully cancelled...")
        assert service.keys(f"jobs/{job_id}/cancel.json")


def test_hostile_events_are_answered_and_nothing_is_launched_or_uploaded(service: ServiceRuns) -> None:
    service.broker.create_topic(
        service.topics["fetcher"], partitions=3, **{"max.message.bytes": str(2 * LARGE)}
    )
    service.start()
    events: list[Any] = []
    for number in range(100):
        changes = HOSTILE[number % len(HOSTILE)]
        events.append(fetcher_event(changes, action_id=f"hostile-{number}", client_id=f"client-{number % 7}"))
    datasets = [{**DATASET, "dst": "file:///etc/shadow"}, {**DATASET, "path": "/a/../../b"}]
    scripts = [{"dst": "s3://x/../../y"}, {"dst": 3}]
    events.append(fetcher_event(action_id="zip-slip", payload={"datasets": datasets, "scripts": scripts}))
    large = fetcher_event(action_id="large", payload={"x": "x" * LARGE})
    unreadable = [
        b'{"action_id": "',
        b"\xff",
        b"[" * 50_000,
        encoded({"action_id": "a"}),
        encoded([]),
        encoded(large)[:-1],
    ]
    commands = [
        cancel_event({}, action_id="c-0", command="__init__"),
        cancel_event({"target_action_id": ["x"]}, action_id="c-1"),
        cancel_event([{"__class__": "x"}], action_id="c-2"),
    ]

    service.publish("fetcher", *events, large, *unreadable)
    service.publish("cmd_submit", *commands, cancel_event({}, command=["cancel"]))

    service.wait(
        lambda: sum(each["payload"]["status"] == "ERROR" for each in service.messages("status")) == 102,
        "102 errors",
    )
    assert len(service.wait_messages("letters", len(unreadable) + 1)) == len(unreadable) + 1
    answers = {each["action_id"]: each["payload"] for each in service.wait_messages("cmd_return", 2)}
    assert {name: each["return_code"] for name, each in answers.items()} == {"c-1": 2, "c-2": 2}
    said = {each["action_id"]: each["payload"]["message"] for each in service.messages("status")}
    assert "data.sources[0].src" in said["hostile-0"]
    assert "bytes" in said["large"]
    assert service.messages("executor") == []
    assert service.aws.calls("RunInstances") == []
    # The service notes there that it checks all jobs, which it does each minute.
    assert [each for each in service.keys("") if not each.startswith(("service/", "jobs/.looks/"))] == []
    # and it still works
    service.publish("fetcher", fetcher_event(action_id="good"))
    service.wait_messages("executor", 1)


def test_a_burst_survives_a_broker_failure_with_eight_launches_at_once(
    own_kafka: Broker, moto_aws: MotoAws, service_environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "service"
    folder.mkdir()
    own = 'look_interval = "1s"\nmax_poll_interval = "10s"\nsession_timeout = "10s"'
    with open_service_runs(folder, own_kafka, moto_aws, service_environment, service=own) as service:
        service.start()
        found = run_burst(service, 30, wait=lambda done: service.wait(done, "the next answers"))
        # The group is that of before: no launch has kept the poll waiting.
        assert found.rebalances == 0, service.log.read_text()
        assert found.lost == []
        assert found.growth < MOST_GROWTH
        assert 2 <= found.most_launches <= 8
        assert service.stop() == 0


def test_a_slow_store_does_not_delay_the_kafka_poll(
    kafka: Broker, moto_aws: MotoAws, service_environment: dict[str, str], tmp_path: Path
) -> None:
    # given a store that takes so long to keep an event that those of one poll together take longer than the poll may wait
    def slowly(call: Call) -> bool:
        if call.action == "PutObject" and call.resource.endswith("/event.json"):
            time.sleep(2.5)
        return False

    moto_aws.prevents = slowly
    folder = tmp_path / "service"
    folder.mkdir()
    own = 'max_poll_interval = "10s"\nsession_timeout = "10s"'
    with open_service_runs(folder, kafka, moto_aws, service_environment, service=own) as service:
        service.start()
        ids = [f"job-{number}" for number in range(9)]
        service.publish("fetcher", *(fetcher_event(action_id=each) for each in ids))
        service.wait_messages("executor", len(ids))

        # then the group is that of the beginning, and each event is answered once
        assert figure(service, ASSIGNMENTS) == 1, service.log.read_text()
        assert unanswered(service, ids) == []


def test_two_services_share_the_work_and_send_each_message_once(
    service: ServiceRuns, service_environment: dict[str, str], tmp_path: Path
) -> None:
    service.start()
    ids = [f"job-{number}" for number in range(6)]
    service.publish("fetcher", *(fetcher_event(action_id=each, client_id=each) for each in ids[:3]))
    other = service.cli.start("serve")
    try:
        for each in ids[3:]:
            service.publish("fetcher", fetcher_event(action_id=each, client_id=each), key=each)
        service.wait_messages("executor", len(ids))
    finally:
        other.terminate()
        assert other.wait(timeout=60) == 0
        for stream in (other.stdout, other.stderr):
            if stream is not None:
                stream.close()

    assert len(service.aws.instances()) == len(ids)
    assert {each: [status for status, _ in service.answers(each)] for each in ids} == {
        key: ["PENDING", "SUCCEEDED"] for key in ids
    }


def test_the_open_jobs_of_a_client_stay_within_its_cost_bound(
    kafka: Broker, moto_aws: MotoAws, service_environment: dict[str, str], tmp_path: Path
) -> None:
    # given a bound for one job of a client, and a service that is killed when it has launched one
    configuration = '[prices]\n"t3.small" = 1.0\n[service.bounds]\nclient_cost = 40.0'
    folder = tmp_path / "service"
    folder.mkdir()
    with open_service_runs(folder, kafka, moto_aws, service_environment, configuration) as service:
        service.start()
        service.publish("fetcher", fetcher_event(action_id="first"))
        service.wait_messages("executor", 1)
        service.kill()
        service.start()

        # when the same client asks for another one, and another client does
        events = [fetcher_event(action_id="second"), fetcher_event(action_id="other", client_id="other")]
        service.publish("fetcher", *events)
        service.wait_messages("executor", 2)
        service.wait(lambda: "ERROR" in dict(service.statuses("second")), "the refusal")

        # then only that of the other client is launched
        said = service.statuses("second")[-1][1]
        assert re.search(
            r"may cost (\S+) USD, and other jobs of this client that have not ended \1 USD; at most 40\.00 USD",
            said,
        )
        tags = [{each["Key"]: each["Value"] for each in found["Tags"]} for found in moto_aws.instances()]
        assert sorted(each["bai:job-id"] for each in tags) == ["first", "other"]


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ("nodes = 1\ncost = 0.01", "USD are allowed here"),
        ('instance_types = ["g5.*"]', "hardware.instance_type"),
    ],
)
def test_bounds_of_the_configuration_are_enforced(
    kafka: Broker,
    moto_aws: MotoAws,
    service_environment: dict[str, str],
    tmp_path: Path,
    bounds: str,
    said: str,
) -> None:
    prices = '[prices]\n"t3.small" = 1.0\n'
    configuration = f"{prices}[service.bounds]\n{bounds}"
    folder = tmp_path / "service"
    folder.mkdir()
    with open_service_runs(folder, kafka, moto_aws, service_environment, configuration) as service:
        service.start()
        service.publish("fetcher", fetcher_event())
        service.wait_messages("status", 2)

        assert said in service.statuses()[-1][1]
        assert service.aws.calls("RunInstances") == []
