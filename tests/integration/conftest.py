"""An S3 server behind a gate, and an environment that leads to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from s3_gate import Gate, open_gate, s3_server


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def gate(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    for name in list(os.environ):
        if name.startswith("AWS_") and "CA_BUNDLE" not in name:
            monkeypatch.delenv(name)
    with open_gate(moto) as gate:
        monkeypatch.setenv("S3_ENDPOINT", gate.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield gate
