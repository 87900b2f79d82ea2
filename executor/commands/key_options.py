"""The options that replace values of a descriptor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

# What only one command needs is imported there: `bai --help` and each completion in a shell load this module.
if TYPE_CHECKING:
    from executor.descriptor.overrides import Override


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The options that set keys of the descriptor; None: not given."""

    set_: list[str] | None = None
    """Texts KEY=VALUE."""
    nodes: int | None = None
    instance_type: str | None = None

    def overrides(self) -> tuple[Override, ...]:
        """Return what they set. Raises UsageError."""
        from executor.descriptor.overrides import check_overlaps, key_override, read_overrides

        own = (
            ("--nodes", ("hardware", "distributed", "num_instances"), self.nodes),
            ("--instance-type", ("hardware", "instance_type"), self.instance_type),
        )
        found = (
            *read_overrides(self.set_ or ()),
            *(key_override(option, path, value) for option, path, value in own if value is not None),
        )
        check_overlaps(found)
        return found
