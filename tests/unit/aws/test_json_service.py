"""Requests are signed as botocore signs them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from bai_agent.aws.imds import Keys
from bai_agent.aws.json_service import signed


@pytest.mark.parametrize("token", [None, "a session's token/+="])
@pytest.mark.parametrize("service", ["ssm", "secretsmanager"])
def test_the_signature_is_botocores(service: str, token: str | None) -> None:
    url, body = f"https://{service}.eu-west-1.amazonaws.com/", b'{"Name": "/a/b", "WithDecryption": true}'
    keys = Keys(access="AKIDEXAMPLE", secret="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token=token)
    ours = signed(
        url,
        body,
        target="AmazonSSM.GetParameter",
        service=service,
        region="eu-west-1",
        keys=keys,
        at=datetime.now(timezone.utc),
    )

    request = AWSRequest("POST", url, data=body)
    for name in ("content-type", "x-amz-target"):
        request.headers[name] = ours[name]
    request.context["timestamp"] = ours["x-amz-date"]
    SigV4Auth(Credentials(keys.access, keys.secret, token), service, "eu-west-1").add_auth(request)
    if request.headers["X-Amz-Date"] != ours["x-amz-date"]:  # botocore reads the clock itself
        ours = signed(
            url,
            body,
            target=ours["x-amz-target"],
            service=service,
            region="eu-west-1",
            keys=keys,
            at=datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(
                tzinfo=timezone.utc
            ),
        )

    assert ours["authorization"] == request.headers["Authorization"]


def test_the_repr_of_credentials_hides_the_secret() -> None:
    assert "hidden" not in repr(Keys(access="A", secret="hidden", token="hidden"))
