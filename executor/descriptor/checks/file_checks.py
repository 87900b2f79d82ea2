"""Checks that files on this machine exist, are part of the job, and can be run."""

from __future__ import annotations

import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from bai_agent.job.schema.source_schemes import SCHEMES, file_path, scheme_of
from bai_agent.light_dataclass import dataclass
from executor.descriptor.checks.command_checks import is_script
from executor.descriptor.job_reference import refers_to_job
from executor.descriptor.raw_table import Raw, RawFinding, at, error, items, text_at, warning


def data_files(table: Raw, folder: Path) -> Iterator[RawFinding]:
    """Check that local data exists."""
    for where, source in (*items(table, "data", "sources"), *items(table, "server", "models")):
        path = local_path(text_at(source, "src"), folder)
        if path is not None and find_mode(path) is None:
            fix = "correct the path; a relative one starts at this file's folder"
            yield error((*where, "src"), f"{path} does not exist", fix)


def script_table(table: Raw, folder: Path) -> Iterator[RawFinding]:
    """Check that the folder, archive and requirements of `[ml.script]` exist and can be combined."""
    script = at(table, "ml", "script")
    path, archive, requirements = (text_at(script, key) for key in ("path", "script", "requirements"))
    place = ("ml", "script")
    if path:
        yield from _script_folder(path, folder, requirements)
    named = [key for key in ("path", "script", "git") if text_at(script, key)]
    if len(named) > 1:
        yield error((*place, named[1]), f"cannot be combined with {named[0]}", "keep one of the two")
    elif scheme_of(archive) == "s3":
        if (mistake := SCHEMES["s3"].mistake(archive)) is not None:
            yield error((*place, "script"), *mistake)
        elif archive.endswith("/"):
            yield error(
                (*place, "script"), f"{archive} is a folder", 'name an archive: "s3://bucket/scripts.tar.gz"'
            )
    elif archive and not _is_file(folder / archive):
        fix = "name an archive, or a folder with path"
        yield error((*place, "script"), f"{folder / archive} is not a file", fix)
    elif requirements and not named:
        problem = "is missing, but the requirements are in the scripts' folder"
        yield error((*place, "path"), problem, 'add path = "."')
    for key in ("ref", "folder"):
        if key in script and "git" not in named:
            yield error(
                (*place, key),
                "has no effect without git",
                "add the repository's address as git, or remove the key",
            )


def _script_folder(path: str, folder: Path, requirements: str) -> Iterator[RawFinding]:
    place, scripts = ("ml", "script"), folder / path
    if not path.startswith("~") and not stat.S_ISDIR(find_mode(scripts) or 0):
        what = "is not a folder" if find_mode(scripts) is not None else "does not exist"
        fix = "name the folder with the scripts, relative to this file"
        yield error((*place, "path"), f"{scripts} {what}", fix)
    elif requirements and not _is_file(scripts / requirements):
        fix = "write the file's path relative to the folder in path"
        yield error((*place, "requirements"), f"{scripts / requirements} is not a file", fix)


def local_path(src: str, folder: Path) -> Path | None:
    """Return the local path of the source `src`; None if the source is not on this disk."""
    if not src.strip() or src.startswith("~") or refers_to_job(src):
        return None
    return file_path(src) or (None if "://" in src else folder / src)


def find_mode(path: Path) -> int | None:
    """Return the mode of the file `path`; None if the file does not exist, or if `path` is too long."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return None


_SCRIPTS = "$(BAI_SCRIPTS_PATH)"
_BRING_ALONG = 'add [ml.script] path = "." to copy this folder to the job'
_INTERPRETER = re.compile(r"(python|perl|ruby|node|bash|dash|sh|zsh|Rscript|lua|php|julia)[0-9.]*")


@dataclass(frozen=True)
class _Scripts:
    """The benchmark's own files. All members of `folder`, or only `member`, are copied to the scripts' folder."""

    folder: Path
    member: str | None = None

    def file(self, name: str) -> Path | None:
        """Return the local file that becomes `name` in the scripts' folder; None if there is none."""
        if self.member is not None and PurePosixPath(name).parts[:1] != (self.member,):
            return None
        path = self.folder / name
        return path if find_mode(path) is not None else None

    @property
    def path(self) -> Path:
        return self.folder / (self.member or "")

    @property
    def advice(self) -> str:
        fix = "correct the command; paths in the command start in the scripts' folder"
        return fix if self.member is None else f"{fix}, which contains only {self.member}"


def script_files(table: Raw, folder: Path, script: Path | None) -> Iterator[RawFinding]:
    """Check the files that the command names. folder: folder of the descriptor. script: value of
    `--script`."""
    ml = at(table, "ml")
    code, args = text_at(ml, "benchmark_code"), text_at(ml, "args")
    try:
        words = {"benchmark_code": [] if is_script(code) else shlex.split(code), "args": shlex.split(args)}
    except ValueError:  # reported elsewhere
        return
    brought = [PurePosixPath(text_at(each, "path")) for _, each in items(table, "data", "sources")]
    has_scripts = script is not None or bool(at(ml, "script"))
    if not has_scripts:
        yield from _missing_scripts(words)
    if "cwd" in ml:  # relative paths of the command start in another folder
        return
    if not has_scripts:
        yield from _left_behind(words, folder, brought)
    elif scripts := _scripts(at(ml, "script"), folder, script):
        is_prepared = bool(text_at(at(table, "repeat"), "prepare"))
        yield from _missing(words["benchmark_code"], scripts, brought, is_prepared=is_prepared)


def _missing_scripts(words: dict[str, list[str]]) -> Iterator[RawFinding]:
    for key, tokens in words.items():
        if any(_SCRIPTS in word for word in tokens):
            problem = f"uses {_SCRIPTS}, but the job has no scripts"
            yield error(("ml", key), problem, f"{_BRING_ALONG}, or name the scripts with --script")


def _scripts(named: Raw, folder: Path, script: Path | None) -> _Scripts | None:
    if script is not None:
        return _Scripts(script.absolute().parent, script.name)
    path = text_at(named, "path")
    found = Path(path).expanduser() if path.startswith("~") else folder / path
    return _Scripts(found) if path and stat.S_ISDIR(find_mode(found) or 0) else None


def _missing(
    words: list[str], scripts: _Scripts, brought: list[PurePosixPath], *, is_prepared: bool
) -> Iterator[RawFinding]:
    """Check that the benchmark's own program is in the scripts' folder, and can be run.

    is_prepared: whether `[repeat] prepare` is set and may thus build the program before the first run.
    """
    place = _own_program(words)
    name = _inside(words[place]) if place is not None else None
    if name is None or _is_brought(name, brought):
        return
    where = ("ml", "benchmark_code")
    file = scripts.file(name)
    if file is None and is_prepared:
        problem = f"{name} is not in {scripts.folder} before the first run"
        yield warning(where, problem, "let [repeat] prepare create the file, or correct the command")
    elif file is None:
        yield error(where, f"{name} is not in {scripts.path}", scripts.advice)
    elif place == 0 and _is_file(file) and not _can_be_run(file):
        fix = "begin the file with a line such as #!/bin/sh, or put the interpreter before the file"
        yield error(where, f"{file} has no #! line, so its interpreter is unknown", fix)


def _left_behind(
    words: dict[str, list[str]], folder: Path, brought: list[PurePosixPath]
) -> Iterator[RawFinding]:
    """Check for files in the descriptor's folder that the command names, but that are not part of the job."""
    own_program = _own_program(words["benchmark_code"])
    for key, tokens in words.items():
        for index, word in enumerate(tokens):
            is_bare_program = (key, index) == ("benchmark_code", 0) and "/" not in word
            if not _is_local(word, folder, brought) or (is_bare_program and shutil.which(word)):
                continue
            problem = f"{word} is in this file's folder, but the benchmark starts in a folder of its own"
            fix = _BRING_ALONG + (f" and write ./{word}" if is_bare_program else "")
            report = error if (key, index) == ("benchmark_code", own_program) else warning
            yield report(("ml", key), problem, fix)
            return


def _is_local(word: str, folder: Path, brought: list[PurePosixPath]) -> bool:
    """Return whether `word` is the relative path of a file in `folder` that belongs to no data source."""
    if word.startswith(("/", "-", "~")) or not _is_file(folder / word):
        return False
    return not _is_brought(word, brought)


def _own_program(words: list[str]) -> int | None:
    """Return the index of the word that names the benchmark's own program: the first word, or the word after
    an interpreter."""
    if not words:
        return None
    if not _INTERPRETER.fullmatch(PurePosixPath(words[0]).name):
        return 0
    return 1 if len(words) > 1 and not words[1].startswith("-") else None


def _inside(word: str) -> str | None:
    """Return `word` as a path relative to the scripts' folder; None if `word` is another path, or contains a `$`."""
    if word.startswith(f"{_SCRIPTS}/"):
        word = word.removeprefix(f"{_SCRIPTS}/").lstrip("/")
    elif word.startswith(("/", "~", "$")) or ("/" not in word and not word.endswith((".py", ".sh"))):
        return None
    return None if "$" in word else word


def _is_brought(name: str, brought: list[PurePosixPath]) -> bool:
    path = PurePosixPath(name)
    return any(path == each or each in path.parents for each in brought)


def _can_be_run(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            start = content.read(4)
    except OSError:
        return True  # the copying of the file reports the error
    return start.startswith((b"#!", b"\x7fELF"))


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(find_mode(path) or 0)
