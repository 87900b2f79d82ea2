"""The program that fetches the agent sends the role's signature and session token only to S3."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from instance_services import Services
from redirecting_server import redirecting

from cloud_init.user_data import fetch_agent


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_is_not_followed(tmp_path: Path, status: int) -> None:
    program = tmp_path / "fetch_agent.py"
    program.write_text(fetch_agent())
    services = Services()
    server = services.serve()
    try:
        with redirecting(status) as (address, arrived):
            done = subprocess.run(
                [sys.executable, "-I", "-B", program, "file", "s3://bucket/key", "0" * 64, tmp_path / "file"],
                env={
                    "PATH": os.environ["PATH"],
                    "AWS_REGION": "us-east-1",
                    "AWS_EC2_METADATA_SERVICE_ENDPOINT": services.url,
                    "S3_ENDPOINT": address,
                    "BAI_FETCH_SECONDS": "1",
                },
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
    finally:
        server.shutdown()
        server.server_close()

    assert arrived == []
    assert done.returncode == 3
    assert f"S3 answered {status}" in done.stdout
