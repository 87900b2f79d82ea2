"""Dataclasses without generated code behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace
from typing import Any, ClassVar, TypeAlias

import pytest
from pydantic import TypeAdapter, ValidationError

from bai_agent.light_dataclass import dataclass

Decorator: TypeAlias = Any
"""Type checkers know a decorator of dataclasses by its name alone."""

BOTH = pytest.mark.parametrize("decorator", [dataclasses.dataclass, dataclass])


def classes(decorator: Decorator) -> tuple[type[Any], type[Any]]:
    """Return a frozen class, and one that derives from it with fields that are counted, hidden or made."""

    @decorator(frozen=True)
    class Node:
        kind: ClassVar[str] = "node"
        rank: int
        name: str = "x"

    @decorator(frozen=True, kw_only=True)
    class Launcher(Node):
        slots: list[int] = field(default_factory=list, hash=False)
        secret: str = field(default="", repr=False, compare=False)
        total: int = field(default=0, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.rank + sum(self.slots))

    return Node, Launcher


@BOTH
def test_arguments_are_accepted_by_position_and_by_name(decorator: Decorator) -> None:
    node, launcher = classes(decorator)

    assert vars(node(3)) == {"rank": 3, "name": "x"}
    assert vars(node(3, name="y")) == {"rank": 3, "name": "y"}
    assert launcher(1, "z", slots=[2, 3]).total == 6
    assert launcher(1).slots is not launcher(1).slots


@BOTH
@pytest.mark.parametrize(
    ("args", "values"),
    [
        ((), {}),
        ((), {"name": "y"}),
        ((1, "y", []), {}),
        ((1,), {"rank": 1}),
        ((1,), {"nome": "y"}),
        ((), {"nome": "y", "name": "z"}),
        ((1,), {"total": 3}),
    ],
)
def test_wrong_arguments_are_refused(
    decorator: Decorator, args: tuple[Any, ...], values: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match=r"Launcher\.__init__\(\)"):
        classes(decorator)[1](*args, **values)


@BOTH
def test_equality_hash_and_repr_respect_field_options(decorator: Decorator) -> None:
    node, launcher = classes(decorator)

    assert launcher(1, slots=[2], secret="a") == launcher(1, slots=[2], secret="b")
    assert launcher(1, slots=[2]) != launcher(1, slots=[3])
    assert hash(launcher(1, slots=[2])) == hash(launcher(1, slots=[2], secret="b"))
    assert node(1) != launcher(1)
    assert {node(1): "found"}[node(1)] == "found"
    assert repr(launcher(1, secret="a")).endswith("Launcher(rank=1, name='x', slots=[], total=1)")


@BOTH
def test_a_frozen_instance_cannot_be_changed(decorator: Decorator) -> None:
    node, _ = classes(decorator)
    one = node(1)

    with pytest.raises(FrozenInstanceError):
        one.rank = 2
    with pytest.raises(FrozenInstanceError):
        one.other = 2
    with pytest.raises(FrozenInstanceError):
        del one.rank

    assert one == node(1)


@BOTH
def test_an_undecorated_subclass_may_have_more_attributes(
    decorator: Decorator,
) -> None:
    node, _ = classes(decorator)

    class Own(node):  # type: ignore[misc, valid-type]
        pass

    own = Own(1)
    own.other = 2
    del own.other

    with pytest.raises(FrozenInstanceError):
        own.rank = 2


@BOTH
def test_an_unfrozen_class_can_be_changed_and_has_no_hash(decorator: Decorator) -> None:
    class Tally:
        count: int = 0

    class Log:
        place: str

    made: Any = decorator(Tally)
    by_identity: Any = decorator(eq=False)(Log)
    tally = made()
    tally.count += 1

    assert tally == made(1)
    assert len({by_identity("a"), by_identity("a")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(tally)


@BOTH
def test_methods_defined_in_the_class_are_not_replaced(decorator: Decorator) -> None:
    class Named:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

        def __repr__(self) -> str:
            return self.name

    made: Any = decorator(frozen=True)(Named)

    assert made("A") == made("a")
    assert hash(made("A")) == hash(made("a"))
    assert repr(made("A")) == "A"


@BOTH
def test_the_functions_of_the_standard_library_accept_these_classes(decorator: Decorator) -> None:
    _, launcher = classes(decorator)
    one = launcher(1, slots=[2])

    assert is_dataclass(classes(decorator)[1])
    assert [each.name for each in fields(launcher)] == ["rank", "name", "slots", "secret", "total"]
    assert list(vars(one)) == list(dataclasses.asdict(one)), "in the order of the fields"
    assert replace(one, rank=5) == launcher(5, slots=[2])
    assert copy.deepcopy(one) == one
    match one:
        case launcher(rank=rank):
            assert rank == 1


@dataclass(frozen=True, kw_only=True)
class Written:
    """Pickled, and checked by pydantic: both look up its module."""

    name: str
    count: int = 1


def test_pickle_and_pydantic_accept_these_classes() -> None:
    assert pickle.loads(pickle.dumps(Written(name="a"))) == Written(name="a")
    assert TypeAdapter(Written).validate_python({"name": "a"}) == Written(name="a")
    with pytest.raises(ValidationError):
        TypeAdapter(Written).validate_python({"count": 2})


_GENERATED = """
import sys, types
import bai_agent.cli, bai_agent.phases.run
for name in [each for each in sys.modules if each.startswith("bai_agent")]:
    for kind in vars(sys.modules[name]).values():
        if isinstance(kind, type) and kind.__module__ == name:
            if any(getattr(each, "__code__", None) and each.__code__.co_filename == "<string>" for each in vars(kind).values()):
                print(name, kind.__name__)
"""


def test_starting_the_agent_compiles_no_generated_code() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _GENERATED], capture_output=True, text=True, timeout=60, check=True
    )

    assert said.stdout == ""
