"""What users submit, from the first stage of a real cloud-init to the power-off."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import dataclass
from datetime import timedelta
from gzip import decompress as gunzip
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from container.account import BUCKET, REGION, STORE, ContainerAccount
from container.instance import ContainerInstance
from sandbox.fake_aws.calls import Call

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity, Output
from bai_agent.job.descriptor.limit_tables import End, Power
from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor_file import job_table
from cloud_init.user_data import Boot, Bundle, Pointer, user_data
from executor.backends.ec2.bundle.bundle import build
from executor.backends.ec2.console import read_console
from executor.owned_folders import cache_folder

TRAINING = """\
#!/bin/sh
for step in 1 2 3; do echo "step $step loss 0.$step"; done
echo "weights" >model.bin
"""


@pytest.fixture(scope="session")
def bundle(account: ContainerAccount) -> Bundle:
    """The one that `bai` builds, from wheels that the image has."""
    built = build(platform.machine(), cache=cache_folder(os.environ), download=False)
    return account.put_bundle(built.path.read_bytes())


def descriptor(account: ContainerAccount, job_id: str, script: str) -> str:
    job = Job(
        job=Identity(id=job_id, name=job_id),
        benchmark=Benchmark(script=script),
        metrics=(Metric(name="loss", pattern=r"step (?P<step>\d+) loss (?P<value>\S+)", required=True),),
        output=Output(artifacts=("*.bin",)),
        store=Store(url=STORE, region=REGION, endpoint=account.endpoint),
        end=End(power=Power.OFF),
    )
    return tomli_w.dumps(job_table(job))


def boot(account: ContainerAccount, bundle: Bundle, job_id: str, **given: Any) -> Boot:
    """Return what the instance of a job is told."""
    usual: dict[str, Any] = {
        "job_id": job_id,
        "bundle": bundle,
        "region": REGION,
        "store_url": STORE,
        "s3_endpoint": account.endpoint,
        "deadman": timedelta(hours=1),
    }
    return Boot(**(usual | given))


def steps(instance: ContainerInstance) -> list[str]:
    """Return what the console tells of the boot, and its last word."""
    said = read_console(instance.console)
    return [each.text for each in said.steps] + [f"{said.end} {said.detail}".strip()] * (said.end is not None)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What is left when a job has run."""

    instance: ContainerInstance
    told: bytes
    """User data."""
    asked: str
    """How its power-off was asked for."""
    calls: list[Call]
    files: dict[Path, bytes]
    """What was written on the machine, by its own programs and by ours."""


@pytest.fixture(scope="module")
def trained(account: ContainerAccount, bundle: Bundle) -> Trained:
    instance = ContainerInstance(account)
    told = user_data(boot(account, bundle, "trains", job_toml=descriptor(account, "trains", TRAINING)))
    try:
        instance.boot(told)
        asked = instance.wait_off()
    finally:
        instance.take_power()
    places = [path for root in ("/var/lib/bai", "/var/log", "/tmp") for path in Path(root).rglob("*")]
    files = {path: path.read_bytes() for path in places if path.is_file()}
    return Trained(instance=instance, told=told, calls=account.calls, files=files, asked=asked)


def test_the_machine_runs_every_boot_step_of_a_job_and_powers_off(trained: Trained, bundle: Bundle) -> None:
    assert steps(trained.instance) == [
        "boot 1 of at most 3",
        "guardian",
        "python python3.11",
        f"instance {trained.instance.instance_id} rank 0",
        f"bundle {bundle.sha256}",
        "job trains",
        "agent start 1",
        "agent ended with 0",
        "done 0",
    ]
    assert trained.asked == "shutdown -h now"


def test_result_output_metrics_and_artifacts_are_in_the_store(
    account: ContainerAccount, trained: Trained
) -> None:
    record = account.record("trains")
    result = record.result()
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("succeeded", 0)
    assert record.node().read("log", 0) == b"step 1 loss 0.1\nstep 2 loss 0.2\nstep 3 loss 0.3\n"
    metrics = [json.loads(line) for line in record.node().read("metrics", 0).splitlines()]
    assert [(m["name"], m["step"], m["value"]) for m in metrics if m["src"] == "log"] == [
        ("loss", 1, 0.1),
        ("loss", 2, 0.2),
        ("loss", 3, 0.3),
    ]
    artifact = account.s3.get_object(Bucket=BUCKET, Key="jobs/trains/artifacts/model.bin")
    assert artifact["Body"].read() == b"weights\n"


def test_the_machine_calls_only_s3_and_only_with_its_own_role(trained: Trained) -> None:
    # The guardian asks S3 for its time as nobody: it reads nothing by that.
    named = [call for call in trained.calls if (call.action, call.identity) != ("HeadBucket", "anonymous")]
    assert {(call.service, call.identity, call.instance_id) for call in named} == {
        ("s3", "instance", trained.instance.instance_id)
    }


def test_every_metadata_request_carries_a_token(trained: Trained) -> None:
    answers = [(method, path, status) for _, method, path, status in trained.instance.metadata_requests]
    assert [method for method, _, status in answers if status == 200].count("PUT") > 0
    assert any(path.endswith("/user-data") for _, path, _ in answers)
    assert not [path for _, path, status in answers if status == 401]


def test_no_credential_is_left_behind(trained: Trained) -> None:
    token = trained.instance.credentials.token
    assert token
    secrets = (trained.instance.credentials.secret_key.encode(), token.encode())
    console, log = Path("/dev/console"), Path("/var/log/bai-guardian.log")
    places = {
        **trained.files,
        console: trained.instance.console.encode(),
        Path("user data"): gunzip(trained.told),
    }
    assert b"BAI-END" in places[console]
    assert b"BAI-END" in places[log]
    assert [
        str(place) for place, content in places.items() if any(secret in content for secret in secrets)
    ] == []


def test_a_machine_whose_benchmark_failed_powers_off(
    account: ContainerAccount, instance: ContainerInstance, bundle: Bundle
) -> None:
    job = descriptor(account, "fails", "#!/bin/sh\necho step 1 loss 1\nexit 7\n")
    instance.boot(user_data(boot(account, bundle, "fails", job_toml=job)))

    assert instance.wait_off() == "shutdown -h now"

    result = account.record("fails").result()
    assert result is not None
    assert (result["outcome"], result["benchmark"]["code"]) == ("failed", 7)
    assert steps(instance)[-1] == "done 1"


def test_a_descriptor_too_large_for_user_data_is_read_from_the_store(
    account: ContainerAccount, instance: ContainerInstance, bundle: Bundle
) -> None:
    job = descriptor(account, "large", TRAINING).encode()
    account.s3.put_object(Bucket=BUCKET, Key="jobs/large/job.toml", Body=job)
    pointer = Pointer(url=f"{STORE}/large/job.toml", sha256=hashlib.sha256(job).hexdigest())
    instance.boot(user_data(boot(account, bundle, "large", job_pointer=pointer)))

    instance.wait_off()

    assert Path("/var/lib/bai/job.toml").read_bytes() == job
    assert steps(instance)[-1] == "done 0"


def test_a_broken_bundle_ends_the_machine(account: ContainerAccount, instance: ContainerInstance) -> None:
    broken = account.put_bundle(b"no archive")
    job = descriptor(account, "never-starts", TRAINING)
    instance.boot(user_data(boot(account, broken, "never-starts", job_toml=job)))

    assert instance.wait_off() == "shutdown -h now"

    assert steps(instance)[-1] == "fetch-corrupt"
    assert account.record("never-starts").result() is None


def test_a_machine_whose_agent_never_ends_powers_off_at_the_deadline(
    account: ContainerAccount, instance: ContainerInstance, bundle: Bundle
) -> None:
    job = descriptor(account, "for-ever", "#!/bin/sh\necho step 1 loss 1\nexec sleep 3600\n")
    deadman = timedelta(seconds=12)
    instance.boot(user_data(boot(account, bundle, "for-ever", job_toml=job, deadman=deadman)))

    assert instance.wait_off() == "shutdown -h now"

    assert steps(instance)[-2:] == ["agent start 1", "deadline"]
    assert account.record("for-ever").result() is None


def test_failing_init_commands_end_the_machine_before_the_job(
    account: ContainerAccount, instance: ContainerInstance, bundle: Bundle
) -> None:
    job = descriptor(account, "prepared", TRAINING)
    commands = ("echo ready >/var/lib/prepared", "test -s /var/lib/prepared && exit 3")
    instance.boot(user_data(boot(account, bundle, "prepared", job_toml=job, init_commands=commands)))

    assert instance.wait_off() == "shutdown -h now"

    assert steps(instance)[-1] == "init-failed 1"
    assert "agent start 1" not in steps(instance)
