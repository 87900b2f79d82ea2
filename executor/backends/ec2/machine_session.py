"""Opens a shell on a machine of a job on EC2. The shell is a session of AWS Systems Manager, so the machine
needs no open port and no SSH key.

https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager.html
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from executor.backends.terminal import run_in_terminal
from executor.errors import AwsError, UsageError

if TYPE_CHECKING:
    from executor.backends.ec2.instances import Instance
    from executor.backends.ec2.monitor.monitor import JobMonitor
    from executor.backends.ec2.session import AwsSession

POLICY = "AmazonSSMManagedInstanceCore"
_PROGRAMS = {
    "aws": "install the AWS CLI, version 2",
    "session-manager-plugin": "install AWS's Session Manager plugin for the AWS CLI",
}
_MEANINGS: Mapping[str, str] = {
    "TargetNotConnected": f"Systems Manager does not reach the machine: the role needs the policy {POLICY}, the image needs the "
    "amazon-ssm-agent, and the subnet needs a route to Systems Manager; after its start, the agent needs a minute or two",
    "AccessDenied": "your credentials need ssm:StartSession for the machine and for the document SSM-SessionManagerRunShell",
    "InvalidInstanceId": "Systems Manager does not know the machine; check the region",
}
"""Texts in error messages of the AWS CLI → their meaning for the user."""


def open_session(monitor: JobMonitor, *, node: int, on_status: Callable[[str], None]) -> int:
    """Open a shell on a node's machine, and return its exit code. Raises UsageError if the machine is gone or a program is missing,
    AwsError if AWS refuses."""
    machine = _running_machine(monitor, node)
    for program, advice in _PROGRAMS.items():
        if shutil.which(program) is None:
            raise UsageError(
                f"there is no program {program} on PATH; {advice}. docs/ec2.md says what a shell needs"
            )
    on_status(
        f"a session on {machine.id} (node {node}) as the user ssm-user; only root can read the run directory /var/lib/bai/jobs/{monitor.record.job_id}: "
        "run `sudo -i`; `exit` ends the session and does not change the job"
    )
    code, said = run_in_terminal(_command(machine, monitor.aws(monitor.region)), capture_stderr=True)
    for word, meaning in _MEANINGS.items():
        if code != 0 and word in said:
            raise AwsError(f"{machine.id}: {meaning}; docs/ec2.md says what a shell needs")
    return code


def _running_machine(monitor: JobMonitor, node: int) -> Instance:
    """Return a node's machine. Raises BaiError, UsageError if the machine is not running."""
    job_id = monitor.record.job_id
    machines = [each for each in monitor.instances() if each.index == node]
    running = [each for each in machines if each.state == "running"]
    if running:
        if running[-1].job_id != job_id:
            # Any machine with a job's instance profile may write an instance id into the job's record, so the
            # machine itself must have the job's tag.
            raise UsageError(
                f"the record of {job_id} names {running[-1].id} as the machine of node {node}, but the machine lacks the job's tag bai:job-id; "
                f"if the machine is yours: aws ssm start-session --target {running[-1].id}"
            )
        return running[-1]
    if any(each.living for each in machines):
        raise UsageError(f"the machine of node {node} of {job_id} is still starting; try again in a minute")
    raise UsageError(
        f"node {node} of {job_id} has no machine, or the machine is gone; `bai logs {job_id}` and `bai fetch {job_id} DIR` have the node's output, and "
        '[aws.ec2] keep_after = "30m" keeps the machines of the next run'
    )


def _command(machine: Instance, aws: AwsSession) -> Sequence[str]:
    profile = ["--profile", aws.profile] if aws.profile is not None else []
    return ["aws", "ssm", "start-session", "--target", machine.id, "--region", aws.region, *profile]
