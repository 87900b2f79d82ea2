"""The agent of a bundle requests credentials from the metadata service itself, independently of the image's Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from free_ports import free_port
from s3_gate import Gate

from bai_agent.aws.credentials import InstanceRole, RenewedRole, credential_provider, takes_botocore
from bai_agent.aws.imds import find_token
from bai_agent.errors import MetadataError
from executor.backends.ec2.bundle.bundle import agent_files

ANSWER_SECONDS = 1.1
"""botocore waits 1 s."""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The bundle's own files; what it needs besides comes from this Python, as botocore does."""
    for name, content in agent_files().items():
        path = tmp_path / "bundle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "bundle"


@contextmanager
def metadata_service(
    *, seconds: float = 0.0, expires: str = "2099-01-01T00:00:00Z", port: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """Run a metadata service that takes tokens only, and its time; yield its address and what it was asked without one."""
    refused: list[str] = []
    keys = {"AccessKeyId": "ROLEKEY", "SecretAccessKey": "secret", "Token": "t", "Expiration": expires}
    answers = {
        "/latest/meta-data/placement/region": "us-east-1",
        "/latest/meta-data/iam/security-credentials/": "role",
        "/latest/meta-data/iam/security-credentials/role": json.dumps(keys),
    }

    class Service(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_PUT(self) -> None:
            self.answer(200, "the-token")

        def do_GET(self) -> None:
            if self.headers["X-aws-ec2-metadata-token"] == "the-token":
                self.answer(200, answers[self.path])
            else:
                refused.append(self.path)
                self.answer(401, "")

        def answer(self, status: int, text: str) -> None:
            time.sleep(seconds)
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())
            except OSError:
                return

    server = ThreadingHTTPServer(("127.0.0.1", port), Service)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", refused
    finally:
        server.shutdown()
        server.server_close()


def run(bundle: Path, code: str, **environment: str) -> str:
    """Run Python in the bundle, on an instance whose root has configured nothing."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", f"import botocore, boto3\n{code}"],
        cwd=bundle,
        env={**kept, "HOME": str(bundle), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_s3_gets_credentials_from_a_slow_metadata_service(bundle: Path, gate: Gate) -> None:
    gate.s3.put_object(Bucket="bucket", Key="k", Body=b"content")
    code = (
        "import obstore\nfrom bai_agent.pull.s3_source import PATIENCE\nfrom bai_agent.aws.s3_client import connect\n"
        "print(bytes(obstore.get(connect('bucket', patience=PATIENCE), 'k').bytes()).decode())"
    )
    with metadata_service(seconds=ANSWER_SECONDS) as (address, refused):
        said = run(bundle, code, S3_ENDPOINT=gate.url, AWS_EC2_METADATA_SERVICE_ENDPOINT=address)
    assert said == "content\n"
    assert gate.access_keys[-1] == "ROLEKEY"
    assert refused == []


def test_secrets_are_resolved_with_a_slow_metadata_service(bundle: Path, moto: str, gate: Gate) -> None:
    client: Any = partial(
        boto3.client,
        endpoint_url=f"http://{moto}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    client("ssm").put_parameter(Name="/team/token", Value="from ssm", Type="SecureString", Overwrite=True)
    code = "from bai_agent.aws.secrets import resolve\nprint(resolve('ssm:/team/token'))"
    with metadata_service(seconds=ANSWER_SECONDS) as (address, refused):
        said = run(bundle, code, AWS_ENDPOINT_URL=f"http://{moto}", AWS_EC2_METADATA_SERVICE_ENDPOINT=address)
    assert said == "from ssm\n"
    assert refused == []


def test_kafka_iam_authentication_uses_the_instances_role(bundle: Path) -> None:
    code = """
import logging
from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.sinks.kafka.connection import client_settings
from kafka.net.sasl import get_sasl_mechanism
kafka = Kafka(brokers=("b-1.example:9098",), security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM")
settings = client_settings(kafka)
mechanism = get_sasl_mechanism(settings["sasl_mechanism"])(host="b-1.example", **settings)
print(mechanism.auth_bytes().decode())
"""
    with metadata_service(seconds=ANSWER_SECONDS) as (address, refused):
        said = json.loads(
            run(bundle, code, AWS_EC2_METADATA_SERVICE_ENDPOINT=address, AWS_DEFAULT_REGION="eu-west-1")
        )
    assert said["x-amz-credential"].startswith("ROLEKEY/")
    assert "/eu-west-1/kafka-cluster/" in said["x-amz-credential"]
    assert refused == []


def test_botocore_is_used_only_if_a_profile_or_aws_config_file_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not takes_botocore({})
    assert takes_botocore({"AWS_PROFILE": "me"})
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("")
    assert takes_botocore({})


def test_cached_credentials_are_used_while_the_metadata_service_is_unreachable() -> None:
    with metadata_service() as (address, _):
        role = InstanceRole({"AWS_EC2_METADATA_SERVICE_ENDPOINT": address}, sleep=lambda _: None)
        assert role.keys().access == "ROLEKEY"
    assert role.keys().access == "ROLEKEY"


def test_a_second_client_reuses_cached_credentials_if_the_metadata_service_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with metadata_service() as (address, _):
        environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": address}
        first = credential_provider(environment)
        assert first is not None
        assert first()["access_key_id"] == "ROLEKEY"
    second = credential_provider(environment)
    assert second is not None
    assert second()["access_key_id"] == "ROLEKEY"


def test_expired_cached_credentials_are_not_used() -> None:
    pauses: list[float] = []
    with metadata_service(expires="2001-01-01T00:00:00Z") as (address, _):
        role = InstanceRole({"AWS_EC2_METADATA_SERVICE_ENDPOINT": address}, sleep=pauses.append)
        role.keys()
    with pytest.raises(MetadataError, match="does not answer"):
        role.keys()
    assert 15 < sum(pauses) < 60


class Returning:
    """A metadata service that is away until somebody has waited for it so many seconds."""

    def __init__(self, seconds: float, *, port: int | None = None) -> None:
        self._left = seconds
        self._stack = ExitStack()
        self._port = port or free_port()
        self.environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{self._port}"}

    def __enter__(self) -> Returning:
        return self

    def sleep(self, seconds: float) -> None:
        before, self._left = self._left, self._left - seconds
        if before > 0 >= self._left:
            self._stack.enter_context(metadata_service(port=self._port))

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def test_the_metadata_token_is_requested_again_for_some_seconds() -> None:
    with Returning(2.0) as service:
        assert find_token(service.environment, sleep=service.sleep) == "the-token"


def test_expired_credentials_wait_longer_for_a_metadata_service_that_answered_before() -> None:
    with metadata_service(expires="2001-01-01T00:00:00Z") as (address, _):
        port = int(address.rpartition(":")[2])
        role = InstanceRole(
            {"AWS_EC2_METADATA_SERVICE_ENDPOINT": address}, sleep=lambda seconds: service.sleep(seconds)
        )
        role.keys()
    with Returning(15.0, port=port) as service:
        assert role.keys().expires == datetime(2099, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "name",
    [
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    ],
)
def test_secrets_and_kafka_refuse_credentials_that_only_s3_can_use(bundle: Path, name: str) -> None:
    """They are not passed over in silence for the instance's role, which is somebody else."""
    with metadata_service() as (address, _):
        environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": address, name: "/a", "AWS_REGION": "eu-west-1"}
        secret = run(bundle, _TRY_SSM, **environment)
        said = run(bundle, _TRY_MSK, **environment)
    assert secret.startswith(f'"ssm:x" cannot be resolved: {name} is set, but'), secret
    assert said.startswith(f"[kafka] AWS_MSK_IAM needs AWS credentials: {name} is set, but"), said


_TRY_SSM = """
from bai_agent.aws.secrets import resolve
from bai_agent.errors import SecretError
try:
    print(resolve("ssm:x"))
except SecretError as error:
    print(error)
"""
_TRY_MSK = """
from bai_agent.errors import ConnectError
from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.sinks.kafka.connection import client_settings
kafka = Kafka(brokers=("b-1.example:9098",), security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM")
try:
    print(client_settings(kafka))
except ConnectError as error:
    print(error)
"""


def test_s3_gets_the_expiry_of_the_roles_credentials() -> None:
    expires = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(minutes=6)
    with metadata_service(expires=f"{expires:%Y-%m-%dT%H:%M:%SZ}") as (address, _):
        provide = credential_provider({"AWS_EC2_METADATA_SERVICE_ENDPOINT": address})
        assert provide is not None
        provided = provide()
    assert provided["expires_at"] == expires


def test_new_credentials_are_fetched_before_the_old_ones_expire() -> None:
    # Given a role whose credentials are good for two minutes, and a thread that renews them when it is let to
    soon = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(minutes=2)
    turn, renewed = threading.Semaphore(0), threading.Semaphore(0)

    def pause(seconds: float) -> None:
        renewed.release()
        turn.acquire()

    with metadata_service(expires=f"{soon:%Y-%m-%dT%H:%M:%SZ}") as (address, _):
        environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": address}
        role = RenewedRole(InstanceRole(environment), pause=pause)
        assert role.keys().expires == soon
        assert renewed.acquire(timeout=60)

    # When the metadata service has new ones, which nobody asked for, and is then away
    with metadata_service(port=int(address.rpartition(":")[2])):
        turn.release()
        assert renewed.acquire(timeout=60)

    # Then they are there at once
    expires = role.keys().expires
    assert expires is not None
    assert expires > soon


def test_one_thread_renews_the_credentials_of_all_clients() -> None:
    def renewing() -> int:
        return sum(each.name == "credentials" for each in threading.enumerate())

    before = renewing()
    with metadata_service() as (address, _):
        for _ in range(3):
            provide = credential_provider({"AWS_EC2_METADATA_SERVICE_ENDPOINT": address})
            assert provide is not None
            assert provide()["access_key_id"] == "ROLEKEY"
    assert renewing() - before == 1
