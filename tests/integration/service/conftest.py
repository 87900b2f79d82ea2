"""The service between Kafka and AWS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_brokers import Broker
from moto_aws import MotoAws, open_moto_aws
from service_runs import ServiceRuns, allow_serving, open_service_runs


@pytest.fixture
def moto_aws() -> Iterator[MotoAws]:
    """An account in which `bai` may do what the policies of a service say, and nothing else."""
    with open_moto_aws() as aws:
        allow_serving(aws)
        yield aws


@pytest.fixture
def service_environment(tmp_path: Path) -> dict[str, str]:
    # What the service is killed over stays in the test's folder.
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return {**os.environ, "TMPDIR": str(temporary)}


@pytest.fixture
def service(
    kafka: Broker, moto_aws: MotoAws, service_environment: dict[str, str], tmp_path: Path
) -> Iterator[ServiceRuns]:
    with open_service_runs(tmp_path, kafka, moto_aws, service_environment) as runs:
        yield runs
