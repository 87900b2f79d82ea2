"""AWS as the sandbox has it: a control plane, a network, and machines that really boot.

def test_something(aws: FakeAws) -> None:
    aws.no_capacity("eu-central-1a")
    subprocess.run(["bai", "submit", ...], env={**os.environ, **aws.environment()})
    [machine] = aws.wait_for_machines(1)
    machine.wait_off()
    assert aws.instance(machine.instance_id)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert "BAI-END" in machine.console()
"""

from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane.faults import Fault
from sandbox.fake_aws.fake_aws import FakeAws, open_fake_aws
from sandbox.fake_aws.machine.machine import Machine
from sandbox.fake_aws.machine.shape import MachineShape, hide_python

__all__ = ["Call", "FakeAws", "Fault", "Machine", "MachineShape", "hide_python", "open_fake_aws"]
