"""Takes values from the configuration for keys that a descriptor for EC2 does not set. The module does no
I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import dataclass, fields, replace
from executor.configuration.config import Settings
from executor.configuration.job_tables import Volume
from executor.descriptor import Descriptor
from executor.descriptor.ec2_table import Ec2, read_reservation
from executor.descriptor.toml_text import toml_value

_LOCAL = "local"
"""Value of the descriptor's instance type if the descriptor does not name a type."""
_NAMED = ("subnets", "security_groups", "instance_profile", "public_ip")
"""Keys that exist both in the configuration and in the descriptor's `[aws.ec2]`. The launch, not this module,
merges the two values of a key."""
_VOLUME_KEYS = tuple(each.name for each in fields(Volume))
_DEFAULT = "default"


@dataclass(frozen=True)
class DefaultValue:
    """A value of the configuration for a key that the descriptor does not set."""

    key: str
    """Key of the configuration, for example "limits.max_runtime"."""
    value: Any
    origin: str
    """Origin of the value: a file, an environment variable, a flag, or "default"."""

    def as_table(self) -> dict[str, Any]:
        """Return value and origin as JSON values."""
        value = format_duration(self.value) if isinstance(self.value, timedelta) else self.value
        return {"value": list(value) if isinstance(value, tuple) else value, "origin": self.origin}


def notes_of(defaults: Sequence[DefaultValue]) -> list[str]:
    """Return one line of text per value, with the value's origin."""
    return [f"{each.key} = {toml_value(each.as_table()['value'])}, from {each.origin}" for each in defaults]


def with_defaults(descriptor: Descriptor, settings: Settings) -> Descriptor:
    """Return a descriptor for EC2, completed with the configuration's image, type, volume, key pair and
    market."""
    used = {each.key: each.value for each in _used_on_ec2(descriptor, settings)}
    ec2 = descriptor.aws.ec2 or Ec2()
    volume = {name: used[f"volume.{name}"] for name in _VOLUME_KEYS if f"volume.{name}" in used}
    ec2 = ec2.model_copy(
        update={
            "image": used.get("image", ec2.image),
            "volume": replace(ec2.volume or Volume(), **volume) if volume else ec2.volume,
            "run_instances": _run_instances(ec2, used),
        }
    )
    kind = used.get("instance_type", descriptor.hardware.instance_type)
    hardware = descriptor.hardware.model_copy(update={"instance_type": kind})
    aws = descriptor.aws.model_copy(update={"ec2": ec2})
    return descriptor.model_copy(update={"hardware": hardware, "aws": aws})


def used_defaults(descriptor: Descriptor, settings: Settings, *, on_ec2: bool) -> list[DefaultValue]:
    """Return the values of the configuration that a job of `descriptor` uses. descriptor: the descriptor as
    the user wrote it."""
    limits = settings.limits
    names = [each.name for each in fields(limits) if each.name in limits.written - descriptor.limits.written]
    of_limits = [_value(settings, f"limits.{name}", getattr(limits, name)) for name in names]
    if not on_ec2:
        return of_limits
    return [*_used_on_ec2(descriptor, settings), *_used_of_network(descriptor, settings), *of_limits]


def _run_instances(ec2: Ec2, used: Mapping[str, Any]) -> dict[str, Any]:
    request = dict(ec2.run_instances)
    if "key_pair" in used:
        request["KeyName"] = used["key_pair"]
    if used.get("spot", ec2.spot) and _chooses_market(ec2):
        request["InstanceMarketOptions"] = {"MarketType": "spot"}
    return request


def _used_of_network(descriptor: Descriptor, settings: Settings) -> Iterator[DefaultValue]:
    ec2 = descriptor.aws.ec2 or Ec2()
    for name in _NAMED:
        value = getattr(settings, name)
        if value not in (None, ()) and getattr(ec2, name) in (None, []):
            yield _value(settings, name, value)


def _used_on_ec2(descriptor: Descriptor, settings: Settings) -> Iterator[DefaultValue]:
    ec2, env = descriptor.aws.ec2 or Ec2(), descriptor.env
    if not any((ec2.image, env.image, env.docker_image)):
        yield _value(settings, "image", settings.image or "auto")
    if descriptor.hardware.instance_type == _LOCAL and settings.instance_type:
        yield _value(settings, "instance_type", settings.instance_type)
    yield from _used_volume(ec2.volume or Volume(), settings)
    if settings.key_pair and "KeyName" not in ec2.run_instances:
        yield _value(settings, "key_pair", settings.key_pair)
    if settings.spot and ec2.spot is None and _chooses_market(ec2):
        yield _value(settings, "spot", settings.spot)


def _used_volume(written: Volume, settings: Settings) -> Iterator[DefaultValue]:
    for name in _VOLUME_KEYS:
        value = getattr(settings.volume, name)
        if value is not None and getattr(written, name) is None:
            yield _value(settings, f"volume.{name}", value)


def _chooses_market(ec2: Ec2) -> bool:
    """Return whether the key `spot` chooses between spot and on-demand machines; false if `run_instances`
    already makes this choice."""
    return "InstanceMarketOptions" not in ec2.run_instances and not read_reservation(ec2.run_instances)


def _value(settings: Settings, key: str, value: Any) -> DefaultValue:
    return DefaultValue(key, value, settings.origins.get(key, _DEFAULT))
