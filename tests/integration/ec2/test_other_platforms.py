"""`bai` on a Mac sends jobs to EC2 and follows them; on Windows it says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import CliHarness
from ec2_cli import REGION as MOTO_REGION
from ec2_cli import Ec2Cli, open_ec2_cli
from mac_programs import mac
from moto_aws import HELLO, MotoAws, open_moto_aws
from s3_gate import Gate

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def moto_aws() -> Iterator[MotoAws]:
    with open_moto_aws() as aws:
        yield aws


@pytest.fixture
def cli(tmp_path: Path, gate: Gate, moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Cli]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", MOTO_REGION)
    with open_ec2_cli(tmp_path, gate, moto, monkeypatch) as found:
        yield found


def test_a_mac_can_plan_submit_show_and_cancel(moto_aws: MotoAws, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(HELLO)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    cli = CliHarness(tmp_path, {**kept, **moto_aws.environment(), **mac(tmp_path / "mac")})

    def bai(*arguments: str) -> str:
        done = cli.bai(*arguments)
        assert done.code == 0, done.stderr
        return done.stdout

    assert "RunInstances" in bai("plan", "b.toml")
    assert bai("submit", "b.toml", "--job-id", "mac-1") == "mac-1\n"
    assert len(moto_aws.instances()) == 1
    assert "mac-1" in bai("list")
    assert "mac-1" in bai("status", "mac-1")
    bai("logs", "mac-1")
    bai("cancel", "mac-1")


def test_a_mac_follows_a_job(cli: Ec2Cli, tmp_path: Path) -> None:
    job = cli.handmade()
    job.prints("hello\n")
    job.ends()
    cli.bring(job, launched=cli.launch())
    environment = mac(tmp_path / "mac")

    assert cli.bai("logs", "digits-1", "--follow", env=environment).stdout == "hello\n"
    assert cli.bai("status", "digits-1", "--wait", env=environment).code == 0


def test_on_windows_bai_exits_with_one_sentence() -> None:
    program = "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; import executor.cli"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "bai: Windows is not supported; use the Windows Subsystem for Linux (WSL 2), a Mac or a Linux machine\n"
    )
