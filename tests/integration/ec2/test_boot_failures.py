"""Machines that never run their user data or have an empty console, and machines that lost their tags."""

from __future__ import annotations

import json
from datetime import timedelta

import boto3
import pytest
from ec2_cli import REGION, Ec2Cli
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.responses import general

from executor.backends.ec2.instances import fetch_console

ACCOUNT = "123456789012"
HUNG = "[    0.000000] Linux version 6.1.0\r\n[    0.512000] VFS: Cannot open root device\r\n"
OURS = "[    0.000000] Linux version 6.1.0\r\nBAI 0.05 boot 1 of at most 3\r\n"


def age(instance_id: str, by: timedelta) -> None:
    """Make an instance so much older."""
    ec2_backends[ACCOUNT][REGION].get_instance(instance_id).launch_time -= by


def console(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(general, "SAMPLE_CONSOLE_OUTPUT", text)


def refuse_consoles(monkeypatch: pytest.MonkeyPatch, code: str, *, only_latest: bool = False) -> None:
    answered = general.General.get_console_output

    def refused(self: general.General) -> object:
        if only_latest and self._get_param("Latest") != "true":
            return answered(self)
        raise EC2ClientError(code, "not with this one")

    monkeypatch.setattr(general.General, "get_console_output", refused)


def test_a_machine_that_never_ran_its_user_data_is_terminated_with_a_result(
    cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a machine that hung before its user data was read, first for 59 minutes, then for two more
    (machine,) = cli.launch()
    record = cli.bring(cli.handmade(written=False), launched=[machine])
    console(monkeypatch, HUNG)
    age(machine, timedelta(minutes=59))
    (early,) = cli.bai("status", "digits-1", "--json").objects
    assert (early["status"], cli.state(machine)) == ("PENDING", "running")
    age(machine, timedelta(minutes=2))

    # When somebody looks
    answer = cli.bai("status", "digits-1", "--wait", "--json")

    # Then it is terminated, and everybody reads why
    result = record.result() or {}
    assert answer.code == 5
    assert (result["outcome"], result["on_behalf"]) == ("boot_failed", True)
    assert f"{machine} was launched 1h1m" in result["sentence"]
    assert "Cannot open root device" in result["sentence"]
    assert "cloud-init" in result["sentence"]
    assert "bai logs digits-1 --boot" in result["sentence"]
    assert cli.state(machine) == "terminated"


def test_a_machine_that_wrote_any_object_is_not_ended_as_a_failed_boot(
    cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine,) = cli.launch()
    record = cli.bring(cli.handmade(written=False), launched=[machine])
    record.store.put(record.node().key("events.jsonl"), b"")
    console(monkeypatch, HUNG)
    age(machine, timedelta(hours=5))

    cli.bai("status", "digits-1")

    assert (record.result(), cli.state(machine)) == (None, "running")


@pytest.mark.parametrize("content", ["", "denied"])
def test_a_boot_without_console_output_ends_at_its_limit(
    cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    # Given a machine without a heartbeat, first for 59 minutes, then for two more
    (machine,) = cli.launch()
    record = cli.bring(cli.handmade(written=False), launched=[machine], expires=timedelta(hours=20))
    console(monkeypatch, content)
    if content == "denied":
        refuse_consoles(monkeypatch, "UnauthorizedOperation")
    age(machine, timedelta(minutes=59))
    (early,) = cli.bai("status", "digits-1", "--json").objects
    assert (early["status"], cli.state(machine)) == ("PENDING", "running")
    age(machine, timedelta(minutes=2))

    answer = cli.bai("status", "digits-1", "--wait", "--json")

    result = record.result() or {}
    assert answer.code == 5
    assert (result["outcome"], cli.state(machine)) == ("boot_failed", "terminated")
    why = "its console cannot be read (" if content else "its console is empty"
    assert f"{machine} was launched 1h1m" in result["sentence"]
    assert f"has sent no heartbeat, and {why}" in result["sentence"]
    assert "it never ran its user data, or hangs" in result["sentence"]


def test_a_machine_whose_user_data_runs_is_not_ended_as_a_failed_boot(
    cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine,) = cli.launch()
    record = cli.bring(cli.handmade(written=False), launched=[machine], expires=timedelta(hours=20))
    console(monkeypatch, OURS)
    age(machine, timedelta(hours=5))

    (found,) = cli.bai("status", "digits-1", "--json").objects

    assert (found["status"], record.result(), cli.state(machine)) == ("PENDING", None, "running")
    assert "boot 1 of at most 3" in found["machine"]


def test_a_machine_whose_console_cannot_be_read_is_not_terminated(
    cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine,) = cli.launch()
    record = cli.bring(cli.handmade(written=False), launched=[machine], expires=timedelta(hours=20))
    refuse_consoles(monkeypatch, "InternalError")
    age(machine, timedelta(hours=5))

    (found,) = cli.bai("status", "digits-1", "--json").objects

    assert (found["status"], record.result(), cli.state(machine)) == ("PENDING", None, "running")
    assert "the console cannot be read now (" in found["machine"]
    assert "will be read again" in found["machine"]
    assert "bai cancel digits-1 --now" in found["machine"]


def test_one_node_that_never_boots_ends_the_whole_job(cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cli.handmade("gang-1", written=False)
    descriptor = made.store.folder / "gang-1" / "job.toml"
    descriptor.write_text(descriptor.read_text() + "\n[strategy]\nnodes = 3\n")
    machines = cli.launch("gang-1", count=3)
    record = cli.bring(made, launched=machines)
    for rank in (0, 1):
        record.store.put(record.node(rank).key("heartbeat.json"), b"{}")
    console(monkeypatch, HUNG)
    for machine in machines:
        age(machine, timedelta(minutes=61))

    cli.bai("status", "gang-1")

    assert (record.result() or {})["outcome"] == "boot_failed"
    assert machines[2] in (record.result() or {})["sentence"]
    assert [cli.state(each) for each in machines] == ["terminated"] * 3


def test_a_launch_record_without_a_boot_limit_terminates_nothing(
    cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine,) = cli.launch()
    record = cli.bring(cli.handmade(written=False), launched=[machine])
    key = record.key("attempts/0/launch.json")
    launch = json.loads(record.store.get(key))
    del launch["boot_limit"]
    record.store.put(key, json.dumps(launch).encode())
    console(monkeypatch, HUNG)
    age(machine, timedelta(hours=5))

    cli.bai("status", "digits-1")

    assert (record.result(), cli.state(machine)) == (None, "running")


def test_terminated_machines_without_tags_are_found_by_their_launch(
    cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a job whose machine has ended, lost its tags, and said why on its console
    (machine,) = cli.launch()
    record = cli.bring(cli.handmade(written=False), launched=[machine])
    console(monkeypatch, f"{OURS}BAI-END no-python\r\n")
    cli.ec2.terminate_instances(InstanceIds=[machine])
    cli.ec2.delete_tags(
        Resources=[machine],
        Tags=[{"Key": key} for key in ("Name", "bai:job-id", "bai:attempt", "bai:expires")],
    )

    (listed,) = cli.bai("list", "--json").objects
    shown = cli.bai("logs", "--boot", "digits-1")
    cli.bai("status", "digits-1")

    assert machine in listed["machine"]
    assert listed["status"] == "ERROR"
    assert f"== {machine} (terminated)" in shown.stdout
    assert machine in (record.result() or {})["sentence"]


@pytest.mark.parametrize("code", ["", "UnsupportedOperation"])
def test_the_stored_console_output_is_read_if_the_latest_is_unavailable(
    cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    (machine,) = cli.launch()
    console(monkeypatch, OURS)
    if code:
        refuse_consoles(monkeypatch, code, only_latest=True)
    else:
        answered = general.General.get_console_output

        def nothing_newer(self: general.General) -> object:
            monkeypatch.setattr(
                general, "SAMPLE_CONSOLE_OUTPUT", "" if self._get_param("Latest") == "true" else OURS
            )
            return answered(self)

        monkeypatch.setattr(general.General, "get_console_output", nothing_newer)

    assert "boot 1 of at most 3" in fetch_console(boto3.client("ec2", region_name=REGION), machine)
