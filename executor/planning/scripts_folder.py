"""Selects the files of a benchmark's scripts in a folder, and copies them for a job. The copy is made at
submission, so that later changes in the folder do not affect a running or resumed job."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bai_agent.errors import StoreError
from bai_agent.job.run_directory import FULL, make_folder
from bai_agent.light_dataclass import dataclass
from executor.errors import ScriptsError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".baiignore")
"""Names of files with ignore rules. In each folder, .gitignore is read before .baiignore, and later rules
override earlier rules. `!data/` in .baiignore therefore includes data/ even if .gitignore names data/."""

LEFT_OUT = frozenset(
    {
        ".git", ".hg", ".svn",
        ".venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox",
    }
)  # fmt: skip
"""Names of files and folders that are left out. Folders with a `pyvenv.cfg` are also left out. `!NAME` in
.baiignore includes a left-out file or folder. node_modules is copied, because nothing would install its
content again.
"""

_PIECE = 2**20
_NAMED = 10
"""Maximum number of left-out files that a message names."""


@dataclass(frozen=True, kw_only=True)
class ScriptFile:
    """A file or symbolic link of the scripts' folder."""

    path: Path
    """Path relative to the folder."""
    size: int
    """Size in bytes; 0 for a link."""
    link: str | None = None
    """Target of a symbolic link; None for a file."""


@dataclass(frozen=True, kw_only=True)
class ScriptsSurvey:
    """The files of a scripts' folder that belong to the benchmark, and the files that are left out."""

    files: tuple[ScriptFile, ...]
    """Files that belong to the benchmark, sorted by path."""
    left_out: tuple[str, ...]
    """Left-out files and folders (with a final slash), relative to the scripts' folder. Files below a
    left-out folder are not listed."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def as_table(self) -> dict[str, Any]:
        """Return the survey as JSON values."""
        largest = self._largest()
        return {
            "files": len(self.files),
            "bytes": self.size,
            "largest": {"path": str(largest.path), "bytes": largest.size} if largest else None,
            "left_out": list(self.left_out),
        }

    def sentence(self) -> str:
        largest = self._largest()
        parts = [f"{len(self.files):,} file{'' if len(self.files) == 1 else 's'}, {self.size:,} bytes"]
        if largest is not None:
            parts.append(f"the largest is {largest.path} with {largest.size:,}")
        if self.left_out:
            more = len(self.left_out) - _NAMED
            named = ", ".join(self.left_out[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
            parts.append(f"left out: {named}")
        return "; ".join(parts)

    def _largest(self) -> ScriptFile | None:
        return max(self.files, key=lambda file: file.size, default=None)


@dataclass(frozen=True)
class _Rules:
    """The rules of one ignore file."""

    base: Path
    spec: GitIgnoreSpec
    ours: bool
    """Whether the file is a .baiignore."""

    def verdict(self, path: Path, *, folder: bool) -> bool | None:
        """Return whether `path` is ignored; None if these rules do not mention `path`."""
        name = path.relative_to(self.base).as_posix() + ("/" if folder else "")
        return self.spec.check_file(name).include


@dataclass(frozen=True, kw_only=True)
class ScriptsOrigin:
    """Origin of a job's scripts on this machine: all files of a folder or, if `member` is set, a single file
    or folder."""

    path: Path
    """Absolute path."""
    member: str | None = None
    """Name of `path` inside the scripts' folder; None if `path` is the scripts' folder itself."""
    is_folder: bool = True

    def survey(self, *, leave_out: Sequence[Path] = ()) -> ScriptsSurvey:
        """Return the files that belong to the benchmark. Raises ScriptsError."""
        if self.is_folder:
            return survey_scripts(self.path, leave_out=leave_out)
        file = ScriptFile(path=Path(self.path.name), size=self.path.stat().st_size)
        return ScriptsSurvey(files=(file,), left_out=())


def one_member(script: Path) -> ScriptsOrigin:
    """Return the origin of scripts whose folder has only one member, the file or folder `script`. Raises
    ScriptsError."""
    path = Path(os.path.abspath(script))  # noqa: PTH100 - Path.absolute keeps "."
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = 0
    except OSError as error:
        raise ScriptsError(
            f"--script {script}: cannot be read: {error.strerror}; name a file or folder that you may read"
        ) from error
    if not path.name or not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise ScriptsError(
            f"--script {script}: neither a file nor a folder; name the file or folder that the command runs"
        )
    return ScriptsOrigin(path=path, member=path.name, is_folder=stat.S_ISDIR(mode))


def survey_scripts(folder: Path, *, leave_out: Sequence[Path] = ()) -> ScriptsSurvey:
    """Return the files of `folder` that belong to the benchmark. Raises ScriptsError.

    The following files do not belong to the benchmark: those that .gitignore and .baiignore files name (in
    the folder, below it, and above it up to the repository's root), names in `LEFT_OUT`, virtual
    environments, and the folders `leave_out`. `leave_out` includes the job store, because the job store may
    be inside `folder`. Links must point inside the folder.
    """
    root = folder.resolve()
    if not os.path.isdir(root):  # noqa: PTH112 - Path.is_dir raises below a folder that may not be entered
        raise ScriptsError(
            f"{folder}: no folder. Name the folder of the benchmark's own files in [ml.script] path."
        )
    excluded = frozenset(each.resolve() for each in leave_out)
    left_out: list[str] = []
    files = sorted(
        _walk(root, root, _rules_above(root), excluded, left_out), key=lambda file: file.path.as_posix()
    )
    return ScriptsSurvey(files=tuple(files), left_out=tuple(left_out))


def copy_scripts(origin: ScriptsOrigin, destination: Path, *, leave_out: Sequence[Path] = ()) -> Path:
    """Copy the benchmark's files to the new folder `destination`; return `destination`. Raises ScriptsError
    if a file cannot be read, StoreError if a file cannot be written. After an error, `destination` is
    removed."""
    files = origin.survey(leave_out=[*leave_out, destination]).files
    root = origin.path.resolve() if origin.is_folder else origin.path.parent
    target = destination / (origin.member or "") if origin.is_folder else destination
    try:
        make_folder(destination, private=destination)
        for file in files:
            _copy(root / file.path, target / file.path, link=file.link)
    except BaseException as error:
        shutil.rmtree(destination, ignore_errors=True)
        if isinstance(error, OSError):
            raise _write_error(error, origin, files, destination) from error
        raise
    return destination


def scripts_digest(origin: ScriptsOrigin, leave_out: Sequence[Path] = ()) -> str:
    """Return a checksum over names and contents of the scripts. A folder and the job's copy of the folder
    have the same checksum. Raises ScriptsError."""
    total = hashlib.sha256()
    base = origin.path if origin.is_folder else origin.path.parent
    for file in origin.survey(leave_out=leave_out).files:
        name = Path(origin.member or "", file.path) if origin.is_folder else file.path
        total.update(str(name).encode(errors="surrogateescape") + b"\0")
        if file.link is not None:
            total.update(b"l" + file.link.encode(errors="surrogateescape") + b"\0")
            continue
        path = base / file.path
        try:
            with path.open("rb") as content:
                total.update(content_digest(content))
        except OSError as error:
            raise ScriptsError(
                f"{path}: cannot be read: {error.strerror}; make the scripts readable"
            ) from error
    return total.hexdigest()


def content_digest(content: BinaryIO) -> bytes:
    """Return the SHA-256 of the rest of an open file."""
    found = hashlib.sha256()
    while piece := content.read(_PIECE):
        found.update(piece)
    return found.digest()


def _write_error(
    error: OSError, origin: ScriptsOrigin, files: Sequence[ScriptFile], destination: Path
) -> StoreError:
    if error.errno in FULL:
        total = sum(file.size for file in files)
        return StoreError(
            f"no space is left for the copy of the scripts of {origin.path} ({total:,} bytes in {len(files):,} files); "
            "free some, name a job store on another disk with --store, or leave files out with .baiignore"
        )
    return StoreError(
        f"{error.filename2 or error.filename or destination}: cannot be written: {error.strerror}; "
        "name another job store with --store"
    )


def _copy(source: Path, target: Path, *, link: str | None) -> None:
    """Copy a file or link. Raises ScriptsError if the source cannot be read, OSError if the copy cannot be written."""
    make_folder(target.parent, private=target.parent)
    if link is not None:
        target.symlink_to(link)
        return
    try:
        opened = source.open("rb")
    except OSError as error:
        raise ScriptsError(
            f"{source}: cannot be read: {error.strerror}. Name the file in .baiignore to leave it out."
        ) from error
    with opened as content, target.open("xb") as copy:
        shutil.copyfileobj(content, copy, _PIECE)
        status = os.fstat(content.fileno())
        # The error is ignored, because some file systems do not support file modes.
        with suppress(PermissionError):
            os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode) & 0o755)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _walk(
    root: Path, folder: Path, rules: tuple[_Rules, ...], excluded: frozenset[Path], left_out: list[str]
) -> Iterator[ScriptFile]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise ScriptsError(
            f"{folder}: cannot be read: {error.strerror}. Name the folder in .baiignore to leave it out."
        ) from error
    rules = (*rules, *_rules_in(folder))
    for entry in entries:
        path = Path(entry.path)
        is_folder = entry.is_dir(follow_symlinks=False)
        if (
            path in excluded
            or _left_out(path, rules, folder=is_folder)
            or _ignored(path, rules, folder=is_folder)
        ):
            left_out.append(path.relative_to(root).as_posix() + ("/" if is_folder else ""))
            continue
        if is_folder:
            yield from _walk(root, path, rules, excluded, left_out)
        elif entry.is_symlink():
            yield ScriptFile(path=path.relative_to(root), size=0, link=_inner_link(path, root))
        elif entry.is_file(follow_symlinks=False):
            yield ScriptFile(path=path.relative_to(root), size=entry.stat(follow_symlinks=False).st_size)
        else:
            raise ScriptsError(
                f"{path}: neither file, folder nor link. Name the path in .baiignore to leave it out."
            )


def _inner_link(path: Path, root: Path) -> str:
    link = path.readlink()
    if link.is_absolute() or not (path.parent.resolve() / link).resolve().is_relative_to(root):
        raise ScriptsError(
            f"{path}: a link out of the folder, to {link}. Copy the file into the folder, or name the link in .baiignore."
        )
    return str(link)


def _left_out(path: Path, rules: Sequence[_Rules], *, folder: bool) -> bool:
    """Return whether `path` is left out because of its name or kind. Only a rule in .baiignore can include a
    path that is left out in this way, because `!*/` in a .gitignore has another purpose."""
    # Path.is_file raises for a folder that bai may not enter, but such a folder may still be ignored.
    environment = folder and os.path.isfile(path / "pyvenv.cfg")  # noqa: PTH113
    if path.name not in LEFT_OUT and not environment:
        return False
    return _ignored(path, [each for each in rules if each.ours], folder=folder, otherwise=True)


def _ignored(path: Path, rules: Sequence[_Rules], *, folder: bool, otherwise: bool = False) -> bool:
    """Return the verdict of the nearest rules that mention the path, as git does; `otherwise` if no rules
    mention the path."""
    for each in reversed(rules):
        verdict = each.verdict(path, folder=folder)
        if verdict is not None:
            return verdict
    return otherwise


def _rules_above(root: Path) -> tuple[_Rules, ...]:
    """Return the ignore rules of the folders above `root`, up to the repository's root; empty if `root` is
    not in a repository."""
    if (root / ".git").exists():
        return ()
    above = []
    for parent in root.parents:
        above.append(parent)
        if (parent / ".git").exists():
            return tuple(rules for each in reversed(above) for rules in _rules_in(each))
    return ()


def _rules_in(folder: Path) -> tuple[_Rules, ...]:
    found = []
    for name in IGNORE_FILES:
        path = folder / name
        try:
            text = path.read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise ScriptsError(f"{path}: cannot be read: {error}. Correct or remove it.") from error
        # The library is imported here because few jobs have ignore files, and the library is slow to import.
        from pathspec import GitIgnoreSpec
        from pathspec.patterns.gitignore import GitIgnorePatternError

        try:
            spec = GitIgnoreSpec.from_lines(text.splitlines())
        except GitIgnorePatternError as error:
            raise ScriptsError(f"{path}: has an invalid ignore pattern: {error}") from error
        found.append(_Rules(folder, spec, ours=name == ".baiignore"))
    return tuple(found)
