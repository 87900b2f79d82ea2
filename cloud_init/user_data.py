"""User data: what an instance is told at its launch, as gzip'ed MIME multipart, byte for byte the same for the same input.

Its parts: the boothook, which holds the deadman and runs on every boot; a cloud-config, which writes the guardian, what it
needs and the job descriptor, and starts it. https://docs.cloud-init.io/en/latest/explanation/format.html
"""

from __future__ import annotations

import gzip
import io
import re
import shlex
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources

from bai_agent.errors import BaiError
from cloud_init.cloud_config import File, cloud_config

LIMIT = 16_384
"""Bytes of user data that EC2 takes: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html"""

ROOT = "/var/lib/bai"
STATE = f"{ROOT}/boot"

_BOUNDARY = "==bai=="
"""All of a part's lines that a user has a say in are indented, so none can be this."""

_FOR_READERS = re.compile(r'^[ \t]*(#.*|"""[^"]*(?:"{1,2}[^"]+)*""")?\n', re.MULTILINE)
"""Blank lines, comments, docstrings."""

_SHARED = re.compile(r"^from (bai_agent[\w.]*)\.(\w+) import .*\n", re.MULTILINE)


class UserDataTooLargeError(BaiError):
    """The user data is larger than EC2 takes; `size` in bytes, after compression."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the user data has {size:,} bytes after compression, EC2 takes {LIMIT:,}; keep the job descriptor in the "
            "job store, or shorten init_commands in the benchmark descriptor"
        )
        self.size = size


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """An object in the store that does not fit into user data."""

    url: str
    """s3://bucket/key"""
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The agent, as an archive in the store."""

    url: str
    """s3://bucket/agent/<sha256>.tar.gz"""
    sha256: str
    size: int
    """Bytes."""


@dataclass(frozen=True, kw_only=True)
class Boot:
    """What an instance is told. The job descriptor is given either as it is or as a pointer."""

    job_id: str
    job_toml: str | None = None
    job_pointer: Pointer | None = None
    bundle: Bundle
    region: str
    store_url: str | None = None
    """s3://bucket/prefix: where `<job id>/release.json` lets a kept machine go."""
    s3_endpoint: str | None = None
    """Where S3 is reached, if not at AWS's own address."""
    deadman: timedelta
    """From the first boot to the machine's forced end."""
    init_commands: tuple[str, ...] = ()
    """Lines for the shell, run once each before the agent."""
    keep_on_failure: timedelta | None = None
    """How long a machine whose job failed is kept to be looked into."""
    nodes: int = 1
    """Of the job."""
    power_off: bool = True
    """Whether the machine is powered off at the end, and so terminated."""
    max_boots: int = 3

    def __post_init__(self) -> None:
        if (self.job_toml is None) == (self.job_pointer is None):
            raise ValueError("either job_toml or job_pointer says what the job is")


def user_data(boot: Boot) -> bytes:
    """Return the user data. Raises UserDataTooLargeError where EC2 would refuse it."""
    packed = io.BytesIO()
    # Neither the time nor a file's name gets into the result: the same launch, asked twice, must be the same to EC2.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
        file.write(readable(boot).encode("ascii"))
    content = packed.getvalue()
    if len(content) > LIMIT:
        raise UserDataTooLargeError(len(content))
    return content


def readable(boot: Boot) -> str:
    """Return the user data as a person, and cloud-init after unpacking, reads it; printable ASCII."""
    start = ["sh", "-c", f"sh {STATE}/guardian.sh </dev/null >/dev/null 2>&1 &"]
    parts = {
        "text/cloud-boothook": boothook(deadman=boot.deadman, max_boots=boot.max_boots),
        "text/cloud-config": cloud_config(_files(boot), start=start),
    }
    lines = [f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"', "MIME-Version: 1.0", ""]
    for kind, content in parts.items():
        lines += [f"--{_BOUNDARY}", f'Content-Type: {kind}; charset="us-ascii"', "MIME-Version: 1.0", ""]
        lines += [content]
    return "\n".join([*lines, f"--{_BOUNDARY}--", ""])


def boothook(*, deadman: timedelta, max_boots: int, before: str = "") -> str:
    """Return the script that runs on every boot. `before`: lines of shell that may let it end at once."""
    settings = f"deadman_seconds={int(deadman.total_seconds())}\nmax_boots={max_boots}\n"
    program = f"deadman={shlex.quote(_lean(piece('deadman.py')))}\n"
    return _script(piece("machine.sh") + before + settings + program + piece("boothook.sh"))


def guardian() -> str:
    """Return the guardian, as one script."""
    return _script(piece("machine.sh") + piece("guardian.sh"))


def fetch_agent() -> str:
    """Return the program that brings bundle and descriptor, with the text of what it shares with the agent, which is not there yet."""
    return _lean(_SHARED.sub(_module, piece("fetch_agent.py")))


def piece(name: str) -> str:
    """Return a file of this package."""
    return resources.files("cloud_init").joinpath(name).read_text(encoding="ascii")


def settings(values: dict[str, str | int | None]) -> str:
    """Return what the guardian reads: words of the shell."""
    return "".join(
        f"{name}={shlex.quote('' if value is None else str(value))}\n" for name, value in values.items()
    )


def guardian_settings(boot: Boot) -> dict[str, str | int | None]:
    """Return what the guardian is told, by the names that it knows."""
    pointer = boot.job_pointer
    return {
        "job_id": boot.job_id,
        "job_url": None if pointer is None else pointer.url,
        "job_sha256": None if pointer is None else pointer.sha256,
        "bundle_url": boot.bundle.url,
        "bundle_sha256": boot.bundle.sha256,
        "region": boot.region,
        "store_url": boot.store_url,
        "s3_endpoint": boot.s3_endpoint,
        "keep_seconds": int((boot.keep_on_failure or timedelta()).total_seconds()),
        "nodes": boot.nodes,
        "power": "off" if boot.power_off else "stay",
    }


def _files(boot: Boot) -> list[File]:
    files = [
        File(f"{STATE}/guardian.sh", guardian(), "0755"),
        File(f"{STATE}/fetch_agent.py", fetch_agent()),
        File(f"{STATE}/settings", settings(guardian_settings(boot))),
    ]
    for number, command in enumerate(boot.init_commands):
        files.append(File(f"{STATE}/init/{number}", f"{command}\n"))
    if boot.job_toml is not None:
        files.append(File(f"{ROOT}/job.toml", boot.job_toml))
    return files


def _module(found: re.Match[str]) -> str:
    return resources.files(found[1]).joinpath(f"{found[2]}.py").read_text(encoding="ascii")


def _script(text: str) -> str:
    return f"#!/bin/sh\n{_lean(text)}"


def _lean(text: str) -> str:
    """Return a script without what is there for its readers only: it would cost a job descriptor its room."""
    return _FOR_READERS.sub("", text)
