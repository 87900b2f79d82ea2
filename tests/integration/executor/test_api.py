"""`from executor import …`: what a notebook does, in this very process."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli_harness import CliHarness
from handmade_job import HandmadeJob
from local_cli import LocalCli, local_cli
from moto_aws import open_moto_aws
from typing_extensions import assert_type

from bai_agent.errors import BaiError
from bai_agent.job.attempt import AttemptRecord
from executor import metrics, plan, scale, status, submit, wait
from executor.errors import StillGoesOnError
from executor.records.job_status import JobStatus, NodeStatus

_ON_EC2 = """
spec_version = "0.1.0"
[info]
description = "d"
[hardware]
instance_type = "t3.small"
[aws.ec2]
image = "ami-0deb1200000000001"
[ml]
benchmark_code = "true"
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCli:
    cli = local_cli(tmp_path)
    monkeypatch.setenv("BAI_STORE", str(cli.store))
    return cli


@pytest.fixture(autouse=True)
def _nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> Any:
    yield
    assert capfd.readouterr() == ("", "")


def test_plan_of_the_api_equals_that_of_the_command(cli: LocalCli) -> None:
    file = cli.descriptor()

    found = plan(file, on="local", arguments=["--much"], job_id="p-1")

    assert_type(found, dict[str, Any])
    shown = cli.bai("plan", file, "--json", "--job-id", "p-1", "--", "--much").stdout
    assert json.loads(json.dumps(found, default=str)) == json.loads(shown)
    assert not cli.store.exists()


def test_submit_status_and_wait_follow_a_job_to_its_end(cli: LocalCli) -> None:
    job_id = submit(cli.descriptor(), on="local", arguments=[str(cli.go_file)])
    assert_type(job_id, str)
    cli.await_output(job_id, "loss=0.5")

    now = status(job_id)
    assert_type(now, JobStatus)
    assert (now.job_id, now.status, now.agent_alive) == (job_id, "RUNNING", True)
    with pytest.raises(StillGoesOnError, match=f"{job_id} has not ended within 0 s"):
        wait(job_id, timeout_s=0)
    cli.go_file.touch()
    ended = wait("last", timeout_s=60)

    assert (ended.job_id, ended.status, ended.outcome) == (job_id, "SUCCEEDED", "succeeded")
    assert [each["value"] for each in metrics(job_id) if each["name"] == "loss"] == [0.5, 0.25, 0.125]


def test_the_status_of_a_multi_node_job_lists_each_node(
    cli: LocalCli, capfd: pytest.CaptureFixture[str]
) -> None:
    job = HandmadeJob(cli.store, nodes=2)
    job.on(1).phases("prepare", "pull", until="join")

    found = status("digits-1")

    assert_type(found.nodes, tuple[NodeStatus, ...])
    assert [(each.rank, each.phase, each.outcome) for each in found.nodes] == [
        (0, None, None),
        (1, "join", None),
    ]
    assert cli.bai("status", "digits-1", "--json").objects[0]["nodes"] == found.as_table()["nodes"]
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    exec(page.split("```python\n")[2].partition("```")[0], {"job_id": "digits-1"})
    assert capfd.readouterr().out == "0 None None None\n1 join None None\n"


def test_an_elastic_job_is_scaled_within_its_range(cli: LocalCli) -> None:
    job = HandmadeJob(cli.store, nodes=4, min_nodes=2)

    with pytest.raises(BaiError, match="5 nodes: digits-1 runs on 2 to 4 nodes"):
        scale("digits-1", 5)

    assert AttemptRecord(job.record).scale_requests() == {}


def test_the_status_of_a_single_node_job_has_no_list_of_nodes(cli: LocalCli) -> None:
    HandmadeJob(cli.store).ends()

    found = status("digits-1")

    assert found.nodes == ()
    assert "nodes" not in found.as_table()


def test_submitting_the_same_id_from_several_threads_starts_one_job(cli: LocalCli) -> None:
    cli.go_file.touch()
    heard: list[str] = []
    for _ in range(2):
        with ThreadPoolExecutor(1) as other:
            started = other.submit(
                submit, cli.descriptor(), job_id="one", arguments=[str(cli.go_file)], on_progress=heard.append
            )
            assert started.result() == "one"
            assert other.submit(wait, "one", timeout_s=60).result().status == "SUCCEEDED"

    assert heard == ["the job is one"] * 2
    assert cli.output("one").count("pid ") == 1
    with pytest.raises(BaiError, match="runs something else"):
        submit(cli.descriptor(), job_id="one", arguments=["another"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda cli: status("nobody"), 'no job "nobody"|there are no jobs'),
        (lambda cli: plan(cli.folder / "missing.toml"), r"missing\.toml"),
        (lambda cli: submit(cli.descriptor(), job_id="a/b"), "job-id"),
        (lambda cli: submit(cli.descriptor(), on="moon"), '"moon" is not a place'),
        (lambda cli: submit(cli.descriptor(), arguments="--one"), "write a list"),
        (lambda cli: submit(cli.descriptor(), store="/proc/version/jobs"), "/proc/version"),
        (lambda cli: scale(submit(cli.descriptor(), arguments=[str(cli.go_file)]), 2), "is not elastic"),
        (lambda cli: status("x", store="s3://bucket/jobs", profile="unknown"), 'no profile "unknown"'),
    ],
)
def test_every_failure_of_the_api_raises_a_subclass_of_bai_error(
    cli: LocalCli, asked: Callable[[LocalCli], object], said: str
) -> None:
    with pytest.raises(BaiError, match=said):
        asked(cli)


def test_the_api_plans_and_launches_a_job_on_ec2_once(cli: LocalCli, monkeypatch: pytest.MonkeyPatch) -> None:
    file = cli.folder / "b.toml"
    file.write_text(_ON_EC2)
    with open_moto_aws() as moto_aws:
        for name in [each for each in os.environ if each.startswith(("AWS_", "BAI_"))]:
            monkeypatch.delenv(name)
        for name, value in moto_aws.environment().items():
            monkeypatch.setenv(name, value)

        found = plan(file, on="ec2", job_id="api-1")
        answer = CliHarness(cli.folder, os.environ).bai(
            *("plan", file, "--on", "ec2", "--job-id", "api-1", "--json")
        )
        assert found.keys() == json.loads(answer.stdout).keys()
        assert found["job"] == json.loads(answer.stdout)["job"]
        assert found["request"]["InstanceType"] == "t3.small"
        assert moto_aws.instances() == []

        heard: list[str] = []
        assert [submit(file, on="ec2", job_id="api-1", on_progress=heard.append) for _ in range(2)] == [
            "api-1"
        ] * 2
        assert len(moto_aws.instances()) == 1
        assert "the job is api-1" in heard
        assert any(each.startswith("uploading ") for each in heard)
        now = status("api-1")
        assert (now.where, now.status) == ("ec2", "PENDING")


def test_the_api_never_asks_for_an_mfa_code_at_the_terminal(tmp_path: Path) -> None:
    """At a terminal, where AWS's library would ask."""
    (tmp_path / "config").write_text(
        "[profile careful]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = base\n"
        "mfa_serial = arn:aws:iam::123456789012:mfa/me\nregion = us-east-1\n"
        "[profile base]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    )
    program = (
        "from executor import status\n"
        "try:\n    status('x', store='s3://bucket/jobs', profile='careful')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    terminal, far_end = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os; os.setsid(); os.close(os.open(os.ttyname(0), os.O_RDWR))\n{program}",
        ],
        stdin=far_end,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**kept, "AWS_CONFIG_FILE": str(tmp_path / "config"), "BAI_CONFIG": str(tmp_path / "none")},
    )
    os.close(far_end)
    os.close(terminal)

    assert done.stdout.startswith("AwsCredentialsError the AWS profile needs an MFA code"), done


def test_importing_the_cli_does_not_import_the_api() -> None:
    program = (
        "import sys, executor.cli, executor; assert 'executor.api' not in sys.modules; "
        "executor.plan; assert 'executor.api' in sys.modules; executor.nothing"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'executor' has no attribute 'nothing'"
