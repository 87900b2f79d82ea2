"""Caches objects that the launches of one process share: AWS clients and the agent's bundle. Objects are
shared only inside `sharing`. A client of EC2 takes about 25 MB and a tenth of a second. A command creates the
client only once. Without sharing, a benchmark service would create a new client for each launch.
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
"""Maximum number of shared objects. A region needs about six shared objects, but requests of other users may name
any number of regions."""


class Shared:
    """A thread-safe cache of objects that are created once. The cache holds only the most recently used
    objects."""

    def __init__(self, *, at_most: int = _AT_MOST) -> None:
        """at_most: maximum number of objects. If the cache exceeds this number, the least recently used objects are
        dropped."""
        self._at_most = at_most
        self._lock = threading.Lock()
        self._things: dict[Hashable, _Thing] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of the first successful `make` for this key."""
        with self._lock:
            # The object is moved to the end of the cache, because it is now the most recently used one.
            thing = self._things.pop(key) if key in self._things else _Thing()
            self._things[key] = thing
            while len(self._things) > self._at_most:
                del self._things[next(iter(self._things))]
        # Each key has its own lock, because the creation of one object may need another shared object.
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
    """Use the objects of `shared` in this `with` block."""
    token = _SHARED.set(shared)
    try:
        yield
    finally:
        _SHARED.reset(token)


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return the shared result of `make`; outside of `sharing`, a new result."""
    shared = _SHARED.get()
    return make() if shared is None else shared.once(key, make)
