"""Runs a program whose hard links all fail with EPERM, as on FAT.

Usage: `python without_hard_links.py PROGRAM ARGUMENTS`. A filter of system calls (seccomp(2)) makes the links
fail. It needs no root, no compiler and no mount, and also holds for child processes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

_LINK_CALLS = {"x86_64": (86, 265), "aarch64": (37,)}
"""Numbers of the system calls link and linkat."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000


def without_hard_links(*command: str | Path) -> Sequence[str | Path]:
    """Return the command that runs `command` without hard links."""
    return (sys.executable, __file__, *command)


def _forbid_links() -> None:
    numbers = _LINK_CALLS[platform.machine()]
    steps = [(_LOAD_NUMBER, 0, 0, 0)]
    for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True):
        steps.append((_JUMP_IF_EQUAL, left, 0, number))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value, argument in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program)),
    ):
        if libc.prctl(option, *map(ctypes.c_ulong, (value, argument, 0, 0))):
            raise OSError(ctypes.get_errno(), "no filter of system calls can be set")


if __name__ == "__main__":
    _forbid_links()
    os.execvp(sys.argv[1], sys.argv[1:])
