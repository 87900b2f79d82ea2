"""The labels by which readers elsewhere find what a job has sent."""

from __future__ import annotations

from bai_agent.job.descriptor import Job


def labels_of(job: Job, *, rank: int) -> dict[str, str]:
    """Return the job's own labels, and those that say which job, whose, and which of its nodes it is."""
    identity = job.job
    labels = dict(identity.labels)
    # After the user's own: nobody can pass for another job by a label's name.
    labels["action-id"] = identity.action_id or identity.id
    labels["client-id"] = identity.client_id
    if identity.parent_action_id is not None:
        labels["parent-action-id"] = identity.parent_action_id
    if job.strategy.nodes > 1:
        labels["rank"] = str(rank)
    return labels
