"""Writes the cloud-config: YAML 1.1 that every parser reads the same way, in printable ASCII whatever the files hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PLAIN_LINES = re.compile(r"[\x20-\x7e\t\n]*")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


@dataclass(frozen=True)
class File:
    """A file that cloud-init writes, once in an instance's life, before `runcmd`."""

    path: str
    content: str
    permissions: str = "0644"


def cloud_config(files: Iterable[File], *, start: Iterable[str]) -> str:
    """Return a cloud-config that writes `files` and then, after everything else, runs the command `start`.

    It upgrades nothing and asks no repository, which would disturb a benchmark.
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
    """Return `content` as a YAML scalar: a readable block where all characters are allowed in one, else in quotes.

    The first line belongs behind a key that is indented by `indent - 2`.
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
