"""The user's side: what to run and where; plan, launch, watch, cancel, report. What is imported from here is in `executor.api`."""

from typing import TYPE_CHECKING

import bai_agent  # noqa: F401 - before anything else: ends with a sentence on a system that is not supported

__all__ = ["metrics", "plan", "status", "submit", "wait"]

if TYPE_CHECKING:
    from executor.api import metrics, plan, status, submit, wait
else:

    def __getattr__(name: str) -> object:
        # `bai` and instances, which import from here all the time, need not wait for it.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from executor import api

        return getattr(api, name)
