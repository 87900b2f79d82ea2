"""`scripts/prove-on-aws` as far as an account whose machines boot here can answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.s3.models import s3_backends

from executor.owned_folders import cache_folder
from sandbox.deep_learning import PLACE, pytorch
from sandbox.fake_aws import FakeAws, MachineShape
from sandbox.fake_aws.iam.identities import INSTANCE, SETUP
from sandbox.open_mpi import FOUR, open_mpi
from sandbox.open_mpi import PLACE as OPEN_MPI

SCRIPT = Path(__file__).parents[2] / "scripts" / "prove-on-aws"
OLD = timedelta(minutes=6)


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


def test_prove_on_aws_reports_the_expected_results_in_an_emulated_account(
    aws: FakeAws, environment: dict[str, str], tmp_path: Path
) -> None:
    aws.shape = MachineShape(mounts={PLACE: pytorch(), OPEN_MPI: open_mpi(FOUR)})
    aws.policies.around = replace(aws.policies.around, roles={"bai-prove-instance": "bai-prove-instance"})
    aws.policies.attach(
        INSTANCE,
        aws.policies.documented("instance", BUCKET=f"bai-prove-*-{aws.account}"),
    )

    with _time_goes_on(aws):
        done = subprocess.run(
            [SCRIPT, "--yes", "--gpu", "--at-once", "3"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
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
        "torch": "not answered here",
        "mpi": "holds",
        "rule": "not answered here",
        "ec2": "not answered here",
        "no-init": "not answered here",
        "pythons": "holds",
        "panic": "not answered here",
        "hangs": "holds",
        "nobody": "holds",
        "spot": "not answered here",
        "capacity": "not answered here",
        "cancel": "holds",
        "closed": "not answered here",
        "replaced": "not answered here",
        "gpu": "not answered here",
        "watcher": "not answered here",
        "removed": "holds",
    }
    # Each of those that are not answered says why.
    assert all(each["seen"] for each in steps)
    assert [each["step"] for each in steps if "it went through" in each["seen"]] == ["rule", "ec2"]
    # What the step "rule" tries is refused to the machine, and nothing else was.
    refused = {(each.identity, each.action) for each in aws.policies.take_refused()}
    assert refused == {(INSTANCE, "s3:PutObject")}
    assert aws.client("cloudformation", SETUP).describe_stacks()["Stacks"] == []
    addresses = [machine.facts.address for machine in aws.machines]
    assert len(addresses) == 9
    for secret in (aws.account, *addresses):
        assert [name for name, text in evidence.items() if secret in text] == []


@contextmanager
def _time_goes_on(aws: FakeAws) -> Iterator[None]:
    """Let the objects of the jobs that hang after their end be old as soon as they have ended: EC2 and S3 have no faster clock."""
    is_over = threading.Event()

    def run() -> None:
        waiting = {"hangs", "nobody"}
        while waiting and not is_over.wait(1):
            for bucket in list(s3_backends[aws.account]["aws"].buckets.values()):
                for step in list(waiting):
                    job = f"jobs/prove-{step}-"
                    keys = [each for each in list(bucket.keys.values()) if each.name.startswith(job)]
                    if any(each.name.count("/") == 2 and each.name.endswith("/result.json") for each in keys):
                        for each in keys:
                            each.last_modified -= OLD
                        waiting.remove(step)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _read(bundle: Path) -> dict[str, str]:
    with tarfile.open(bundle) as archive:
        members = {each.name.partition("/")[2]: archive.extractfile(each) for each in archive}
        return {name: content.read().decode() for name, content in members.items() if content is not None}
