"""Objects that launches of one process share: AWS's clients and the agent's bundle. Objects are only shared
inside `sharing`.

A client of EC2 takes some 25 MB and a tenth of a second, which a command pays once, but a service for each launch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from bai_agent.light_dataclass import dataclass, field

T = TypeVar("T")

_AT_MOST = 24
"""Number of objects that are kept: one region takes some six. Requests of others may name any number of
regions."""


class Shared:
    """Objects that are created once; only the most recently used ones are kept. For several threads."""

    def __init__(self, *, at_most: int = _AT_MOST) -> None:
        """at_most: number of objects that are kept; beyond it, those that were used least recently are
        created again."""
        self._at_most = at_most
        self._lock = threading.Lock()
        self._things: dict[Hashable, _Thing] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of the first successful `make` for this key."""
        with self._lock:
            # It was used last, so it moves to the end.
            thing = self._things.pop(key) if key in self._things else _Thing()
            self._things[key] = thing
            while len(self._things) > self._at_most:
                del self._things[next(iter(self._things))]
        # Creating one may need another: each waits only for its own.
        with thing.lock:
            if not thing.is_made:
                thing.value, thing.is_made = make(), True
            made: T = thing.value
            return made


@dataclass
class _Thing:
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_made: bool = False
    value: Any = None


_SHARED: ContextVar[Shared | None] = ContextVar("shared", default=None)


@contextmanager
def sharing(shared: Shared) -> Iterator[None]:
    """Use the common parts in `shared` in this block."""
    token = _SHARED.set(shared)
    try:
        yield
    finally:
        _SHARED.reset(token)


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return the result of `make`: a new one, or the shared one if objects are shared."""
    shared = _SHARED.get()
    return make() if shared is None else shared.once(key, make)
