"""The table `[matrix]` of a descriptor: values of keys. Each combination of the values becomes one job of a
group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from executor.descriptor.raw_table import Raw, RawFinding, Where, at, error
from executor.descriptor.toml_text import KeyPath, overlap, read_key_path
from executor.descriptor.values import DescriptorTable

_TABLE = "matrix"
MOST_JOBS = 256
"""Maximum number of jobs in a group."""
_OPTIONS = ("max_parallel", "max_cost", "rounds", "seed")
_VALUES = (str, int, float, bool, list, dict)
_FIX = 'write for example "ml.args" = ["--batch 32", "--batch 64"]'


class MatrixTable(DescriptorTable):
    """Values of other keys. Each combination of the values is a job of a group, see [matrix.md](matrix.md).
    Every key that `--set` accepts may be written here, in quotes, with a list of values."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)

    max_parallel: int = Field(default=1, ge=1, le=MOST_JOBS, examples=[2])
    """Maximum number of jobs of the group that run at the same time."""
    max_cost: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = Field(default=None, examples=[40.0])
    """Maximum cost of the whole group on EC2 (USD). The cost of ended jobs and the maximum cost of running jobs
    count. Unset: no bound."""
    rounds: int = Field(default=1, ge=1, le=MOST_JOBS, examples=[3])
    """Number of rounds. Each round runs every combination once, as a separate job."""
    seed: int = Field(default=0, ge=0, lt=2**63, examples=[7])
    """Seed for the order of the combinations within a round."""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The values of each key of `[matrix]`, in the order of the file. Empty if `[matrix]` has no keys with values."""
        return {_key(where): values for where, values in _axes(self.model_extra or {})}


def matrix(table: Raw) -> Iterator[RawFinding]:
    """Check `[matrix]`: its keys, their values, and the number of jobs."""
    mine = at(table, _TABLE)
    if not mine:
        return
    counts: list[int] = []
    paths: dict[KeyPath, str] = {}
    for where, values in _axes({key: each for key, each in mine.items() if key not in _OPTIONS}):
        place = (_TABLE, *where)
        mistakes = [*_key_mistakes(place, _key(where), paths), *_value_mistakes(place, values)]
        yield from mistakes
        counts.append(len(values) if isinstance(values, list) else 0)
    if not counts:
        yield error((_TABLE,), "names no key with a list of values", _FIX)
    rounds = mine.get("rounds", 1)
    jobs = prod(counts) * (rounds if type(rounds) is int else 1)
    if jobs > MOST_JOBS:
        yield error(
            (_TABLE,), f"makes {jobs:,} jobs, but a group has at most {MOST_JOBS}", "remove some values"
        )


def _axes(table: Mapping[str, Any], where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the keys of a table and its subtables, with their values. TOML reads `hardware.instance_type` without
    quotes as the key `instance_type` of a subtable."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _axes(value, (*where, key))
        else:
            yield (*where, key), value


def _key(where: tuple[str, ...]) -> str:
    return ".".join(where)


def _key_mistakes(where: Where, key: str, paths: dict[KeyPath, str]) -> Iterator[RawFinding]:
    try:
        path, rest = read_key_path(key)
    except ValueError as wrong:
        yield error(where, f"is not a dotted key: {wrong}", _FIX)
        return
    if path == ("info", "execution_engine"):
        yield error(
            where,
            "is the same for all jobs of a group",
            "remove it; use the option --on",
        )
    if rest or path[0] == _TABLE:
        yield error(where, "is not a key that [matrix] can set", _FIX)
    for other, name in paths.items():
        if overlap(path, other):
            yield error(where, f"sets the same key as {name}", "keep one of the two")
    paths[path] = key


def _value_mistakes(where: Where, values: Any) -> Iterator[RawFinding]:
    if not isinstance(values, list) or not values:
        options = ", ".join(_OPTIONS)
        yield error(where, "is not a list of values", f"{_FIX}; other keys of the table are {options}")
        return
    for index, value in enumerate(values):
        if not isinstance(value, _VALUES):
            yield error((*where, index), "is a date or a time, which no key accepts", "write a text")
        elif any(type(value) is type(other) and value == other for other in values[:index]):
            yield error(
                (*where, index), "is in the list twice", "remove it; rounds = 2 runs every combination twice"
            )
