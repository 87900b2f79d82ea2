"""Brings the jobs of `recorded/jobs/`, which an earlier version recorded, to where `bai` looks for jobs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from cli_harness import CliHarness
from moto.s3.models import s3_backends
from moto_aws import MotoAws
from sandbox.fake_aws.iam.identities import SETUP

_JOBS = Path(__file__).parents[1] / "recorded" / "jobs"
COMPARED = (
    ("digits-1", "digits-4"),
    ("digits-1", "digits-2", "vs", "digits-3", "digits-4"),
    ("digits-4", "--baseline", "suite=old"),
    ("ab",),
)
ROOT, MARK, ACCOUNT = "/recorded", "-recorded", "300000000000"
"""Stand in the records for the folder that holds the store, the end of the names of the service's topics, and the account."""


def bring_store(folder: Path) -> Path:
    """Copy the recorded job store, and the scripts of its jobs, into a folder; return the store."""
    store = folder / "store"
    for source, target in ((_JOBS / "local", store), (_JOBS / "scripts", folder / "scripts")):
        shutil.copytree(source, target)
    for path in store.rglob("*"):
        if path.is_file() and ROOT.encode() in (content := path.read_bytes()):
            path.write_bytes(content.replace(ROOT.encode(), str(folder).encode()))
    for node in store.glob("*/attempts/0/nodes/*"):
        # Second names of one file, which git does not keep.
        for name, second in (("output.log", f"log/{0:020}"), ("metrics.jsonl", f"metrics/{0:020}.jsonl")):
            (node / second).parent.mkdir(exist_ok=True)
            os.link(node / name, node / second)
    return store


def expected() -> dict[str, Any]:
    """Return what the version that recorded the jobs said of those in the folder ("local") and those in the bucket ("bucket").

    Both are as `answers` returns them.
    """
    found: dict[str, Any] = json.loads((_JOBS / "expected.json").read_text())
    return found


def answers(cli: CliHarness, compared: Sequence[Sequence[str]] = COMPARED) -> dict[str, Any]:
    """Return what `bai` says of all jobs: how each ended, its numbers, and what `compare` finds.

    compared: the arguments of each `compare`.
    """
    jobs = {each["job_id"]: each for each in cli.bai("list", "--all", "--json").objects}
    found = {" ".join(each): cli.bai("compare", *each, "--json") for each in compared}
    return {
        "jobs": {
            name: {
                **{key: each[key] for key in ("status", "outcome", "exit_code", "sentence", "labels")},
                # Those of a job that has not ended grow.
                "seconds": each["seconds"] if each["ended"] else None,
                "headlines": {key: value["value"] for key, value in (each["headlines"] or {}).items()},
                "bmf": json.loads(cli.bai("metrics", name, "--format", "bmf").stdout or "{}"),
            }
            for name, each in sorted(jobs.items())
        },
        "compared": {
            name: {
                "code": done.code,
                "metrics": {
                    each["name"]: {
                        "verdict": each["verdict"],
                        "change": round(each["change"], 9),
                        "sides": [each.get("a") or each["history"], each.get("b") or each["runs"]],
                    }
                    for each in done.objects[0]["metrics"]
                },
            }
            for name, done in found.items()
        },
    }


def bring_bucket(aws: MotoAws, *, mark: str = MARK, age: timedelta = timedelta()) -> None:
    """Put the recorded objects into the account's bucket.

    mark: the end of the names of the service's topics. age: time since the objects were written.
    """
    s3, root = aws.client("s3", SETUP), _JOBS / "bucket"
    for path in sorted(each for each in root.rglob("*") if each.is_file()):
        content = path.read_bytes().replace(MARK.encode(), mark.encode())
        content = content.replace(ACCOUNT.encode(), aws.account.encode())
        s3.put_object(Bucket=aws.bucket, Key=str(path.relative_to(root)), Body=content)
    for key in s3_backends[aws.account]["aws"].buckets[aws.bucket].keys.values():
        key.last_modified -= age
