"""The regions in which jobs were launched: one object of the job store names each, `.regions/<region>`.

Whoever ends machines whose time is up finds them by their tags, and has to know where to look. One listing tells it,
however many jobs there are. A region is named before the first launch in it, and anew with each.
"""

from __future__ import annotations

import re

from bai_agent.job.store import JobStore

_FOLDER = ".regions/"
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d{1,2}")


def name_region(store: JobStore, region: str) -> None:
    """Record that machines are launched in `region`. Raises StoreError."""
    # Written anew, so that a lifecycle rule that deletes old jobs does not delete it while there are newer ones.
    store.put(f"{_FOLDER}{region}", b"{}\n")


def named_regions(store: JobStore) -> list[str]:
    """Return the regions in which jobs of this store were launched. Raises StoreError."""
    names = [each.key.removeprefix(_FOLDER) for each in store.find(_FOLDER)]
    return [each for each in names if _REGION.fullmatch(each)]
