"""Warnings of a run, without those that tell of the machine that the tests run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_THE_MACHINE = (
    "The hypervisor withheld ",
    "The processors were slowed down ",
    "The limit of the processors' ",
)


def own_warnings(result: Mapping[str, Any]) -> list[str]:
    """Return what a result warns of, but for what a busy machine made of it."""
    return [each for each in result["warnings"] if not each.startswith(_OF_THE_MACHINE)]
