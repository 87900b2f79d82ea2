"""The programs on the user's machine, which plan, launch, monitor, cancel and report benchmarks.
`executor.api` has functions for other Python programs."""

from typing import TYPE_CHECKING

import bai_agent  # noqa: F401 - before anything else: ends with a sentence on a system that is not supported

__all__ = ["metrics", "plan", "scale", "status", "submit", "wait"]

if TYPE_CHECKING:
    from executor.api import metrics, plan, scale, status, submit, wait
else:

    def __getattr__(name: str) -> object:
        # The functions of `executor.api` are imported on demand. `bai` and instances also import this
        # package, and must not wait for the API's imports.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from executor import api

        return getattr(api, name)
