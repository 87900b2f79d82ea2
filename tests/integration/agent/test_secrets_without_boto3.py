"""Secrets are resolved where there is no boto3, from a real server."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest
from redirecting_server import redirecting
from s3_gate import Gate

from bai_agent.aws.json_service import ask
from bai_agent.aws.secrets import resolve
from bai_agent.errors import SecretError, ServiceError


@pytest.fixture
def environment(moto: str, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Where secrets are; `gate` has emptied the server."""
    client: Any = partial(
        boto3.client,
        endpoint_url=f"http://{moto}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    client("ssm").put_parameter(Name="/team/token", Value="from ssm", Type="SecureString")
    secrets = client("secretsmanager")
    secrets.create_secret(Name="team/token", SecretString="from secretsmanager")
    secrets.create_secret(Name="binary", SecretBinary=b"\x00")
    monkeypatch.setattr("bai_agent.aws.secrets.find_spec", lambda _name: None)
    return {
        "AWS_ENDPOINT_URL": f"http://{moto}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }


def test_ssm_and_secretsmanager_references_are_resolved(environment: dict[str, str]) -> None:
    assert resolve("ssm:/team/token", environment=environment) == "from ssm"
    assert resolve("secretsmanager:team/token", environment=environment) == "from secretsmanager"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("ssm:/nowhere", "ParameterNotFound"),
        ("secretsmanager:nowhere", "ResourceNotFoundException"),
        ("secretsmanager:binary", "contains no text"),
    ],
)
def test_an_unresolvable_reference_reports_the_reason(
    environment: dict[str, str], reference: str, words: str
) -> None:
    with pytest.raises(SecretError, match=f'"{reference}" cannot be resolved: .*{words}'):
        resolve(reference, environment=environment)


def test_without_credentials_the_reference_is_named(environment: dict[str, str]) -> None:
    bare = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1"}
    with pytest.raises(
        SecretError, match='"ssm:/team/token" cannot be resolved: there are no AWS credentials'
    ):
        resolve("ssm:/team/token", environment=bare)


def test_secrets_are_resolved_with_the_instances_role(environment: dict[str, str]) -> None:
    with instance_metadata() as (address, asked):
        bare = {
            "AWS_ENDPOINT_URL": environment["AWS_ENDPOINT_URL"],
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": address,
        }
        assert resolve("ssm:/team/token", environment=bare) == "from ssm"
    assert "/latest/meta-data/placement/region" in asked
    assert asked.count("/latest/meta-data/iam/security-credentials/team-role") == 1


def test_a_metadata_service_that_is_not_ready_is_asked_again(environment: dict[str, str]) -> None:
    with instance_metadata(busy=2) as (address, asked):
        bare = {
            "AWS_ENDPOINT_URL": environment["AWS_ENDPOINT_URL"],
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": address,
        }
        assert resolve("ssm:/team/token", environment=bare) == "from ssm"
    assert asked.count("/latest/meta-data/placement/region") == 3
    assert asked.count("/latest/meta-data/iam/security-credentials/team-role") == 3


def test_a_metadata_service_that_is_never_ready_gives_an_error_about_missing_credentials(
    environment: dict[str, str],
) -> None:
    with (
        instance_metadata(busy=100) as (address, _),
        pytest.raises(SecretError, match=r"there are no AWS credentials here"),
    ):
        resolve("ssm:/team/token", environment={"AWS_EC2_METADATA_SERVICE_ENDPOINT": address})


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_does_not_receive_the_session_token(environment: dict[str, str], status: int) -> None:
    with redirecting(status) as (address, arrived):
        mine = {**environment, "AWS_SESSION_TOKEN": "secret-token", "AWS_ENDPOINT_URL": address}
        with pytest.raises(SecretError, match=f"ssm says {status}"):
            resolve("ssm:/team/token", environment=mine)
    assert arrived == []


@contextmanager
def instance_metadata(*, busy: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Run a metadata service (IMDSv2) with a role; yield its address and the paths that were asked for.

    Each path is answered by 503 the first `busy` times.
    """
    asked: list[str] = []
    answered: Counter[str] = Counter()
    keys = {"AccessKeyId": "ROLEKEY", "SecretAccessKey": "secret", "Token": "token"}
    answers = {
        "/latest/meta-data/placement/region": "us-east-1",
        "/latest/meta-data/iam/security-credentials/": "team-role",
        "/latest/meta-data/iam/security-credentials/team-role": json.dumps(keys),
    }

    class Metadata(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_PUT(self) -> None:
            if not self.is_busy():
                self.answer("the-token")

        def is_busy(self) -> bool:
            answered[self.path] += 1
            if answered[self.path] <= busy:
                self.send_error(503)
            return answered[self.path] <= busy

        def do_GET(self) -> None:
            asked.append(self.path)
            if self.is_busy():
                return
            if self.headers["X-aws-ec2-metadata-token"] == "the-token":
                self.answer(answers[self.path])
            else:
                self.send_error(401)

        def answer(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("answers", [0, 1])
def test_a_server_that_is_not_a_metadata_service_is_ignored(answers: int) -> None:
    """Something else at its address may speak no HTTP at all, or stop after the first answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for number in range(10):
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    token = b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nt"
                    connection.sendall(token if number < answers else b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=serve, daemon=True).start()
        here = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}"}

        with pytest.raises(ServiceError, match=r"no AWS credentials here|metadata service does not answer"):
            ask("ssm", "AmazonSSM.GetParameter", {"Name": "x"}, environment=here)
        server.shutdown(socket.SHUT_RDWR)
