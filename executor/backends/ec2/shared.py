"""The common parts of launches of one process: AWS's clients and the agent's bundle. They are only shared inside `sharing`.

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
"""Things that are kept: one region takes some six. Requests of others may name any number of regions."""


class Shared:
    """Things that are made once; the latest so many are kept. For several threads."""

    def __init__(self, *, at_most: int = _AT_MOST) -> None:
        """at_most: things that are kept; of more, those that were not asked for the longest are made anew."""
        self._at_most = at_most
        self._lock = threading.Lock()
        self._things: dict[Hashable, _Thing] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned for this key the first time that it raised nothing."""
        with self._lock:
            # Asked for last, it stands last.
            thing = self._things.pop(key) if key in self._things else _Thing()
            self._things[key] = thing
            while len(self._things) > self._at_most:
                del self._things[next(iter(self._things))]
        # One may need another to be made: each waits for its own only.
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
    """Return what `make` returns: anew, or the same each time where things are shared."""
    shared = _SHARED.get()
    return make() if shared is None else shared.once(key, make)
