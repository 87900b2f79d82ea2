"""Jobs of a user's account whose machines never boot: a test begins and ends them as their agents would."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

from cli_harness import CliHarness, CliResult
from moto.s3.models import s3_backends
from moto_aws import HELLO, MotoAws

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import DecisionKind, Ledger, NextGeneration, Sign
from bai_agent.job.peers import Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from executor.backends.ec2.bucket_store import bucket_store
from executor.configuration.config import read_settings

NEVER = (
    b"[    0.000000] Linux version 6.1\n"
    b"[   12.3] cloud-init[612]: Cloud-init v. 24.1 finished at Fri, 20 Nov 2026. Datasource DataSourceNone.\n"
)
"""Console output of a machine that has booted without its user data."""
ELASTIC = "\n[elastic]\nreplacements = 2\n"


class Account:
    """A user's account in which a test submits jobs."""

    def __init__(self, aws: MotoAws, folder: Path, *, config: str = "") -> None:
        self.aws = aws
        (folder / "config.toml").write_text(f'{config}[prices]\n"t3.small" = 0.5\n')
        mine = {"HOME": str(folder), "BAI_CONFIG": str(folder / "config.toml")}
        self.cli = CliHarness(folder, {**os.environ, **aws.environment(), **mine})
        self.store = bucket_store(read_settings())

    def submit(
        self, job_id: str = "job", more: str = ELASTIC, *, hardware: str = ""
    ) -> tuple[str, CliResult]:
        """Submit a job; return its machine, and the output.

        more: lines of the descriptor. hardware: lines of its `[hardware]`.
        """
        (self.cli.folder / "b.toml").write_text(HELLO.replace("[ml]", f"{hardware}[ml]") + more)
        before = set(self.machines())
        done = self.cli.bai("submit", "b.toml", "--job-id", job_id)
        assert done.code == 0, done.stderr
        [machine] = set(self.machines()) - before
        return machine, done

    def begin(self, machine: str, job_id: str = "job") -> None:
        """Begin a job as the agent of its first node does."""
        record = JobRecord(self.store, job_id)
        for name in ("ready.json", "heartbeat.json"):
            self.store.put(record.node(0).key(name), json.dumps({"instance_id": machine}).encode())
        attempt = AttemptRecord(record)
        attempt.join(Peer(rank=0, address="10.0.0.1", instance_id=machine))
        attempt.give_sign(0, Sign())
        first = NextGeneration(kind=DecisionKind.RUN, members=[0], why="start", ledger=Ledger(began=now_ms()))
        attempt.settle_generation(0, first)

    def end(self, job_id: str = "job") -> None:
        """End a job as its agent does."""
        content = json.dumps(
            {"version": 1, "job_id": job_id, "outcome": "succeeded", "status": "SUCCEEDED", "exit_code": 0}
            | {"sentence": "The benchmark succeeded.", "instances": [], "ended": now_ms()}
        )
        self.store.put(f"{job_id}/result.json", content.encode())

    def lose(self, machine: str) -> None:
        self.aws.client("ec2", "setup").terminate_instances(InstanceIds=[machine])

    def machines(self) -> list[str]:
        return [each["InstanceId"] for each in self.aws.instances()]

    def age(self, by: timedelta, below: str = "") -> None:
        """Make objects of the bucket, and machines, older by `by`."""
        for key in s3_backends[self.aws.account]["aws"].buckets[self.aws.bucket].keys.values():
            if key.name.startswith(f"jobs/{below}"):
                key.last_modified -= by
        self.aws.age(by)

    def reap(self, *options: str, code: int = 0) -> CliResult:
        done = self.cli.bai("reap", *options)
        assert done.code == code, done.stdout + done.stderr
        return done

    def outcome(self, job_id: str = "job") -> str | None:
        found = JobRecord(self.store, job_id).result()
        return None if found is None else str(found["outcome"])
