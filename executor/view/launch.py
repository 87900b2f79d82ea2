"""Shows what would be launched on EC2."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bai_agent.job.descriptor_file import job_table
from cloud_init.user_data import LIMIT, readable
from executor.backends.ec2.launch.cost import Cost
from executor.backends.ec2.launch.draft import LaunchPlan
from executor.backends.ec2.launch.volume import data_size
from executor.backends.ec2.staging_bucket import Upload
from executor.planning.scripts_folder import ScriptsSurvey
from executor.quantities import size
from executor.view.text import tell


def plan_table(
    draft: LaunchPlan, uploads: Sequence[Upload], cost: Cost, scripts: ScriptsSurvey | None
) -> dict[str, Any]:
    """Return the plan as JSON values."""
    boot = draft.user_data.boot
    return {
        "job": job_table(draft.job),
        "region": draft.resolved.region,
        "candidates": [{"subnet": each.subnet, "az": each.zone} for each in draft.resolved.candidates],
        "request": draft.request,
        "user_data": readable(boot),
        "user_data_bytes": len(draft.user_data.content),
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
        "scripts": scripts.as_table() if scripts is not None else None,
    }


def print_draft(draft: LaunchPlan, uploads: Sequence[Upload], cost: Cost) -> None:
    """Print the plan for a person."""
    request = {**draft.request, "UserData": "<see below>"}
    places = ", then ".join(f"{each.subnet} ({each.zone})" for each in draft.resolved.candidates)
    tell(f"# RunInstances in {draft.resolved.region}, in {places}:")
    tell(json.dumps(request, indent=2, ensure_ascii=False))
    tell()
    tell("# Goes into the bucket, where it is not yet:")
    bundle = draft.user_data.boot.bundle
    tell(f"#   {bundle.url}" + (f"  {size(bundle.size)}" if bundle.size else ""))
    for each in uploads:
        tell(f"#   {each.key}  {size(each.size)}  ({each.what})")
    for unknown in data_size(draft.job.sources).unknown:
        tell(f"# The size of {unknown} is not known: [aws.ec2.volume] size makes sure that it fits.")
    tell()
    tell(f"# User data: {len(draft.user_data.content):,} of {LIMIT:,} bytes; in clear:")
    tell(readable(draft.user_data.boot))
    tell(f"# Costs {cost.sentence()}.")
