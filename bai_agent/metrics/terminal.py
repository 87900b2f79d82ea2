"""What a terminal makes of the bytes of a line: without its escape sequences, after its backspaces."""

from __future__ import annotations

import re

_ANSI = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor
    rb"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC: titles, links
    rb"|[PX^_][^\x1b\n]*\x1b\\"  # DCS, SOS, PM, APC
    rb"|[ -/]+[0-~]|[0-Z\\-~])"  # two or more characters
)
_BACKSPACES = re.compile("(\x08+)")
_RETURNS = re.compile("\r+")


def visible(data: bytes) -> bytes:
    """Return lines as they would be seen; there are as many lines as before, and each ends where it did."""
    clean = _ANSI.sub(b"", data) if b"\x1b" in data else data
    if b"\x08" not in clean:
        return clean
    return b"\n".join(_overwritten(line) if b"\x08" in line else line for line in clean.split(b"\n"))


def last_state(line: str) -> str:
    """Return what stays on a screen of a line with carriage returns: each state overwrites the one before it.

    Escape sequences stay where they are and take no room, so that colours survive.
    """
    shown = ""
    for state in _RETURNS.split(line):
        if state:
            shown = (
                state
                if len(state) >= len(shown) or "\x1b" in state or "\x1b" in shown
                else state + shown[len(state) :]
            )
    return shown


def _overwritten(line: bytes) -> bytes:
    """Return `line` after its backspaces, each of which moves the cursor back by a character and deletes nothing."""
    cells: list[str] = []
    cursor = 0
    # A byte that is no UTF-8 is a cell by itself.
    for part in _BACKSPACES.split(line.decode("utf-8", "surrogateescape")):
        if part.startswith("\x08"):
            cursor = max(0, cursor - len(part))
        elif part:
            cells[cursor : cursor + len(part)] = part
            cursor += len(part)
    return "".join(cells).encode("utf-8", "surrogateescape")
