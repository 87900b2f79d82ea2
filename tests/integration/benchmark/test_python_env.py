"""What the scripts require, installed by a real pip from files of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shim_runs import until
from small_pythons import small_python

from bai_agent.errors import PullError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.run_directory import RunDir
from bai_agent.requirements.python_env import install_requirements
from bai_agent.shim.proc import RUN_MARKER, all_processes


def _never() -> bool:
    return False


def _job(python: str, **benchmark: Any) -> Job:
    given = {"argv": ("true",), "requirements": "requirements.txt", "python": python, **benchmark}
    return Job(job=Identity(id="j"), benchmark=Benchmark(**given))


def _install(
    job: Job, rundir: RunDir, *, seconds: float = 120, stopping: Callable[[], bool] = _never, **more: Any
) -> None:
    install_requirements(job, rundir, deadline=time.monotonic() + seconds, stopping=stopping, **more)


def _in_venv(rundir: RunDir, program: str) -> str:
    python = rundir.venv / "bin" / "python"
    return subprocess.run(
        [python, "-c", program], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def _write_wheel(folder: Path, version: str) -> str:
    """Write a package "tiny" as a wheel; return its file's name."""
    name = f"tiny-{version}-py3-none-any.whl"
    about = f"tiny-{version}.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("tiny.py", f"version = {version!r}\n")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
        wheel.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{about}/RECORD", "")
    return name


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_python(tmp_path_factory.mktemp("python"))


@pytest.fixture
def rundir(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir(tmp_path)
    made.scripts.mkdir()
    (made.scripts / "requirements.txt").write_text(f"./{_write_wheel(made.scripts, '1.0')}\n")
    yield made
    until(lambda: _pips(made) == [], "what was killed is gone")


def _pips(rundir: RunDir) -> list[int]:
    mark = f"{RUN_MARKER}={rundir.venv}".encode()
    found = []
    for process in all_processes():
        try:
            if process.state != "Z" and mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(
                b"\0"
            ):
                found.append(process.pid)
        except OSError:
            continue
    return found


def test_the_venv_has_the_requirements_and_sees_the_pythons_own_packages(rundir: RunDir) -> None:
    # This Python is a venv itself; --system-site-packages alone would hide what is installed in it.
    _install(_job(sys.executable), rundir)

    assert _in_venv(rundir, "import tiny, hypothesis; print(tiny.version)") == "1.0\n"
    assert (rundir.path / "requirements.log").read_text()


def test_requirements_are_installed_for_a_python_outside_a_venv(rundir: RunDir) -> None:
    base = os.path.realpath(sys.executable)

    _install(_job(base), rundir)

    assert _in_venv(rundir, "import tiny; print(tiny.version)") == "1.0\n"


def test_warnings_of_the_dynamic_loader_are_not_taken_for_the_pythons_answer(
    rundir: RunDir, python: str
) -> None:
    _install(_job(python, env={"LD_PRELOAD": "/nowhere/libfast.so"}), rundir)

    assert "/nowhere/libfast.so" in (rundir.path / "requirements.log").read_text()
    assert _in_venv(rundir, "import tiny; print(tiny.version)") == "1.0\n"


def test_a_program_that_is_not_a_python_is_named(rundir: RunDir) -> None:
    with pytest.raises(PullError, match="/bin/true is not a Python"):
        _install(_job("/bin/true"), rundir)


def test_installed_packages_are_not_installed_again(rundir: RunDir, python: str) -> None:
    _install(_job(python), rundir)
    (rundir.scripts / "tiny-1.0-py3-none-any.whl").unlink()

    _install(_job(python), rundir)

    assert _in_venv(rundir, "import tiny; print(tiny.version)") == "1.0\n"


def test_changed_requirements_create_a_new_venv(rundir: RunDir, python: str) -> None:
    _install(_job(python), rundir)
    (rundir.scripts / "requirements.txt").write_text(f"./{_write_wheel(rundir.scripts, '2.0')}\n")

    _install(_job(python), rundir)

    assert _in_venv(rundir, "import tiny; print(tiny.version)") == "2.0\n"


def test_an_incomplete_venv_is_recreated(rundir: RunDir, python: str) -> None:
    _install(_job(python), rundir)
    (rundir.venv / "complete.json").unlink()
    (rundir.venv / "bin" / "python").unlink()

    _install(_job(python), rundir)

    assert _in_venv(rundir, "import tiny; print(tiny.version)") == "1.0\n"


def test_the_error_quotes_the_last_lines_of_pip(rundir: RunDir, python: str) -> None:
    (rundir.scripts / "requirements.txt").write_text("./missing.whl\n")

    with pytest.raises(
        PullError,
        match=r"requirements\.txt could not be installed: (missing\.whl is not a|Invalid) .*wheel filename.*requirements\.log",
    ):
        _install(_job(python), rundir)


def test_a_long_error_of_pip_becomes_a_sentence(rundir: RunDir, python: str) -> None:
    (rundir.scripts / "requirements.txt").write_text("--no-index\nno-such-package-of-anybody==99\n")

    with pytest.raises(PullError) as failure:
        _install(_job(python), rundir)

    assert len(str(failure.value).replace(str(rundir.path), "")) < 500
    assert "no-such-package-of-anybody" in str(failure.value)


def test_a_missing_requirements_file_is_refused_by_name(rundir: RunDir, python: str) -> None:
    with pytest.raises(PullError, match=r"requirements: .*/other\.txt: No such file"):
        _install(_job(python, requirements="other.txt"), rundir)


def test_a_missing_python_is_refused_by_name(rundir: RunDir) -> None:
    with pytest.raises(PullError, match="/no/python does not run: /no/python: No such file"):
        _install(_job("/no/python"), rundir)


def test_a_python_without_pip_names_the_package_to_install(
    rundir: RunDir, python: str, tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(
        "import sys\nsys.modules['pip'] = sys.modules['ensurepip'] = None\n"
    )

    with pytest.raises(PullError, match=r"has no pip; install it .*python3-pip, or python3\.\d+-venv"):
        _install(_job(python, inherit_env=True), rundir, base={**os.environ, "PYTHONPATH": str(blocked)})


@pytest.fixture
def slow(rundir: RunDir) -> RunDir:
    """A Python whose pip waits for ever."""
    python = rundir.path / "python"
    python.write_text("#!/bin/sh\ntrap '' TERM\nsleep 600\nsleep 600\n")
    python.chmod(0o755)
    return rundir


def test_the_deadline_ends_pip(slow: RunDir) -> None:
    with pytest.raises(PullError, match=r"not installed within limits\.pull_timeout"):
        _install(_job(str(slow.path / "python")), slow, seconds=0.3)


def test_a_stop_of_the_run_ends_pip(slow: RunDir) -> None:
    job_request = threading.Event()
    worker = threading.Thread(
        target=lambda: _install(_job(str(slow.path / "python")), slow, stopping=job_request.is_set),
        daemon=True,
    )
    worker.start()
    until(lambda: len(_pips(slow)) >= 2, "pip runs")

    job_request.set()

    worker.join(60)
    assert not worker.is_alive()
    assert not (slow.venv / "complete.json").exists()


def test_the_pip_of_an_agent_that_was_killed_is_ended(rundir: RunDir, python: str) -> None:
    orphan = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, RUN_MARKER: str(rundir.venv)}, start_new_session=True
    )
    until(lambda: _pips(rundir) == [orphan.pid], "the orphan runs")

    _install(_job(python), rundir)

    assert orphan.wait(60) == -signal.SIGKILL
