"""Somebody who runs benchmarks on EC2: `bai` as a process, with this user's credentials and configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cli_harness import CliHarness
from light_bundles import light_cache

from sandbox.fake_aws import FakeAws, Machine
from sandbox.fake_aws.control_plane.images import DEBIAN, MachineImage
from sandbox.fake_aws.fake_aws import PROFILE

PYTHONS = 11, 13
"""Of the images: their machines are delivered an agent for these alone. test_proof_on_aws delivers all of it."""
_DESCRIPTOR = """\
spec_version = "0.1.0"
[info]
description = "Ends in one way or another"
execution_engine = "aws.ec2"
labels = {{ task_name = "ending" }}
[hardware]
instance_type = "t3.small"
strategy = "{strategy}"
{hardware}
[aws.ec2]
image = "{image}"
{ec2}
[limits]
{limits}
[host_metrics]
enabled = false
[ml]
benchmark_code = '''
{code}
'''
{more}
"""


@dataclass(frozen=True)
class SandboxCli(CliHarness):
    """A harness with an identity on `aws` and a folder for descriptors. Made by `sandbox_cli`."""

    _: KW_ONLY
    aws: FakeAws

    def descriptor(
        self,
        code: str,
        *,
        ec2: str = "",
        limits: str = 'max_runtime = "10m"',
        more: str = "",
        image: MachineImage = DEBIAN,
        nodes: int | str = 1,
        strategy: str = "torchrun",
    ) -> Path:
        """Write a benchmark descriptor; `code`: a script for sh. strategy: of several nodes."""
        strategy = "single_node" if nodes == 1 else strategy
        hardware = "" if nodes == 1 else f"[hardware.distributed]\nnum_instances = {json.dumps(nodes)}"
        path = self.folder / "benchmark.toml"
        path.write_text(
            _DESCRIPTOR.format(
                image=image.image_id,
                code=f"#!/bin/sh\n{code}",
                ec2=ec2,
                limits=limits,
                more=more,
                strategy=strategy,
                hardware=hardware,
            )
        )
        return path

    def submit(
        self, file: Path, *, job_id: str = "job", env: Mapping[str, str] = MappingProxyType({})
    ) -> Machine:
        """Submit a job and return its machine."""
        [machine] = self.submit_nodes(file, job_id=job_id, env=env)
        return machine

    def submit_nodes(
        self, file: Path, *, job_id: str = "job", env: Mapping[str, str] = MappingProxyType({})
    ) -> list[Machine]:
        """Submit a job and return its machines, by rank."""
        before = len(self.aws.machines)
        done = self.bai("submit", file, "--job-id", job_id, env=env)
        assert done.code == 0, done.stderr
        assert job_id in done.stdout
        return self.aws.machines[before:]

    def status(self, job_id: str = "job") -> dict[str, Any]:
        """Return what `bai status` says."""
        done = self.bai("status", job_id, "--json")
        assert done.code == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return what is in the bucket, by the rest of its key behind `prefix`; no call of anybody's."""
        s3 = self.aws.client("s3", "setup")
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.aws.bucket, Prefix=prefix)
        keys = [each["Key"] for page in pages for each in page.get("Contents", [])]
        return {
            key.removeprefix(prefix): s3.get_object(Bucket=self.aws.bucket, Key=key)["Body"].read()
            for key in keys
        }


def sandbox_cli(aws: FakeAws, folder: Path, *, identity: str = "user", more: str = "") -> SandboxCli:
    """Configure `bai` for an identity that has its policy of `bai` and nothing else; `more`: lines of the configuration."""
    aws.policies.attach(identity)
    folder.mkdir()
    (folder / "config.toml").write_text(
        f"""\
bucket = "{aws.bucket}"
instance_profile = "{PROFILE}"
s3_endpoint = "{aws.endpoint}"
client_id = "tester"
{more}
"""
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_CACHE_HOME": light_cache(*PYTHONS),
        **aws.environment(identity),
        "BAI_CONFIG": str(folder / "config.toml"),
    }
    return SandboxCli(folder, environment, aws=aws)
