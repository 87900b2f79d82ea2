"""The `[checkpoint]` table of a job, also with the checkpoint of another job from which it begins. Pure."""

from __future__ import annotations

from bai_agent.job.descriptor import Checkpoint, CheckpointOrigin, Store
from bai_agent.job.schema.declared import as_kind
from bai_agent.light_dataclass import dataclass
from executor.descriptor.model import CheckpointTable
from executor.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint(CheckpointTable):
    """A `[checkpoint]` table whose key `from` has been looked up."""

    origin: CheckpointOrigin
    store: str
    """Address of the job store with that checkpoint."""


def plan_checkpoint(written: CheckpointTable, store: Store | None) -> Checkpoint:
    """Return the table for the agents of a job in `store`. Raises PlanError if they cannot restore the other job's checkpoint."""
    if written.from_ is None:
        return as_kind(Checkpoint, written)
    if not isinstance(written, FoundCheckpoint):
        raise PlanError(f'checkpoint.from: "{written.from_}" is another job, which cannot be used here.')
    if store is not None and store.url != written.store:
        # An agent restores from the store of its own job.
        raise PlanError(
            f"checkpoint.from: the job {written.origin.job} is in {written.store}, and this job would be in {store.url}. Run it where "
            "that job is, or name a job that is in the same store."
        )
    return as_kind(Checkpoint, written)
