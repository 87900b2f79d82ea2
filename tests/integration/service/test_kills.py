"""The service is killed between any two of its steps: no launch and no message is lost or repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from service_burst import LaunchGauge, unanswered
from service_events import cancel_event, fetcher_event
from service_runs import STARTING, KillPoint, ServiceRuns

STEPS: tuple[tuple[str, str], ...] = (
    ("after", "service/{}/outbox/00-pending.json"),
    ("before", "service/{}/outbox/00-pending.sent"),
    ("after", "service/{}/outbox/00-pending.sent"),
    ("after", "jobs/{}/job.toml"),
    ("after", "jobs/{}/attempts/0/launch.json"),
    ("after", "RunInstances"),
    ("after", "jobs/{}/attempts/0/launched.json"),
    ("after", "service/{}/outbox/02-executor.json"),
    ("after", "service/{}/outbox/01-answer.json"),
    ("before", "service/{}/outbox/01-answer.sent"),
    ("after", "service/{}/outbox/01-answer.sent"),
    ("before", "service/{}/outbox/02-executor.sent"),
    ("after", "service/{}/outbox/02-executor.sent"),
)
"""Of a launch. Before each send a `.json` is written and behind it a `.sent`, so "before" one Kafka has the message and nobody knows."""
CANCEL_STEPS: tuple[tuple[str, str], ...] = (
    ("after", "open/{command}/event.json"),
    ("after", "service/{}/outbox/50-cancelled.json"),
    ("after", "jobs/{}/cancel.json"),
    ("before", "service/{}/outbox/50-cancelled.sent"),
    ("after", "service/{command}/outbox/00-answer.json"),
    ("before", "service/{command}/outbox/00-answer.sent"),
    ("after", "service/{command}/closed.json"),
)
AT_ONCE, COMMANDS_AT_ONCE = 8, 2
CALM = "calm"


def command_of(job_id: str) -> dict[str, Any]:
    """Return the command that cancels a job, and its children."""
    return cancel_event([job_id, True], action_id=f"cancel-{job_id}", client_id=client_of(job_id))


def client_of(job_id: str) -> str:
    """Each job is another client's, so that many are launched at once; but a child is its parent's."""
    return f"client-{job_id.removesuffix('-child')}"


def point(service: ServiceRuns, job_id: str, when: str, what: str) -> KillPoint:
    if what == "RunInstances":
        return KillPoint(action=what, key=job_id, before=when == "before")
    owner = f"{client_of(job_id)}\0cancel-{job_id}"
    command = f"_command-{hashlib.sha256(owner.encode()).hexdigest()[:32]}"
    key = what.format(job_id, command=command)
    return KillPoint(key=f"{service.aws.bucket}/{key}", before=when == "before")


def kill_together(service: ServiceRuns, points: Sequence[KillPoint], at_once: int) -> None:
    """Start the service again, kill it where it stands at `at_once` of the points, and so on, until it has been at all."""
    while points:
        service.kill_at(*points, at_once=at_once)
        service.start(ready=False)
        service.wait_killed(more=True)
        points = [each for each in points if each in service.missing()]
    service.forget_points()


def test_another_replica_launches_the_requests_of_a_dead_one(service: ServiceRuns) -> None:
    # given two replicas, and requests that wait for their turn
    gauge = LaunchGauge(service, seconds=1.0)
    clients = [f"client-{number}" for number in range(4)]
    wanted = {client: [f"{client}-{place}" for place in range(4)] for client in clients}
    service.start()
    with service.beside() as other:
        service.wait(lambda: other.get("/readyz")[0] == 200, "that the other one takes events")
        for client, ids in wanted.items():
            events = [fetcher_event(action_id=each, client_id=client) for each in ids]
            service.publish("fetcher", *events, key=client)
        every = [each for ids in wanted.values() for each in ids]
        service.wait(lambda: len(service.keys("open/")) == len(every), "that all are accepted")

        # when one of them dies
        service.kill()
        missing = len(every) - len(service.messages("executor"))
        other.wait(lambda: gauge.now == 0, "the end of its calls")
        alone = LaunchGauge(service, seconds=0.5)
        other.wait_messages("executor", len(every))

    # then the other one launches what it has left, once each, each client's in their order, and not too many at once
    assert missing > 0
    tags = [{each["Key"]: each["Value"] for each in found["Tags"]} for found in service.aws.instances()]
    assert sorted(each["bai:job-id"] for each in tags) == sorted(every)
    asked = [
        each
        for call in service.aws.calls("RunInstances")
        for each in every
        if each in call.parameters.values()
    ]
    for client, ids in wanted.items():
        assert [each for each in dict.fromkeys(asked) if each in ids] == ids, client
    assert alone.most <= AT_ONCE
    assert unanswered(service, every) == []


def test_a_service_killed_at_any_step_launches_and_sends_the_same(service: ServiceRuns) -> None:
    ids = ["polled", "kept", *(f"launch-{number}" for number, _ in enumerate(STEPS))]
    child = f"{ids[4]}-child"
    every = [*ids, child, CALM]

    # given a service that is killed before and after it keeps an event, whose offset is not committed then
    service.start(ready=False)
    service.kill_at(KillPoint(key=f"{service.aws.bucket}/open/polled/event.json", before=True))
    service.publish("fetcher", *(fetcher_event(action_id=each, client_id=client_of(each)) for each in ids))
    service.wait_killed()
    service.kill_at(KillPoint(key=f"{service.aws.bucket}/open/kept/event.json"))
    service.start(ready=False)
    service.wait_killed()

    # and is killed at each step of a launch
    steps = [point(service, job_id, *step) for job_id, step in zip(ids[2:], STEPS, strict=True)]
    kill_together(service, steps, AT_ONCE)

    # and at each step of a cancel, one of which is in the middle of its cascade
    service.start()
    late = fetcher_event(action_id=child, client_id=client_of(child), parent=ids[4])
    service.publish("fetcher", late, fetcher_event(action_id=CALM, client_id=client_of(CALM)))
    service.wait(lambda: all(STARTING in service.statuses(each) for each in every), "that all are launched")
    targets = ids[2 : 2 + len(CANCEL_STEPS)]
    cancels = [point(service, job_id, *step) for job_id, step in zip(targets, CANCEL_STEPS, strict=True)]
    service.kill_at(cancels[0])
    service.publish("cmd_submit", *map(command_of, targets))
    service.wait_killed()
    kill_together(service, cancels[1:], COMMANDS_AT_ONCE)

    # when it is left alone
    service.start()
    service.publish("cmd_submit", command_of(CALM))
    answers = service.wait_messages("cmd_return", len(targets) + 1)
    service.wait(lambda: not any("_command" in each for each in service.keys("open/")), "the last answers")

    # then each request has one instance, which its answer names
    tags = [{each["Key"]: each["Value"] for each in found["Tags"]} for found in service.aws.instances()]
    assert sorted(each["bai:job-id"] for each in tags) == sorted(every)
    launched = service.messages("executor")
    assert sorted(each["action_id"] for each in launched) == sorted(every)
    named = {each["payload"]["job"]["extras"]["instance_ids"][0] for each in launched}
    assert named == {each["InstanceId"] for each in service.aws.instances()}
    # and all was said that is said of a job that nothing disturbed, once and in its order
    undisturbed = service.statuses(CALM)
    assert undisturbed == [
        ("PENDING", "Processing benchmark submission request..."),
        ("SUCCEEDED", "Benchmark successfully created..."),
        STARTING,
        ("SUCCEEDED", "Execution successfully cancelled..."),
    ]
    cancelled = {*targets, child, CALM}
    told = {each: service.statuses(each) for each in every}
    assert told == {each: undisturbed if each in cancelled else undisturbed[:3] for each in every}
    codes = {each["action_id"]: each["payload"]["return_code"] for each in answers}
    assert codes == {f"cancel-{each}": 0 for each in (*targets, CALM)}
