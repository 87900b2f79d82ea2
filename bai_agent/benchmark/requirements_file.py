"""Reads pip requirements files, as far as it takes to know what a venv made of them depends on.

https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

from __future__ import annotations

import re
from pathlib import Path

_INCLUDE = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s*=\s*|\s*)(\S+)")
_OPTION = re.compile(
    r"(?:-i|--index-url|--extra-index-url|--trusted-host|--no-binary|--only-binary|--use-feature)(?:\s*=\s*|\s+)\S+"
    r"|--pre|--prefer-binary|--require-hashes"
)
_PACKAGE = re.compile(
    r"""
    [A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?      # its name
    \s*(?:\[[A-Za-z0-9._,\s-]*\])?                  # extras
    \s*\(?\s*(?:(?:[<>!~=]=?=?)\s*[A-Za-z0-9.*+!_-]+\s*,?\s*)*\)?
    \s*(?:;[^@]*?)?                                 # when it is needed
    (?:\s+--hash[=\s]\S+)*
    """,
    re.VERBOSE,
)
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar|tar\.\w+|tgz|tbz|txz|tlz)$", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s+)#.*$")


def index_requirements(path: Path) -> list[tuple[str, str]] | None:
    """Return name and text of the requirements file and of all that it includes, where they name packages of an index alone.

    None where they name anything whose content the text does not tell: a path, an address, a checkout, a folder of archives, a
    variable; or where one of them cannot be read.
    """
    found: dict[Path, str] = {}
    waiting = [path]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        try:
            found[each] = each.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return None
        if "${" in found[each]:
            return None
        for line in _lines(found[each]):
            if include := _INCLUDE.fullmatch(line):
                if "://" in include[1]:
                    return None
                waiting.append(each.parent / include[1])
            elif not _names_a_package(line) and not _OPTION.fullmatch(line):
                return None
    return [(str(each), text) for each, text in found.items()]


def _lines(text: str) -> list[str]:
    joined = re.sub(r"\\\r?\n", " ", text)
    return [line for raw in joined.splitlines() if (line := _COMMENT.sub("", raw).strip())]


def _names_a_package(line: str) -> bool:
    return _PACKAGE.fullmatch(line) is not None and not _ARCHIVE.search(re.split(r"[\[;(<>=!~\s]", line)[0])
