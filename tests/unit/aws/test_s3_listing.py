"""A listing that obstore gave up is asked for at the client's own address, and signed with its credentials."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from bai_agent.aws import s3_listing
from bai_agent.aws.http_answer import Answer
from bai_agent.aws.s3_client import connect
from bai_agent.aws.s3_listing import list_usable
from bai_agent.errors import S3Error
from bai_agent.job.store.s3 import PATIENCE

if TYPE_CHECKING:
    from obstore.store import S3Credential

KEYS = Credentials("AKIA0", "secret/+", "token==")


def provide() -> S3Credential:
    return {
        "access_key_id": KEYS.access_key,
        "secret_access_key": KEYS.secret_key,
        "token": KEYS.token,
        "expires_at": datetime(2099, 1, 1, tzinfo=timezone.utc),
    }


@pytest.mark.parametrize(
    ("bucket", "region", "endpoint", "address"),
    [
        ("bucket", "eu-west-1", None, "https://bucket.s3.eu-west-1.amazonaws.com/"),
        ("a.bucket", "eu-west-1", None, "https://s3.eu-west-1.amazonaws.com/a.bucket"),
        ("bucket", "cn-north-1", None, "https://bucket.s3.cn-north-1.amazonaws.com.cn/"),
        ("a.bucket", "cn-north-1", None, "https://s3.cn-north-1.amazonaws.com.cn/a.bucket"),
        ("bucket", "eu-west-1", "http://host:9000", "http://host:9000/bucket"),
    ],
)
def test_a_listing_is_requested_and_signed_as_s3_requires(
    monkeypatch: pytest.MonkeyPatch, bucket: str, region: str, endpoint: str | None, address: str
) -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def send(url: str, *, headers: dict[str, str], **_: Any) -> Answer:
        asked.append((url, headers))
        return Answer(403, None, b"<Code>AccessDenied</Code>")  # type: ignore[arg-type] # nobody reads the headers

    monkeypatch.setattr(s3_listing, "send", send)
    client = connect(
        bucket,
        prefix="the jobs",
        patience=PATIENCE,
        region=region,
        endpoint=endpoint,
        credentials=provide,
        environment={},
    )

    with pytest.raises(S3Error, match="AccessDenied"):
        list_usable(client, "job", recursive=False, timeout=timedelta(seconds=1))

    [(url, headers)] = asked
    assert url == f"{address}?delimiter=%2F&encoding-type=url&list-type=2&prefix=the%20jobs%2Fjob%2F"
    expected = AWSRequest("GET", url, headers={"X-Amz-Content-SHA256": headers["x-amz-content-sha256"]})
    expected.headers["X-Amz-Date"] = headers["x-amz-date"]
    expected.headers["X-Amz-Security-Token"] = headers["x-amz-security-token"]
    expected.context["timestamp"] = headers["x-amz-date"]
    signer = S3SigV4Auth(KEYS, "s3", region)
    canonical = signer.canonical_request(expected)
    signature = signer.signature(signer.string_to_sign(expected, canonical), expected)
    assert headers["authorization"].endswith(f"Signature={signature}")
