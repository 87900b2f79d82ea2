"""The world of the sandbox: a control plane, a network, and machines that really boot.

def test_something(world: World) -> None:
    world.no_capacity("eu-central-1a")
    subprocess.run(["bai", "submit", ...], env={**os.environ, **world.environment()})
    [machine] = world.wait_for_machines(1)
    machine.wait_off()
    assert world.instance(machine.instance_id)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert "BAI-END" in machine.console()
"""

from sandbox.world.calls import Call
from sandbox.world.faults import Fault
from sandbox.world.machine import Machine
from sandbox.world.shape import Shape, hide_python
from sandbox.world.world import World, open_world

__all__ = ["Call", "Fault", "Machine", "Shape", "World", "hide_python", "open_world"]
