"""Declares the tables of descriptors: frozen dataclasses whose fields have the constraints of their values in
`Annotated`.

The agent reads a job descriptor's tables with `tables.py`. In `bai`, pydantic applies the same checks.
pydantic gets the checks from hook methods of the classes and markers, so this module does not import
pydantic.
https://docs.pydantic.dev/latest/concepts/types/#customizing-validation-with-__get_pydantic_core_schema__
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias, TypeVar

from bai_agent.light_dataclass import dataclass, field, fields

T = TypeVar("T")

Mistake: TypeAlias = tuple[str, str]
"""A mistake in a value, and what to write instead, such as "is empty" and 'write for example "a"'."""


class MistakeError(ValueError):
    """Values of a table are wrong. `mistakes`: pairs of a key and its mistake; the key is empty if the value
    itself is wrong."""

    def __init__(self, mistakes: list[tuple[str, Mistake]]) -> None:
        key, (problem, fix) = mistakes[0]
        super().__init__(f"{key} {problem}; {fix}".lstrip())
        self.mistakes = mistakes


def wrong(problem: str, fix: str) -> MistakeError:
    """Return the error for a value: the problem, and what to write instead."""
    return MistakeError([("", (problem, fix))])


@dataclass(frozen=True, eq=False)
class Check:
    """A marker that constrains a field's value, in addition to the field's type."""

    mistake: Callable[[Any], Mistake | None]
    schema: Mapping[str, object] = field(default_factory=dict)
    """The constraint as JSON Schema, as far as JSON Schema can express the constraint."""

    def apply(self, value: Any) -> Any:
        """Return `value` if the value is valid. Raises MistakeError."""
        if (found := self.mistake(value)) is not None:
            raise wrong(*found)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        function = {"type": "no-info", "function": self.apply}
        return {"type": "function-after", "function": function, "schema": handler(source)}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(schema), **self.schema}


@dataclass(frozen=True, eq=False)
class WrittenCheck(Check):
    """A check that `bai` applies to values that users write. The agent does not apply the check: other code of the
    agent checks the values, or the agent trusts the job descriptor."""


@dataclass(frozen=True, eq=False)
class WrittenAs:
    """A marker of a field whose values have different forms in benchmark descriptors and in job descriptors."""

    read: Callable[[Any], Any]
    """Function that converts a benchmark descriptor's value to the job descriptor's value. Raises MistakeError."""
    schema: Mapping[str, object]
    """JSON Schema of the value that users write."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {"type": "function-plain", "function": {"type": "no-info", "function": self.read}}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:
        return dict(self.schema)


@dataclass(frozen=True, eq=False)
class Example:
    """A marker with an example of the field's value, in the form of a benchmark descriptor. The reference in `docs/`
    and the advice in messages show the example."""

    value: Any

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(schema), "examples": [self.value]}


class DeclaredTable:
    """Base class of the dataclasses of descriptor tables. `bai` and the agent reject unknown keys, and values
    of other types."""

    written: ClassVar[frozenset[str]] = frozenset()
    """The keys that the benchmark descriptor or the configuration file contains; empty if the table was not
    read from a file."""
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid"}

    def mistakes(self) -> Iterator[tuple[str, Mistake]]:
        """Yield each key that contradicts another key, and the key's mistake."""
        yield from ()

    def __post_init__(self) -> None:
        if found := list(self.mistakes()):
            raise MistakeError(found)

    def mark_written(self, keys: Mapping[str, object]) -> None:
        """Record which keys the file contained."""
        object.__setattr__(self, "written", frozenset(keys))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        def read(value: Any, inner: Callable[[Any], Any]) -> Any:
            made = inner(value)
            if isinstance(value, Mapping):
                made.mark_written(value)
            return made

        schema = handler(source)
        _make_strict(handler.resolve_ref_schema(schema)["schema"], handler.resolve_ref_schema)
        return {"type": "function-wrap", "function": {"type": "no-info", "function": read}, "schema": schema}


def _make_strict(schema: Any, resolve: Callable[[Any], Any]) -> None:
    """Make the schema accept only strings, numbers and booleans of the field's exact type. Enumeration members
    and tuples are accepted in their TOML form.

    pydantic's option `strict` is not used, because for a whole dataclass it would reject tables and lists.
    """
    if isinstance(schema, list):
        for each in schema:
            _make_strict(each, resolve)
    if not isinstance(schema, dict):
        return
    found = resolve(schema) if schema.get("type") == "definition-ref" else schema
    if (kind := found.get("type")) in ("str", "int", "float", "bool", "enum", "tuple"):
        found["strict"] = kind not in ("enum", "tuple")
    for each in schema.values():
        _make_strict(each, resolve)


def as_kind(kind: type[T], table: DeclaredTable, **changes: Any) -> T:
    """Return a table of the type `kind` with the values of `table`. Fields in `changes` get the values in
    `changes`."""
    names = {each.name for each in fields(kind)} & vars(table).keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(table, name) for name in names} | changes)
