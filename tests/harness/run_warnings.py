"""Selects the warnings of a run that are not about the tests' own machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_THE_MACHINE = (
    "The hypervisor withheld ",
    "The processors were slowed down ",
    "The limit of the processors' ",
)


def own_warnings(result: Mapping[str, Any]) -> list[str]:
    """Return the warnings of a result, except those that a busy machine causes."""
    return [each for each in result["warnings"] if not each.startswith(_OF_THE_MACHINE)]
