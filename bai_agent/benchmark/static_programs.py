"""Programs without a dynamic linker: no preloaded library reaches them, so nothing makes them write line by line."""

from __future__ import annotations

import struct
from pathlib import Path

from bai_agent.benchmark.proc import all_processes, descendants

_PT_INTERP = 3
_HEADER, _PROGRAM_HEADER = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
"""Of 64-bit ELF files, little-endian, as on x86_64 and aarch64: elf(5)."""
_MOST_HEADERS = 256


def static_program(shim: int) -> str | None:
    """Return the name of a static program among the processes of the benchmark whose shim this is; None if there is none."""
    for process in descendants({shim}, all_processes()):
        program = Path(f"/proc/{process.pid}/exe")
        if is_static(program):
            try:
                return program.readlink().name
            except OSError:  # gone
                continue
    return None


def is_static(path: Path) -> bool:
    """Return whether a file is a program that names no dynamic linker; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or header[:6] != b"\x7fELF\x02\x01":
                return False
            fields = _HEADER.unpack(header)
            start, size, count = fields[5], fields[9], fields[10]
            if size < _PROGRAM_HEADER.size or not 0 < count <= _MOST_HEADERS:
                return False
            file.seek(start)
            table = file.read(size * count)
    except (OSError, OverflowError, ValueError):
        return False
    kinds = [
        struct.unpack_from("<I", table, index)[0]
        for index in range(0, len(table) - _PROGRAM_HEADER.size + 1, size)
    ]
    return bool(kinds) and _PT_INTERP not in kinds
