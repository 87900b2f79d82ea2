"""Heartbeats continue as long as the agent lives."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from failures import PanicException

from bai_agent.errors import StoreError
from bai_agent.job.run_directory import RunDir
from bai_agent.run import background
from bai_agent.run.background import heartbeat
from bai_agent.run.run_context import RunContext


class FailingStore:
    """A place in a store that takes nothing at first."""

    def __init__(self, failure: BaseException) -> None:
        self.failures = [failure] * 2
        self.taken = threading.Event()

    def put_json(self, name: str, value: Mapping[str, Any]) -> None:
        if self.failures:
            raise self.failures.pop()
        self.taken.set()


@pytest.mark.parametrize("failure", [StoreError("away"), KeyError("x"), PanicException("panicked")])
def test_heartbeats_continue_after_one_failed(
    tmp_path: Path, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "HEARTBEAT_SECONDS", 0.001)
    place = FailingStore(failure)
    this = SimpleNamespace(rundir=RunDir(tmp_path), node_store=place, uploader=object(), phase="run")

    with heartbeat(cast("RunContext", this)):
        assert place.taken.wait(60)
