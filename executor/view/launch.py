"""Shows what would be launched on EC2."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bai_agent.job_file import job_table
from cloud_init.user_data import LIMIT, readable
from executor.ec2.cost import Cost
from executor.ec2.draft import Draft
from executor.ec2.exchange import Upload
from executor.ec2.volume import data_size
from executor.view.text import size, tell


def as_table(draft: Draft, uploads: Sequence[Upload], cost: Cost) -> dict[str, Any]:
    """Return the plan as JSON values."""
    boot = draft.instructions.boot
    return {
        "job": job_table(draft.job),
        "region": draft.resolved.region,
        "candidates": [{"subnet": each.subnet, "az": each.zone} for each in draft.resolved.candidates],
        "request": draft.request,
        "user_data": readable(boot),
        "user_data_bytes": len(draft.instructions.content),
        "user_data_limit": LIMIT,
        "expires": draft.expires,
        "bundle": {"url": boot.bundle.url, "bytes": boot.bundle.size},
        "uploads": [{"key": each.key, "bytes": each.size, "what": each.what} for each in uploads],
        "cost": {
            "instance_hours": cost.hours,
            "usd_an_hour": cost.hourly,
            "usd": cost.dollars,
            "origin": cost.origin,
        },
    }


def print_draft(draft: Draft, uploads: Sequence[Upload], cost: Cost) -> None:
    """Print the plan for a person."""
    request = {**draft.request, "UserData": "<see below>"}
    places = ", then ".join(f"{each.subnet} ({each.zone})" for each in draft.resolved.candidates)
    tell(f"# RunInstances in {draft.resolved.region}, in {places}:")
    tell(json.dumps(request, indent=2, ensure_ascii=False))
    tell()
    tell("# Goes into the bucket, where it is not yet:")
    bundle = draft.instructions.boot.bundle
    tell(f"#   {bundle.url}" + (f"  {size(bundle.size)}" if bundle.size else ""))
    for each in uploads:
        tell(f"#   {each.key}  {size(each.size)}  ({each.what})")
    for unknown in data_size(draft.job.sources).unknown:
        tell(f"# The size of {unknown} is not known: [aws.ec2.volume] size makes sure that it fits.")
    tell()
    tell(f"# User data: {len(draft.instructions.content):,} of {LIMIT:,} bytes; in clear:")
    tell(readable(draft.instructions.boot))
    tell(f"# Costs {cost.sentence()}.")
