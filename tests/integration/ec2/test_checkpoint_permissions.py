"""Checkpoints with the rights of an instance: executor/backends/ec2/iam/instance.json allows all that an agent asks for, and markers are refused to no one."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_runs import environment, python_job, result_of, run_agent
from moto_aws import REGION, MotoAws
from sandbox.fake_aws.control_plane.access import environment as environment_of
from saved_files import keep_checkpoint, saved

from bai_agent.generations.checkpoint_marker import marker_digest
from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store

_COUNTS = """
import os, sys
folder = os.environ["BAI_CHECKPOINT_DIR"]
step = int(open(f"{folder}/step").read()) if os.environ["BAI_RESUMED"] else 0
open(f"{folder}/large", "wb").write(b"x" * (17 << 20))
open(f"{folder}/step", "w").write(str(step + 1))
sys.exit(os.environ["BAI_GENERATION"] != "2")
"""


def test_an_instance_may_keep_and_restore_checkpoints(tmp_path: Path, moto_aws: MotoAws) -> None:
    moto_aws.policies.attach("instance")
    rundir = tmp_path / "run"
    job = python_job(
        tmp_path,
        _COUNTS,
        restart={"max_restarts": 2, "backoff": "0s"},
        checkpoint={"path": "checkpoints", "every": "off"},
        store={"url": f"s3://{moto_aws.bucket}/jobs", "region": REGION, "endpoint": moto_aws.endpoint},
    )
    theirs = environment_of(moto_aws.identities.of("instance"), endpoint=moto_aws.endpoint)

    code = run_agent(job, rundir, env={**environment(), **theirs})

    assert code == 0, result_of(rundir)
    assert result_of(rundir)["warnings"] == []
    assert result_of(rundir)["checkpoints"]["kept"] == 3
    assert saved(rundir / "work" / "checkpoints")["step"] == "3"


def test_an_instance_may_begin_from_the_checkpoint_of_another_job(
    tmp_path: Path, moto_aws: MotoAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto_aws.policies.attach("instance")
    of_instance = environment_of(moto_aws.identities.of("instance"), endpoint=moto_aws.endpoint)
    url = f"s3://{moto_aws.bucket}/jobs"
    for name, value in environment_of(moto_aws.identities.of("setup"), endpoint=moto_aws.endpoint).items():
        monkeypatch.setenv(name, value)
    earlier = JobRecord(open_store(url, region=REGION, endpoint=moto_aws.endpoint), "earlier")
    marker = keep_checkpoint(earlier, {"step": "7"})
    origin = {"job": "earlier", "name": marker.name, "sha256": marker_digest(marker)}
    rundir = tmp_path / "run"
    job = python_job(
        tmp_path,
        'import os; print("from", os.environ["BAI_RESUMED"], open(os.environ["BAI_CHECKPOINT_DIR"] + "/step").read())',
        checkpoint={"path": "checkpoints", "every": "off", "origin": origin},
        store={"url": url, "region": REGION, "endpoint": moto_aws.endpoint},
    )

    code = run_agent(job, rundir, env={**environment(), **of_instance})

    assert code == 0, result_of(rundir)
    assert (rundir / "output.log").read_text() == "from earlier/checkpoint-0-0 7\n"
