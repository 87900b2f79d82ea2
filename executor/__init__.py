"""The programs on the user's machine, which plan, launch, watch, cancel and report benchmarks. Functions for
other programs are in `executor.api`."""

from typing import TYPE_CHECKING

import bai_agent  # noqa: F401 - before anything else: ends with a sentence on a system that is not supported

__all__ = ["metrics", "plan", "scale", "status", "submit", "wait"]

if TYPE_CHECKING:
    from executor.api import metrics, plan, scale, status, submit, wait
else:

    def __getattr__(name: str) -> object:
        # The API's functions are imported on demand, so that `bai` and instances, which import this package,
        # do not wait for the API.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from executor import api

        return getattr(api, name)
