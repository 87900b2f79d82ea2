"""Places where jobs run. To add one: a class that is a `Backend`, and its line in `_BACKENDS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from executor.errors import UsageError

if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from executor.backends.backend import Backend, BackendOptions
    from executor.config import Settings
    from executor.descriptor import Descriptor
    from executor.planning.request import JobRequest

_BACKENDS = {
    "local": "executor.backends.local.backend:LocalBackend",
    "ec2": "executor.backends.ec2.backend:Ec2Backend",
}
"""Name → class, which is imported where it is needed. A job belongs to the first one that says so."""
_ENGINES = {"default": "local", "aws.ec2": "ec2"}
"""What descriptors call them, where that is another word."""


def backend_names() -> list[str]:
    return list(_BACKENDS)


class Backends:
    """All places to run, each made when it is first needed."""

    def __init__(self, *, settings: Callable[[], Settings] | None = None, store: str | None = None) -> None:
        """settings: the configuration; unset: as it is without any options. store: the job store that was named."""
        self._settings = settings
        self._store = store
        self._made: dict[str, Backend] = {}

    def named(self, name: str) -> Backend:
        """Return the backend of this name. Raises UsageError."""
        if name not in _BACKENDS:
            raise UsageError(
                f'"{name}" is not a place to run a benchmark; write `--on local` for this machine, or `--on ec2`'
            )
        if name not in self._made:
            module, _, kind = _BACKENDS[name].partition(":")
            self._made[name] = getattr(import_module(module), kind)(self._options)
        return self._made[name]

    def of(self, record: JobRecord) -> Backend:
        """Return where the job of `record` runs."""
        return next(each for each in map(self.named, _BACKENDS) if each.owns(record))

    def of_request(self, job_request: JobRequest, descriptor: Descriptor) -> Backend:
        """Return where `job_request` wants to run: as it says, else as its descriptor does. Raises UsageError."""
        engine = job_request.on or descriptor.info.execution_engine
        return self.named(_ENGINES.get(engine, engine))

    def made(self) -> list[Backend]:
        """Return those that were needed so far."""
        return list(self._made.values())

    @cached_property
    def _options(self) -> BackendOptions:
        from executor.backends.backend import BackendOptions
        from executor.config import read_settings

        return BackendOptions(settings=self._settings or read_settings, store=self._store)
