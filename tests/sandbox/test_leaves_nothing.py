"""A sandbox that is killed takes its machines with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agent_runs import wait_until
from source_tree import TEST_FOLDERS

from sandbox.fake_aws import FakeAws
from sandbox.fake_aws.machine import cgroups

OWNER = """
import sys, time
from pathlib import Path
from sandbox.launches import launch, user_data
from sandbox.fake_aws import open_fake_aws
with open_fake_aws(Path(sys.argv[1])) as aws:
    [machine] = launch(aws, UserData=user_data(runcmd="echo IS-UP >/dev/console"))
    machine.wait_for("IS-UP")
    print(*(each.host_pid for each in machine.inside.processes()), aws.network.holder.pid, flush=True)
    time.sleep(600)
"""


def test_after_sigkill_no_process_mount_or_group_remains(aws: FakeAws, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": TEST_FOLDERS}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        # One that comes later may be given the number of one that has ended.
        started = {pid: cgroups.start_time(pid) for pid in pids}
        assert len(pids) > 5
        owner.kill()

    wait_until(lambda: not any(started[pid] == cgroups.start_time(pid) for pid in pids if started[pid]))
    cgroups.sweep()

    assert str(folder) not in Path("/proc/self/mounts").read_text()
    assert groups_named(f"bai-sandbox-{owner.pid}-") == []


def test_an_ended_simulation_leaves_nothing_on_the_host(tmp_path: Path, aws: FakeAws) -> None:
    from sandbox.fake_aws import open_fake_aws
    from sandbox.launches import launch, user_data

    def links() -> str:
        return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout

    before = links()
    with open_fake_aws(tmp_path / "other") as other:
        [machine] = launch(other, UserData=user_data(runcmd="echo IS-UP >/dev/console"))
        machine.wait_for("IS-UP")
        pids = [each.host_pid for each in machine.inside.processes()]
        started = {pid: cgroups.start_time(pid) for pid in pids}
        assert links() == before

    assert not any(started[pid] == cgroups.start_time(pid) for pid in pids if started[pid])
    assert groups_named(machine.instance_id) == []
    assert aws.machines == []


def groups_named(part: str) -> list[str]:
    """Return the control groups of this host whose name has this part; a walk, unlike a glob, passes over those that go meanwhile."""
    return [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if part in name]
