"""The workshop's script, as it is: from an account with nothing of `bai` in it to trainings on two and four machines, and back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from light_bundles import light_cache

from sandbox.fake_aws import FakeAws
from sandbox.fake_aws.iam.identities import INSTANCE, SETUP
from sandbox.sandbox_cli import PYTHONS

SCRIPT = Path(__file__).parents[2] / "examples" / "workshop" / "workshop.sh"


def test_the_workshop_trains_on_two_and_four_machines_and_leaves_nothing(
    aws: FakeAws, tmp_path: Path
) -> None:
    config = tmp_path / ".config" / "bai" / "workshop.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f's3_endpoint = "{aws.endpoint}"\n')
    environment = {
        **aws.environment("administrator"),
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": light_cache(*PYTHONS),
        # Another `bai` of the same person, which stays as it is.
        "BAI_BUCKET": aws.bucket,
    }
    # Machines have the rights that the set-up gives their role, as the tests of `bai setup` compare them.
    made = f"workshop-{aws.account}-{aws.region}"
    rights = {"BUCKET": made, "ROLE": "workshop-instance"}
    aws.policies.attach(INSTANCE, aws.policies.documented("instance", **rights))

    done = subprocess.run(
        ["sh", SCRIPT],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    # One machine prepares, two train, one tests, four train.
    assert len(aws.machines) == 8
    assert {aws.state(each.instance_id) for each in aws.machines} == {"terminated"}
    assert [each.exit_codes for each in aws.machines] == [[0]] * 8
    out = done.stdout
    assert "wrote 1438 images to prepared/train.csv" in out
    assert re.search(r"^\[0\] epoch 10, node 0 of 2: loss .* on 719 images$", out, re.MULTILINE)
    assert re.search(r"^\[1\] epoch 10, node 1 of 2: loss .* on 719 images$", out, re.MULTILINE)
    [accuracy] = re.findall(r"^accuracy=(\S+) on 359 images", out, re.MULTILINE)
    assert float(accuracy) > 0.85
    # The training is the same on two and four machines.
    assert re.search(r"^loss .* [+-]0\.00 % .*cannot tell$", out, re.MULTILINE), out

    assert aws.client("cloudformation", SETUP).describe_stacks()["Stacks"] == []
    assert made not in [each["Name"] for each in aws.client("s3", SETUP).list_buckets()["Buckets"]]
    assert config.read_text() == f's3_endpoint = "{aws.endpoint}"\nregion = "{aws.region}"\n'
