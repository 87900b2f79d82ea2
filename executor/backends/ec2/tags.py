"""The tags by which instances and volumes of jobs are found, and ended when their time is over; and times in
the format of tags and records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone

from bai_agent.job.descriptor import Identity, Job
from executor.backends.ec2.instances import ATTEMPT_TAG, CLIENT_TAG, EXPIRES_TAG, JOB_TAG, STORE_TAG

OURS = "bai:"
KEY_LIMIT, VALUE_LIMIT, COUNT_LIMIT = 128, 256, 50
"""Characters, and tags: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions"""

_LAST_YEAR = 9999
_FORBIDDEN = re.compile(r"[^\w \-+=.:/@]")
"""Characters that some services refuse in a tag; \\w has the letters of all scripts."""


def job_tags(job: Job, *, expires: str) -> dict[str, str]:
    """Return the tags of the job's instances and volumes."""
    identity = job.job
    tags = {
        "Name": f"bai {identity.name or identity.id}",
        JOB_TAG: identity.id,
        ATTEMPT_TAG: str(identity.attempt),
        CLIENT_TAG: identity.client_id,
        EXPIRES_TAG: expires,
        STORE_TAG: job.store.url if job.store else "",
        **_service_tags(identity),
        **{f"{OURS}label:{key}": value for key, value in sorted(identity.labels.items())},
    }
    return sanitised(tags)


def _service_tags(identity: Identity) -> dict[str, str]:
    """Return the tags of a job that came through the benchmark service."""
    said = {
        "action-id": identity.action_id,
        "parent-action-id": identity.parent_action_id,
        "username": identity.username,
        "created-by": identity.created_by,
    }
    return {f"{OURS}{name}": value for name, value in said.items() if value is not None}


def sanitised(tags: Mapping[str, str]) -> dict[str, str]:
    """Return `tags` as AWS accepts them: shortened, with _ for characters that are not allowed."""
    clean = {clean_text(key)[:KEY_LIMIT]: clean_text(value)[:VALUE_LIMIT] for key, value in tags.items()}
    return dict(list(clean.items())[:COUNT_LIMIT])


def clean_text(text: str) -> str:
    """Return `text` with _ for each character that a tag may not have."""
    return _FORBIDDEN.sub("_", text)


def tag_time(time: datetime) -> str:
    """Return a time (UTC) in the format of a tag: 2026-11-20T22:00:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: object) -> datetime | None:
    """Return the time in a text such as "2026-11-20T22:00:00Z"; None if it is not a time, or too late for
    arithmetic."""
    try:
        time = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    if time.year >= _LAST_YEAR:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
