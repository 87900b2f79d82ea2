"""The examples on EC2: each can be launched as it is."""

from __future__ import annotations

import os
from pathlib import Path

from cli_harness import CliHarness

_EXAMPLES = Path(__file__).parents[3] / "examples"


def test_each_example_is_valid_and_has_a_plan_on_ec2(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    (tmp_path / "config.toml").write_text('region = "eu-central-1"\n')
    own = {"HOME": str(tmp_path), "BAI_CONFIG": str(tmp_path / "config.toml")}
    cli = CliHarness(tmp_path, {**kept, **own})
    files = sorted(map(str, _EXAMPLES.glob("*/*.toml")))
    # Other examples use what these jobs keep.
    made = [cli.bai("run", _EXAMPLES / name / "benchmark.toml") for name in ("prepare", "workshop")]

    checked = cli.bai("validate", "--on", "ec2", *files)
    plans = {file: cli.bai("plan", "--on", "ec2", "--json", file) for file in files}

    assert [each.code for each in made] == [0, 0], made
    assert checked.code == 0, checked.stdout
    assert len(plans) > 12
    for file, planned in plans.items():
        assert planned.code == 0, f"{file}: {planned.stderr}"
        # A file with [matrix] has a plan for each combination.
        jobs = [each.get("plan", each) for each in planned.objects]
        assert len(jobs) == (6 if "sweep" in file else 1)
        for plan in jobs:
            named = "image" not in plan["defaults"]
            assert named or plan["defaults"]["image"] == {"value": "auto", "origin": "default"}
            assert "/aws/service/deeplearning/" in plan["request"]["ImageId"]
