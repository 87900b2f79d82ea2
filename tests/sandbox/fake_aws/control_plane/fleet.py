"""moto's instances and the machines that they stand for: whatever happens to one is seen in the other."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from moto.ec2.models.instances import StateReason

from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane.ebs import keep_volume_settings, with_root_device
from sandbox.fake_aws.control_plane.faults import Faults, StillBirth
from sandbox.fake_aws.control_plane.instance_facts import read_facts
from sandbox.fake_aws.iam.identities import Identities
from sandbox.fake_aws.machine.facts import Facts
from sandbox.fake_aws.machine.machine import Machine
from sandbox.fake_aws.machine.network import Network
from sandbox.fake_aws.machine.shape import MachineShape

CONSOLE_BYTES = 65_536
"""GetConsoleOutput's: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html"""
_STILL_BIRTH_SECONDS = 0.5
_USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
_GUEST = ("Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
_SANDBOX = ("Server.InternalError", "Server.InternalError: Internal error on launch")


class Fleet:
    """Takes moto's EC2 backend of one account and region over."""

    def __init__(
        self,
        *,
        backend: Any,
        network: Network,
        identities: Identities,
        faults: Faults,
        folder: Path,
        variant_of: Callable[[str], str],
    ) -> None:
        self.shape = MachineShape()
        self.forwards: dict[int, int] = {}
        """Port on each machine's loopback interface → port on the host's."""
        self.environment: dict[str, str] = {}
        """For every service of every machine."""
        self.power_off_grace = 30.0
        """Seconds between the power button and the loss of power, for who terminates or stops an instance."""
        self.machines: dict[str, Machine] = {}
        self.backend, self._network, self._identities = backend, network, identities
        self._faults, self._folder, self._variant_of = faults, folder, variant_of
        self._end: dict[str, tuple[str, str, str]] = {}
        """Why an instance goes: stopped or terminated, code and message of the reason."""
        self._posted: dict[str, bytes] = {}
        self._lock = threading.RLock()
        self._moto_run = backend.run_instances
        backend.run_instances = self._run_instances
        backend.terminate_instances = self._terminate_instances
        backend.stop_instances = self._stop_instances
        backend.start_instances = self._start_instances
        backend.reboot_instances = self._reboot_instances

    def launch(self, instance_ids: list[str], parameters: dict[str, str]) -> None:
        """Boot a machine for each of the instances that RunInstances has just answered with."""
        births = {birth.launch_index: birth for birth in self._faults.take_still_births()}
        for instance_id in dict.fromkeys(instance_ids):
            instance = self.backend.get_instance(instance_id)
            self._give_profile(instance, parameters)
            keep_volume_settings(self.backend, instance, parameters)
            birth = births.get(instance.ami_launch_index)
            if birth is None:
                self._boot(read_facts(self.backend, instance))
            else:
                threading.Timer(_STILL_BIRTH_SECONDS, self._die, [instance_id, birth]).start()

    def find(self, address: str) -> Machine | None:
        """Return the machine that has the address now."""
        found = [each for each in self.machines.values() if each.facts.address == address]
        return found[-1] if found else None

    def zone_of(self, call: Call) -> str | None:
        """Return the availability zone that a RunInstances asks for."""
        subnet = call.parameters.get("SubnetId") or call.parameters.get("NetworkInterface.1.SubnetId")
        if subnet is None:
            return call.parameters.get("Placement.AvailabilityZone")
        subnets = {each.id: each for each in self.backend.describe_subnets()}
        return str(subnets[subnet].availability_zone) if subnet in subnets else None

    def knows(self, instance_id: str) -> bool:
        return any(instance.id == instance_id for instance in self.backend.all_instances())

    def is_nitro(self, instance_id: str) -> bool:
        kind = self.backend.get_instance(instance_id).instance_type
        found = self.backend.describe_instance_types([kind])
        return bool(found[0].get("Hypervisor") == "nitro" or found[0].get("BareMetal"))

    def console_output(self, instance_id: str, *, latest: bool) -> bytes:
        """Without `latest`, EC2 has what stood there when the instance last started or went off."""
        with self._lock:
            machine = self.machines.get(instance_id)
            said = bytes(machine.terminal) if machine and latest else self._posted.get(instance_id, b"")
        return said[-CONSOLE_BYTES:]

    def end(self, instance_id: str, *, code: str, message: str) -> None:
        """Terminate an instance as AWS does it by itself, for the reason given."""
        self._press(self.backend.get_instance(instance_id), "terminated", (code, f"{code}: {message}"))

    def close(self) -> None:
        for machine in list(self.machines.values()):
            machine.cut_power()
        for machine in list(self.machines.values()):
            machine.close()

    # In the place of moto's own.

    def _run_instances(self, image_id: str, count: int, *arguments: Any, **options: Any) -> Any:
        [image] = self.backend.describe_images(ami_ids=[image_id])
        options["block_device_mappings"] = with_root_device(options.get("block_device_mappings"), image)
        reservation = self._moto_run(image_id, count, *arguments, **options)
        for instance in reservation.instances:
            _set_state(instance, "pending", 0)
        return reservation

    def _terminate_instances(self, instance_ids: list[str]) -> list[tuple[Any, Any]]:
        return self._press_all(instance_ids, "terminated")

    def _stop_instances(self, instance_ids: list[str]) -> list[tuple[Any, Any]]:
        return self._press_all(instance_ids, "stopped")

    def _start_instances(self, instance_ids: list[str]) -> list[tuple[Any, Any]]:
        started = []
        for instance in self.backend.get_multi_instances_by_id(instance_ids):
            started.append((instance, copy.copy(instance._state)))
            if instance.state == "stopped":
                instance.start()
                _set_state(instance, "pending", 0)
                self._end.pop(instance.id, None)
                self.machines[instance.id].start()
        return started

    def _reboot_instances(self, instance_ids: list[str]) -> list[Any]:
        instances: list[Any] = self.backend.get_multi_instances_by_id(instance_ids)
        for instance in instances:
            self.machines[instance.id].ask_to_restart()
        return instances

    # Between the two.

    def _boot(self, facts: Facts) -> None:
        shape = self.shape
        environment = {**self.environment, **shape.environment}
        machine = Machine(
            facts=facts,
            shape=replace(shape, environment=environment),
            variant=shape.variant or self._variant_of(facts.image_id),
            folder=self._folder / facts.instance_id,
            network=self._network,
            credentials=self._identities.of_instance(facts.instance_id),
            forwards=dict(self.forwards),
            on_boot=self._booted,
            on_off=self._went_off,
        )
        self.machines[facts.instance_id] = machine
        machine.launch()

    def _booted(self, machine: Machine) -> None:
        with self._lock:
            self._posted[machine.instance_id] = bytes(machine.terminal)
            instance = self.backend.get_instance(machine.instance_id)
            if instance.state == "pending":
                _set_state(instance, "running", 16)

    def _went_off(self, machine: Machine) -> None:
        with self._lock:
            self._posted[machine.instance_id] = bytes(machine.terminal)
            instance = self.backend.get_instance(machine.instance_id)
            if machine.error is not None:
                state, *reason = "terminated", *_SANDBOX
            elif machine.instance_id in self._end:
                state, *reason = self._end[machine.instance_id]
            else:
                stays = instance.instance_initiated_shutdown_behavior != "terminate"
                state, *reason = "stopped" if stays else "terminated", *_GUEST
            self._finish(instance, state, reason[0], reason[1])

    def _die(self, instance_id: str, birth: StillBirth) -> None:
        with self._lock:
            instance = self.backend.get_instance(instance_id)
            self._finish(instance, "terminated", birth.code, f"{birth.code}: {birth.message}")

    def _finish(self, instance: Any, state: str, code: str, message: str) -> None:
        if instance.state == "terminated":
            return
        shown = instance._state
        # moto ends an instance with a reason of its own, and may be asked for both at any moment.
        instance._state = _Unchanged(shown.name, shown.code)
        if state == "terminated":
            instance.terminate()
        else:
            instance.stop()
        instance.state_reason = StateReason(message, code)
        instance._state = shown
        _set_state(instance, *(("terminated", 48) if state == "terminated" else ("stopped", 80)))

    def _press_all(self, instance_ids: list[str], state: str) -> list[tuple[Any, Any]]:
        pressed = []
        for instance in self.backend.get_multi_instances_by_id(instance_ids):
            pressed.append((instance, copy.copy(instance._state)))
            self._press(instance, state, _USER)
        return pressed

    def _press(self, instance: Any, state: str, reason: tuple[str, str]) -> None:
        with self._lock:
            machine = self.machines.get(instance.id)
            if instance.state == "terminated" or (instance.state == "stopped" == state):
                return
            self._end[instance.id] = (state, *reason)
            if machine is None or instance.state == "stopped":
                self._finish(instance, state, *reason)
                return
            _set_state(instance, *(("shutting-down", 32) if state == "terminated" else ("stopping", 64)))
            instance.state_reason = StateReason(reason[1], reason[0])
        machine.shut_down(grace=self.power_off_grace)

    def _give_profile(self, instance: Any, parameters: dict[str, str]) -> None:
        """moto gives the profile to the first of N only."""
        name = parameters.get("IamInstanceProfile.Name")
        arn = parameters.get("IamInstanceProfile.Arn")
        if (name or arn) and instance.id not in self.backend.iam_instance_profile_associations:
            self.backend.associate_iam_instance_profile(instance.id, name, arn)


class _Unchanged:
    """The state of an instance while moto changes it."""

    def __init__(self, name: str, code: int) -> None:
        self.__dict__.update(name=name, code=code)

    def __setattr__(self, name: str, value: object) -> None:
        """Nobody sees the change."""


def _set_state(instance: Any, name: str, code: int) -> None:
    instance._state.name, instance._state.code = name, code
