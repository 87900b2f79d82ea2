"""The guardian in a guardian_jail: it always ends with a power-off and a reason on the console."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from guardian_jail import GuardianJail
from instance_jobs import RUN, boot
from instance_services import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN

from cloud_init.user_data import Pointer

pytestmark = pytest.mark.root

LOG = "var/log/bai-guardian.log"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[GuardianJail]:
    with GuardianJail(tmp_path) as found:
        yield found


def starts(machine: GuardianJail) -> list[dict[str, Any]]:
    """Return arguments and environment of each start of the agent."""
    file = machine.root / RUN / "starts"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("shell", ["dash", "busybox", "bash"])
def test_a_job_runs_and_the_machine_is_powered_off(tmp_path: Path, shell: str) -> None:
    with GuardianJail(tmp_path, shell=shell) as machine:
        machine.services.launch_index = 2
        machine.cloud_init(boot(machine.services))
        assert machine.last_words() == "done 0"
        machine.wait(lambda: machine.calls("shutdown"))
        assert machine.calls("shutdown")[0] == "-h now"
        assert machine.calls("halt") == []
        (start,) = starts(machine)
        assert start["argv"] == [
            *("run", "/var/lib/bai/job.toml", "--dir", f"/{RUN}"),
            *("--rank", "2", "--instance-id", "i-0123456789abcdef0", "--launch", "0", "--quiet"),
        ]
        assert start["environment"]["HOME"] == "/root"
        assert start["environment"]["AWS_REGION"] == "us-east-1"
        assert start["environment"]["S3_ENDPOINT"] == machine.services.url
        steps = [line for line in machine.console().splitlines() if not line.startswith("BAI-END")]
        assert all(re.fullmatch(r"BAI \d+\.\d\d \S.*", line) for line in steps)


def test_a_replacement_machine_starts_its_agent_with_the_next_free_rank(machine: GuardianJail) -> None:
    machine.services.launch_index = 1
    machine.cloud_init(boot(machine.services, nodes=4, launch=2, first_node=5))

    assert machine.last_words() == "done 0"

    (start,) = starts(machine)
    assert start["argv"][-7:-1] == [*("--rank", "6", "--instance-id", "i-0123456789abcdef0", "--launch", "2")]


def test_an_ineffective_shutdown_is_repeated_and_then_forced(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services))
    machine.wait(lambda: machine.calls("poweroff"))
    assert len(machine.calls("shutdown")) == 7
    assert machine.calls("poweroff")[0] == "-f"
    machine.wait(lambda: len(machine.calls("poweroff")) > 6)
    assert machine.calls("halt") == machine.calls("reboot") == []


@pytest.mark.parametrize("code", range(1, 7))
def test_an_agent_that_exits_with_a_result_is_not_restarted(machine: GuardianJail, code: int) -> None:
    machine.cloud_init(boot(machine.services, agent=f"end({code})"))
    assert machine.last_words() == f"done {code}"
    assert len(starts(machine)) == 1


def test_an_agent_that_dies_is_restarted(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services, agent="os.kill(os.getpid(), 9) if starts < 3 else end(0)"))
    assert machine.last_words() == "done 0"
    assert len(starts(machine)) == 3


@pytest.mark.parametrize("shell", ["dash", "busybox", "bash"])
def test_file_systems_of_a_crashed_agent_are_unmounted_before_the_power_off(
    tmp_path: Path, shell: str
) -> None:
    with GuardianJail(tmp_path, shell=shell) as machine:
        machine.program("usr/local/bin/umount", '#!/bin/dash\necho "umount $*" >>/dev/calls\n')
        lists = "open(run + '/mounts', 'w').write('/efs\\n/data/shared\\n')"
        machine.cloud_init(boot(machine.services, agent=f"{lists}\nsys.exit(1)"))

        assert machine.last_words() == "agent-crashed 1"
        assert machine.calls("umount") == ["-l /efs", "-l /data/shared"]


@pytest.mark.parametrize("shell", ["dash", "busybox", "bash"])
def test_an_agent_that_hangs_is_restarted(tmp_path: Path, shell: str) -> None:
    # Given an agent that lives for a while, hangs, and goes on when it is started again
    beat = "open(run + '/heartbeat.json', 'w').write(f'{each}\\n')"
    lives = f"[({beat}, time.sleep(0.05)) for each in range(40)]"
    with GuardianJail(tmp_path, shell=shell) as machine:
        (machine.root / "quick_looks").touch()
        machine.cloud_init(boot(machine.services, agent=f"if starts == 1: {lives}; time.sleep(999)\nend(0)"))

        assert machine.last_words() == "done 0"
        assert len(starts(machine)) == 2
        assert machine.console().count("agent without a heartbeat for 300 s; killing it") == 1
        # Fifteen looks in vain, after those at which it lived
        assert machine.calls("sleep").count("20") >= 20


def test_an_agent_of_a_multi_node_job_is_not_killed_for_a_missing_heartbeat(machine: GuardianJail) -> None:
    (machine.root / "quick_looks").touch()
    machine.cloud_init(boot(machine.services, agent="time.sleep(3)\nend(0)", nodes=2))

    assert machine.last_words() == "done 0"
    assert len(starts(machine)) == 1
    assert "20" not in machine.calls("sleep")


@pytest.mark.parametrize(("nodes", "pauses"), [(1, "1 4 9 16 25"), (2, "1 3 3 3 3")])
def test_a_dead_agent_of_a_multi_node_job_is_restarted_within_5_seconds(
    machine: GuardianJail, nodes: int, pauses: str
) -> None:
    machine.cloud_init(boot(machine.services, agent="sys.exit(1)", nodes=nodes), hook=False)
    assert machine.last_words() == "agent-crashed 1"
    assert len(starts(machine)) == 6
    # 20: it looks at the heartbeat meanwhile
    assert [each for each in machine.calls("sleep") if each != "20"][:5] == pauses.split()


def test_an_agent_that_always_dies_is_given_up(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services, agent='sys.exit("no disk for me")'))
    assert machine.last_words() == "agent-crashed 1"
    assert len(starts(machine)) == 6
    assert "agent: no disk for me" in machine.console()
    machine.wait(lambda: machine.calls("shutdown"))


def test_a_descriptor_that_the_agent_refuses_is_not_tried_again(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services, agent="end(2, result=False)"))
    assert machine.last_words() == "bad-descriptor"
    assert len(starts(machine)) == 1


def test_a_broken_bundle_ends_the_machine(machine: GuardianJail) -> None:
    wanted = boot(machine.services)
    machine.services.put("bucket/agent/job-1.tar.gz", b"something else")
    machine.cloud_init(wanted)
    assert machine.last_words() == "fetch-corrupt"
    machine.wait(lambda: machine.calls("shutdown"))


def test_an_unpacked_bundle_on_the_disk_is_used_without_s3(machine: GuardianJail) -> None:
    wanted = boot(machine.services)
    machine.cloud_init(wanted, start=False)
    folder = machine.root / "var/lib/bai/agent" / wanted.bundle.sha256
    folder.mkdir(parents=True)
    (folder / "start_agent.py").write_text(f'open("/{RUN}/result.json", "w").close()\n')
    (machine.root / RUN).mkdir(parents=True)
    machine.services.objects.clear()
    machine.run("sh", "-c", "sh /var/lib/bai/boot/guardian.sh >/dev/null 2>&1 &")
    assert machine.last_words() == "done 0"


def test_a_descriptor_too_large_for_user_data_is_fetched_from_the_store(machine: GuardianJail) -> None:
    sha256 = machine.services.put("bucket/jobs/job-1/job.toml", b"version = 1 # large\n")
    pointer = Pointer(url="s3://bucket/jobs/job-1/job.toml", sha256=sha256)
    machine.cloud_init(boot(machine.services, job_toml=None, job_pointer=pointer))
    assert machine.last_words() == "done 0"
    assert (machine.root / "var/lib/bai/job.toml").read_bytes() == b"version = 1 # large\n"


def test_a_missing_python_is_installed(machine: GuardianJail) -> None:
    hide_pythons(machine)
    machine.program(
        "usr/bin/apt-get",
        '#!/bin/dash\necho "apt-get $*" >>/dev/calls\ncp /usr/bin/hidden /usr/bin/python3\n',
    )
    machine.cloud_init(boot(machine.services))
    assert machine.last_words() == "done 0"
    assert any("install" in call for call in machine.calls("apt-get"))


def test_a_machine_on_which_no_python_can_be_installed_powers_off(machine: GuardianJail) -> None:
    hide_pythons(machine)
    machine.program("usr/bin/apt-get", "#!/bin/dash\nexit 100\n")
    machine.cloud_init(boot(machine.services))
    assert machine.last_words() == "no-python"
    machine.wait(lambda: machine.calls("shutdown"))


def hide_pythons(machine: GuardianJail) -> None:
    """Leave cloud-init the only one."""
    machine.run("sh", "-c", 'mv "$(readlink -f /usr/bin/python3)" /usr/bin/hidden')
    for path in machine.root.glob("usr/bin/python3*"):
        path.unlink()
    machine.program("usr/bin/cloud-init", "#!/usr/bin/hidden\n")


def test_init_commands_run_once_each_before_the_agent(machine: GuardianJail) -> None:
    commands = ('echo "first $HOME" >>/made', "echo 'a\"b' >>/made && false || echo second >>/made")
    machine.cloud_init(boot(machine.services, init_commands=commands))
    assert machine.last_words() == "done 0"
    assert (machine.root / "made").read_text() == 'first /root\na"b\nsecond\n'


def test_an_init_command_that_fails_ends_the_machine(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services, init_commands=("true", "echo the reason >&2; exit 7")))
    assert machine.last_words() == "init-failed 1"
    assert starts(machine) == []
    assert "the reason" in (machine.root / LOG).read_text()
    machine.wait(lambda: machine.calls("shutdown"))


def test_after_a_reboot_only_the_interrupted_init_command_is_repeated(machine: GuardianJail) -> None:
    commands = ("echo first >>/made", "echo second >>/made; [ -e /again ] || exec sleep.real 600")
    wanted = boot(machine.services, init_commands=commands)
    machine.cloud_init(wanted)
    machine.wait(lambda: machine.processes("sleep.real 600"))
    machine.switch_off()
    (machine.root / "again").touch()
    machine.switch_on()
    machine.cloud_init(wanted, writes=False)
    assert machine.last_words() == "done 0"
    assert (machine.root / "made").read_text() == "first\nsecond\nsecond\n"


def test_after_a_reboot_the_agent_continues(machine: GuardianJail) -> None:
    agent = "time.sleep(600) if starts == 1 else end(0)"
    wanted = boot(machine.services, agent=agent)
    machine.cloud_init(wanted)
    machine.wait(lambda: starts(machine))
    machine.switch_off()
    machine.services.objects.clear()
    machine.switch_on()
    machine.cloud_init(wanted, writes=False)
    assert machine.last_words() == "done 0"
    assert len(starts(machine)) == 2


def test_after_a_reboot_an_ended_job_is_not_run_again(machine: GuardianJail) -> None:
    wanted = boot(machine.services)
    machine.cloud_init(wanted)
    machine.last_words()
    machine.switch_off()
    (machine.root / "dev/calls").write_text("")
    machine.switch_on()
    machine.cloud_init(wanted, writes=False)
    machine.wait(lambda: machine.calls("shutdown"))
    assert len(starts(machine)) == 1


def test_a_second_guardian_ends_at_once(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services, agent="time.sleep(600)"), hook=False)
    machine.wait(lambda: starts(machine))
    machine.run("sh", "/var/lib/bai/boot/guardian.sh")
    # The first one, and its look at the heartbeat
    assert len(machine.processes("guardian.sh")) == 2
    assert len(starts(machine)) == 1


def test_sigterm_ends_the_guardian_after_its_agent_wrote_a_result(machine: GuardianJail) -> None:
    agent = "signal.signal(15, lambda *_: end(5)); time.sleep(600)"
    machine.cloud_init(boot(machine.services, agent=agent), hook=False)
    machine.wait(lambda: starts(machine))
    machine.kill("guardian.sh", signal.SIGTERM)
    assert machine.last_words() == "terminated"
    machine.wait(lambda: not machine.processes("guardian.sh"))
    assert (machine.root / RUN / "result.json").exists()
    assert machine.calls("shutdown") == []


def test_an_agent_that_ignores_sigterm_is_killed(machine: GuardianJail) -> None:
    agent = "signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    machine.cloud_init(boot(machine.services, agent=agent), hook=False)
    machine.wait(lambda: starts(machine))
    machine.kill("guardian.sh", signal.SIGTERM)
    assert machine.last_words() == "terminated"
    machine.wait(lambda: not machine.processes("start_agent.py"))


def test_a_failed_machine_is_kept_until_it_is_released(machine: GuardianJail) -> None:
    wanted = boot(machine.services, agent="end(1)", keep_after_failure=timedelta(hours=1))
    machine.cloud_init(wanted)
    machine.wait(lambda: "keeping this machine for 3600 s" in machine.console())
    machine.wait(lambda: machine.calls("sleep").count("15") > 2)
    assert machine.calls("shutdown") == []
    machine.services.put("bucket/jobs/job-1/release.json", b"{}")
    assert machine.last_words() == "done 1"
    machine.wait(lambda: machine.calls("shutdown"))


def test_a_kept_machine_powers_off_when_its_time_is_over(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services, agent="end(1)", keep_after_failure=timedelta(seconds=1)))
    assert machine.last_words() == "done 1"


def test_a_machine_is_kept_after_a_success_if_keep_after_success_is_set(machine: GuardianJail) -> None:
    times = {"keep_after_failure": timedelta(hours=1), "keep_after_success": timedelta(seconds=1)}
    machine.cloud_init(boot(machine.services, agent="end(0)", **times))
    assert machine.last_words() == "done 0"
    assert machine.console().count("keeping this machine for 1 s, or until it is released") == 1


@pytest.mark.parametrize(("code", "success"), [(0, timedelta()), (4, timedelta(hours=1))])
def test_no_machine_is_kept_after_a_cancel_or_an_ordinary_success(
    machine: GuardianJail, code: int, success: timedelta
) -> None:
    times = {"keep_after_failure": timedelta(hours=1), "keep_after_success": success}
    machine.cloud_init(boot(machine.services, agent=f"end({code})", **times))
    assert machine.last_words() == f"done {code}"
    assert "keeping" not in machine.console()


def test_a_machine_with_power_stay_stays_on(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services, power_off=False))
    assert machine.last_words() == "done 0"
    machine.wait(lambda: not machine.processes("guardian.sh"))
    machine.wait(lambda: not machine.processes("boothook"))
    assert machine.calls("shutdown") == []


def test_the_agent_waits_for_a_network_that_is_up_late(machine: GuardianJail) -> None:
    begun = time.monotonic()
    machine.services.refuse = lambda _path: (503, "") if time.monotonic() < begun + 4 else None
    machine.cloud_init(boot(machine.services))
    assert machine.last_words() == "done 0"


def test_a_job_runs_with_a_read_only_tmp_and_without_home(machine: GuardianJail) -> None:
    machine.run("mount", "-o", "remount,ro", "/tmp")
    machine.cloud_init(boot(machine.services))
    assert machine.last_words() == "done 0"
    (start,) = starts(machine)
    assert start["environment"]["TMPDIR"] == "/var/lib/bai/tmp"


def test_a_full_disk_ends_the_machine(machine: GuardianJail) -> None:
    wanted = boot(machine.services, agent=f"noise = '{'0123456789abcdef' * 2000}'")
    machine.cloud_init(wanted, start=False)
    machine.run("sh", "-c", "cat /dev/zero >/fill || true")
    machine.run("sh", "-c", "sh /var/lib/bai/boot/guardian.sh >/dev/null 2>&1 &")
    assert machine.last_words() == "disk-full"
    machine.wait(lambda: machine.calls("shutdown"))


def test_a_guardian_without_settings_powers_the_machine_off(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services), start=False)
    (machine.root / "var/lib/bai/boot/settings").unlink()
    machine.run("sh", "-c", "sh /var/lib/bai/boot/guardian.sh >/dev/null 2>&1 &")
    assert machine.last_words() == "no-settings"
    machine.wait(lambda: machine.calls("shutdown"))


def test_no_secret_is_on_console_or_disk_or_in_the_log(machine: GuardianJail) -> None:
    wanted = boot(machine.services, agent="end(1)", keep_after_failure=timedelta(seconds=1))
    machine.cloud_init(wanted)
    machine.last_words()
    files = [path for path in (machine.root / "var/lib/bai").rglob("*") if path.is_file()]
    said = machine.console() + (machine.root / LOG).read_text() + "".join(path.read_text() for path in files)
    assert not [secret for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN) if secret in said]
