"""Checks whether the files that the command names go along to where it runs, and can be run there."""

from __future__ import annotations

import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from executor.descriptor.command_checks import is_script
from executor.descriptor.file_checks import mode_of
from executor.descriptor.raw_table import ERROR, WARNING, Raw, RawFinding, at, items, text_of

_SCRIPTS = "$(BAI_SCRIPTS_PATH)"
_BRING_ALONG = 'add [ml.script] path = "." to bring this folder along'
_INTERPRETER = re.compile(r"(python|perl|ruby|node|bash|dash|sh|zsh|Rscript|lua|php|julia)[0-9.]*")


@dataclass(frozen=True)
class _Scripts:
    """The benchmark's own files: a folder whose members are in the scripts' folder, or one named member."""

    folder: Path
    member: str | None = None

    def file(self, name: str) -> Path | None:
        """Return what lies at `name` in the scripts' folder."""
        if self.member is not None and PurePosixPath(name).parts[:1] != (self.member,):
            return None
        path = self.folder / name
        return path if mode_of(path) is not None else None


def script_files(table: Raw, folder: Path, script: Path | None) -> Iterator[RawFinding]:
    """Check the command against the files of `folder`, the descriptor's. `script`: what `--script` names."""
    code, args = (text_of(at(table, "ml"), key) for key in ("benchmark_code", "args"))
    try:
        words = {"benchmark_code": [] if is_script(code) else shlex.split(code), "args": shlex.split(args)}
    except ValueError:
        return
    named = at(table, "ml", "script")
    brought = [PurePosixPath(text_of(each, "path")) for _, each in items(table, "data", "sources")]
    if script is None and not named:
        for key, tokens in words.items():
            if any(_SCRIPTS in word for word in tokens):
                problem = f"uses {_SCRIPTS}, but no scripts go along"
                yield ("ml", key), problem, f"{_BRING_ALONG}, or name them with --script", ERROR
        if "cwd" not in at(table, "ml"):  # else its paths start somewhere else
            yield from _left_behind(words, folder, brought)
    elif "cwd" in at(table, "ml"):
        return
    elif scripts := _scripts(named, folder, script):
        is_prepared = bool(text_of(at(table, "repeat"), "prepare"))
        yield from _missing(words["benchmark_code"], scripts, brought, is_prepared=is_prepared)


def _scripts(named: Raw, folder: Path, script: Path | None) -> _Scripts | None:
    if script is not None:
        return _Scripts(script.absolute().parent, script.name)
    path = text_of(named, "path")
    found = Path(path).expanduser() if path.startswith("~") else folder / path
    return _Scripts(found) if path and stat.S_ISDIR(mode_of(found) or 0) else None


def _missing(
    words: list[str], scripts: _Scripts, brought: list[PurePosixPath], *, is_prepared: bool
) -> Iterator[RawFinding]:
    """Check that the program or script that runs is in the scripts' folder, and can be run.

    is_prepared: a command before the first run may build it.
    """
    place = _position_of_script(words)
    if place is None:
        return
    name = _inside(words[place])
    if name is None or "$(" in name or _is_brought(name, brought):
        return
    where = ("ml", "benchmark_code")
    file = scripts.file(name)
    if file is None and is_prepared:
        problem = f"{name} is not in {scripts.folder} yet"
        yield where, problem, "[repeat] prepare has to make it; else correct the command", WARNING
    elif file is None:
        what = f"{scripts.folder}" if scripts.member is None else f"{scripts.folder / scripts.member}"
        fix = "correct the command; its paths start in the scripts' folder"
        if scripts.member is not None:
            fix += f", of which {scripts.member} is the one member"
        yield where, f"{name} is not in {what}", fix, ERROR
    elif place == 0 and _is_file(file) and not _can_be_run(file):
        fix = "begin it with #!/bin/sh or the like, or put its interpreter before it"
        yield where, f"{file} has no #! line, so that nothing says what runs it", fix, ERROR


def _left_behind(
    words: dict[str, list[str]], folder: Path, brought: list[PurePosixPath]
) -> Iterator[RawFinding]:
    """Check for files beside the descriptor that the command names, and that do not go along."""
    needed = _position_of_script(words["benchmark_code"])
    for key, tokens in words.items():
        for index, word in enumerate(tokens):
            program = key == "benchmark_code" and index == 0
            if (
                word.startswith(("/", "-", "~"))
                or not _is_file(folder / word)
                or _is_brought(word, brought)
                or (program and "/" not in word and shutil.which(word))
            ):
                continue
            sure = key == "benchmark_code" and index == needed
            problem = f"{word} lies beside this file, but the benchmark starts in a folder of its own"
            slash = f" and write ./{word}" if program and "/" not in word else ""
            yield ("ml", key), problem, _BRING_ALONG + slash, ERROR if sure else WARNING
            return


def _position_of_script(words: list[str]) -> int | None:
    """Return which word names the benchmark's own program: the first, or the one behind an interpreter."""
    if not words:
        return None
    if not _INTERPRETER.fullmatch(PurePosixPath(words[0]).name):
        return 0
    return 1 if len(words) > 1 and not words[1].startswith("-") else None


def _inside(word: str) -> str | None:
    """Return `word` relative to the scripts' folder; None where it names something else."""
    if word.startswith(f"{_SCRIPTS}/"):
        return word.removeprefix(f"{_SCRIPTS}/").lstrip("/")
    if word.startswith(("/", "~", "$")) or ("/" not in word and not word.endswith((".py", ".sh"))):
        return None
    return word


def _is_brought(name: str, brought: list[PurePosixPath]) -> bool:
    path = PurePosixPath(name)
    return any(path == each or each in path.parents for each in brought)


def _can_be_run(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            start = content.read(4)
    except OSError:
        return True  # whoever copies it says more
    return start.startswith((b"#!", b"\x7fELF"))


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(mode_of(path) or 0)
