"""Submitting a job again under its id reports its status, with the same exit code."""

from __future__ import annotations

import os
from pathlib import Path

from cli_harness import CliHarness
from moto_aws import HELLO, open_moto_aws


def test_submitting_again_after_a_refused_launch_repeats_the_refusal(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(HELLO)
    with open_moto_aws() as moto_aws:
        cli = CliHarness(tmp_path, {**os.environ, **moto_aws.environment()})
        moto_aws.fail("RunInstances", code="VcpuLimitExceeded", status=400, times=1)

        answers = [cli.bai("submit", "b.toml", "--job-id", "again-1") for _ in range(2)]

        assert moto_aws.instances() == []

    refusals = [each.stderr.splitlines()[-1] for each in answers]
    assert [each.code for each in answers] == [5, 5]
    assert refusals[0] == refusals[1]
    assert "vCPU quota" in refusals[0]
