"""Makes an instance's user data: gzip'ed MIME multipart, byte for byte the same for the same input.

Its parts are the boothook, which contains the deadman and runs on every boot, and a cloud-config, which writes the guardian, its
files and the job descriptor, and starts the guardian. https://docs.cloud-init.io/en/latest/explanation/format.html
"""

from __future__ import annotations

import gzip
import io
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources

from bai_agent.errors import BaiError

_PLAIN_LINES = re.compile(r"[\x20-\x7e\t\n]*")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


@dataclass(frozen=True)
class File:
    """A file that cloud-init writes once in an instance's life, before `runcmd`."""

    path: str
    content: str
    permissions: str = "0644"


def cloud_config(files: Iterable[File], *, start: Iterable[str]) -> str:
    """Return a cloud-config that writes `files` and, after everything else, runs the command `start`. YAML 1.1 in printable ASCII.

    The cloud-config upgrades no packages and contacts no package repository, because upgrades would disturb a
    benchmark.
    """
    lines = [
        "#cloud-config",
        "package_update: false",
        "package_upgrade: false",
        "package_reboot_if_required: false",
        "write_files:",
    ]
    for file in files:
        lines += [
            f"- path: {quoted(file.path)}",
            f"  permissions: {quoted(file.permissions)}",
            f"  content: {text(file.content, indent=4)}",
        ]
    lines += ["runcmd:", f"- [{', '.join(quoted(word) for word in start)}]"]
    return "\n".join(lines) + "\n"


def text(content: str, *, indent: int) -> str:
    """Return `content` as a YAML scalar: a readable block if a block may contain all its characters, else a quoted text.

    The scalar is the value of a key that is indented by `indent - 2`.
    """
    if not _PLAIN_LINES.fullmatch(content) or not content.strip():
        return quoted(content)
    body = content.removesuffix("\n")
    keep = "+" if content.endswith("\n") else "-"
    if keep == "-" and body.endswith("\n"):
        return quoted(content)
    lines = [f"{' ' * indent}{line}" if line else "" for line in body.split("\n")]
    return "\n".join([f"|2{keep}", *lines])


def quoted(content: str) -> str:
    """Return `content` as a double-quoted YAML scalar, on one line."""
    return f'"{"".join(_character(each) for each in content)}"'


def _character(each: str) -> str:
    if each in _ESCAPES:
        return _ESCAPES[each]
    if " " <= each <= "~":
        return each
    code = ord(each)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


LIMIT = 16_384
"""Largest user data of EC2 (bytes): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html"""

ROOT = "/var/lib/bai"
STATE = f"{ROOT}/boot"

_BOUNDARY = "==bai=="
"""Boundary of the MIME parts. All lines with a user's text are indented, so no such line can equal the
boundary."""

_FOR_READERS = re.compile(r'^[ \t]*(#.*|"""[^"]*(?:"{1,2}[^"]+)*""")?\n', re.MULTILINE)
"""Matches blank lines, comments and docstrings."""

_SHARED = re.compile(r"^from (bai_agent[\w.]*)\.(\w+) import .*\n", re.MULTILINE)


class UserDataTooLargeError(BaiError):
    """The user data is too large for EC2; `size` in bytes, after compression."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the user data has {size:,} bytes after compression, but EC2 accepts only {LIMIT:,}; keep the job descriptor in the "
            "job store, or shorten init_commands in the benchmark descriptor"
        )
        self.size = size


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """An object in the store that is too large for user data."""

    url: str
    """Address: s3://bucket/key"""
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The agent, as an archive in the store."""

    url: str
    """Address: s3://bucket/agent/<sha256>.tar.gz"""
    sha256: str
    size: int
    """Size in bytes."""


@dataclass(frozen=True, kw_only=True)
class Boot:
    """The settings of an instance. The job descriptor is either a string or a pointer."""

    job_id: str
    job_toml: str | None = None
    job_pointer: Pointer | None = None
    bundle: Bundle
    region: str
    store_url: str | None = None
    """Job store, s3://bucket/prefix, in which `<job id>/release.json` releases a kept machine. None without a job
    store."""
    s3_endpoint: str | None = None
    """Address of S3; None: AWS's own."""
    deadman: timedelta
    """Time from the first boot to the machine's forced end."""
    init_commands: tuple[str, ...] = ()
    """Shell commands that run before the agent starts, each only once."""
    keep_after_failure: timedelta = timedelta()
    keep_after_success: timedelta = timedelta()
    """Times for which a machine is kept for inspection, after a job that failed and after a job that
    succeeded."""
    nodes: int = 1
    """Number of the job's nodes."""
    launch: int = 0
    """Number of the machine's launch: 0 at the job's start."""
    first_node: int = 0
    """Number of the node on the machine with index 0 of the launch."""
    power_off: bool = True
    """Whether the machine is powered off, and so terminated, at the end."""
    max_boots: int = 3

    def __post_init__(self) -> None:
        if (self.job_toml is None) == (self.job_pointer is None):
            raise ValueError("either job_toml or job_pointer must be given")


def user_data(boot: Boot) -> bytes:
    """Return the user data. Raises UserDataTooLargeError if EC2 would refuse the user data."""
    packed = io.BytesIO()
    # The result contains neither the time nor a file's name, because a repeated launch must be identical for
    # EC2.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
        file.write(readable(boot).encode("ascii"))
    content = packed.getvalue()
    if len(content) > LIMIT:
        raise UserDataTooLargeError(len(content))
    return content


def readable(boot: Boot) -> str:
    """Return the unpacked user data in printable ASCII, for users and for cloud-init."""
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
    """Return the script that runs on every boot. before: lines of shell that may end the script early."""
    settings = f"deadman_seconds={int(deadman.total_seconds())}\nmax_boots={max_boots}\n"
    program = f"deadman={shlex.quote(_lean(piece('deadman.py')))}\n"
    return _script(piece("machine.sh") + before + settings + program + piece("boothook.sh"))


def guardian() -> str:
    """Return the guardian, as one script."""
    return _script(piece("machine.sh") + piece("guardian.sh"))


def fetch_agent() -> str:
    """Return the program that fetches bundle and descriptor, with the text of the modules that it shares with the agent."""
    return _lean(_SHARED.sub(_module, piece("fetch_agent.py")))


def piece(name: str) -> str:
    """Return a file of this package."""
    return resources.files("cloud_init").joinpath(name).read_text(encoding="ascii")


def settings(values: dict[str, str | int | None]) -> str:
    """Return settings in the form that the guardian reads: assignments of the shell."""
    return "".join(
        f"{name}={shlex.quote('' if value is None else str(value))}\n" for name, value in values.items()
    )


def guardian_settings(boot: Boot) -> dict[str, str | int | None]:
    """Return the guardian's settings, by name."""
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
        "keep_failure_seconds": int(boot.keep_after_failure.total_seconds()),
        "keep_success_seconds": int(boot.keep_after_success.total_seconds()),
        "nodes": boot.nodes,
        "launch": boot.launch,
        "first_node": boot.first_node,
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
    """Return a script without comments and docstrings, which would take up space for the job descriptor."""
    return _FOR_READERS.sub("", text)
