"""The environment record of a real agent, on machines with hanging or misbehaving programs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_runs import (
    begun,
    environment,
    events_of,
    python_job,
    run_agent,
    start_agent,
    wait_until,
    write_job,
)
from instance_services import Services

HANG = "#!/bin/sh\necho $$ >>{pids}\nexec sleep 600\n"
WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., dict[str, str]]]:
    """Put programs first on PATH, and end those that hang at last."""
    pids = tmp_path / "pids"

    def make(name: str, text: str = HANG) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(text.format(pids=pids))
        path.chmod(0o755)
        return environment(PATH=f"{folder}:{os.environ['PATH']}")

    yield make
    for line in pids.read_text().split() if pids.exists() else ():
        if Path(f"/proc/{line}/fd").exists():
            os.kill(int(line), signal.SIGKILL)


def environment_of(rundir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((rundir / "environment.json").read_bytes())
    return found


def test_a_run_records_its_environment(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    assert run_agent(python_job(tmp_path, "print('begun')"), rundir) == 0

    found = environment_of(rundir)
    assert found["system"]["kernel"] == os.uname().release
    assert found["memory"]["total_bytes"] > 0
    assert found["cpu"]["count"] == os.cpu_count()
    assert found["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert found["python"]["distributions"]["pytest"] == pytest.__version__
    assert found["mounts"]["run_directory"]["point"]
    assert "instance" not in found
    started = json.loads((rundir / "started.json").read_bytes())
    assert found["time"] <= started["time"]


def test_the_environment_record_lists_packages_of_the_benchmarks_python(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "nvidia_nccl_cu12-2.21.5.dist-info").mkdir(parents=True)
    (site / "Torch-2.4.0+cu124.dist-info").mkdir()
    (site / "old_tool.egg-info").write_text("Metadata-Version: 1.0\nName: old_tool\nVersion: 3.1\n")
    job = python_job(tmp_path, "print()", benchmark={"env": {"PYTHONPATH": str(site)}})

    assert run_agent(job, tmp_path / "run") == 0

    python = environment_of(tmp_path / "run")["python"]
    assert python["packages"]["torch"] == "2.4.0+cu124"
    assert python["packages"]["nvidia-nccl-cu12"] == "2.21.5"
    assert python["distributions"]["old-tool"] == "3.1"


@pytest.mark.parametrize(("name", "part"), [("mpirun", "open_mpi"), ("python3", "python")])
def test_a_program_that_hangs_when_asked_for_its_version_does_not_delay_a_run(
    tmp_path: Path, program: Callable[..., dict[str, str]], name: str, part: str
) -> None:
    rundir = tmp_path / "run"
    env = program(name)

    assert run_agent(write_job(tmp_path, ["true"]), rundir, env=env) == 0

    found = environment_of(rundir)
    assert "did not answer" in found["missing"][part]
    assert found["system"]["kernel"] == os.uname().release
    (pid,) = (tmp_path / "pids").read_text().split()
    wait_until(lambda: not Path(f"/proc/{pid}/fd").exists())


def test_the_environment_record_omits_programs_with_garbled_or_endless_output(
    tmp_path: Path, program: Callable[..., dict[str, str]]
) -> None:
    rundir = tmp_path / "run"
    program("mpirun", "#!/bin/sh\nexec yes\n")
    env = program("python3", "#!/bin/sh\nexec head -c 3000000 /dev/urandom\n")

    assert run_agent(write_job(tmp_path, ["true"]), rundir, env=env) == 0

    found = environment_of(rundir)
    assert "not a Python that describes itself" in found["missing"]["python"]
    assert "version" not in found["software"]["open_mpi"]
    assert (rundir / "environment.json").stat().st_size < 2**18


def test_the_environment_record_contains_no_secret(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "hunter2hunter2-1.0.dist-info").mkdir(parents=True)
    job = python_job(
        tmp_path,
        "print()",
        benchmark={"env": {"PYTHONPATH": str(site)}, "secrets": {"TOKEN": "env:MY_TOKEN"}},
    )

    assert run_agent(job, tmp_path / "run", env=environment(MY_TOKEN="hunter2hunter2")) == 0

    assert "hunter2" not in (tmp_path / "run" / "environment.json").read_text()
    assert environment_of(tmp_path / "run")["python"]["distributions"]["***"] == "1.0"


def test_the_environment_record_has_the_instances_metadata(tmp_path: Path) -> None:
    services = Services(
        metadata={
            "ami-id": "ami-0123",
            "instance-type": "p5.48xlarge",
            "placement/availability-zone": "us-east-1a",
            "instance-life-cycle": "on-demand",
        }
    )
    server = services.serve()
    try:
        code = run_agent(
            write_job(tmp_path, ["true"]),
            tmp_path / "run",
            more=["--instance-id", "i-0123456789abcdef0"],
            env=environment(AWS_EC2_METADATA_SERVICE_ENDPOINT=services.url),
        )
    finally:
        server.shutdown()
        server.server_close()

    assert code == 0
    assert environment_of(tmp_path / "run")["instance"] == {
        "id": "i-0123456789abcdef0",
        "type": "p5.48xlarge",
        "image_id": "ami-0123",
        "availability_zone": "us-east-1a",
        "market": "on-demand",
    }


def test_a_restarted_agent_does_not_change_the_environment_record(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, WAITS)
    with start_agent(job, rundir) as agent:
        wait_until(begun(rundir))
        wait_until(lambda: any(each["type"] == "benchmark_started" for each in events_of(rundir)))
        agent.kill()
    before = (rundir / "environment.json").read_bytes()
    with start_agent(job, rundir) as agent:
        wait_until(lambda: len([each for each in events_of(rundir) if each["type"] == "agent_started"]) == 2)
        time.sleep(0.2)
        agent.send_signal(signal.SIGTERM)
        agent.wait(timeout=60)

    assert (rundir / "environment.json").read_bytes() == before
