"""Jobs for an instance with an agent whose code a test chooses."""

from __future__ import annotations

import gzip
import io
import tarfile
from datetime import timedelta
from typing import Any

from instance_services import Services

from cloud_init.user_data import Boot, Bundle

JOB = "job-1"
RUN = f"var/lib/bai/jobs/{JOB}"
"""The run directory, seen from the machine's root."""

_AGENT = """
import json, os, signal, sys, time
arguments = sys.argv
run = arguments[arguments.index("--dir") + 1]
os.makedirs(run, exist_ok=True)
with open(run + "/starts", "a") as file:
    file.write(json.dumps({"argv": arguments[1:], "environment": dict(os.environ)}) + "\\n")
starts = len(open(run + "/starts").readlines())
def end(code, result=True):
    if result:
        open(run + "/result.json", "w").write("{}")
    os._exit(code)
"""


def boot(services: Services, *, agent: str = "end(0)", **given: Any) -> Boot:
    """Return a boot whose bundle is in S3.

    agent: Python code that may use `run`, `starts` and `end(code, result=True)`.
    """
    content = bundle(agent)
    sha256 = services.put(f"bucket/agent/{JOB}.tar.gz", content)
    settings: dict[str, Any] = {
        "job_id": JOB,
        "job_toml": "version = 1\n",
        "bundle": Bundle(url=f"s3://bucket/agent/{JOB}.tar.gz", sha256=sha256, size=len(content)),
        "region": services.region,
        "store_url": "s3://bucket/jobs",
        "s3_endpoint": services.url,
        "deadman": timedelta(hours=1),
    }
    return Boot(**(settings | given))


def bundle(agent: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        program = f"{_AGENT}{agent}\n".encode()
        member = tarfile.TarInfo("start_agent.py")
        member.size = len(program)
        tar.addfile(member, io.BytesIO(program))
    return gzip.compress(packed.getvalue(), mtime=0)
