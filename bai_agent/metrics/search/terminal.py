"""Removes escape sequences from lines and applies backspaces, as a terminal does."""

from __future__ import annotations

import re

_ANSI = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor
    rb"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC: titles, links
    rb"|[PX^_][^\x1b\n]*\x1b\\"  # DCS, SOS, PM, APC
    rb"|[ -/]+[0-~]|[0-Z\\-~])"  # two or more characters
)
_BACKSPACES = re.compile("(\x08+)")
_MOVES = re.compile(f"(\r+|\x08+|{_ANSI.pattern.decode('latin-1')})")
_ERASES_REST = re.compile(r"\x1b\[0?[JK]")
_ERASES_LINE = re.compile(r"\x1b\[2[JK]")


def visible(data: bytes) -> bytes:
    """Return lines as a terminal shows them. The number of lines and the ends of the lines do not change."""
    clean = _ANSI.sub(b"", data) if b"\x1b" in data else data
    if b"\x08" not in clean:
        return clean
    return b"\n".join(_overwritten(line) if b"\x08" in line else line for line in clean.split(b"\n"))


def on_screen(line: str) -> str:
    """Return the visible part of `line`, in which carriage returns and backspaces moved the cursor.

    A line without carriage returns and backspaces is not changed. In other lines, escape sequences are
    removed, and only sequences that erase text are applied.
    """
    if "\r" not in line and "\x08" not in line:
        return line
    cells: list[str] = []
    cursor = 0
    for part in _MOVES.split(line):
        if part.startswith("\r"):
            cursor = 0
        elif part.startswith("\x08"):
            cursor = max(0, cursor - len(part))
        elif part.startswith("\x1b"):
            if _ERASES_REST.fullmatch(part):
                del cells[cursor:]
            elif _ERASES_LINE.fullmatch(part):
                cells[:] = " " * cursor
        elif part:
            cells[cursor : cursor + len(part)] = part
            cursor += len(part)
    return "".join(cells).rstrip()


def last_lines(text: str, count: int) -> list[str]:
    """Return the last visible lines of `text` that are not blank. Only the last state of a progress bar is
    returned."""
    found: list[str] = []
    for line in reversed(text.split("\n")):
        if len(found) == count:
            break
        if (shown := on_screen(line)).strip():
            found.append(shown)
    return found[::-1]


def _overwritten(line: bytes) -> bytes:
    """Return `line` after its backspaces are applied. A backspace moves the cursor back by one character and
    deletes nothing."""
    cells: list[str] = []
    cursor = 0
    # A byte that is not valid UTF-8 counts as a character of its own.
    for part in _BACKSPACES.split(line.decode("utf-8", "surrogateescape")):
        if part.startswith("\x08"):
            cursor = max(0, cursor - len(part))
        elif part:
            cells[cursor : cursor + len(part)] = part
            cursor += len(part)
    return "".join(cells).encode("utf-8", "surrogateescape")
