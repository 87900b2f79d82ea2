"""The backends: places where jobs run. To add a backend, write a `Backend` class and add an entry to
`_BACKENDS`. The new entry must precede any backend in `_BACKENDS` that would claim the new backend's jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from bai_agent.light_dataclass import dataclass
from executor.errors import UsageError

if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from bai_agent.job.store import JobStore
    from executor.backends.backend import Backend, BackendOptions
    from executor.configuration.config import Settings
    from executor.descriptor import Descriptor
    from executor.planning.request import JobRequest


@dataclass(frozen=True)
class _Entry:
    backend: str
    """The backend's class ("module:Class"), which is imported on demand."""
    words: str
    """The backend's name in messages."""
    engines: tuple[str, ...] = ()
    """The backend's names in the descriptor key `execution_engine`."""


_BACKENDS = {
    "local": _Entry(
        "executor.backends.local.local_backend:LocalBackend", "this machine", ("default", "local")
    ),
    "ec2": _Entry("executor.backends.ec2.ec2_backend:Ec2Backend", "EC2 instances", ("aws.ec2",)),
}
"""All backends. A job belongs to the first backend in this list that claims the job."""


def backend_names() -> dict[str, str]:
    """Return the name of each backend, with its name in messages."""
    return {name: entry.words for name, entry in _BACKENDS.items()}


class Backends:
    """All backends. Each backend is created when it is first needed."""

    def __init__(self, *, settings: Callable[[], Settings] | None = None, store: str | None = None) -> None:
        """settings: function that reads the configuration. The default function reads the configuration without
        command-line options. store: the job store that the user named."""
        self._settings = settings
        self._store = store
        self._made: dict[str, Backend] = {}

    def named(self, name: str) -> Backend:
        """Return the backend of this name. Raises UsageError."""
        if name not in _BACKENDS:
            known = " or ".join(f"`--on {each}` for {words}" for each, words in backend_names().items())
            raise UsageError(f'"{name}" is not a place to run a benchmark; write {known}')
        if name not in self._made:
            module, _, kind = _BACKENDS[name].backend.partition(":")
            self._made[name] = getattr(import_module(module), kind)(self._options)
        return self._made[name]

    def of(self, record: JobRecord) -> Backend:
        """Return the backend of the job of `record`. Raises UsageError."""
        for backend in map(self.named, _BACKENDS):
            if backend.owns(record):
                return backend
        raise UsageError(f"no backend has jobs in {record.store.url}; name another store with --store")

    def of_engine(self, engine: str) -> Backend | None:
        """Return the backend of a descriptor's `execution_engine`; None if no backend supports it."""
        name = next((name for name, entry in _BACKENDS.items() if engine in entry.engines), None)
        return self.named(name) if name is not None else None

    def of_request(self, job_request: JobRequest, descriptor: Descriptor) -> Backend:
        """Return the backend of `job_request`: the backend that `--on` names, otherwise the descriptor's.
        Raises UsageError."""
        engine = job_request.on or descriptor.info.execution_engine
        return self.of_engine(engine) or self.named(engine)

    def stores(self, named: str | None) -> Iterator[JobStore]:
        """Yield the job stores of all backends, the nearest store first. Each store is opened only when the
        caller reaches it in the iteration. named: if set, yield only this store. Raises UsageError,
        StoreError.
        """
        seen = set()
        for backend in map(self.named, _BACKENDS):
            store = backend.open_store(named)
            if store is not None and store.url not in seen:
                seen.add(store.url)
                yield store
        if not seen:
            raise UsageError(f'"{named}" is not a job store of any backend; name another store with --store')

    def made(self) -> list[Backend]:
        """Return the backends that have already been created."""
        return list(self._made.values())

    @cached_property
    def _options(self) -> BackendOptions:
        # The modules are imported here because `bai --help` does not need the configuration.
        from executor.backends.backend import BackendOptions
        from executor.configuration.config import read_settings

        return BackendOptions(settings=self._settings or read_settings, store=self._store)
