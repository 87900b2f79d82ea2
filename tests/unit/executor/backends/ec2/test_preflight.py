"""`bai validate --on ec2` names what prevents a launch before it asks AWS."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from executor.backends.ec2.launch.draft import preflight
from executor.configuration.config import Settings
from executor.descriptor import Finding, load
from executor.planning.request import JobRequest

GOOD = """
spec_version = "0.1.0"
[info]
description = "d"
execution_engine = "aws.ec2"
[hardware]
instance_type = "t3.small"
[aws.ec2]
image = "ami-0123456789abcdef0"
[ml]
benchmark_code = "true"
"""


def findings(tmp_path: Path, text: str) -> list[Finding]:
    file = tmp_path / "benchmark.toml"
    file.write_text(text)
    descriptor, mistakes = load(file)
    assert descriptor is not None, mistakes
    now = datetime(2030, 1, 1, tzinfo=timezone.utc)
    return preflight(
        JobRequest(file=file, on="ec2"), descriptor, Settings(), cache=tmp_path / "cache", now=now
    )


def test_a_valid_launch_has_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path, GOOD) == []


def test_all_reasons_that_prevent_a_launch_are_named_at_once(tmp_path: Path) -> None:
    text = GOOD.replace('"t3.small"', '"t3.small"\nstrategy = "inference"')
    text += '[server]\nhardware = {instance_type = "local"}\nenv = {start_command = "serve", ports = [80]}\n'
    text += "[aws.ec2.run_instances.CpuOptions]\nCoreCont = 1\n"

    strategy, cores = sorted(each.problem for each in findings(tmp_path, text))[::-1]

    assert 'server.hardware.instance_type: "local" is not an EC2 instance type' in strategy
    assert 'did you mean "CoreCount"?' in cores


def test_init_commands_that_do_not_fit_into_user_data_are_named(tmp_path: Path) -> None:
    words = " ".join(f"{number * 7919 % 1_000_003:x}" for number in range(20_000))
    text = GOOD.replace("[ml]", f'init_commands = ["echo {words}"]\n[ml]')

    (finding,) = findings(tmp_path, text)

    assert "bytes are left" in finding.problem
    assert "init_commands" in finding.problem


@pytest.mark.parametrize(
    ("kind", "has_none"), [("t3.small", True), ("g4ad.xlarge", True), ("g5.xlarge", False)]
)
def test_a_process_for_each_gpu_is_refused_by_the_types_name(
    tmp_path: Path, kind: str, has_none: bool
) -> None:
    gang = f'"{kind}"\nstrategy = "torchrun"\ndistributed = {{processes_per_instance = "gpus"}}'

    found = findings(tmp_path, GOOD.replace('"t3.small"', gang))

    assert [each.problem.partition(":")[0] for each in found] == [
        "hardware.distributed.processes_per_instance"
    ] * has_none
