"""Checks that an event sets nothing that its sender is not allowed to set, because the service runs the
sender's job with the service's own AWS permissions. The module does no I/O.

The checks read the raw descriptor, so that a refusal names its key even if other keys are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from bai_agent.job.descriptor.limit_tables import EC2_MAX_RUNTIME
from bai_agent.job.schema.durations import format_duration, parse_duration
from bai_agent.job.schema.source_schemes import scheme_of
from bai_agent.light_dataclass import dataclass, replace
from executor.configuration.job_tables import JobLimits
from executor.configuration.service_config import Bounds
from executor.descriptor import Finding
from executor.descriptor.checks.machine_checks import node_range
from executor.descriptor.ec2_table import read_reservation
from executor.descriptor.job_reference import refers_to_job
from executor.descriptor.model import SINKS
from executor.descriptor.raw_table import Raw, Where, at, items, text_at

REMOTE_SCHEMES = ("s3", "https", "http")
"""Schemes of data that is not on this machine."""

_MOST_METRICS = 1000
"""Maximum number of metrics of one job. The number is limited because the service compiles each pattern, and
each metric becomes a series at the destination of the job's metrics."""

_CONFIGURED = "is decided by the service's configuration alone"
_NOT_YOURS: Mapping[Where, str] = {
    (
        "ml",
        "script",
        "path",
    ): "names a folder of the machine that submits; send the scripts along with --script",
    (
        "ml",
        "script",
        "git",
    ): "names a repository, which the service does not fetch; send the scripts along with --script",
    ("env", "user"): _CONFIGURED,
    ("env", "container"): "would start an image from a registry of the sender's choice",
    ("aws", "ec2", "instance_profile"): _CONFIGURED,
    ("aws", "ec2", "subnets"): _CONFIGURED,
    ("aws", "ec2", "security_groups"): _CONFIGURED,
    ("aws", "ec2", "public_ip"): _CONFIGURED,
    ("aws", "ec2", "keep_on_failure"): _CONFIGURED,
    ("aws", "ec2", "keep_after"): _CONFIGURED,
    ("mounts",): "names file systems that the machines reach with the service's rights",
    ("matrix",): "makes a group of jobs, but a request is one job; send a request for each combination",
    **{(sink,): _CONFIGURED for sink in sorted(SINKS)},
    ("store",): _CONFIGURED,
    ("end",): _CONFIGURED,
}
"""Descriptor key that events may not set → the reason."""


@dataclass(frozen=True)
class _OneOf:
    """A rule that allows some values of a single key."""

    values: tuple[object, ...]
    """Allowed values; empty if any value is allowed."""


_ANY = _OneOf(())
"""Any value that EC2 accepts."""

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
    # `_reservation` checks the id.
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
"""RunInstances parameters that events may set. Identity, network and source volumes are excluded."""


def check_trust(table: Raw, bounds: Bounds, *, file: str, region: str | None) -> list[Finding]:
    """Return a finding for each value in the descriptor `table` that an event may not set. file: beginning of
    each finding. region: the configured region, which is used if the descriptor names no region.
    """
    refused = [
        *_not_yours(table),
        *_this_machine(table),
        *_not_allowed(at(table, *_PLACE), _RUN_INSTANCES, _PLACE),
        *_reservation(table, bounds),
        *_volume_totals(table, bounds),
        *_volume_types(table, bounds),
        *_instance_types(table, bounds),
        *_region(table, bounds, region),
        *_nodes(table, bounds),
        *_durations(table, bounds),
        *_metrics(table),
    ]
    return [Finding(file=file, path=path, problem=problem, fix=fix) for path, problem, fix in refused]


_ROOT_KEYS = {"size": "size", "iops": "iops", "throughput": "throughput"}
_EBS_KEYS = {"size": "VolumeSize", "iops": "Iops", "throughput": "Throughput"}
"""Key in `[aws.ec2.volume]` → the corresponding key in RunInstances."""

_PLACE = ("aws", "ec2", "run_instances")
_Refusal = tuple[Where, str, str]
"""Path of the refused value, problem, and fix."""


def bounded_limits(limits: JobLimits, bounds: Bounds) -> JobLimits:
    """Return the configured `limits`. If `bounds` limits the duration of jobs, `max_runtime` is at most that
    duration."""
    if bounds.duration is None:
        return limits
    return replace(limits, max_runtime=min(limits.max_runtime or EC2_MAX_RUNTIME, bounds.duration))


def _not_yours(table: Raw) -> Iterator[_Refusal]:
    for where, why in _NOT_YOURS.items():
        *above, key = where
        if at(table, *map(str, above)).get(str(key)) is not None:
            yield where, why, "leave it out"


def _this_machine(table: Raw) -> Iterator[_Refusal]:
    """Yield a refusal for each reference to a file or an environment variable of the service's own machine. A
    reference to another job is also refused, because that job may belong to another client."""
    for where, source in (*items(table, "data", "sources"), *items(table, "server", "models")):
        src = text_at(source, "src")
        if src and scheme_of(src) not in REMOTE_SCHEMES:
            fix = 'write an address such as "s3://bucket/key" or "https://host/file"'
            problem = "names a file of the machine on which the service runs"
            if refers_to_job(src):
                problem = "names an artifact of another job, which may be of another client"
            yield (*where, "src"), problem, fix
    if "from" in at(table, "checkpoint"):
        problem = "names the checkpoint of another job, which may be of another client"
        yield ("checkpoint", "from"), problem, "leave it out"
    for name, reference in at(table, "env", "secrets").items():
        if isinstance(reference, str) and reference.partition(":")[0].strip().lower() == "env":
            fix = 'put the secret into AWS and write "ssm:NAME" or "secretsmanager:NAME"'
            problem = "names a variable of the machine on which the service runs"
            yield ("env", "secrets", name), problem, fix


def _reservation(table: Raw, bounds: Bounds) -> Iterator[_Refusal]:
    """Yield a refusal if the descriptor names a capacity reservation that the configuration does not allow.
    Using a reservation is restricted because its owner has paid for it."""
    wanted = read_reservation(at(table, "aws", "ec2", "run_instances"))
    if wanted and wanted not in bounds.capacity_reservations:
        known = " or ".join(bounds.capacity_reservations)
        where = ("CapacityReservationSpecification", "CapacityReservationTarget", "CapacityReservationId")
        fix = f"name {known}, or leave it out" if known else "leave it out"
        yield ("aws", "ec2", "run_instances", *where), f"{_shown(wanted)} is not allowed here", fix


def _not_allowed(value: Any, allowed: Any, where: Where) -> Iterator[_Refusal]:
    """Yield a refusal for each part of `value` that `allowed`, a tree of the same form, does not allow."""
    if isinstance(allowed, _OneOf):
        yield from _not_one_of(value, allowed, where)
    elif isinstance(allowed, list):
        if not isinstance(value, list):
            yield where, "is not a list of tables", "write a list of tables, or leave it out"
            return
        for index, item in enumerate(value):
            yield from _not_allowed(item, allowed[0], (*where, index))
    elif not isinstance(value, Mapping):
        yield where, "is not a table", "write a table, or leave it out"
    else:
        for key, inner in value.items():
            if key in allowed:
                yield from _not_allowed(inner, allowed[key], (*where, key))
            else:
                fix = f"leave it out; allowed are {', '.join(sorted(allowed))}"
                yield (*where, key), "is not passed on by the service", fix


def _not_one_of(value: Any, allowed: _OneOf, where: Where) -> Iterator[_Refusal]:
    if isinstance(value, (Mapping, list)):
        yield where, "is a table or a list, and a single value is expected", "write a single value"
    elif allowed.values and value not in allowed.values:
        known = " or ".join(_shown(each) for each in allowed.values)
        yield where, "has a value that the service does not pass on", f"write {known}, or leave it out"


def _volume_totals(table: Raw, bounds: Bounds) -> Iterator[_Refusal]:
    volumes: list[tuple[Where, Raw, Mapping[str, str]]] = [
        (("aws", "ec2", "volume"), at(table, "aws", "ec2", "volume"), _ROOT_KEYS),
        *((where, ebs, _EBS_KEYS) for where, ebs in _mapped_volumes(table)),
    ]
    for what, unit, most in (
        ("size", "GiB", bounds.volume_gib),
        ("iops", "IOPS", bounds.volume_iops),
        ("throughput", "MiB/s", bounds.volume_throughput),
    ):
        total = 0
        for where, volume, keys in volumes:
            amount = volume.get(keys[what])
            if type(amount) is int:
                total += max(amount, 0)
                if total > most:
                    problem = f"makes {total} {unit} of volumes for a machine"
                    yield (*where, keys[what]), problem, f"request at most {most} {unit} for all volumes"


def _volume_types(table: Raw, bounds: Bounds) -> Iterator[_Refusal]:
    for where, ebs in _mapped_volumes(table):
        kind = ebs.get("VolumeType")
        if kind is not None and bounds.volume_types and kind not in bounds.volume_types:
            known = ", ".join(bounds.volume_types)
            yield (*where, "VolumeType"), f"{_shown(kind)} is not allowed here", f"choose one of {known}"


def _mapped_volumes(table: Raw) -> Iterator[tuple[Where, Raw]]:
    for where, device in items(table, "aws", "ec2", "run_instances", "BlockDeviceMappings"):
        yield (*where, "Ebs"), at(device, "Ebs")


def _instance_types(table: Raw, bounds: Bounds) -> Iterator[_Refusal]:
    first = text_at(at(table, "hardware"), "instance_type")
    others = at(table, "aws", "ec2").get("instance_types")
    kinds: dict[Where, Any] = {
        ("hardware", "instance_type"): first,
        ("server", "hardware", "instance_type"): at(table, "server", "hardware").get("instance_type"),
    }
    for index, kind in enumerate(others if isinstance(others, list) else ()):
        kinds["aws", "ec2", "instance_types", index] = kind
    for where, kind in kinds.items():
        if kind and isinstance(kind, str) and not _matches(kind, bounds.instance_types):
            known = ", ".join(bounds.instance_types)
            yield where, f'"{kind}" is not allowed here', f"choose one of {known}"


def _matches(kind: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(kind, each) for each in patterns)


def _region(table: Raw, bounds: Bounds, region: str | None) -> Iterator[_Refusal]:
    wanted = text_at(at(table, "aws", "ec2"), "region") or region
    if wanted and bounds.regions and wanted not in bounds.regions:
        known = ", ".join(bounds.regions)
        yield ("aws", "ec2", "region"), f'"{wanted}" is not allowed here', f"choose one of {known}"


def _nodes(table: Raw, bounds: Bounds) -> Iterator[_Refusal]:
    hardware = at(table, "hardware")
    machines = node_range(table)
    many = machines.most if machines is not None else 2 if "distributed" in hardware else 1
    alone = text_at(hardware, "strategy") in ("", "single_node")
    where: Where = ("hardware", "distributed", "num_instances")
    if text_at(hardware, "strategy") == "inference":
        many, where = 2, ("hardware", "strategy")
    if bounds.nodes is not None and not alone and many > bounds.nodes:
        problem = f"{many} machines are more than are allowed here"
        yield where, problem, f"ask for at most {bounds.nodes}"


def _durations(table: Raw, bounds: Bounds) -> Iterator[_Refusal]:
    if (longest := bounds.duration) is None:
        return
    for key, text in at(table, "limits").items():
        try:
            duration = parse_duration(text) if isinstance(text, str) else None
        except ValueError:
            continue
        if duration is not None and duration > longest:
            problem = f"{format_duration(duration)} is longer than is allowed here"
            yield ("limits", key), problem, f"write at most {format_duration(longest)}"


def _metrics(table: Raw) -> Iterator[_Refusal]:
    count = sum(1 for _ in (*items(table, "output", "metrics"), *items(table, "server", "output", "metrics")))
    if count > _MOST_METRICS:
        yield ("output", "metrics"), f"holds {count:,} metrics", f"keep at most {_MOST_METRICS:,}"


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
