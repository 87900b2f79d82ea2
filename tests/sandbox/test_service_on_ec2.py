"""`bai serve` as the benchmark service meets it: from its event in Kafka to a machine that has run the job and is gone."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kafka_brokers import Broker
from light_bundles import light_cache
from service_events import fetcher_event
from service_runs import DASHBOARD, ServiceProcess, open_service_process

from bai_agent import __version__
from sandbox.fake_aws import FakeAws, Machine, open_fake_aws
from sandbox.fake_aws.control_plane.images import DEBIAN
from sandbox.fake_aws.fake_aws import PROFILE
from sandbox.fake_aws.iam.identities import INSTANCE, SETUP
from sandbox.fake_aws.iam.permissions import needed
from sandbox.fake_aws.iam.policies import Policies
from sandbox.fake_aws.iam.policy import Policy
from sandbox.sandbox_cli import PYTHONS

CLIENT = "CLIENT-ID-12345678"
SAMPLE, CUT_OFF = "ACTION-ID-12345678", "ACTION-ID-cut-off"
RUNNING = ("RUNNING", "Benchmark running")
CONTENT = b"ten bytes\n"
SOURCE = "http://h/x.gz"
ENTRYPOINT = """\
#!/bin/sh
set -e
test "$(cat /data/x.gz)" = "ten bytes"
test "$PWD" = "$BAI_SCRIPTS_PATH"
echo begun
until [ -e /var/go ]; do sleep 0.1; done
echo "a=42"
"""
CARRIED = (
    "action_id",
    "parent_action_id",
    "client_id",
    "client_version",
    "client_username",
    "authenticated",
)
"""What stays of an envelope from the fetcher's event to all that follows from it."""


@dataclass(frozen=True)
class Served:
    """Two jobs that were served to their end: the second one's machine could not reach Kafka."""

    aws: FakeAws
    service: ServiceProcess
    began_ms: int
    events: dict[str, dict[str, Any]]
    """Action id → what the service published."""

    def messages(self, *topics: str, action_id: str) -> list[dict[str, Any]]:
        """Return a request's messages in the order in which Kafka took them, whatever their topic."""
        found = [record for topic in topics for record in self.service.broker.read(topic)]
        ordered = sorted(found, key=lambda record: record.timestamp)
        values = [(record.key, json.loads(record.value.decode())) for record in ordered]
        mine = [(key, value) for key, value in values if value["action_id"] == action_id]
        assert {key for key, _ in mine} == {CLIENT.encode()}
        return [value for _, value in mine]

    def metrics(self, action_id: str) -> list[dict[str, Any]]:
        values = [json.loads(record.value) for record in self.service.broker.read("BAI_METRICS")]
        return [each for each in values if each["labels"].get("action-id") == action_id]

    def machine(self, action_id: str) -> Machine:
        (launched,) = self.messages("BAI_APP_EXECUTOR", action_id=action_id)
        (instance_id,) = launched["payload"]["job"]["extras"]["instance_ids"]
        return self.aws.machine(instance_id)


@pytest.fixture(scope="module")
def served(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if os.geteuid() != 0:
        pytest.skip("needs root: machines are made of namespaces and mounts")
    folder = tmp_path_factory.mktemp("service")
    home = folder / "home"
    home.mkdir()
    port = int(kafka.address.rpartition(":")[2])
    with open_fake_aws(folder / "aws") as aws:
        aws.expose(port)
        # What docs/iam.md has attached to the service's role.
        aws.policies.attach("executor", aws.policies.documented("executor", "serve"))
        payload = _fetched(aws)
        events = {
            name: _event(name, payload, {"limits": {"drain": drain}})
            for name, drain in ((SAMPLE, "1m"), (CUT_OFF, "2s"))
        }
        environment = {
            "PATH": os.environ["PATH"],
            "XDG_CACHE_HOME": light_cache(*PYTHONS),
            **aws.environment("executor"),
        }
        configuration = (
            f'bucket = "{aws.bucket}"\ninstance_profile = "{PROFILE}"\ns3_endpoint = "{aws.endpoint}"'
            '\n[service]\nlook_interval = "1s"'
        )
        with open_service_process(home, kafka, environment, configuration) as service:
            served = Served(aws, service, _now_ms(), events)
            service.start()
            service.publish("fetcher", *events.values(), key=CLIENT)
            service.wait_messages("executor", 2)
            served.machine(CUT_OFF).forward(port, None)
            # A benchmark goes on when it is known to run.
            for name in events:
                service.wait(lambda name=name: RUNNING in service.statuses(name), f"{name} runs")  # type: ignore[misc]
                served.machine(name).write("/var/go", "")
            service.wait(lambda: not _keys(aws, "open/"), "the end of both jobs")
            for machine in aws.machines:
                machine.wait_off()
            assert service.stop() == 0
            yield served


def test_the_answers_to_the_sample_event_have_exactly_the_documented_content(served: Served) -> None:
    event, address = served.events[SAMPLE], DASHBOARD.replace("{action_id}", SAMPLE)
    machine, store = served.machine(SAMPLE), f"s3://{served.aws.bucket}/jobs/{SAMPLE}"
    (launched,) = served.messages("BAI_APP_EXECUTOR", action_id=SAMPLE)
    metrics = "METRICS AVAILABLE", f"Metrics available for job {SAMPLE} at {address}"
    expected: list[tuple[str, str] | None] = [
        ("PENDING", "Processing benchmark submission request..."),
        ("SUCCEEDED", "Benchmark successfully created..."),
        None,
        ("PENDING", "Benchmark starting"),
        ("PENDING", "Downloading data"),
        RUNNING,
        metrics,
        ("SUCCEEDED", "Benchmark finished successfully"),
        metrics,
    ]

    found = served.messages("BAI_APP_STATUS", "BAI_APP_EXECUTOR", action_id=SAMPLE)

    extras = {
        "instance_ids": [machine.instance_id],
        "region": served.aws.region,
        "availability_zone": served.aws.instance(machine.instance_id)["Placement"]["AvailabilityZone"],
        "image": DEBIAN.image_id,
        "store": store,
    }
    job = {"id": SAMPLE, "output": None, "extras": extras}
    assert len(found) == len(expected)
    for number, (message, said) in enumerate(zip(found, expected, strict=True)):
        if said is None:
            whole = _envelope(message, event, "BAI_APP_EXECUTOR", {**event["payload"], "job": job})
        else:
            about = event if number == 0 else launched
            payload = {"status": said[0], "message": said[1], "src_event": about}
            whole = _envelope(message, event, "BAI_APP_STATUS", payload)
        assert message == whole
        assert uuid.UUID(message["message_id"]).version == 4
    assert len({each["message_id"] for each in found}) == len(found)
    times = [each["tstamp"] for each in found if each["type"] == "BAI_APP_STATUS"]
    assert [served.began_ms, *times, _now_ms()] == sorted([served.began_ms, *times, _now_ms()])


def test_metrics_of_a_service_job_arrive_in_the_format_of_the_benchmark_service(served: Served) -> None:
    labels = {"action-id": SAMPLE, "client-id": CLIENT, "task_name": "t"}

    found = {each["name"]: each for each in served.metrics(SAMPLE)}

    assert found["a"] == {"name": "a", "value": 42, "timestamp": found["a"]["timestamp"], "labels": labels}
    assert "bai_run_wall_seconds" in found
    for metric in found.values():
        assert metric.keys() == {"name", "value", "timestamp", "labels"}
        assert metric["labels"] == labels
        assert type(metric["value"]) in (int, float)
        assert served.began_ms < metric["timestamp"] < _now_ms()


def test_a_machine_cut_off_from_kafka_is_still_reported(served: Served) -> None:
    said = [message["payload"]["status"] for message in served.messages("BAI_APP_STATUS", action_id=CUT_OFF)]

    assert said == [
        "PENDING",
        "SUCCEEDED",
        "PENDING",
        "PENDING",
        "RUNNING",
        "METRICS AVAILABLE",
        "SUCCEEDED",
        "METRICS AVAILABLE",
    ]
    assert served.metrics(CUT_OFF) == []
    s3 = served.aws.client("s3", SETUP)
    result = json.load(s3.get_object(Bucket=served.aws.bucket, Key=f"jobs/{CUT_OFF}/result.json")["Body"])
    assert result["kafka"]["undelivered"] == len(served.metrics(SAMPLE))


def test_each_service_job_has_one_machine_that_shut_itself_down(served: Served) -> None:
    ended = [call for call in served.aws.calls if call.action in ("RunInstances", "TerminateInstances")]

    assert [(call.identity, call.action) for call in ended] == [("executor", "RunInstances")] * 2
    for machine in served.aws.machines:
        instance = served.aws.instance(machine.instance_id)
        assert instance["State"]["Name"] == "terminated"
        assert instance["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
        assert machine.exit_codes == [0]


def test_the_services_policy_allows_only_needed_actions(served: Served) -> None:
    policies = served.aws.policies
    calls = [call for call in served.aws.calls if call.identity == "executor"]
    asked = [permission for call in calls for permission in needed(call, policies.around)]

    assert policies.documented("serve").unused(asked) == set()


def _event(action_id: str, payload: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return the sample event with its quirks: `doc` and `sha1` are those of `fetcher_event`."""
    changes = {
        "env.docker_image": DEBIAN.image_id,
        "ml.benchmark_code": "$(BAI_SCRIPTS_PATH)/src/entrypoint.sh",
        "data.sources": [{"src": SOURCE, "path": "/data/x.gz"}],
        **more,
    }
    quirks: dict[str, Any] = {"visited": [], "tstamp": 42, "client_version": "DONTCARE"}
    return fetcher_event(changes, action_id=action_id, client_id=CLIENT, payload=payload, **quirks)


def _fetched(aws: FakeAws) -> dict[str, Any]:
    """Put a dataset and scripts where the service puts them, in two buckets; return what it says of them."""
    s3 = aws.client("s3", SETUP)
    exchange = f"scripts-exchange-{aws.account}"
    s3.create_bucket(Bucket=exchange, CreateBucketConfiguration={"LocationConstraint": aws.region})
    # As docs/iam.md says: each bucket with data is listed.
    aws.policies.attach(INSTANCE, _with_bucket(aws.policies, aws.data_bucket, exchange))
    key = f"data_sets/{hashlib.md5(SOURCE.encode()).hexdigest()}/x.gz"
    s3.put_object(Bucket=aws.data_bucket, Key=key, Body=CONTENT)
    s3.put_object(Bucket=exchange, Key="anubis0/2cf5f8ef.tar", Body=_scripts())
    dataset = {
        "src": SOURCE,
        "path": "/data/x.gz",
        "id": None,
        "md5": None,
        "dst": f"s3://{aws.data_bucket}/{key}",
        "type": "FILE",
        "status": "DONE",
        "message": None,
        "size_info": {"total_size": 10, "file_count": 1, "max_size": 10},
    }
    return {"datasets": [dataset], "scripts": [{"dst": f"s3://{exchange}/anubis0/2cf5f8ef.tar"}]}


def _with_bucket(policies: Policies, one: str, another: str) -> Policy:
    """Return the instances' policy for two buckets with data."""
    statements = policies.documented(INSTANCE).statements
    return Policy(
        tuple(
            replace(
                each, resources=(*each.resources, *(name.replace(one, another) for name in each.resources))
            )
            for each in statements
        )
    )


def _scripts() -> bytes:
    """Return what the service's client makes of `--script src`; its users do not make their files executable."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        member = tarfile.TarInfo("src/entrypoint.sh")
        member.mode, member.size = 0o644, len(ENTRYPOINT)
        tar.addfile(member, io.BytesIO(ENTRYPOINT.encode()))
    return made.getvalue()


def _envelope(
    message: dict[str, Any], event: dict[str, Any], topic: str, payload: dict[str, Any]
) -> dict[str, Any]:
    """Return the whole message that is expected, with the id and time that `message` has for itself."""
    own = {"message_id": message["message_id"], "tstamp": message["tstamp"]}
    ourselves = {
        "svc": "ec2-executor",
        "tstamp": message["tstamp"],
        "version": __version__,
        "node": platform.node(),
    }
    carried = {name: event[name] for name in CARRIED}
    return {**carried, **own, "visited": [ourselves], "type": topic, "payload": payload}


def _keys(aws: FakeAws, prefix: str) -> list[str]:
    answer = aws.client("s3", SETUP).list_objects_v2(Bucket=aws.bucket, Prefix=prefix)
    return [each["Key"] for each in answer.get("Contents", ())]


def _now_ms() -> int:
    return int(time.time() * 1000)
