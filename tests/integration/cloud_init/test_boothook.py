"""The boothook and its deadman, run for real in a guardian_jail."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from guardian_jail import GuardianJail
from instance_jobs import RUN, boot

pytestmark = pytest.mark.root

STATE = "var/lib/bai/boot"
LONG = "time.sleep(600)"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[GuardianJail]:
    with GuardianJail(tmp_path) as found:
        yield found


def account(machine: GuardianJail) -> tuple[int, int]:
    """Return what is on disk: seconds spent; by the wall, when they began to be, 0 where that is not known."""
    file = machine.root / STATE / "deadline"
    machine.wait(lambda: file.exists() and file.read_text().endswith("\n"))
    spent, start = (int(word) for word in file.read_text().split())
    return spent, start


@pytest.mark.parametrize("shell", ["dash", "busybox", "bash"])
def test_the_machine_powers_off_at_its_deadline_although_the_agent_still_runs(
    tmp_path: Path, shell: str
) -> None:
    with GuardianJail(tmp_path, shell=shell) as machine:
        machine.cloud_init(boot(machine.services, agent=LONG, deadman=timedelta(seconds=1)))
        assert machine.last_words() == "deadline"
        machine.wait(lambda: machine.calls("shutdown"))
        assert machine.calls("halt") == []


def test_the_boothook_needs_nothing_from_later_boot_stages(machine: GuardianJail) -> None:
    machine.cloud_init(boot(machine.services, deadman=timedelta(seconds=1)), writes=False)
    assert machine.last_words() == "deadline"
    machine.wait(lambda: machine.calls("shutdown"))


def test_background_processes_of_the_boothook_do_not_delay_a_boot(machine: GuardianJail) -> None:
    """`run` returns when nobody holds the boothook's streams any more, as cloud-init does."""
    machine.cloud_init(boot(machine.services), writes=False)
    assert machine.processes("/boothook")


def test_the_deadline_counts_the_time_of_all_boots(machine: GuardianJail) -> None:
    wanted = boot(machine.services, agent=LONG, deadman=timedelta(seconds=1000))
    machine.set_clock(1_800_000_000)
    machine.cloud_init(wanted)
    machine.wait(lambda: account(machine)[1] in range(1_799_999_980, 1_800_000_001))
    machine.switch_off()
    machine.set_clock(1_800_001_001)
    machine.switch_on()
    machine.cloud_init(wanted, writes=False)
    assert machine.last_words() == "deadline"


def test_without_a_correct_clock_the_deadline_counts_uptime(machine: GuardianJail) -> None:
    wanted = boot(machine.services, agent=LONG, deadman=timedelta(seconds=1000))
    machine.cloud_init(wanted)
    account(machine)
    machine.switch_off()
    # In an earlier boot it was on for all of its time but a second; the clock has lost its battery.
    (machine.root / STATE / "deadline").write_text(f"{999:15} {1_800_000_000:15}\n")
    machine.set_clock(0)
    machine.switch_on()
    machine.cloud_init(wanted, writes=False)
    assert machine.last_words() == "deadline"


def test_the_deadline_ignores_the_clock_until_it_was_compared_with_s3(machine: GuardianJail) -> None:
    wanted = boot(machine.services, agent=LONG, deadman=timedelta(seconds=1000))
    machine.services.clock = timedelta(days=700)
    machine.set_clock(0)
    machine.cloud_init(wanted)
    machine.wait(lambda: machine.processes("fetch_agent.py clock"))
    machine.switch_off()
    assert account(machine)[1] == 0

    machine.services.clock = timedelta()
    machine.set_clock(1_800_000_000)
    machine.switch_on()
    machine.cloud_init(wanted, writes=False)
    machine.wait(lambda: account(machine)[1] in range(1_799_999_980, 1_800_000_001))
    assert "BAI-END" not in machine.console()


@pytest.mark.parametrize("jump", [-500_000_000, 500_000_000])
def test_a_jump_of_the_clock_does_not_move_the_deadline(machine: GuardianJail, jump: int) -> None:
    wanted = boot(machine.services, agent=LONG, deadman=timedelta(seconds=1000))
    machine.set_clock(1_800_000_000)
    machine.cloud_init(wanted)
    machine.wait(lambda: account(machine)[1])
    begun = account(machine)[1]
    machine.switch_off()
    machine.set_clock(1_800_000_500)
    machine.switch_on()
    machine.cloud_init(wanted, writes=False)
    machine.wait(lambda: account(machine)[0] in range(500, 540))

    machine.set_clock(1_800_000_500 + jump)
    looked = len(machine.calls("sleep"))
    machine.wait(lambda: len(machine.calls("sleep")) > looked + 5)

    spent, start = account(machine)
    assert spent in range(500, 560)
    assert start == begun
    assert "BAI-END" not in machine.console()


def test_a_machine_powers_off_after_too_many_boots(machine: GuardianJail) -> None:
    wanted = boot(machine.services, agent=LONG, max_boots=3)
    machine.cloud_init(wanted)
    for _ in range(2):
        machine.switch_off()
        machine.switch_on()
        machine.cloud_init(wanted, writes=False)
    assert "BAI-END" not in machine.console()
    machine.switch_off()
    machine.switch_on()
    machine.cloud_init(wanted, writes=False)
    assert machine.last_words() == "too-many-boots"
    machine.wait(lambda: machine.calls("shutdown"))


def test_a_full_disk_does_not_stop_the_uptime_count(machine: GuardianJail) -> None:
    wanted = boot(machine.services, agent=LONG, max_boots=1)
    machine.cloud_init(wanted)
    account(machine)
    machine.switch_off()
    machine.switch_on()
    machine.run("sh", "-c", "cat /dev/zero >/fill || true")
    machine.cloud_init(wanted, writes=False)
    assert machine.last_words() == "too-many-boots"


def test_cloud_init_may_run_the_boothook_twice_in_a_boot(machine: GuardianJail) -> None:
    wanted = boot(machine.services, agent=LONG)
    machine.cloud_init(wanted, writes=False)
    machine.cloud_init(wanted, writes=False)
    assert (machine.root / STATE / "boots").read_text() == "."
    assert len(machine.processes("/boothook")) == 1


def test_an_instance_of_an_image_made_from_a_used_machine_starts_without_its_state(
    machine: GuardianJail,
) -> None:
    wanted = boot(machine.services)
    machine.cloud_init(wanted)
    machine.last_words()
    machine.switch_off()
    (machine.root / "dev/console").write_text("")
    machine.services.instance_id = "i-0aaaaaaaaaaaaaaaa"
    machine.switch_on()
    machine.cloud_init(wanted, writes=False, start=False)
    assert (machine.root / STATE / "boots").read_text() == "."
    assert not (machine.root / STATE / "ended").exists()
    assert not (machine.root / STATE / "facts").exists()
    assert not (machine.root / "var/lib/bai/job.toml").exists()


def test_a_killed_guardian_is_restarted_and_finds_its_agent(machine: GuardianJail) -> None:
    agent = "exec(\"while not os.path.exists('/go'): time.sleep(0.05)\"); end(0)"
    machine.cloud_init(boot(machine.services, agent=agent))
    machine.wait(lambda: (machine.root / RUN / "starts").exists())
    machine.kill("guardian.sh")
    machine.wait(lambda: "starting it again" in machine.console())
    machine.wait(lambda: machine.console().count("bundle ") == 2)
    (machine.root / "go").touch()
    assert machine.last_words() == "done 0"
    machine.wait(lambda: machine.calls("shutdown"))


def test_a_guardian_that_never_starts_ends_the_machine(machine: GuardianJail) -> None:
    uptime = machine.root / "over/uptime"
    uptime.write_text("100.00 0.00\n")
    machine.switch_off()
    machine.switch_on()
    machine.cloud_init(boot(machine.services), writes=False)
    account(machine)
    assert "BAI-END" not in machine.console()
    uptime.write_text("1901.00 0.00\n")
    assert machine.last_words() == "boot-hung"
    machine.wait(lambda: machine.calls("shutdown"))


def test_automatic_upgrades_are_masked_during_a_benchmark(machine: GuardianJail) -> None:
    machine.program("usr/bin/systemctl", '#!/bin/dash\necho "systemctl $*" >>/dev/calls\n')
    machine.cloud_init(boot(machine.services), writes=False)
    mask, stop = machine.calls("systemctl")
    assert mask.startswith("--runtime --quiet mask apt-daily.timer ")
    assert stop.startswith("--no-block stop apt-daily.timer ")


@pytest.mark.parametrize(("name", "written"), [('ID="amzn"', True), ("ID=debian", False)])
def test_package_repositories_are_disabled_at_boot_on_amazon_linux_only(
    machine: GuardianJail, name: str, written: bool
) -> None:
    release = machine.root / "etc/os-release"
    release.unlink()
    release.write_text(f"{name}\n")
    (machine.root / "etc/cloud/cloud.cfg.d").mkdir(parents=True)
    machine.cloud_init(boot(machine.services), writes=False)
    assert (machine.root / "etc/cloud/cloud.cfg.d/99-bai.cfg").exists() is written


def test_a_kernel_that_panics_reboots(machine: GuardianJail) -> None:
    before = Path("/proc/sys/kernel/panic").read_text()
    machine.cloud_init(boot(machine.services), writes=False)
    assert (machine.root / "over/sys/kernel/panic").read_text() == "10\n"
    assert Path("/proc/sys/kernel/panic").read_text() == before


@pytest.mark.parametrize("agent", ["end(0)", LONG])
def test_a_task_that_hangs_panics_the_kernel_only_during_power_off(machine: GuardianJail, agent: str) -> None:
    # Given a machine that its guardian ends, or its deadman
    before = Path("/proc/sys/kernel/hung_task_panic").read_text()
    hung = machine.root / "over/sys/kernel/hung_task_panic"

    # When it works, and when it ends
    machine.cloud_init(
        boot(machine.services, agent=f"exec(\"while not os.path.exists('/go'): time.sleep(0.05)\"); {agent}")
    )
    machine.wait(lambda: (machine.root / RUN / "starts").exists())
    working = hung.read_text()
    (machine.root / STATE / "limit").write_text("1\n" if agent == LONG else "100000\n")
    (machine.root / "go").touch()
    machine.wait(lambda: machine.calls("shutdown"))

    # Then only the end may panic, and this host never does
    assert (working.strip(), hung.read_text().strip()) == ("0", "1")
    assert Path("/proc/sys/kernel/hung_task_panic").read_text() == before


@pytest.mark.parametrize("shell", ["dash", "busybox", "bash"])
def test_the_deadline_works_if_no_process_can_be_started(tmp_path: Path, shell: str) -> None:
    with GuardianJail(tmp_path, shell=shell) as machine:
        machine.cloud_init(boot(machine.services, agent=LONG))
        machine.wait(lambda: (machine.root / RUN / "starts").exists())
        with machine.no_process_left():
            (machine.root / STATE / "limit").write_text("1\n")
            assert machine.last_words() == "deadline"
            machine.wait(lambda: (machine.root / "over/sysrq-trigger").read_text() == "o")
        assert machine.calls("shutdown") == machine.calls("poweroff") == []


@pytest.mark.parametrize("shell", ["dash", "busybox", "bash"])
def test_a_guardian_that_could_not_fork_is_restarted(tmp_path: Path, shell: str) -> None:
    with GuardianJail(tmp_path, shell=shell) as machine:
        machine.cloud_init(
            boot(
                machine.services,
                agent="os.kill(os.getpid(), 9) if starts < 2 else end(0)",
                init_commands=("exec sleep.real 2",),
            )
        )
        machine.wait(lambda: machine.processes("sleep.real 2"))
        with machine.no_process_left():
            machine.wait(lambda: not machine.processes("guardian.sh"))
            seen = len(machine.calls("sleep"))
            machine.wait(lambda: len(machine.calls("sleep")) > seen + 20)
            assert "starting it again" not in machine.console()
        assert machine.last_words() == "done 0"


def test_a_machine_whose_job_ended_powers_off_even_if_no_process_can_start(machine: GuardianJail) -> None:
    agent = "exec(\"while not os.path.exists('/go'): time.sleep(0.05)\"); end(0)"
    machine.cloud_init(boot(machine.services, agent=agent))
    machine.wait(lambda: (machine.root / RUN / "starts").exists())
    with machine.no_process_left():
        (machine.root / "go").touch()
        machine.wait(lambda: (machine.root / "over/sysrq-trigger").read_text() == "o")
    assert machine.last_words() == "done 0"
