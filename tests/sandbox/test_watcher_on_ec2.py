"""The watcher's own archive, called as Lambda calls it, with jobs on real machines and nobody else who looks."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import watcher_calls
from stand_in_training import TRAINS

from sandbox.ends import RUN, planned_seconds, seconds_on, wait_inside
from sandbox.fake_aws import Machine
from sandbox.fake_aws.fake_aws import PROFILE, REGION
from sandbox.sandbox_cli import SandboxCli
from sandbox.torchrun_nodes import described, wait_off

ELASTIC = """
[elastic]
pause = "1s"
replacements = 1
[checkpoint]
path = "checkpoints"
every = "5s"
"""


class WatcherOfAccount:
    """The function of the account, with the rights of its stack."""

    def __init__(self, cli: SandboxCli) -> None:
        self._cli, self._code = cli, watcher_calls.unpacked()
        subnets = list(cli.aws.subnets.values())
        watcher_calls.grant(cli.aws.policies, PROFILE, subnets=subnets, types=["t3.*"])
        kept = {k: v for k, v in cli.aws.environment("watcher").items() if k.startswith("AWS_")}
        self._environment = {
            **kept,
            "BAI_BUCKET": cli.aws.bucket,
            "BAI_CONFIG": "/dev/null",
            "BAI_WATCHER_PROFILE": PROFILE,
            "BAI_WATCHER_GROUPS": "sg-1",
            "BAI_WATCHER_SUBNETS": ",".join(subnets),
            "BAI_WATCHER_OWNERS": "amazon",
            "BAI_WATCHER_TYPES": "t3.*",
            "BAI_WATCHER_USD_A_DAY": "50",
        }

    def call(self, event: Any) -> watcher_calls.WatcherCall:
        return watcher_calls.call(self._code, event, self._environment)


def test_a_machine_that_loses_its_power_is_replaced_by_the_watcher_alone(
    cli: SandboxCli,
) -> None:
    watcher = WatcherOfAccount(cli)
    limits = 'max_runtime = "30m"\ngrace = "5s"\ndrain = "5s"\npeer_silence = "20s"'
    file = described(cli, "exec python3 train.py /var/go 0.05", nodes="2:3", more=ELASTIC, limits=limits)
    (cli.folder / "scripts" / "train.py").write_text(TRAINS)
    follower = cli.start("run", file, "--on", "ec2", "--job-id", "job", stdout=subprocess.DEVNULL)
    first, lost, third = _machines(cli, 3)
    wait_inside(lost, f"grep -q '\"run\"' {RUN}/events.jsonl")
    wait_inside(first, f"grep -q '^step=50 ' {RUN}/output.log")
    follower.kill()
    follower.wait(timeout=60)

    lost.cut_power()
    lost.wait_off()
    event = watcher_calls.state_change(lost.instance_id, "terminated", region=REGION, account=cli.aws.account)
    called = watcher.call(event)
    fourth = _machines(cli, 4)[3]
    wait_inside(fourth, f"grep -q 'generation=2 node=3 rank=2 of 3 goes on' {RUN}/output.log")

    for machine in (first, third, fourth):
        machine.write("/var/go", "")
    wait_off(cli, [first, third, fourth])
    result = cli.status()["result"]
    assert [each["members"] for each in result["generations"]] == [[0, 1, 2], [0, 2], [0, 2, 3]]
    assert result["replaced"] == [1]
    launching = [call.identity for call in cli.aws.calls if call.action == "RunInstances"]
    assert launching == ["user", "watcher"]
    assert f"{fourth.instance_id} was launched for the job" in called.log
    assert seconds_on(cli.aws.machines) <= planned_seconds(cli, file)


def _machines(cli: SandboxCli, count: int) -> list[Machine]:
    """Wait until so many machines have been launched, and return them."""
    deadline = time.monotonic() + 600
    while len(cli.aws.machines) < count:
        assert time.monotonic() < deadline, f"{len(cli.aws.machines)} of {count} machines were launched"
        time.sleep(0.5)
    return cli.aws.machines
