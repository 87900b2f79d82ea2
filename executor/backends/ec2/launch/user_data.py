"""The user data of a job's instances: with the job descriptor or, where that is too large, with its address."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import timedelta

from bai_agent.job.descriptor import Job
from cloud_init.user_data import LIMIT, Boot, Bundle, Pointer, UserDataTooLargeError, user_data
from executor.descriptor.ec2_table import Ec2
from executor.errors import UsageError
from executor.planning.job_toml import job_toml

_BOOT, _INIT_COMMAND = timedelta(minutes=60), timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class UserData:
    """User data, and what it was made of."""

    boot: Boot
    content: bytes
    """At most 16,384 bytes, before base64."""


def make_user_data(job: Job, ec2: Ec2, *, bundle: Bundle, region: str) -> UserData:
    """Return the user data of the instances of `job`. Raises UsageError where it is too large even without the descriptor.

    A descriptor that does not fit is read from the job's record, where it is as job.toml.
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
        keep_on_failure=ec2.keep_on_failure,
        nodes=job.strategy.nodes,
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


def _too_large(boot: Boot, size: int) -> str:
    """Return what makes user data too large, and where to put it instead."""
    sizes = [len(each.encode()) for each in boot.init_commands]
    if not sizes:
        return f"the user data has {size:,} bytes after compression, and EC2 takes {LIMIT:,}"
    rest = len(user_data(replace(boot, init_commands=())))
    number = sizes.index(max(sizes))
    return (
        f"[aws.ec2] init_commands: they take {size - rest:,} bytes of the user data after compression, and EC2 leaves "
        f"{LIMIT - rest:,} for them; the largest is init_commands[{number}], {sizes[number]:,} bytes as it is written. Move what they "
        "do into a script in the folder of [ml.script], called by benchmark_code; or into the image; or let one download it"
    )


def boot_limit(ec2: Ec2) -> timedelta:
    """Return how long a machine may give no sign of life before it counts as one that never ran its user data.

    A boot takes minutes; the boothook ends it where the guardian has not started after 30, and each fetch is given up after 10
    (docs/boot.md). Init commands run before the first sign of life, and a machine whose boot failed may be kept.
    """
    commands = len(ec2.init_commands) * _INIT_COMMAND
    return _BOOT + commands + (ec2.keep_on_failure or timedelta())


def deadman(job: Job) -> timedelta:
    """Return how long a machine of `job` may be on at most."""
    limits = job.limits
    if limits.max_runtime is None:
        raise ValueError("a job on EC2 has a limit")
    return limits.machine_time(max_runtime=limits.max_runtime, nodes=job.strategy.nodes)
