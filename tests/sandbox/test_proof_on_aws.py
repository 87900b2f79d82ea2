"""`scripts/prove-on-aws` as far as an account whose machines boot here can answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.owned_folders import cache_folder
from sandbox.deep_learning import PLACE, pytorch
from sandbox.fake_aws import FakeAws, MachineShape
from sandbox.fake_aws.iam.identities import INSTANCE, SETUP

SCRIPT = Path(__file__).parents[2] / "scripts" / "prove-on-aws"
STEPS = "digits,rule,ec2,pythons,cancel,panic,closed"


@pytest.fixture
def environment(aws: FakeAws) -> Iterator[dict[str, str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    cache = cache_folder(os.environ)
    yield {
        **kept,
        **aws.environment("administrator"),
        "BAI_S3_ENDPOINT": aws.endpoint,
        "XDG_CACHE_HOME": str(cache.parent),
    }
    shutil.rmtree(cache / "proofs" / f"{aws.account}-{aws.region}", ignore_errors=True)


def test_the_table_of_an_emulated_account(aws: FakeAws, environment: dict[str, str], tmp_path: Path) -> None:
    aws.shape = MachineShape(mounts={PLACE: pytorch()})
    aws.policies.around = replace(aws.policies.around, roles={"bai-prove-instance": "bai-prove-instance"})
    aws.policies.attach(
        INSTANCE,
        aws.policies.documented("instance", BUCKET=f"bai-prove-*-{aws.account}"),
    )

    done = subprocess.run(
        [SCRIPT, "--yes", "--only", STEPS, "--at-once", "3"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
        cwd=tmp_path,
        env=environment,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    [bundle] = tmp_path.glob("prove-on-aws-*.tar.gz")
    evidence = _read(bundle)
    steps: list[dict[str, Any]] = json.loads(evidence["table.json"])["steps"]
    assert {each["step"]: each["answer"] for each in steps} == {
        "setup": "holds",
        "doctor": "holds",
        "digits": "holds",
        "rule": "not answered here",
        "ec2": "not answered here",
        "pythons": "holds",
        "panic": "not answered here",
        "cancel": "holds",
        "closed": "not answered here",
        "removed": "holds",
    }
    assert [each["step"] for each in steps if "it went through" in each["seen"]] == ["rule", "ec2"]
    # What the step "rule" tries is refused to the machine, and nothing else was.
    refused = {(each.identity, each.action) for each in aws.policies.take_refused()}
    assert refused == {(INSTANCE, "s3:PutObject")}
    assert aws.client("cloudformation", SETUP).describe_stacks()["Stacks"] == []
    addresses = [machine.facts.address for machine in aws.machines]
    assert len(addresses) == 5
    for secret in (aws.account, *addresses):
        assert [name for name, text in evidence.items() if secret in text] == []


def _read(bundle: Path) -> dict[str, str]:
    with tarfile.open(bundle) as archive:
        members = {each.name.partition("/")[2]: archive.extractfile(each) for each in archive}
        return {name: content.read().decode() for name, content in members.items() if content is not None}
