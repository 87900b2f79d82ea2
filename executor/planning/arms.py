"""Combines several descriptors into one job, in which each descriptor is an arm. All arms run on the same
machine and are measured in the same way."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import combinations, product
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pydantic import Field

from bai_agent.job.descriptor.benchmark_tables import Git
from bai_agent.job.schema.source_schemes import file_path
from bai_agent.light_dataclass import dataclass, replace
from executor.descriptor import Descriptor
from executor.descriptor.checks.file_checks import local_path
from executor.descriptor.model import ArmTable, RepeatTable, Script
from executor.descriptor.service_tables import MetricTable, SourceTable
from executor.errors import UsageError
from executor.planning.scripts_folder import ScriptsOrigin

_T = TypeVar("_T")

_RUNS = 10
"""Default number of runs of each arm."""
_OWN = {
    "info": {"description", "labels", "task_name"},
    "ml": {"benchmark_code", "args", "script"},
    "data": {"sources"},
    "env": {"vars"},
    "output": {"metrics"},
    "repeat": {"arms", "seed"},
}
"""Descriptor keys that may differ between arms, or that the comparison itself sets."""


@dataclass(frozen=True, kw_only=True)
class ArmFiles:
    """Facts about an arm's own files at the time when the job was made."""

    scripts: ScriptsOrigin | None
    """Origin of the arm's scripts; None if the arm has no scripts."""
    sha256: str | None
    """Checksum over the names and contents of the arm's scripts."""
    git: Git | None
    """Commit of the folder of the arm's descriptor."""


class FileArm(ArmTable):
    """An arm with files of its own. bai generates such arms from several descriptors; users cannot write them
    in a descriptor."""

    folder: Path
    """Absolute folder of the arm's descriptor, which is the base of the relative paths in this class."""
    script: Script | None = None
    """The arm's scripts, which replace the scripts of `[ml]`."""
    sources: list[SourceTable] = Field(default_factory=list)
    """The arm's own data sources, in addition to the sources in `[data]`."""


def file_arms(descriptor: Descriptor) -> list[FileArm]:
    """Return the arms of a descriptor that have files of their own: either all arms, or none."""
    arms = descriptor.repeat.arms if descriptor.repeat is not None else []
    return [each for each in arms if isinstance(each, FileArm)]


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One of the compared descriptors, with the scripts and data that it names."""

    file: Path
    descriptor: Descriptor
    script: Script | None
    """`[ml.script]` of the descriptor with absolute paths, so that descriptors in different folders can be
    compared."""
    sources: Sequence[SourceTable]
    """`[[data.sources]]` with absolute addresses."""
    models: Sequence[SourceTable]
    """`[[server.models]]` with absolute addresses."""

    @classmethod
    def read(cls, file: Path, descriptor: Descriptor) -> _Side:
        folder = file.absolute().parent
        return cls(
            file=file,
            descriptor=descriptor,
            script=_located_script(descriptor.ml.script, folder),
            sources=[_located_source(each, folder) for each in descriptor.data.sources],
            models=[
                _located_source(each, folder)
                for each in (descriptor.server.models if descriptor.server is not None else ())
            ],
        )

    @property
    def files(self) -> tuple[Script | None, Sequence[SourceTable]]:
        return self.script, self.sources

    @property
    def at_fixed_places(self) -> list[SourceTable]:
        """Sources with an absolute path on the machine, which is the same path for all arms."""
        return [each for each in self.sources if each.path.startswith(("/", "~/"))]

    def arm(self, name: str, shared_labels: Mapping[str, str]) -> ArmTable:
        """Return this descriptor as an arm that uses the job's own files."""
        ml, labels = self.descriptor.ml, self.descriptor.info.labels
        return ArmTable(
            name=name,
            benchmark_code=ml.benchmark_code,
            args=ml.args or "",
            vars=dict(self.descriptor.env.vars),
            labels={key: value for key, value in labels.items() if key not in shared_labels},
        )

    def file_arm(self, arm: ArmTable, script: Script | None, sources: Sequence[SourceTable]) -> FileArm:
        """Return `arm` with the files that belong only to this arm. script, sources: the shared files, which
        belong to the whole job."""
        return FileArm(
            **vars(arm),
            folder=self.file.absolute().parent,
            script=self.descriptor.ml.script if script is None else None,
            sources=[each for each in self.sources if each not in sources],
        )


def as_arms(
    files: Sequence[Path],
    descriptors: Sequence[Descriptor],
    *,
    runs: int | None,
    until: float | None,
    seed: int,
) -> Descriptor:
    """Return one descriptor whose arms are the descriptors in these files.

    runs, until: values for each arm, in place of the values in `[repeat]`. Raises UsageError that names the
    key if the descriptors differ in a key that must be the same for all arms.
    """
    sides = [_Side.read(*each) for each in zip(files, descriptors, strict=True)]
    first = sides[0].descriptor
    for other in sides[1:]:
        _check_alike(sides[0], other)
    labels = dict(_common([list(each.descriptor.info.labels.items()) for each in sides]))
    arms: list[ArmTable] = [each.arm(name, labels) for name, each in zip(_names(files), sides, strict=True)]
    script, sources = first.ml.script, first.data.sources
    if any(each.files != sides[0].files for each in sides):
        script, sources = _shared_files(sides)
        arms = [each.file_arm(arm, script, sources) for arm, each in zip(arms, sides, strict=True)]
    metrics = _metrics(sides)
    table = _table(first.repeat or RepeatTable(), metrics, arms=len(files), runs=runs, until=until)
    return _changed(
        first,
        info={"labels": labels, "task_name": _one_task_name(descriptors)},
        ml={"benchmark_code": arms[0].benchmark_code, "script": script},
        data={"sources": sources},
        env={"vars": {}},
        output={"metrics": metrics},
    ).model_copy(update={"repeat": replace(table, arms=tuple(arms), seed=seed)})


def _changed(descriptor: Descriptor, **tables: Mapping[str, Any]) -> Descriptor:
    """Return `descriptor` with these keys of its tables replaced."""
    changed = {name: getattr(descriptor, name).model_copy(update=keys) for name, keys in tables.items()}
    return descriptor.model_copy(update=changed)


def _shared_files(sides: Sequence[_Side]) -> tuple[Script | None, list[SourceTable]]:
    """Return the scripts and data that all arms use. Raises UsageError if two arms put different data at the
    same place."""
    for left, right in combinations(sides, 2):
        _check_places(left, right)
    first = sides[0]
    script = first.descriptor.ml.script if all(each.script == first.script for each in sides) else None
    return script, _common([each.sources for each in sides])


def _check_alike(one: _Side, other: _Side) -> None:
    """Raise UsageError if the two descriptors differ in a key that must be the same for all arms."""
    for key, first, second in _differences(_shared(one), _shared(other)):
        raise UsageError(
            f"{key}: {one.file} says {_shown(first)}, {other.file} says {_shown(second)}; write the same value in both files. Arms run on the same machine, "
            "so arms differ only in ml.benchmark_code, ml.args, ml.script, data.sources, env.vars, info.labels and "
            "output.metrics"
        )


def _one_task_name(descriptors: Sequence[Descriptor]) -> str | None:
    """Return the task's name if it is the same in all arms."""
    names = {each.info.task_name for each in descriptors}
    return names.pop() if len(names) == 1 else None


def _common(sides: Sequence[Sequence[_T]]) -> list[_T]:
    """Return the items that all sides share, in the order of the first side."""
    return [each for each in sides[0] if all(each in side for side in sides[1:])]


def _table(
    table: RepeatTable, metrics: Sequence[MetricTable], *, arms: int, runs: int | None, until: float | None
) -> RepeatTable:
    """Return `[repeat]` for all arms together. Options of the command line override the files."""
    if table.arms:
        raise UsageError("repeat.arms: the files are arms already; remove the table")
    each = runs if runs is not None else table.runs
    until = until if until is not None else table.until if runs is None else None
    if each is None and until is None:
        each = _RUNS
    if until is not None and table.metric is None:
        _check_one_ranked(metrics)
    return replace(
        table,
        runs=arms * each if each is not None else None,
        warmup_runs=arms * table.warmup_runs,
        until=until,
    )


def _check_one_ranked(metrics: Sequence[MetricTable]) -> None:
    """Raise UsageError unless exactly one metric sets whether higher or lower values are better."""
    if len([each for each in metrics if each.better]) != 1:
        raise UsageError(
            'repeat.metric is missing: write [repeat] metric = "…", the metric whose interval `until` uses, in all files'
        )


def _located_script(script: Script | None, folder: Path) -> Script | None:
    if script is None:
        return None
    paths = {key: value for key in ("path", "script") if (value := getattr(script, key)) is not None}
    return script.model_copy(update={key: _absolute(folder / value) for key, value in paths.items()})


def _located_source(source: SourceTable, folder: Path) -> SourceTable:
    local = local_path(source.src, folder)
    if local is None or file_path(source.src) is not None:
        return source
    slash = "/" if source.src.endswith("/") else ""
    return replace(source, src=f"{_absolute(local)}{slash}")


def _absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps ".."


def _check_places(left: _Side, right: _Side) -> None:
    """Raise UsageError if the two sides put different data at the same path."""
    for one, other in product(left.at_fixed_places, right.at_fixed_places):
        if _nested(one.path, other.path) and one not in right.sources and other not in left.sources:
            raise UsageError(
                f'data.sources: {left.file} brings {one.src} to "{one.path}", {right.file} brings {other.src} to "{other.path}"; an '
                "absolute path is the same place for all arms, so write relative paths, which start in each arm's own folder"
            )


def _nested(one: str, other: str) -> bool:
    first, second = PurePosixPath(one), PurePosixPath(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


def _metrics(sides: Sequence[_Side]) -> list[MetricTable]:
    """Return the metrics of all sides. Raises UsageError if two metrics with the same name differ."""
    known: dict[str, tuple[Path, MetricTable]] = {}
    for side in sides:
        for each in side.descriptor.output.metrics:
            other, same = known.setdefault(each.name, (side.file, each))
            if same != each:
                raise UsageError(
                    f'output.metrics "{each.name}" differs between {other} and {side.file}, and numbers that are measured in two ways '
                    "cannot be compared; make both the same, or give one of them another name"
                )
    return [each for _, each in known.values()]


def _names(files: Sequence[Path]) -> list[str]:
    """Return the arms' names: the file names, the folder names if files share a name, or "a", "b", "c" if
    folders share a name as well."""
    whole = [each.absolute() for each in files]
    for names in ([each.stem for each in whole], [each.parent.name for each in whole]):
        if len(set(names)) == len(names) and all(
            re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]{0,63}", each) for each in names
        ):
            return names
    letters = string.ascii_lowercase
    return (
        list(letters[: len(files)])
        if len(files) <= len(letters)
        else [f"arm-{i + 1}" for i in range(len(files))]
    )


def _shared(side: _Side) -> dict[str, Any]:
    """Return the values of the keys that must be the same in all descriptors."""
    table = side.descriptor.model_dump()
    if side.models:
        # Lists are converted to tables, so that the message can name the item and the key that differ.
        table["server"]["models"] = {str(number): vars(each) for number, each in enumerate(side.models, 1)}
    return {
        key: {name: each for name, each in value.items() if name not in _OWN.get(key, ())}
        if isinstance(value, dict)
        else value
        for key, value in table.items()
    }


def _differences(one: Any, other: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in dict.fromkeys([*one, *other]):
            yield from _differences(one.get(name), other.get(name), f"{key}.{name}" if key else str(name))
    elif one != other:
        yield key, one, other


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value.value if isinstance(value, Enum) else value)
    return text if len(text) <= 60 else f"{text[:29]}…{text[-30:]}"
