"""The login at Amazon ECR, against a server of this machine."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bai_agent.aws import json_service
from bai_agent.aws.registry_login import ecr_login, ecr_region
from bai_agent.errors import ServiceError

HOST = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("image", "region"),
    [
        (f"{HOST}/team/train:1", "eu-west-1"),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com/train", "us-gov-west-1"),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/train@sha256:" + "0" * 64, "cn-north-1"),
        ("public.ecr.aws/docker/library/python:3.12", None),
        (f"{HOST}.evil.example/train", None),
        (f"evil.example/{HOST}/train", None),
        ("train:1", None),
    ],
)
def test_private_registries_of_ecr_are_recognised(image: str, region: str | None) -> None:
    assert ecr_region(image) == region


def test_the_ecr_endpoint_is_api_ecr_in_the_region() -> None:
    assert json_service._endpoint("ecr", "eu-west-1", {}) == "https://api.ecr.eu-west-1.amazonaws.com/"


@pytest.mark.parametrize("answer", [{"authorizationData": [{"authorizationToken": "QVdTOng="}]}, {}])
def test_the_ecr_login_is_written_as_an_auth_file(answer: dict[str, object]) -> None:
    asked = []

    class Ecr(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.headers["x-amz-target"], self.headers["authorization"]))
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Ecr) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        environment = {
            "AWS_ENDPOINT_URL_ECR": f"http://127.0.0.1:{server.server_port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        if answer:
            made = ecr_login(f"{HOST}/train:1", environment=environment)
            assert json.loads(made) == {"auths": {HOST: {"auth": "QVdTOng="}}}
        else:
            with pytest.raises(ServiceError, match="gave no authorizationToken"):
                ecr_login(f"{HOST}/train:1", environment=environment)
        thread.join(60)

    target, authorization = asked[0]
    assert target == "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
    assert "/eu-west-1/ecr/aws4_request" in authorization
