"""Real PyTorch on two machines: the example of docs/many-nodes.md, as it is."""

from __future__ import annotations

import json
import uuid

from image_pythons import pytorch
from kafka_brokers import Broker
from torch_digits import EXAMPLES, assert_measured_once, assert_trained_together, records_in

from sandbox.deep_learning import PLACE
from sandbox.fake_aws import FakeAws, MachineShape
from sandbox.sandbox_cli import SandboxCli

EPOCHS = 2


def test_two_machines_under_torchrun_train_one_model(aws: FakeAws, cli: SandboxCli, kafka: Broker) -> None:
    aws.expose(int(kafka.address.rpartition(":")[2]))
    aws.shape = MachineShape(mounts={PLACE: pytorch()})
    job = f"torch-{uuid.uuid4().hex[:8]}"

    run = f"run {EXAMPLES / 'torchrun.toml'} --on ec2 --job-id {job} -- --epochs {EPOCHS}"
    with cli.start(*run.split(), env={"BAI_KAFKA_BROKERS": kafka.address}) as bai:
        shown, said = bai.communicate(timeout=480)

    assert bai.returncode == 0, shown + said
    machines = aws.machines
    assert len(machines) == 2
    for machine in machines:
        machine.wait_off()
        reason = aws.instance(machine.instance_id)["StateReason"]["Code"]
        assert reason == "Client.InstanceInitiatedShutdown"
        assert machine.exit_codes == [0]
    stored = cli.objects(f"jobs/{job}/")
    logs = [
        b"".join(stored[key] for key in sorted(stored) if key.startswith(f"attempts/0/nodes/{rank}/log/"))
        for rank in (0, 1)
    ]
    assert_trained_together([log.decode() for log in logs], epochs=EPOCHS)
    assert_measured_once(kafka, job, records_in(stored), epochs=EPOCHS)
    for rank in (0, 1):
        assert len(stored[f"artifacts/rank-{rank}/runs/model.pt"]) > 100_000
    # The coordinator is reached where it says that it is.
    assert (
        json.loads(stored["attempts/0/control/peers.json"])["peers"][0]["address"]
        == machines[0].facts.address
    )
