"""Turns user data that is a bare job descriptor into the guardian's settings, on an image with the agent baked in.

The guardian runs this program with the agent's Python. Exit code 1, and a sentence on stdout, if the user data is not a job
descriptor.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from typing import Any

ROOT = Path("/var/lib/bai")
USER_DATA = Path("/var/lib/cloud/instance/user-data.txt")


def main() -> int:
    bundle = (ROOT / "baked/bundle").read_text().strip()
    # The agent's own code reads the descriptor. The code is unpacked in this folder and not installed.
    sys.path[:0] = [str(ROOT / "agent" / bundle), str(ROOT / "agent" / bundle / "pure"), str(ROOT / "baked")]
    from bai_agent.errors import DescriptorError

    try:
        _prepare(bundle)
    except (DescriptorError, OSError) as error:
        print(error)
        return 1
    return 0


def _prepare(bundle: str) -> None:
    from bai_agent.job.descriptor.limit_tables import EC2_MAX_RUNTIME, Power
    from bai_agent.job.descriptor.sink_tables import Store
    from bai_agent.job.descriptor_file import parse_job

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    content = USER_DATA.read_bytes()
    job = parse_job(content, where="user data")
    limits = job.limits
    deadman = limits.machine_time(max_runtime=limits.max_runtime or EC2_MAX_RUNTIME, nodes=job.strategy.nodes)
    # The agent's default is "stay", because it may run on a user's own machine. This machine is an instance and
    # costs money.
    stays = tomllib.loads(content.decode()).get("end", {}).get("power") == Power.STAY.value
    store = job.store or Store(url="")
    settings = {
        "job_id": job.job.id,
        "job_url": "",
        "job_sha256": "",
        "bundle_url": "",
        "bundle_sha256": bundle,
        "region": store.region or _region(),
        "store_url": store.url if store.url.startswith("s3://") else "",
        "s3_endpoint": store.endpoint or "",
        "keep_failure_seconds": str(int(job.end.keep_time(None).total_seconds())),
        "keep_success_seconds": str(int(job.end.keep_time(0).total_seconds())),
        "nodes": str(job.strategy.nodes),
        "power": "stay" if stays else "off",
    }
    _write(ROOT / "job.toml", content)
    _write(ROOT / "boot/limit", f"{int(deadman.total_seconds())}\n".encode())
    # Written last, because the guardian takes it as a sign that everything else exists.
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
    _write(ROOT / "boot/settings", text.encode())


def _region() -> str:
    fetch: Any = importlib.import_module("fetch_agent")  # beside this file on the image
    found: list[str] = []

    def ask() -> int:
        found.append(fetch.metadata("meta-data/placement/region", fetch.metadata_token()))
        return 0

    try:
        fetch.persist(ask, 30)
    except fetch.FetchError as error:
        raise OSError(str(error)) from error
    return found[0]


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.part")
    partial.write_bytes(content)
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
