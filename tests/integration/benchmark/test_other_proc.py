"""Runs where /proc is not as usual: other users' processes are hidden, nothing in it may be written, mount points have odd names."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from agent_runs import (
    begun,
    events_of,
    is_alive,
    python_job,
    result_of,
    run_agent,
    start_agent,
    wait_until,
    write_job,
)

from bai_agent.job.outcome import ExitCode

pytestmark = pytest.mark.root

_USER = 65534
# A plain user, who may only look through folders that are root's: this Python may lie in one.
_PLAIN = (
    f"setpriv --reuid={_USER} --regid={_USER} --clear-groups --inh-caps=-all,+dac_read_search"
    " --ambient-caps=-all,+dac_read_search --bounding-set=-all,+dac_read_search"
)
_TREE = """
import os, subprocess, sys, time
children = [
    subprocess.Popen(["sleep", "1001"]),
    subprocess.Popen(["sleep", "1002"], start_new_session=True),
    # As a set-user-id program is: hidden even from its own user.
    subprocess.Popen([sys.executable, "-c", "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); print('hid', flush=True); time.sleep(1003)"], start_new_session=True),
]
print("pids", os.getpid(), *[child.pid for child in children], flush=True)
time.sleep(0.5)
print("begun", flush=True)
if len(sys.argv) > 1:
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    print("loss=0.5")
else:
    time.sleep(1000)
"""


def apart(mount: str, command: str = "exec") -> tuple[str, ...]:
    """Return what starts a command where `mount` was done, for it alone."""
    return ("unshare", "--mount", "sh", "-euc", f'{mount}; {command} "$@"', "sh")


def hiding(hidepid: int) -> tuple[str, ...]:
    return apart(f"mount -t proc -o hidepid={hidepid} proc /proc", f"exec {_PLAIN}")


@pytest.fixture
def plain_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    folder.mkdir()
    os.chown(folder, _USER, _USER)
    return folder


def pids_of(rundir: Path) -> list[int]:
    (line,) = (line for line in (rundir / "output.log").read_text().splitlines() if line.startswith("pids "))
    return [int(pid) for pid in line.split()[1:]]


@pytest.mark.parametrize("hidepid", [1, 2])
def test_limits_and_tree_kill_work_under_hidepid(plain_folder: Path, hidepid: int) -> None:
    job = python_job(
        plain_folder, _TREE, limits={"max_runtime": "8s", "grace": "1s"}, host_metrics={"enabled": True}
    )
    rundir = plain_folder / "run"

    code = run_agent(job, rundir, prefix=hiding(hidepid))

    result = result_of(rundir)
    assert (code, result["outcome"]) == (ExitCode.OUT_OF_TIME, "max_runtime"), result
    pids = pids_of(rundir)
    assert len(pids) == 4
    assert [pid for pid in pids if is_alive(pid)] == []


@pytest.mark.parametrize("hidepid", [1, 2])
def test_remaining_processes_are_ended_under_hidepid(plain_folder: Path, hidepid: int) -> None:
    go = plain_folder / "go"
    job = python_job(plain_folder, _TREE, arguments=[str(go)], limits={"grace": "1s"})
    go.touch()
    rundir = plain_folder / "run"

    assert run_agent(job, rundir, prefix=hiding(hidepid)) == ExitCode.SUCCEEDED

    assert result_of(rundir)["benchmark"]["left_behind"] == 3
    assert [pid for pid in pids_of(rundir) if is_alive(pid)] == []


@pytest.mark.parametrize("hidepid", [1, 2])
def test_a_benchmark_is_adopted_under_hidepid(plain_folder: Path, hidepid: int) -> None:
    go = plain_folder / "go"
    job = python_job(
        plain_folder, _TREE, arguments=[str(go)], metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}]
    )
    rundir = plain_folder / "run"
    with start_agent(job, rundir, prefix=hiding(hidepid)) as agent:
        wait_until(begun(rundir))
        agent.send_signal(signal.SIGKILL)

    with start_agent(job, rundir, prefix=hiding(hidepid)) as agent:
        wait_until(lambda: len([e for e in events_of(rundir) if e["type"] == "agent_started"]) == 2)
        go.touch()
        assert agent.wait(timeout=60) == ExitCode.SUCCEEDED

    assert len(pids_of(rundir)) == 4
    assert result_of(rundir)["metrics"]["per_metric"] == {"loss": 1}


def test_a_lost_benchmark_is_ended_under_hidepid(plain_folder: Path) -> None:
    job = python_job(plain_folder, _TREE)
    rundir = plain_folder / "run"
    with start_agent(job, rundir, prefix=hiding(2)) as agent:
        wait_until(begun(rundir))
        shim = int((rundir / "started.json").read_text().partition('"shim_pid": ')[2].partition(",")[0])
        os.kill(shim, signal.SIGKILL)
        assert agent.wait(timeout=60) == ExitCode.OURS

    # The third one is hidden from its own user by the kernel itself.
    pids = pids_of(rundir)
    assert [pid for pid in pids[:3] if is_alive(pid)] == []
    os.kill(pids[3], signal.SIGKILL)


def test_a_read_only_proc_causes_a_warning(tmp_path: Path) -> None:
    job = write_job(tmp_path, ["true"])

    code = run_agent(job, tmp_path / "run", prefix=apart("mount -t proc -o ro proc /proc"))

    result = result_of(tmp_path / "run")
    assert code == ExitCode.SUCCEEDED, result
    (warning,) = result["warnings"]
    assert "the kernel may kill the shim before the benchmark" in warning
    assert "Read-only file system" in warning


def test_a_mount_point_with_an_odd_name_does_not_prevent_a_run(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xfe - \n"
    Path(os.fsdecode(odd)).mkdir()
    job = python_job(tmp_path, "print(open('/proc/self/mountinfo', 'rb').read())")

    mount = f"{sys.executable} -c \"import os, subprocess, sys; subprocess.run([b'mount', b'-t', b'tmpfs', b'tmpfs', bytes.fromhex(sys.argv[1])], check=True)\" {odd.hex()}"
    code = run_agent(job, tmp_path / "run", prefix=apart(mount))

    result = result_of(tmp_path / "run")
    assert (code, result["warnings"]) == (ExitCode.SUCCEEDED, []), result
    assert r"\xff\xfe" in (tmp_path / "run" / "output.log").read_text()
