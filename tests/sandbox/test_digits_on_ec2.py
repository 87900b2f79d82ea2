"""The whole way of a job: from `bai run` to a machine that is gone, and its numbers in Kafka and S3."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

from kafka_brokers import Broker

from sandbox.deep_learning import PLACE, pytorch
from sandbox.fake_aws import FakeAws, Machine, MachineShape
from sandbox.fake_aws.machine.roots import cloud_init
from sandbox.sandbox_cli import SandboxCli

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits" / "benchmark.toml"
MEASURED = ("accuracy", "loss", "throughput")


def test_the_first_example_runs_on_ec2_and_its_machine_is_gone(
    aws: FakeAws, cli: SandboxCli, kafka: Broker
) -> None:
    aws.expose(int(kafka.address.rpartition(":")[2]))
    aws.shape = MachineShape(mounts={PLACE: pytorch()})
    job = f"digits-{uuid.uuid4().hex[:8]}"

    run = f"run {EXAMPLE} --on ec2 --job-id {job} -- --epochs 3"
    done = cli.bai(*run.split(), env={"BAI_KAFKA_BROKERS": kafka.address})

    assert done.code == 0, done.stdout + done.stderr
    assert "at most 1.9 instance hours, about 0.23 USD at 0.1018 USD an hour (AWS's price list" in done.stderr
    assert "step=600" in done.stdout
    assert "The benchmark finished successfully" in done.stdout

    # One launch, by the user; the machine itself asked S3 for all it needed, and ended itself.
    [machine] = aws.machines
    machine.wait_off()
    instance = aws.instance(machine.instance_id)
    assert instance["State"]["Name"] == "terminated"
    assert instance["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert machine.exit_codes == [0]
    launches = [call for call in aws.calls if call.action in ("RunInstances", "TerminateInstances")]
    assert [(call.identity, call.action) for call in launches] == [("user", "RunInstances")]
    read = {
        call.resource.split("/")[1] for call in aws.calls if call.action == "GetObject" and call.instance_id
    }
    assert {"agent", "scripts", "data"} <= read

    # What it measured is in Kafka, and the same in S3, with log, artifact and result.
    stored = cli.objects(f"jobs/{job}/")
    node = "attempts/0/nodes/0"
    records = [json.loads(line) for line in stored[f"{node}/metrics/{0:020}.jsonl"].splitlines()]
    assert _measured(records) == _measured(_messages(kafka, job))
    assert [len(values) for values in _measured(records).values()] == [6, 6, 6]
    assert b"epoch=3 step=600" in stored[f"{node}/log/{0:020}"]
    assert len(stored["artifacts/runs/model.npz"]) > 100_000
    result = json.loads(stored["result.json"])
    assert (result["outcome"], result["exit_code"]) == ("succeeded", 0)
    assert result["kafka"]["undelivered"] == 0
    assert list(result["phases"]) == ["prepare", "pull", "join", "run", "drain"]

    # Somebody who comes later is told the same.
    status = cli.status(job)
    assert (status["status"], status["where"], status["machine"]) == ("SUCCEEDED", "ec2", None)

    # And what it ran on: the machine as it told its agent.
    environment = json.loads(stored[f"{node}/environment.json"])
    assert environment["instance"]["id"] == machine.instance_id
    assert environment["cpu"]["count"] >= 1
    assert environment["system"]["cloud_init"].startswith(cloud_init("bookworm"))
    shown = cli.bai("status", job, "-v").stdout
    assert f"instance  {environment['instance']['type']}, {machine.instance_id}" in shown
    assert f"kernel    {environment['system']['kernel']}" in shown

    print(_timings(machine, stored[f"{node}/events.jsonl"]))


def _messages(kafka: Broker, job: str) -> list[dict[str, Any]]:
    return [
        json.loads(record.value)
        for record in kafka.read("BAI_METRICS")
        if (dict(record.headers).get("job") or b"").decode() == job
    ]


def _measured(records: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {name: [each["value"] for each in records if each["name"] == name] for name in MEASURED}


def _timings(machine: Machine, events: bytes) -> str:
    """Return when each step was reached, in seconds after the launch: by metadata requests, console and the agent's events."""
    steps = {
        "the machine boots": machine.timings["boot"],
        "cloud-init has its user data": machine.timings["user_data"],
    }
    for name, said in {
        "boothook": "boot 1 of at most",
        "guardian": " guardian",
        "bundle unpacked": " bundle ",
        "agent started": "agent start 1",
        "guardian asks for power-off": "BAI-END done 0",
    }.items():
        steps[name] = machine.said_after(said) or float("nan")
    # The agent's events have the clock's time, all else is counted from the launch.
    launched = (
        time.time()
        - time.monotonic()
        + (machine.terminal.time_of("agent start 1") or 0)
        - steps["agent started"]
    )
    for event in map(json.loads, events.splitlines()):
        name = (
            f"agent: {event['phase']} {event['state']}"
            if event["type"] == "phase"
            else f"agent: {event['type']}"
        )
        steps[name] = event["time"] / 1000 - launched
    steps["off"] = machine.timings["off"]
    ordered = sorted(steps.items(), key=lambda step: step[1])
    return "\n".join(f"{seconds:8.2f} s  {name}" for name, seconds in ordered)
