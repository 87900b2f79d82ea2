"""Reads a TOML file, or reports in one finding why it cannot be read."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

from bai_agent.job.toml import TomlBoundsError, TOMLDecodeError, read_toml_text
from executor.descriptor.findings import Finding

_LIMIT = 2**20
"""Maximum size of a descriptor (bytes). A descriptor is one or two pages long, so a larger file is something
else."""

_UNCLOSED = "a [ is never closed: a list ends with ]"
_ADVICE = (
    ("Unescaped '\\'", "put a text with a backslash in single quotes: pattern = 'loss (\\d+)'"),
    ("Invalid value", 'a text needs quotes around it: key = "text"'),
    ("Expected '=' after a key", 'write key = "value", or a table\'s name in brackets: [table]'),
    ("Cannot overwrite a value", "this key or table is defined twice; keep one"),
    ("Cannot declare", "this table is defined twice; keep one, or write [[…]] if it is a list"),
    ("Cannot mutate immutable namespace", "this table was already written in { … }; keep one form"),
    (
        "Expected newline or end of document",
        "write one key per line; inside a text, write \\\" for a quote, or put the text in '…'",
    ),
    ("Expected ']'", "a table's name ends with ] and a list's with ]]"),
    (
        "Illegal character '\\n'",
        "the text's closing quote is missing; a text of several lines is between three quotes",
    ),
    ("Unclosed array", _UNCLOSED),
    ("Unclosed inline table", "close the inline table with }"),
    ("Unterminated string", "the text's closing quote is missing"),
)


def read_toml(path: Path) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Return the table in the file `path` and no findings, or None and the finding about the mistake."""
    file = str(path)
    try:
        content = _content(path)
    except OSError as error:
        problem, fix = _unreadable(path, error)
        return None, [Finding(file=file, problem=problem, fix=fix)]
    if isinstance(content, Finding):
        return None, [content]
    return parse_toml(content, file=file)


def parse_toml(content: bytes, *, file: str) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Return the table in `content` and no findings, or None and the finding about the mistake."""

    def refuse(problem: str, fix: str) -> tuple[None, list[Finding]]:
        return None, [Finding(file=file, problem=problem, fix=fix)]

    if len(content) > _LIMIT:
        return refuse(
            "is larger than 1 MiB; that is not a benchmark descriptor",
            "name the TOML file that describes the benchmark",
        )
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return refuse("is UTF-16 text", "save it as UTF-8")
    if b"\0" in content:
        return refuse("is a binary file", "name the TOML file that describes the benchmark")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return refuse(f"is not UTF-8 text (line {line}, byte {error.start})", "save it as UTF-8")
    try:
        return read_toml_text(text), []
    except TomlBoundsError as error:
        return refuse(str(error), "write smaller numbers, and fewer brackets inside brackets")
    except TOMLDecodeError as error:
        return refuse(*_syntax(str(error), text))


def _content(path: Path) -> bytes | Finding:
    mode = path.stat().st_mode
    # Only regular files are read, because reading a FIFO or a device might never end.
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        inside = sorted(each.name for each in path.glob("*.toml")) if stat.S_ISDIR(mode) else []
        fix = (
            f"name a file in the folder: {path / inside[0]}"
            if inside
            else "name the TOML file that describes the benchmark"
        )
        return Finding(file=str(path), problem=f"is {what}", fix=fix)
    with path.open("rb") as file:
        return file.read(_LIMIT + 1)


def _unreadable(path: Path, error: OSError) -> tuple[str, str]:
    if isinstance(error, FileNotFoundError):
        nearby = sorted(each.name for each in path.parent.glob("*.toml"))[:5] if path.parent.is_dir() else []
        fix = f"there is: {', '.join(nearby)}" if nearby else f"`bai init > {path}` writes a first one"
        return "does not exist", fix
    if isinstance(error, PermissionError):
        return "cannot be read: permission denied", f"run `chmod u+r {path}`, or ask the file's owner"
    return f"cannot be read: {error.strerror}", "name the TOML file that describes the benchmark"


def _syntax(message: str, text: str) -> tuple[str, str]:
    """Return problem and fix for the parser's `message`, with the line itself."""
    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    lines = text.split("\n")
    number, column = (int(place[1]), int(place[2])) if place else (len(lines), 0)
    reason = re.sub(r" \(at [^()]*\)$", "", message)
    where = f"line {number}, column {column}" if place else "at the end of the file"
    line = lines[number - 1].rstrip() if number <= len(lines) else ""
    problem = f"is not valid TOML: {where}: {reason}"
    if line.strip():
        problem += f"\n{line.strip()[:160]}"
    fix = next(
        (advice for start, advice in _ADVICE if reason.startswith(start)),
        "see https://toml.io/en/v1.0.0 for the syntax",
    )
    if reason.startswith("Invalid value") and _in_open_list(lines, number, column if place else None):
        fix = _UNCLOSED
    return problem, fix


def _in_open_list(lines: list[str], number: int, column: int | None) -> bool:
    """Return whether a list is still open at the parser's position: at the end of the file, or before a key or table.

    number, column: the parser's position, counted from 1. column: None for the end of the file.
    """
    if column is None:
        before, goes_on = lines, True
    else:
        here = lines[number - 1]
        before = [*lines[: number - 1], here[: column - 1]]
        key = not before[-1].strip() and re.match(r"[\w.'\"-]+\s*=", here[column - 1 :])
        goes_on = bool(key or re.fullmatch(r"\s*\[+[^\[\],]+\]+\s*(#.*)?", here))
    code = "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in before).rstrip()
    return goes_on and code.endswith(("[", ","))
