"""The result contains the resource usage of bai's own programs, even if one of them was killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from agent_runs import begun, extractors, python_job, result_of, run_agent, start_agent, wait_until

PROGRAMS = ("agent", "extractor", "shim")
LOSS = [{"name": "loss", "pattern": r"loss=(\d+)"}]
LARGE = 400_000_000
"""Bytes, far more than any program of ours needs."""
BURNS = f"""
import time
block = bytearray({LARGE})
while time.process_time() < 0.3: pass
print("loss=1")
"""
WAITS = """
import os, time
print("begun loss=1", flush=True)
while not os.path.exists("go"): time.sleep(0.02)
print("loss=2")
"""


def own_usage(rundir: Path) -> dict[str, Any]:
    (found,) = result_of(rundir)["own_usage"]
    assert isinstance(found, dict)
    return found


def noted(rundir: Path) -> dict[str, Any]:
    """Return what the extractor has noted of itself by now."""
    try:
        found = json.loads((rundir / "extractor.offset").read_bytes())["own_usage"]
    except FileNotFoundError:
        return {}
    assert isinstance(found, dict)
    return found


def test_resources_of_each_of_bais_programs_exclude_the_benchmark(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    assert run_agent(python_job(tmp_path, BURNS, metrics=LOSS), rundir) == 0

    found, benchmark = own_usage(rundir), result_of(rundir)["benchmark"]
    assert (found["rank"], found["cpus"]) == (0, os.cpu_count())
    assert found["benchmark_seconds"] == benchmark["wall_seconds"]
    assert benchmark["peak_memory_bytes"] > LARGE
    for name in PROGRAMS:
        assert found[name]["cpu_seconds"] > 0, name
        assert 2**20 < found[name]["peak_memory_bytes"] < LARGE, name
        assert not found[name]["at_least"], name


def test_usage_of_a_killed_extractor_is_a_lower_bound_from_its_last_checkpoint(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    with start_agent(python_job(tmp_path, WAITS, metrics=LOSS), rundir) as agent:
        wait_until(begun(rundir))
        wait_until(lambda: noted(rundir).get("cpu_seconds"))
        before = noted(rundir)
        (extractor,) = extractors(rundir)
        os.kill(extractor, signal.SIGKILL)
        wait_until(lambda: noted(rundir)["at_least"])
        (rundir / "work" / "go").touch()
        assert agent.wait(timeout=120) == 0

    found = own_usage(rundir)
    assert not before["at_least"]
    assert found["extractor"]["cpu_seconds"] > before["cpu_seconds"]
    assert found["extractor"]["peak_memory_bytes"] >= before["peak_memory_bytes"]
    assert {name: found[name]["at_least"] for name in PROGRAMS} == {
        "agent": False,
        "extractor": True,
        "shim": False,
    }


def test_resources_of_a_killed_agent_are_reported_as_missing(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, WAITS, metrics=LOSS)
    with start_agent(job, rundir) as agent:
        wait_until(begun(rundir))
        wait_until(lambda: noted(rundir).get("cpu_seconds"))
        agent.kill()
    (rundir / "work" / "go").touch()

    assert run_agent(job, rundir) == 0

    found = own_usage(rundir)
    assert {name: found[name]["at_least"] for name in PROGRAMS} == {
        "agent": True,
        "extractor": True,  # it dies with its agent
        "shim": False,
    }


def test_the_usage_of_a_killed_shim_is_unknown(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    with start_agent(python_job(tmp_path, WAITS, metrics=LOSS), rundir) as agent:
        wait_until(begun(rundir))
        os.kill(json.loads((rundir / "started.json").read_bytes())["shim_pid"], signal.SIGKILL)
        assert agent.wait(timeout=120) == 5

    found = own_usage(rundir)
    assert (found["shim"], found["benchmark_seconds"]) == (None, None)
    assert found["agent"]["cpu_seconds"] > 0
    assert found["extractor"]["cpu_seconds"] > 0


def test_extractor_and_shim_have_no_usage_if_the_benchmark_never_started(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    missing = [{"src": (tmp_path / "nowhere").as_uri(), "path": "data"}]

    assert run_agent(python_job(tmp_path, WAITS, sources=missing), rundir) == 5

    found = own_usage(rundir)
    assert (found["extractor"], found["shim"]) == (None, None)
    assert found["agent"]["cpu_seconds"] > 0
