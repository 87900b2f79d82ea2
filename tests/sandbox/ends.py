"""How jobs end on machines: what tests of endings wait for and look at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sandbox.fake_aws import Machine
from sandbox.sandbox_cli import SandboxCli

WAITS = """\
echo begun
until [ -e /var/go ]; do sleep 0.1; done
echo over
"""
"""A benchmark that waits for a file."""
RUN = "/var/lib/bai/jobs/job"


def ended(cli: SandboxCli, machine: Machine, *last_words: str) -> dict[str, Any]:
    """Wait for the machine's own end, and return what `bai status` says after it."""
    machine.wait_off()
    instance = cli.aws.instance(machine.instance_id)
    assert instance["State"]["Name"] == "terminated"
    assert instance["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert machine.exit_codes[-1] == 0
    assert re.findall(r"BAI-END ([^\r\n]*)", machine.console()) == [*last_words]
    status = cli.status()
    print(status["sentence"])
    assert not [call for call in cli.aws.calls if call.action == "TerminateInstances"]
    return status


def outcome(status: dict[str, Any]) -> tuple[str, str, int]:
    return status["status"], status["outcome"], status["exit_code"]


def agent(machine: Machine) -> int:
    """Return the agent's process."""
    return int(machine.read("/var/lib/bai/boot/agent.pid"))


def wait_inside(machine: Machine, condition: str) -> None:
    """Wait until a condition, in the shell's words, holds in the machine; where it says something of a job of several, all have to boot."""
    machine.wait_for("agent start 1")
    done = machine.run(["sh", "-c", f"until {condition}; do sleep 0.1; done 2>/dev/null"], seconds=300)
    assert done.returncode == 0, done.stderr


def seconds_on(machines: list[Machine]) -> float:
    """Return the seconds that these machines, all of which are off, are paid for: a minute at least of each."""
    return sum(max(60.0, each.timings["off"]) for each in machines)


def planned_seconds(cli: SandboxCli, file: Path) -> float:
    """Return the bound that `bai plan` states."""
    planned = cli.bai("plan", file, "--on", "ec2", "--json").objects[0]
    return float(planned["cost"]["instance_hours"]) * 3600
