"""`scripts/prove-on-aws` in an emulated account in which no machine boots."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from moto_aws import REGION, MotoAws, open_moto_aws
from sandbox.fake_aws.iam.identities import SETUP

from executor.owned_folders import cache_folder

SCRIPT = Path(__file__).parents[3] / "scripts" / "prove-on-aws"
SECONDS = 240


@dataclass(frozen=True)
class Prover:
    """An administrator who proves."""

    aws: MotoAws
    folder: Path

    def start(self, *options: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
        environment = {
            **kept,
            **self.aws.environment("administrator"),
            "AWS_REGION": REGION,
            "XDG_CACHE_HOME": str(cache_folder(os.environ).parent),
        }
        return subprocess.Popen(
            [SCRIPT, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=environment,
        )

    def prove(self, *options: str) -> tuple[int, str, str]:
        with self.start(*options) as started:
            try:
                out, err = started.communicate(timeout=SECONDS)
            finally:
                started.kill()
        return started.returncode, out, err

    def left(self) -> list[str]:
        """Return what is in the account."""
        iam = self.aws.client("iam", SETUP)
        stacks = self.aws.client("cloudformation", SETUP).describe_stacks()["Stacks"]
        return [
            *(each["StackName"] for each in stacks if each["StackStatus"] != "DELETE_COMPLETE"),
            *(each["PolicyName"] for each in iam.list_policies(Scope="Local")["Policies"]),
            *(each["InstanceId"] for each in self.aws.instances()),
            *(
                each["Name"]
                for each in self.aws.client("s3", SETUP).list_buckets()["Buckets"]
                if each["Name"] != self.aws.bucket
            ),
        ]

    def bundle(self) -> dict[str, str]:
        [file] = self.folder.glob("prove-on-aws-*.tar.gz")
        with tarfile.open(file) as archive:
            members = {each.name.partition("/")[2]: archive.extractfile(each) for each in archive}
            return {name: content.read().decode() for name, content in members.items() if content is not None}

    def wait_for(self, name: str) -> None:
        """Wait until there is something of this name in the account."""
        deadline = monotonic() + SECONDS
        while name not in self.left():
            assert monotonic() < deadline, f"no {name}: {self.left()}"
            sleep(0.1)


@pytest.fixture
def prover(tmp_path: Path) -> Iterator[Prover]:
    with open_moto_aws() as aws:
        yield Prover(aws, tmp_path)
        shutil.rmtree(cache_folder(os.environ) / "proofs" / f"{aws.account}-{REGION}", ignore_errors=True)


def answers(bundle: dict[str, str]) -> dict[str, str]:
    steps: list[dict[str, Any]] = json.loads(bundle["table.json"])["steps"]
    return {each["step"]: each["answer"] for each in steps}


def test_prove_on_aws_sets_up_an_account_and_leaves_it_empty(prover: Prover) -> None:
    code, out, err = prover.prove("--yes", "--only", "watcher,capacity,spot")

    assert code == 0, out + err
    bundle = prover.bundle()
    assert answers(bundle) == {
        "setup": "holds",
        "doctor": "holds",
        "spot": "not answered here",
        "capacity": "not answered here",
        "watcher": "not answered here",
        "removed": "holds",
    }
    assert bundle["table.txt"] in out
    assert prover.left() == []
    assert any(name.startswith("setup/") for name in bundle)
    assert not [name for name, text in bundle.items() if prover.aws.account in name + text]


def test_prove_on_aws_lists_every_step_even_if_setup_fails(prover: Prover) -> None:
    prover.aws.fail("CreateChangeSet", code="AccessDenied", status=403)
    _, listed, _ = prover.prove("--list", "--gpu")

    code, out, err = prover.prove("--yes", "--gpu")

    assert code == 1, out + err
    found = answers(prover.bundle())
    assert found.pop("removed") == "holds"
    assert found.pop("setup") == "DOES NOT HOLD"
    assert len(found) >= 17
    assert set(found.values()) == {"not answered here"}
    named = [line.split()[0] for line in listed.splitlines() if re.match(r"[a-z]", line) and " USD  " in line]
    assert [*found] == [each for each in named if each not in ("setup", "removed")]


def test_prove_on_aws_creates_nothing_without_confirmation(prover: Prover) -> None:
    code, out, err = prover.prove()

    assert code == 2
    assert "USD if each step takes its longest" in out
    assert "--yes does not ask" in err
    assert prover.aws.calls("CreateChangeSet") == []


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_proof_removes_everything(prover: Prover, sign: signal.Signals) -> None:
    with prover.start("--yes", "--only", "cancel") as started:
        machine = _first_machine(prover)
        started.send_signal(sign)
        out, err = started.communicate(timeout=SECONDS)

    assert started.returncode == 128 + sign, out + err
    assert machine
    assert prover.left() == []
    assert answers(prover.bundle())["cancel"] == "not answered here"


@pytest.mark.parametrize("options", [("--clean",), ("--only", "spot")])
def test_prove_on_aws_removes_resources_of_a_killed_earlier_start(
    prover: Prover, options: tuple[str, ...]
) -> None:
    with prover.start("--yes", "--only", "cancel") as first:
        _first_machine(prover)
        first.kill()
    assert prover.left() != []

    code, out, err = prover.prove("--yes", *options)

    assert code == 0, err
    assert "left by an earlier start: stack bai-prove-account" in out
    assert "left by an earlier start: machine i-" in out
    assert prover.left() == []


def test_machines_of_other_jobs_are_not_touched(prover: Prover) -> None:
    ec2 = prover.aws.client("ec2", SETUP)
    tags = [{"Key": "bai:job-id", "Value": "theirs"}, {"Key": "bai:client-id", "Value": "somebody"}]
    ec2.run_instances(
        ImageId="ami-0deb1200000000001",
        InstanceType="t3.small",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    [theirs] = prover.left()

    code, _, err = prover.prove("--yes", "--only", "capacity")

    assert code == 2
    assert f"machines of other jobs live in {REGION}" in err
    assert prover.left() == [theirs]


def _first_machine(prover: Prover) -> str:
    deadline = monotonic() + SECONDS
    while not (found := prover.aws.instances()):
        assert monotonic() < deadline, prover.left()
        sleep(0.1)
    return str(found[0]["InstanceId"])
