"""Several descriptors as one job of several arms, which run on the same hardware and are measured in the same way."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pydantic import Field

from bai_agent.job.descriptor import Git
from bai_agent.job.source_schemes import file_path
from executor.descriptor import Descriptor
from executor.descriptor.file_checks import local_path
from executor.descriptor.model import ArmTable, Ml, RepeatTable, Script
from executor.descriptor.service_tables import MetricTable, SourceTable
from executor.errors import UsageError
from executor.planning.scripts_folder import ScriptsOrigin

_T = TypeVar("_T")

_RUNS = 10
"""Of each arm, where nothing is said."""
_OWN = {
    "info": {"description", "labels", "task_name"},
    "ml": {"benchmark_code", "args", "script"},
    "data": {"sources"},
    "env": {"vars"},
    "output": {"metrics"},
    "repeat": {"arms", "seed"},
}
"""Keys in which arms may differ, or which the comparison says itself."""


@dataclass(frozen=True, kw_only=True)
class ArmFiles:
    """What is known of an arm's own files when its job is made."""

    scripts: ScriptsOrigin | None
    """What the agent takes its scripts from."""
    sha256: str | None
    """The sum over names and contents of those scripts."""
    git: Git | None


class FileArm(ArmTable):
    """An arm with files of its own. Only several descriptors make one: nobody can write it in one."""

    folder: Path
    """That of its descriptor, absolute: relative paths of what follows start there."""
    script: Script | None = None
    """In place of that of `[ml]`."""
    sources: list[SourceTable] = Field(default_factory=list)
    """Beside those of `[data]`."""


def file_arms(descriptor: Descriptor) -> list[FileArm]:
    """Return the arms with files of their own: all or none."""
    arms = descriptor.repeat.arms if descriptor.repeat is not None else []
    return [each for each in arms if isinstance(each, FileArm)]


def as_arms(
    files: Sequence[Path],
    descriptors: Sequence[Descriptor],
    *,
    runs: int | None,
    until: float | None,
    seed: int,
) -> Descriptor:
    """Return one descriptor of which those in these files are the arms. Raises UsageError, which names a key that differs.

    runs, until: of each arm, in place of what `[repeat]` says in all.
    """
    first = descriptors[0]
    for file, other in zip(files[1:], descriptors[1:], strict=True):
        for key, one, two in _differences(_shared(first), _shared(other)):
            raise UsageError(
                f"{key}: {files[0]} says {_shown(one)}, {file} says {_shown(two)}; arms are compared on the same machine, and only "
                "ml.benchmark_code, ml.args, ml.script, data.sources, env.vars, info.labels and output.metrics can differ: make it the "
                "same in both"
            )
    names = _names(files)
    labels = dict(_common([list(each.info.labels.items()) for each in descriptors]))
    arms: Sequence[ArmTable] = [
        ArmTable(
            name=name,
            benchmark_code=each.ml.benchmark_code if each.ml else None,
            args=(each.ml.args if each.ml else None) or "",
            vars=dict(each.env.vars),
            labels={key: value for key, value in each.info.labels.items() if key not in labels},
        )
        for name, each in zip(names, descriptors, strict=True)
    ]
    script, sources = first.ml.script if first.ml else None, first.data.sources
    folders = [each.absolute().parent for each in files]
    scripts = [_located_script(*each) for each in zip(descriptors, folders, strict=True)]
    data = [_located_sources(*each) for each in zip(descriptors, folders, strict=True)]
    if any(each != scripts[0] for each in scripts) or any(each != data[0] for each in data):
        for left, right in combinations(range(len(files)), 2):
            _check_places((files[left], files[right]), (data[left], data[right]))
        script = script if all(each == scripts[0] for each in scripts) else None
        sources = _common(data)
        arms = [
            FileArm(
                **vars(arm),
                folder=folder,
                script=each.ml.script if each.ml and script is None else None,
                sources=[source for source in own if source not in sources],
            )
            for arm, each, folder, own in zip(arms, descriptors, folders, data, strict=True)
        ]
    metrics = _metrics(files, descriptors)
    table = _table(first.repeat or RepeatTable(), metrics, arms=len(files), runs=runs, until=until)
    table = table.model_copy(update={"arms": arms, "seed": seed})
    return first.model_copy(
        update={
            "info": first.info.model_copy(
                update={"labels": labels, "task_name": _one_task_name(descriptors)}
            ),
            "ml": (first.ml or Ml()).model_copy(
                update={"benchmark_code": arms[0].benchmark_code, "script": script}
            ),
            "data": first.data.model_copy(update={"sources": sources}),
            "env": first.env.model_copy(update={"vars": {}}),
            "output": first.output.model_copy(update={"metrics": metrics}),
            "repeat": table,
        }
    )


def _one_task_name(descriptors: Sequence[Descriptor]) -> str | None:
    """Return the name of the task where all have the same."""
    names = {each.info.task_name for each in descriptors}
    return names.pop() if len(names) == 1 else None


def _common(sides: Sequence[Sequence[_T]]) -> list[_T]:
    """Return what all have, in the order of the first."""
    return [each for each in sides[0] if all(each in side for side in sides[1:])]


def _table(
    table: RepeatTable, metrics: Sequence[MetricTable], *, arms: int, runs: int | None, until: float | None
) -> RepeatTable:
    """Return `[repeat]` for all arms together, with what the command line says of one."""
    if table.arms:
        raise UsageError("repeat.arms: the files are arms already; remove the table")
    each = runs if runs is not None else table.runs
    until = until if until is not None else table.until if runs is None else None
    if each is None and until is None:
        each = _RUNS
    if until is not None and table.metric is None:
        ranked = [each.name for each in metrics if each.better]
        if len(ranked) != 1:
            raise UsageError(
                'repeat.metric is missing: write [repeat] metric = "…", the metric whose interval is meant, in all files'
            )
    return table.model_copy(
        update={
            "runs": arms * each if each is not None else None,
            "warmup_runs": arms * table.warmup_runs,
            "until": until,
        }
    )


def _located_script(descriptor: Descriptor, folder: Path) -> Script | None:
    """Return `[ml.script]` with absolute paths, so that those of two folders can be compared."""
    script = descriptor.ml.script if descriptor.ml else None
    if script is None:
        return None
    paths = {key: value for key in ("path", "script") if (value := getattr(script, key)) is not None}
    return script.model_copy(update={key: _absolute(folder / value) for key, value in paths.items()})


def _located_sources(descriptor: Descriptor, folder: Path) -> list[SourceTable]:
    """Return the data with absolute addresses."""
    located = []
    for source in descriptor.data.sources:
        local = local_path(source.src, folder)
        if local is not None and file_path(source.src) is None:
            slash = "/" if source.src.endswith("/") else ""
            source = source.model_copy(update={"src": f"{_absolute(local)}{slash}"})
        located.append(source)
    return located


def _absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps ".."


def _check_places(files: tuple[Path, Path], data: Sequence[Sequence[SourceTable]]) -> None:
    """Raise UsageError where both bring something else to the same place of the machine."""
    fixed = [[each for each in side if each.path.startswith(("/", "~/"))] for side in data]
    for one in fixed[0]:
        for other in fixed[1]:
            places = [PurePosixPath(each.path) for each in (one, other)]
            nested = places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0])
            if nested and one not in fixed[1] and other not in fixed[0]:
                raise UsageError(
                    f'data.sources: {files[0]} brings {one.src} to "{one.path}", {files[1]} brings {other.src} to "{other.path}"; an '
                    "absolute path is one place for all arms: write relative paths, which start in folders of each arm's own"
                )


def _metrics(files: Sequence[Path], descriptors: Sequence[Descriptor]) -> list[MetricTable]:
    """Return the metrics of all."""
    known: dict[str, tuple[Path, MetricTable]] = {}
    for file, descriptor in zip(files, descriptors, strict=True):
        for each in descriptor.output.metrics:
            other, same = known.setdefault(each.name, (file, each))
            if same != each:
                raise UsageError(
                    f'output.metrics "{each.name}" is not the same in {other} and {file}: numbers that are taken in two ways '
                    "cannot be compared; make it the same, or give one of them another name"
                )
    return [each for _, each in known.values()]


def _names(files: Sequence[Path]) -> list[str]:
    """Return the names of the arms: those of the files, or of their folders where files have the same, or "a", "b", "c"."""
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


def _shared(descriptor: Descriptor) -> dict[str, Any]:
    """Return what all must say alike."""
    table = descriptor.model_dump()
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
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
