"""Makes the RunInstances request of a job, with the volumes and the user data of the job's instances. The
module does no I/O, because `resolve` has looked up all values before.

gp3's bounds: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html
"""

from __future__ import annotations

import base64
import copy
import difflib
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.source_tables import Source, SourceKind, Unpack
from bai_agent.job.descriptor.strategy_tables import SERVER_NODE
from bai_agent.job.outcome import ExitCode
from bai_agent.light_dataclass import dataclass, replace
from cloud_init.user_data import LIMIT, Boot, Bundle, Pointer, UserDataTooLargeError, user_data
from executor.backends.ec2.launch.images import Image, InstanceType, placeholder
from executor.backends.ec2.launch.network import all_efas, connect
from executor.backends.ec2.launch.resolve import Candidate, Resolved
from executor.backends.ec2.tags import (
    FIRST_NODE_TAG,
    OURS,
    job_tags,
    read_tags,
    sanitised,
    tag_list,
    with_tags,
)
from executor.configuration.job_tables import Volume
from executor.descriptor.ec2_table import ON_DEMAND, Ec2, read_market
from executor.errors import UsageError
from executor.planning.job_toml import job_toml

MARGIN_GIB = 10
"""Space for the benchmark's installations and output (GiB)."""
UNPACKED = 4
"""Assumed ratio of an archive's unpacked size to its packed size, which is typical of a text corpus."""
IOPS_PER_MIB = 4
"""gp3 supports at most 0.25 MiB/s per provisioned IOPS."""
LEAST_IOPS = 3000
LEAST_THROUGHPUT = 125


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """The amount of data that a job's sources need on the disk."""

    bytes: int
    unknown: tuple[str, ...]
    """Data sources of unknown size."""


def data_size(sources: Iterable[Source]) -> DataSize:
    """Return the total size on the disk of those `sources` whose size is known."""
    total, unknown = 0, []
    for source in sources:
        if source.size is None:
            if source.kind is SourceKind.DATA:
                unknown.append(source.src)
        elif source.unpack is Unpack.NO:
            total += source.size
        else:
            # The archive also takes space until it has been unpacked.
            total += source.size * (1 + UNPACKED)
    return DataSize(bytes=total, unknown=tuple(unknown))


def volume_gib(wanted: Volume | None, image_gib: int, data: DataSize) -> int:
    """Return the size of the root volume (GiB): the requested size, but at least the size of the image's root
    volume."""
    if wanted is not None and wanted.size is not None:
        return max(image_gib, wanted.size)
    return image_gib + math.ceil(data.bytes / 2**30) + MARGIN_GIB


def mappings(
    wanted: Volume | None, image: Image, kinds: Sequence[InstanceType], data: DataSize
) -> list[dict[str, Any]]:
    """Return BlockDeviceMappings with the root volume. Every volume is deleted together with its instance."""
    ebs: dict[str, Any] = {
        "DeleteOnTermination": True,
        "VolumeType": "gp3",
        "VolumeSize": placeholder("its size")
        if image.root_gib is None
        else volume_gib(wanted, image.root_gib, data),
        **(_speed(wanted, kinds) if wanted is not None else {}),
    }
    if wanted is not None and wanted.initialization_rate is not None:
        ebs["VolumeInitializationRate"] = wanted.initialization_rate
    return [
        {"DeviceName": image.root_device, "Ebs": ebs},
        *({"DeviceName": each, "Ebs": {"DeleteOnTermination": True}} for each in image.other_devices),
    ]


def _speed(wanted: Volume, kinds: Sequence[InstanceType]) -> dict[str, int]:
    throughput, iops = wanted.throughput, wanted.iops
    if throughput is not None:
        # The volume's throughput is limited to the maximum that the instances can use, because more
        # throughput would only cost money.
        useful = max(each.ebs_mib_per_second or throughput for each in kinds)
        throughput = max(LEAST_THROUGHPUT, min(throughput, useful))
        iops = max(iops or LEAST_IOPS, IOPS_PER_MIB * throughput)
    speed = {}
    if iops is not None:
        speed["Iops"] = iops
    if throughput is not None:
        speed["Throughput"] = throughput
    return speed


TOKEN_LIMIT = 64
"""Characters: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html"""
_BOOT, _INIT_COMMAND = timedelta(minutes=60), timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class UserData:
    """The user data of a launch, with the values from which it was made."""

    boot: Boot
    content: bytes
    """Content of the user data: at most 16,384 bytes, before base64."""


def launch_request(
    job: Job, resolved: Resolved, ec2: Ec2, *, user_data: bytes, expires: str
) -> dict[str, Any]:
    """Return the parameters of RunInstances without subnet and token, as JSON values; UserData is base64.
    The request contains the first candidate's type and market.

    One request launches all nodes of the job, or no node. For an elastic job the request launches as many
    nodes as EC2 has capacity for, but not fewer than the minimum. expires: the time in the tag for reapers.
    Raises UsageError if the user's own parameters are invalid, or if EFAs are requested for a type without
    EFA.
    """
    check_run_instances(ec2.run_instances)
    # A separate request launches the machine of the job's server.
    most = job.desired_nodes if job.server is None else 1
    request: dict[str, Any] = {
        "ImageId": resolved.image.id,
        "InstanceType": resolved.kind.name,
        "MinCount": job.strategy.min_nodes or most,
        "MaxCount": most,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": base64.b64encode(user_data).decode(),
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 2,
        },
        "Monitoring": {"Enabled": True},
        # `AutoRecovery: disabled` prevents AWS from restarting a failed machine on another host, where the
        # disturbed benchmark would continue unnoticed.
        "MaintenanceOptions": {"AutoRecovery": "disabled"},
        "BlockDeviceMappings": mappings(ec2.volume, resolved.image, resolved.kinds, data_size(job.sources)),
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tag_list(job_tags(job, expires=expires))}
            for kind in ("instance", "volume")
        ],
    }
    if profile := resolved.instance_profile:
        request["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    if resolved.security_groups:
        request["SecurityGroupIds"] = list(resolved.security_groups)
    if ec2.efa is not None:
        request["NetworkInterfaces"] = all_efas(resolved.kinds)
    merged = merge(request, ec2.run_instances)
    connect(merged, public_ip=resolved.public_ip)
    return merged


def server_request(request: Mapping[str, Any], kind: InstanceType, *, user_data: bytes) -> dict[str, Any]:
    """Return the parameters of RunInstances in which the request for the server's machine differs from
    `request`, the request for the client's machine."""
    return {
        "InstanceType": kind.name,
        "UserData": base64.b64encode(user_data).decode(),
        "TagSpecifications": with_tags(request, {FIRST_NODE_TAG: str(SERVER_NODE)}),
    }


def make_user_data(job: Job, ec2: Ec2, *, bundle: Bundle, region: str, first_node: int = 0) -> UserData:
    """Return the user data of the instances of `job`. Raises UsageError if the user data is too large even
    without the descriptor. first_node: number of the node on the machine with index 0. If the descriptor does
    not fit into the user data, instances read the descriptor from job.toml in the job's record.
    """
    text = job_toml(job)
    boot = Boot(
        job_id=job.job.id,
        job_toml=text,
        bundle=bundle,
        region=region,
        store_url=job.store.url if job.store else None,
        s3_endpoint=job.store.endpoint if job.store else None,
        deadman=deadman(job),
        init_commands=tuple(ec2.init_commands),
        keep_after_failure=job.end.keep_time(None),
        keep_after_success=job.end.keep_time(ExitCode.SUCCEEDED),
        nodes=job.strategy.nodes,
        first_node=first_node,
    )
    try:
        return UserData(boot=boot, content=user_data(boot))
    except UserDataTooLargeError:
        if job.store is None:
            raise
    url = f"{job.store.url}/{job.job.id}/job.toml"
    pointer = Pointer(url=url, sha256=hashlib.sha256(text.encode()).hexdigest())
    boot = replace(boot, job_toml=None, job_pointer=pointer)
    try:
        return UserData(boot=boot, content=user_data(boot))
    except UserDataTooLargeError as error:
        raise UsageError(_too_large(boot, error.size)) from error


def boot_limit(ec2: Ec2) -> timedelta:
    """Return the time after which a machine without a heartbeat is assumed not to have run its user data.

    A boot takes minutes. The boothook powers the machine off if the guardian has not started after 30
    minutes, and each download is given up after 10 minutes (docs/boot.md). Init commands run before the first
    heartbeat. A machine whose boot failed may stay on for inspection.
    """
    commands = len(ec2.init_commands) * _INIT_COMMAND
    kept = max(ec2.keep_on_failure or timedelta(), ec2.keep_after or timedelta())
    return _BOOT + commands + kept


def deadman(job: Job) -> timedelta:
    """Return the longest run time of a machine of `job`."""
    limits = job.limits
    if limits.max_runtime is None:
        raise ValueError("a job on EC2 needs limits.max_runtime")
    longest = limits.machine_time(max_runtime=limits.max_runtime, nodes=job.strategy.nodes)
    # A client's machine also waits until the job's server is ready.
    return longest + limits.join if job.server is not None else longest


def machines_in_words(job: Job) -> str:
    """Return the number of machines that a launch of `job` requests, for example "4" or "2 to 4"."""
    least, most = job.strategy.min_nodes or job.desired_nodes, job.desired_nodes
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def for_candidate(request: Mapping[str, Any], candidate: Candidate, token: str) -> dict[str, Any]:
    """Return the arguments of boto3's run_instances for one candidate. EC2 checks a request's token
    separately in each availability zone."""
    complete = copy.deepcopy(dict(request))
    if candidate.type:
        complete["InstanceType"] = candidate.type
    if candidate.market == ON_DEMAND != read_market(complete):
        complete.pop("InstanceMarketOptions", None)
    complete["UserData"] = base64.b64decode(complete["UserData"])
    interfaces = complete.get("NetworkInterfaces")
    if interfaces:
        for each in interfaces:
            each.setdefault("SubnetId", candidate.subnet)
    else:
        complete["SubnetId"] = candidate.subnet
    complete["ClientToken"] = candidate_token(token, candidate)
    return complete


def candidate_token(token: str, candidate: Candidate) -> str:
    """Return the token of the launch of one candidate. Every repetition of the launch has the same token."""
    wanted = f"{token} {candidate.subnet} {candidate.type} {candidate.market}"
    return hashlib.sha256(wanted.encode()).hexdigest()[:TOKEN_LIMIT]


def merge(request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return `request` merged with `extra`: tables are merged key by key, other values of `extra` replace the
    values of `request`.

    Block devices are merged by their name, and tags by their resource type. `extra` cannot override bai's own
    tags.
    """
    merged = copy.deepcopy(dict(request))
    for key, value in extra.items():
        before = merged.get(key)
        if key == "BlockDeviceMappings":
            merged[key] = _merge_devices(before or [], value)
        elif key == "TagSpecifications":
            merged[key] = _merge_tags(before or [], value)
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(before, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def check_run_instances(extra: Mapping[str, Any]) -> None:
    """Raise UsageError if botocore knows that RunInstances does not accept the parameters in `extra`."""
    if not extra:
        return
    # No boto3 session is used, because a session needs an existing profile. The parameters of RunInstances
    # are the same for all profiles.
    model = ServiceModel(Loader().load_service_model("ec2", "service-2"), "ec2")
    shape = model.operation_model("RunInstances").input_shape
    if shape is None:
        return
    found = ParamValidator().validate({"MinCount": 1, "MaxCount": 1, **extra}, shape)
    if not found.has_errors():
        return
    problem, _, known = found.generate_report().splitlines()[0].partition(", must be one of: ")
    close = difflib.get_close_matches(problem.split('"')[-2], known.split(", "), n=1) if known else []
    hint = f'did you mean "{close[0]}"?' if close else "use the parameters of boto3's run_instances"
    raise UsageError(f"[aws.ec2.run_instances]: {problem}; {hint}")


def _too_large(boot: Boot, size: int) -> str:
    """Return a message that names the part that makes the user data too large, and other places for that part."""
    sizes = [len(each.encode()) for each in boot.init_commands]
    if not sizes:
        return f"the user data has {size:,} bytes after compression, but EC2 accepts only {LIMIT:,}"
    rest = len(user_data(replace(boot, init_commands=())))
    number = sizes.index(max(sizes))
    return (
        f"[aws.ec2] init_commands: the commands take {size - rest:,} bytes of the user data after compression, but only "
        f"{LIMIT - rest:,} bytes are left; the largest is init_commands[{number}], {sizes[number]:,} bytes as it is written. Move the commands "
        "into the image, or into a script in the folder of [ml.script] that benchmark_code calls, or download them with one command"
    )


def _merge_devices(ours: list[dict[str, Any]], theirs: list[Any]) -> list[dict[str, Any]]:
    devices = {each["DeviceName"]: each for each in ours}
    for device in theirs:
        name = device.get("DeviceName")
        merged = merge(devices.get(name, {}), device)
        if "Ebs" in merged:
            merged["Ebs"].setdefault("DeleteOnTermination", True)
        devices[name] = merged
    return list(devices.values())


def _merge_tags(ours: list[dict[str, Any]], theirs: list[Any]) -> list[dict[str, Any]]:
    kinds = {each["ResourceType"]: read_tags(each) for each in ours}
    for specification in theirs:
        extra = {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in specification.get("Tags", [])}
        mine = kinds.setdefault(specification["ResourceType"], {})
        kept = {key: value for key, value in mine.items() if key.startswith(OURS)}
        kinds[specification["ResourceType"]] = sanitised({**mine, **extra, **kept})
    return [{"ResourceType": kind, "Tags": tag_list(tags)} for kind, tags in kinds.items()]
