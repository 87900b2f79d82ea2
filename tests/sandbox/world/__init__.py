"""The world of the sandbox: a control plane, a network, and machines that really boot."""

from sandbox.world.calls import Call
from sandbox.world.faults import Fault
from sandbox.world.machine import Machine
from sandbox.world.shape import Shape, hide_python
from sandbox.world.world import World, open_world

__all__ = ["Call", "Fault", "Machine", "Shape", "World", "hide_python", "open_world"]
