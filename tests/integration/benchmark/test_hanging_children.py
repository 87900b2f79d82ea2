"""Children that no signal ends, as if their disk or driver hung. Here SIGKILL is not sent, which has the same effect."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bai_agent.benchmark import children, prepared_shim
from bai_agent.benchmark import start as launching
from bai_agent.benchmark.start import Order, launch
from bai_agent.errors import NotReadyError, PullError, ShimError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.run_directory import RunDir
from bai_agent.machine import readiness as machine
from bai_agent.requirements import python_env

HANG = "#!/bin/sh\necho $$ >>{pids}\nexec sleep 45\n"
SHIM = "import os, time\nopen({pids!r}, 'a').write(str(os.getpid()) + chr(10))\ntime.sleep(45)\n"


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """Let no SIGKILL through; return what tells the pids of those that hang, which are ended at last."""
    pids = tmp_path / "pids"
    monkeypatch.setattr(children, "KILL_SECONDS", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _self: None)

    def alive() -> list[int]:
        return [int(line) for line in pids.read_text().split() if Path(f"/proc/{line}/fd").exists()]

    yield alive
    for pid in alive():
        os.kill(pid, signal.SIGKILL)


def test_an_unkillable_nvidia_smi_is_reported_and_abandoned(
    tmp_path: Path, hanging: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_SMI_SECONDS", 1.0)
    gpu = tmp_path / "sys/bus/pci/devices/0000:00:00.0"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    smi = tmp_path / "smi"
    smi.write_text(HANG.format(pids=tmp_path / "pids"))

    with pytest.raises(NotReadyError, match="did not answer"):
        machine.wait_for_gpus(stopping=lambda: False, seconds=0, root=tmp_path, smi=("sh", str(smi)))

    assert len(hanging()) == 1


def test_an_unkillable_shim_that_does_not_answer_is_abandoned_with_an_error(
    tmp_path: Path, hanging: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_LAUNCH_LIMIT_S", 1.0)
    deaf = tmp_path / "shim.py"
    deaf.write_text(SHIM.format(pids=str(tmp_path / "pids")))
    monkeypatch.setattr(prepared_shim, "SHIM", deaf)
    rundir = RunDir(tmp_path / "run")
    rundir.path.mkdir()
    more_than_a_pipe_holds = {"TEXT": "x" * 2**20}

    with pytest.raises(ShimError, match=r"did not answer within 1 s; is the disk of .* hanging"):
        launch(
            Order(argv=("true",), env=more_than_a_pipe_holds, cwd=tmp_path, grace=timedelta(seconds=1)),
            rundir,
        )

    assert len(hanging()) == 1


def test_an_unkillable_pip_is_abandoned_at_pull_timeout(
    tmp_path: Path, hanging: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(os, "killpg", lambda _group, _number: None)
    rundir = RunDir(tmp_path / "run")
    rundir.scripts.mkdir(parents=True)
    (rundir.scripts / "requirements.txt").write_text("")
    python = tmp_path / "python"
    python.write_text(HANG.format(pids=tmp_path / "pids"))
    python.chmod(0o755)
    job = Job(
        job=Identity(id="j"),
        benchmark=Benchmark(argv=("true",), requirements="requirements.txt", python=str(python)),
    )

    with pytest.raises(PullError, match=r"within limits\.pull_timeout"):
        python_env.install_requirements(
            job, rundir, deadline=time.monotonic() + 1, stopping=lambda: False, base={}
        )

    assert len(hanging()) == 1
