"""Runs a real Pushgateway on loopback for tests."""

from __future__ import annotations

import base64
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

USER, PASSWORD = "alice", "wonderland"
_HASH = "$2b$04$QHoU.jSH8njb2gKnIVrhGeiqJljvHG6bTX9K8XlFwZhjItPhBaXwa"
"""Hash of the password by bcrypt at its lowest cost."""


class Gateway:
    """A Pushgateway that listens at `address`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def samples(self, job_id: str, *, secured: bool = False) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return labels and value of each series in the job's group, by name. secured: as at the start."""
        return samples_in(_read(f"{self.address}/metrics", authorized=secured), job_id)


def samples_in(text: str, job_id: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the samples of one job from Prometheus' text format."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    family: Any
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("job_id") == job_id:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@contextmanager
def running_gateway(folder: Path, *, port: int, secured: bool = False) -> Iterator[Gateway]:
    """Run a Pushgateway at a port of loopback.

    secured: whether it requires `USER` and `PASSWORD`, except for the readiness check.
    """
    arguments = [f"--web.listen-address=127.0.0.1:{port}"]
    if secured:
        settings = folder / "web.yml"
        settings.write_text(f"basic_auth_users:\n  {USER}: {_HASH}\n")
        arguments.append(f"--web.config.file={settings}")
    with (folder / "pushgateway.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus-pushgateway", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while not _answers(address):
            assert process.poll() is None, (folder / "pushgateway.log").read_text()
            assert time.monotonic() < deadline, "the Pushgateway did not answer within 60 s"
            time.sleep(0.05)
        yield Gateway(address)
    finally:
        process.terminate()
        process.wait(60)


def _answers(address: str) -> bool:
    try:
        _read(f"{address}/-/ready")
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True


def _read(url: str, *, authorized: bool = False) -> str:
    request = urllib.request.Request(url)
    if authorized:
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        request.add_header("Authorization", f"Basic {pair}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())
