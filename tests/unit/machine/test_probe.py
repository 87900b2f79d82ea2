"""What the probe asks when a job is prepared, and what only when its benchmark could start."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from run_contexts import make_context

from bai_agent.job.run_directory import RunDir
from bai_agent.machine import probe
from bai_agent.machine.host_facts import look
from bai_agent.machine.probe import EnvironmentProbe
from bai_agent.machine.readiness import Node


def test_the_use_of_gpus_is_read_when_the_benchmark_could_start(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, pulled = threading.Event(), threading.Event()

    def heat() -> dict[str, int]:
        opened.set()
        return {"0": 7}

    def gpus() -> dict[str, Any]:
        return {"devices": [{"processes": 0 if pulled.is_set() else 3}]}

    monkeypatch.setattr(probe, "heat_slowdowns", heat)
    monkeypatch.setattr(probe, "describe_gpus", gpus)
    environment = EnvironmentProbe(make_context(rundir).job, rundir, node=Node(), first_look=look())

    environment.begin()
    assert opened.wait(60), "the driver is not asked while the job is pulled"
    pulled.set()
    facts = environment.finish(stopping=lambda: False)

    assert facts["gpus"] == {"devices": [{"processes": 0}]}
    assert facts["counters"]["gpu_heat_ns"] == {"0": 7}
    assert not [each for each in facts["warnings"] if "GPU" in each]


def test_gpus_that_cannot_be_read_are_reported_with_what_to_install(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "describe_gpus", dict)
    monkeypatch.setattr(probe, "count_gpus", lambda _: 1)
    environment = EnvironmentProbe(make_context(rundir).job, rundir, node=Node(), first_look=look())

    environment.begin()
    facts = environment.finish(stopping=lambda: False)

    assert facts["missing"]["gpus"] == (
        "NVIDIA GPUs on the PCI bus (1) cannot be read: install nvidia-ml-py for the agent's Python, or NVIDIA's driver"
    )
