"""What an event may ask for: it comes from another person, and what it asks for is done in the service's name. Pure.

The checks read the raw descriptor, so that each refusal names its key, whatever else is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from bai_agent.job.descriptor import EC2_MAX_RUNTIME
from bai_agent.job.durations import format_duration, parse_duration
from bai_agent.job.source_schemes import scheme_of
from executor.config import LimitSettings
from executor.descriptor import Finding
from executor.descriptor.ec2_table import reservation_of
from executor.descriptor.model import SINKS
from executor.descriptor.raw_table import Raw, Where, at, items, text_of
from executor.service_config import Bounds

REMOTE_SCHEMES = ("s3", "https", "http")
"""Where data may come from: addresses that mean nothing of this machine."""

_MOST_METRICS = 1000
"""Of one job. Each is a pattern that is compiled here, and a series of its own where the metrics go."""

_CONFIGURED = "is decided by the service's configuration alone"
_NOT_YOURS: Mapping[Where, str] = {
    (
        "ml",
        "script",
        "path",
    ): "names a folder of the machine that submits; send the scripts along with --script",
    ("env", "user"): _CONFIGURED,
    ("aws", "ec2", "instance_profile"): _CONFIGURED,
    ("aws", "ec2", "subnets"): _CONFIGURED,
    ("aws", "ec2", "security_groups"): _CONFIGURED,
    ("aws", "ec2", "public_ip"): _CONFIGURED,
    ("aws", "ec2", "keep_on_failure"): _CONFIGURED,
    **{(sink,): _CONFIGURED for sink in sorted(SINKS)},
    ("store",): _CONFIGURED,
    ("end",): _CONFIGURED,
}
"""Keys that no event may have, and why."""


@dataclass(frozen=True)
class _OneOf:
    """A value that must be one of these."""

    values: tuple[object, ...]


_ANY = _OneOf(())
"""Whatever EC2 takes."""

_RUN_INSTANCES: Mapping[str, Any] = {
    "InstanceMarketOptions": {
        "MarketType": _OneOf(("spot", "capacity-block")),
        "SpotOptions": {
            "MaxPrice": _ANY,
            "SpotInstanceType": _OneOf(("one-time",)),
            "InstanceInterruptionBehavior": _OneOf(("terminate",)),
        },
    },
    "Placement": {
        "GroupName": _ANY,
        "PartitionNumber": _ANY,
        "Tenancy": _OneOf(("default", "dedicated")),
    },
    # Which ones: `_reservation`.
    "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": _ANY}},
    "CpuOptions": {"CoreCount": _ANY, "ThreadsPerCore": _ANY, "AmdSevSnp": _ANY},
    "CreditSpecification": {"CpuCredits": _ANY},
    "EbsOptimized": _ANY,
    "NetworkInterfaces": [
        {
            "DeviceIndex": _ANY,
            "NetworkCardIndex": _ANY,
            "InterfaceType": _OneOf(("interface", "efa", "efa-only")),
        }
    ],
    "BlockDeviceMappings": [
        {
            "DeviceName": _ANY,
            "VirtualName": _ANY,
            "Ebs": {
                "VolumeSize": _ANY,
                "VolumeType": _ANY,
                "Iops": _ANY,
                "Throughput": _ANY,
                "DeleteOnTermination": _OneOf((True,)),
            },
        }
    ],
}
"""What of RunInstances an event may set: nothing that says in whose name, in which network or from whose disk a machine works."""


def check_trust(table: Raw, bounds: Bounds, *, file: str, region: str | None) -> list[Finding]:
    """Return a finding for each thing in the descriptor `table` that an event may not ask for.

    file: starts every finding. region: the configured one, where the descriptor names none.
    """
    told = [
        *_not_yours(table),
        *_this_machine(table),
        *_run_instances(table),
        *_reservation(table, bounds),
        *_volumes(table, bounds),
        *_bounds(table, bounds, region),
        *_too_many_metrics(table),
    ]
    return [Finding(file=file, path=path, problem=problem, fix=fix) for path, problem, fix in told]


_ROOT_KEYS = {"size": "size", "iops": "iops", "throughput": "throughput"}
_EBS_KEYS = {"size": "VolumeSize", "iops": "Iops", "throughput": "Throughput"}
"""What a volume's figures are called in `[aws.ec2.volume]`, and in RunInstances."""

_Refusal = tuple[Where, str, str]
"""Where, problem, fix."""


def bounded_limits(limits: LimitSettings, bounds: Bounds) -> LimitSettings:
    """Return the configured `limits`, with no longer time for a job that names none than for one that does."""
    if bounds.duration is None:
        return limits
    return replace(limits, max_runtime=min(limits.max_runtime or EC2_MAX_RUNTIME, bounds.duration))


def _not_yours(table: Raw) -> Iterator[_Refusal]:
    for where, why in _NOT_YOURS.items():
        *above, key = where
        if at(table, *map(str, above)).get(str(key)) is not None:
            yield where, why, "leave it out"


def _this_machine(table: Raw) -> Iterator[_Refusal]:
    """Nothing may be read where the service runs."""
    for where, source in items(table, "data", "sources"):
        src = text_of(source, "src")
        if src and scheme_of(src) not in REMOTE_SCHEMES:
            yield (
                (*where, "src"),
                "names a file of the machine on which the service runs",
                'write an address such as "s3://bucket/key" or "https://host/file"',
            )
    for name, reference in at(table, "env", "secrets").items():
        if isinstance(reference, str) and reference.partition(":")[0].strip().lower() == "env":
            yield (
                ("env", "secrets", name),
                "names a variable of the machine on which the service runs",
                'put the secret into AWS and write "ssm:NAME" or "secretsmanager:NAME"',
            )


def _run_instances(table: Raw) -> Iterator[_Refusal]:
    place = ("aws", "ec2", "run_instances")
    yield from _not_allowed(at(table, *place), _RUN_INSTANCES, place)


def _reservation(table: Raw, bounds: Bounds) -> Iterator[_Refusal]:
    """Yield a capacity reservation that the service was not told to let others use: its machines were paid for, for somebody's own jobs."""
    request = at(table, "aws", "ec2", "run_instances")
    wanted = reservation_of(request)
    if wanted and wanted not in bounds.capacity_reservations:
        known = " or ".join(bounds.capacity_reservations)
        where = ("CapacityReservationSpecification", "CapacityReservationTarget", "CapacityReservationId")
        yield (
            ("aws", "ec2", "run_instances", *where),
            f"{_shown(wanted)} is not allowed here",
            f"name {known}, or leave it out" if known else "leave it out",
        )


def _not_allowed(value: Any, allowed: Any, where: Where) -> Iterator[_Refusal]:
    """Yield what of `value` is not in `allowed`, a tree of the same form."""
    if isinstance(allowed, _OneOf):
        if isinstance(value, (Mapping, list)):
            yield where, "is a table or a list, and a single value is expected", "write a single value"
        elif allowed.values and not any(value is each or value == each for each in allowed.values):
            known = " or ".join(_shown(each) for each in allowed.values)
            yield where, "has a value that the service does not pass on", f"write {known}, or leave it out"
    elif isinstance(allowed, list):
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _not_allowed(item, allowed[0], (*where, index))
        if not isinstance(value, list):
            yield where, "is not a list of tables", "write a list of tables, or leave it out"
    elif not isinstance(value, Mapping):
        yield where, "is not a table", "write a table, or leave it out"
    else:
        for key, inner in value.items():
            if key in allowed:
                yield from _not_allowed(inner, allowed[key], (*where, key))
            else:
                yield (
                    (*where, key),
                    "is not passed on by the service",
                    f"leave it out; allowed are {_names(allowed)}",
                )


def _volumes(table: Raw, bounds: Bounds) -> Iterator[_Refusal]:
    root = at(table, "aws", "ec2", "volume")
    volumes: list[tuple[Where, Raw, Mapping[str, str]]] = [(("aws", "ec2", "volume"), root, _ROOT_KEYS)]
    for where, device in items(table, "aws", "ec2", "run_instances", "BlockDeviceMappings"):
        volumes.append(((*where, "Ebs"), at(device, "Ebs"), _EBS_KEYS))
    for what, unit, most in (
        ("size", "GiB", bounds.volume_gib),
        ("iops", "IOPS", bounds.volume_iops),
        ("throughput", "MiB/s", bounds.volume_throughput),
    ):
        total = 0
        for where, volume, keys in volumes:
            amount = volume.get(keys[what])
            if isinstance(amount, int) and not isinstance(amount, bool):
                total += max(amount, 0)
                if total > most:
                    problem = f"makes {total} {unit} of volumes for a machine"
                    yield (*where, keys[what]), problem, f"keep them below {most} {unit} in all"
    for where, volume, keys in volumes:
        kind = volume.get("VolumeType") if keys is _EBS_KEYS else None
        if kind is not None and bounds.volume_types and kind not in bounds.volume_types:
            known = ", ".join(bounds.volume_types)
            yield (*where, "VolumeType"), f"{_shown(kind)} is not allowed here", f"choose one of {known}"


def _bounds(table: Raw, bounds: Bounds, region: str | None) -> Iterator[_Refusal]:
    hardware = at(table, "hardware")
    kinds: list[tuple[Where, Any]] = [(("hardware", "instance_type"), text_of(hardware, "instance_type"))]
    others = at(table, "aws", "ec2").get("instance_types")
    for index, kind in enumerate(others if isinstance(others, list) else ()):
        kinds.append((("aws", "ec2", "instance_types", index), kind))
    for where, kind in kinds:
        if not isinstance(kind, str) or not kind or not bounds.instance_types:
            continue
        if not any(fnmatchcase(kind, each) for each in bounds.instance_types):
            known = ", ".join(bounds.instance_types)
            yield where, f'"{kind}" is not allowed here', f"choose one of {known}"
    wanted = text_of(at(table, "aws", "ec2"), "region") or region
    if wanted and bounds.regions and wanted not in bounds.regions:
        known = ", ".join(bounds.regions)
        yield ("aws", "ec2", "region"), f'"{wanted}" is not allowed here', f"choose one of {known}"
    many = at(hardware, "distributed").get("num_instances", 2 if "distributed" in hardware else 1)
    alone = text_of(hardware, "strategy") in ("", "single_node")
    if bounds.nodes is not None and not alone and isinstance(many, int) and many > bounds.nodes:
        yield (
            ("hardware", "distributed", "num_instances"),
            f"{many} machines are more than are allowed here",
            f"ask for at most {bounds.nodes}",
        )
    if bounds.duration is not None:
        yield from _durations(table, bounds.duration)


def _too_many_metrics(table: Raw) -> Iterator[_Refusal]:
    count = sum(1 for _ in items(table, "output", "metrics"))
    if count > _MOST_METRICS:
        yield ("output", "metrics"), f"holds {count:,} metrics", f"keep at most {_MOST_METRICS:,}"


def _durations(table: Raw, longest: timedelta) -> Iterator[_Refusal]:
    for key, text in at(table, "limits").items():
        try:
            duration = parse_duration(text) if isinstance(text, str) else None
        except ValueError:
            continue
        if duration is not None and duration > longest:
            yield (
                ("limits", key),
                f"{format_duration(duration)} is longer than is allowed here",
                f"write at most {format_duration(longest)}",
            )


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _names(allowed: Mapping[str, Any]) -> str:
    return ", ".join(sorted(name for name in allowed if re.fullmatch(r"\w+", name)))
