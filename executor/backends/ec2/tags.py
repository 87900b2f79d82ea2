"""The tags by which bai finds the instances, volumes and security groups of jobs, and removes them after
their deadline. The module also reads and writes times in the format of tags and records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Identity

OURS = "bai:"
JOB_TAG = "bai:job-id"
ATTEMPT_TAG = "bai:attempt"
CLIENT_TAG = "bai:client-id"
EXPIRES_TAG = "bai:expires"
STORE_TAG = "bai:store"
LAUNCH_TAG = "bai:launch"
"""Tag with the number of the launch. Only machines that were launched while their job was already running have the
tag `bai:launch`."""
FIRST_NODE_TAG = "bai:first-node"
"""Tag with the number of the node that runs on the machine with index 0 of the launch."""

_KEY_LIMIT, _VALUE_LIMIT, _COUNT_LIMIT = 128, 256, 50
"""Maximum numbers of characters in a key and a value, and of tags:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions"""
_LAST_YEAR = 9999
_FORBIDDEN = re.compile(r"[^\w \-+=.:/@]")
"""Characters that some AWS services refuse in a tag. `\\w` matches the letters of all scripts."""


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
    """Return the additional tags of a job that the benchmark service submitted."""
    said = {
        "action-id": identity.action_id,
        "parent-action-id": identity.parent_action_id,
        "username": identity.username,
        "created-by": identity.created_by,
    }
    return {f"{OURS}{name}": value for name, value in said.items() if value is not None}


def sanitised(tags: Mapping[str, str]) -> dict[str, str]:
    """Return `tags` as AWS accepts them: shortened, with _ for characters that are not allowed."""
    clean = {_FORBIDDEN.sub("_", key)[:_KEY_LIMIT]: tag_value(value) for key, value in tags.items()}
    return dict(list(clean.items())[:_COUNT_LIMIT])


def tag_value(text: str) -> str:
    """Return `text` as the value of a tag: shortened, with _ for characters that are not allowed."""
    return _FORBIDDEN.sub("_", text)[:_VALUE_LIMIT]


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return `tags` as EC2's API takes them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def with_tags(request: Mapping[str, Any], tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the TagSpecifications of `request`, with `tags` added to each of them."""
    return [{**each, "Tags": [*each["Tags"], *tag_list(tags)]} for each in request["TagSpecifications"]]


def read_tags(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags in EC2's description of a resource."""
    return {each["Key"]: each.get("Value", "") for each in item.get("Tags", ())}


def attempt_tags(tags: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return the values of the tags that identify an attempt of a job. Resources whose tags have equal values
    belong to the same attempt."""
    return tuple(tags.get(key) for key in (JOB_TAG, ATTEMPT_TAG, STORE_TAG))


def tag_time(time: datetime) -> str:
    """Return a time (UTC) in the format of a tag: 2026-11-20T22:00:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: object) -> datetime | None:
    """Return the time in a text such as "2026-11-20T22:00:00Z"; None if the text is not a time, or if the
    time is too late to compute with."""
    try:
        time = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    if time.year >= _LAST_YEAR:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def need_time(text: str) -> datetime:
    """Return the time in a text that has already been validated. Raises ValueError."""
    time = parse_timestamp(text)
    if time is None:
        raise ValueError(f"{text} is not a time")
    return time
