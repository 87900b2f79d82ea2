"""Two descriptors as one job of two arms, where nothing but the arms differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from executor.descriptor import Descriptor
from executor.descriptor.model import ArmTable, Ml, RepeatTable
from executor.descriptor.service_tables import MetricTable
from executor.errors import UsageError

_RUNS = 10
"""Of each arm, where nothing is said."""
_OWN = {
    "info": {"description"},
    "ml": {"benchmark_code", "args"},
    "env": {"vars"},
    "output": {"metrics"},
    "repeat": {"arms", "seed"},
}
"""Keys in which arms may differ, or which the comparison says itself."""


def as_arms(
    files: tuple[Path, Path],
    descriptors: tuple[Descriptor, Descriptor],
    *,
    runs: int | None,
    until: float | None,
    seed: int,
) -> Descriptor:
    """Return one descriptor of which the two, in these files, are the arms. Raises UsageError, which names a key that differs.

    runs, until: of each arm, in place of what `[repeat]` says in both.
    """
    first, second = descriptors
    if files[0].absolute().parent != files[1].absolute().parent and _has_relative_paths(first):
        raise UsageError(
            f"{files[0]} and {files[1]} lie in two folders, and [ml.script] or [[data.sources]] name paths relative to them; put both "
            "files into one folder"
        )
    for key, one, other in _differences(_shared(first), _shared(second)):
        raise UsageError(
            f"{key}: {files[0]} says {_shown(one)}, {files[1]} says {_shown(other)}; arms are compared on the same machine, and only "
            "ml.benchmark_code, ml.args, env.vars and output.metrics can differ: make it the same in both"
        )
    names = _names(files)
    arms = [
        ArmTable(
            name=name,
            benchmark_code=each.ml.benchmark_code if each.ml else None,
            args=(each.ml.args if each.ml else None) or "",
            vars=dict(each.env.vars),
        )
        for name, each in zip(names, descriptors, strict=True)
    ]
    metrics = _metrics(files, descriptors)
    table = _table(first.repeat or RepeatTable(), metrics, runs=runs, until=until)
    table = table.model_copy(update={"arms": arms, "seed": seed})
    return first.model_copy(
        update={
            "ml": (first.ml or Ml()).model_copy(update={"benchmark_code": arms[0].benchmark_code}),
            "env": first.env.model_copy(update={"vars": {}}),
            "output": first.output.model_copy(update={"metrics": metrics}),
            "repeat": table,
        }
    )


def _table(
    table: RepeatTable, metrics: Sequence[MetricTable], *, runs: int | None, until: float | None
) -> RepeatTable:
    """Return `[repeat]` for both arms together, with what the command line says of one."""
    if table.arms:
        raise UsageError("repeat.arms: both files are arms already; remove the table")
    each = runs if runs is not None else table.runs
    until = until if until is not None else table.until if runs is None else None
    if each is None and until is None:
        each = _RUNS
    if until is not None and table.metric is None:
        ranked = [each.name for each in metrics if each.better]
        if len(ranked) != 1:
            raise UsageError(
                'repeat.metric is missing: write [repeat] metric = "…", the metric whose interval is meant, in both files'
            )
    return table.model_copy(
        update={
            "runs": 2 * each if each is not None else None,
            "warmup_runs": 2 * table.warmup_runs,
            "until": until,
        }
    )


def _has_relative_paths(descriptor: Descriptor) -> bool:
    return bool(descriptor.data.sources) or (descriptor.ml is not None and descriptor.ml.script is not None)


def _metrics(files: tuple[Path, Path], descriptors: tuple[Descriptor, Descriptor]) -> list[MetricTable]:
    """Return the metrics of both."""
    known = {each.name: each for each in descriptors[0].output.metrics}
    for each in descriptors[1].output.metrics:
        if known.setdefault(each.name, each) != each:
            raise UsageError(
                f'output.metrics "{each.name}" is not the same in {files[0]} and {files[1]}: numbers that are taken in two ways '
                "cannot be compared; make it the same, or give one of them another name"
            )
    return list(known.values())


def _names(files: tuple[Path, Path]) -> tuple[str, str]:
    stems = [each.stem for each in files]
    fit = all(each.isascii() and each.replace("-", "").replace("_", "").isalnum() for each in stems)
    fit = fit and all(each[0].isalnum() for each in stems)
    return (stems[0], stems[1]) if fit and stems[0] != stems[1] else ("a", "b")


def _shared(descriptor: Descriptor) -> dict[str, Any]:
    """Return what both must say alike."""
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
