"""`bai shell` for jobs on EC2: the command that it starts, and what is said where that is impossible.

The programs of AWS are stand-ins, found on PATH as the real ones are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ec2_cli import REGION, Ec2Cli

REFUSAL = "An error occurred ({}) when calling the StartSession operation: i-1 is not connected."


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Folder of the stand-ins, alone on PATH with the shell."""
    (folder := tmp_path / "programs").mkdir()
    for name in ("sh", "env"):
        (folder / name).symlink_to(f"/bin/{name}")
    return folder


def write_program(folder: Path, name: str, text: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_bai_shell_opens_a_session_on_the_machine_of_the_node(cli: Ec2Cli, programs: Path) -> None:
    write_program(programs, "aws", 'echo "$*"; read -r word; echo "heard $word"; exit 3')
    write_program(programs, "session-manager-plugin")
    _, second = machines = cli.launch(count=2)
    cli.bring(cli.handmade(nodes=2), launched=machines)

    answer = cli.bai("shell", "digits-1", "--node", "1", stdin="hello\n", env={"PATH": str(programs)})

    assert answer.stdout.splitlines() == [
        f"ssm start-session --target {second} --region {REGION}",
        "heard hello",
    ]
    assert answer.code == 3
    assert f"a session on {second} (node 1) as the user ssm-user" in answer.stderr
    assert "/var/lib/bai/jobs/digits-1" in answer.stderr


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (
            "TargetNotConnected",
            "the role needs the policy AmazonSSMManagedInstanceCore, the image needs the amazon-ssm-agent",
        ),
        ("AccessDeniedException", "your credentials need ssm:StartSession"),
    ],
)
def test_an_error_of_session_manager_is_shown_with_its_remedy(
    cli: Ec2Cli, programs: Path, error: str, meaning: str
) -> None:
    write_program(programs, "aws", f"echo '{REFUSAL.format(error)}' >&2; exit 254")
    write_program(programs, "session-manager-plugin")
    cli.bring(cli.handmade(), launched=cli.launch())

    answer = cli.bai("shell", "digits-1", env={"PATH": str(programs)})

    assert answer.code == 5
    assert REFUSAL.format(error) in answer.stderr
    assert meaning in answer.stderr


@pytest.mark.parametrize(
    ("there", "advice"),
    [
        ((), "there is no program aws on PATH; install the AWS CLI"),
        (
            ("aws",),
            "there is no program session-manager-plugin on PATH; install AWS's Session Manager plugin",
        ),
    ],
)
def test_a_missing_aws_cli_or_plugin_is_named(
    cli: Ec2Cli, programs: Path, there: tuple[str, ...], advice: str
) -> None:
    for name in there:
        write_program(programs, name)
    cli.bring(cli.handmade(), launched=cli.launch())

    answer = cli.bai("shell", "digits-1", env={"PATH": str(programs)})

    assert answer.code == 2
    assert advice in answer.stderr


def test_bai_shell_for_a_terminated_machine_is_refused_with_advice(cli: Ec2Cli, programs: Path) -> None:
    made = cli.handmade()
    made.ends()
    machines = cli.launch()
    cli.bring(made, launched=machines)
    cli.ec2.terminate_instances(InstanceIds=machines)

    answer = cli.bai("shell", "digits-1", env={"PATH": f"{programs}:{os.environ['PATH']}"})

    assert answer.code == 2
    assert "node 0 of digits-1 has no machine, or the machine is gone; `bai logs digits-1`" in answer.stderr
    assert 'keep_after = "30m" keeps the machines of the next run' in answer.stderr


def test_a_machine_without_the_jobs_tag_has_no_session(cli: Ec2Cli, programs: Path) -> None:
    write_program(programs, "aws", "echo opened")
    write_program(programs, "session-manager-plugin")
    (foreign,) = cli.launch(None)
    record = cli.bring(cli.handmade())
    record.store.put(record.node().key("ready.json"), json.dumps({"instance_id": foreign}).encode())

    answer = cli.bai("shell", "digits-1", env={"PATH": str(programs)})

    assert (answer.code, answer.stdout) == (2, "")
    assert (
        f"{foreign} as the machine of node 0, but the machine lacks the job's tag bai:job-id" in answer.stderr
    )
