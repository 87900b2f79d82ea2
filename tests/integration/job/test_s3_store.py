"""The store in a bucket keeps the promises of a store, and reports errors in a sentence."""

from __future__ import annotations

import os
import re
import socket
import threading
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError
from s3_gate import Answer, Gate, denied
from store_contract import StoreContract

from bai_agent.aws.credentials import from_botocore
from bai_agent.aws.s3_client import connect
from bai_agent.errors import MissingObjectError, StoreError, StoreRefusedError
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore, open_store
from bai_agent.job.store.s3 import PATIENCE, S3Store


@pytest.fixture
def store(gate: Gate) -> JobStore:
    return open_store("s3://bucket/the jobs")


class TestS3Store(StoreContract):
    pass


def test_without_a_prefix_the_bucket_is_the_store(gate: Gate) -> None:
    open_store("s3://bucket").put("job-1/job.toml", b"x")

    assert open_store("s3://bucket/").folders("") == ["job-1"]
    assert gate.s3.get_object(Bucket="bucket", Key="job-1/job.toml")["Body"].read() == b"x"


def test_a_large_file_arrives_in_parts(store: JobStore, gate: Gate, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(os.urandom(20 << 20))

    store.put_file("job-1/artifacts/model.bin", path)

    assert (
        gate.s3.get_object(Bucket="bucket", Key="the jobs/job-1/artifacts/model.bin")["Body"].read()
        == path.read_bytes()
    )
    assert sum("partNumber" in request for _, request, _ in gate.requests) == 3


def test_only_the_requested_part_of_a_large_object_is_read(store: JobStore, gate: Gate) -> None:
    store.put("job-1/log", bytes(range(256)) * 4096)

    assert store.get("job-1/log", start=300, limit=5) == bytes(range(44, 49))
    assert gate.gets()[-1][1] == "bytes=300-304"


def test_an_object_that_may_be_absent_is_looked_up_by_a_list_request_before_it_is_read(gate: Gate) -> None:
    """Without s3:ListBucket S3 says 403 of a missing key; with it, whoever lists need not know that."""
    record = JobRecord(open_store("s3://bucket/jobs"), "job-1")
    gate.refuse = lambda method, path: (
        denied("AccessDenied") if method == "GET" and "list-type" not in path else None
    )

    assert record.result() is None
    assert record.node().read_object("heartbeat.json") is None
    assert not record.exists()
    assert not record.cancelled()
    assert record.node().read("log", 0) == record.node().read("events", 0) == b""


@pytest.mark.parametrize("key", ["log/../x", "log/./x", "log//x", "../x", ".", "/x", "log/\x7f", "log/2/.."])
def test_an_invalid_key_does_not_hide_other_keys(store: JobStore, gate: Gate, key: str) -> None:
    for name in ("log/1 +%", "log/..2", "log/2/3", "result.json"):
        store.put(f"job-1/{name}", b"12345")
    before = store.find("job-1/"), store.around("job-1"), store.around("job-1/log"), store.folders("")
    gate.s3.put_object(Bucket="bucket", Key=f"the jobs/job-1/{key}", Body=b"x")

    after = store.find("job-1/"), store.around("job-1"), store.around("job-1/log"), store.folders("")

    assert after == before
    assert [(each.modified, each.etag) for each in after[0]] == [
        (each.modified, each.etag) for each in before[0]
    ]


def test_all_pages_of_a_listing_with_an_invalid_key_are_read(store: JobStore, gate: Gate) -> None:
    def page(key: str, more: str = "") -> Answer:
        item = f"<Contents><Key>{key}</Key><LastModified>2026-11-20T22:00:00.000Z</LastModified><Size>1</Size></Contents>"
        head = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        return 200, {}, f"{head}{item}{more}</ListBucketResult>".encode()

    def answer(method: str, path: str, ask: Callable[[], Answer]) -> Answer:
        if "list-type" not in path:
            return ask()
        if "continuation-token=a%2Bb%2F%3D" in path:
            return page("the%20jobs/job-1/second")
        if "encoding-type=url" in path:
            return page("the%20jobs/job-1/../x", "<NextContinuationToken>a+b/=</NextContinuationToken>")
        return page("the jobs/job-1/../x")

    gate.around = answer

    assert [each.key for each in store.find("job-1/")] == ["job-1/second"]


@pytest.mark.parametrize(("code", "refused"), [("AccessDenied", True), ("SlowDown", False)])
def test_a_listing_that_cannot_be_repeated_reports_the_reason(
    store: JobStore, gate: Gate, code: str, refused: bool
) -> None:
    gate.s3.put_object(Bucket="bucket", Key="the jobs/job-1/../x", Body=b"x")
    gate.refuse = lambda method, path: (
        denied(code, 403 if refused else 503) if "encoding-type" in path else None
    )

    with pytest.raises(
        StoreRefusedError if refused else StoreError, match="access denied" if refused else code
    ):
        store.find("job-1/")


def test_an_object_below_a_key_is_not_taken_for_the_key_itself(store: JobStore) -> None:
    """A `*` in a policy matches slashes: another job's machine may write such objects."""
    record = JobRecord(store, "job-1")
    for name in ("cancel.json", "job.toml", "result.json"):
        store.put(record.key(f"{name}/attempts/0/nodes/0/x"), b"{}")

    assert not record.cancelled()
    assert not record.exists()
    assert record.result() is None


def test_finding_one_object_takes_one_short_list_request(gate: Gate) -> None:
    record = JobRecord(open_store("s3://bucket/jobs"), "job-1")
    for number in range(30):
        record.store.put(record.node().key(f"log/{number:020}"), b"x")
    before = len(gate.requests)

    assert not record.cancelled()

    assert len(gate.requests) == before + 1
    assert "delimiter" in gate.requests[-1][1]


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("AccessDenied", 403, "s3:PutObject"),
        ("NoSuchBucket", 404, "no bucket of that name"),
        ("ExpiredToken", 400, "expired"),
        ("InvalidAccessKeyId", 403, "unknown to S3"),
        ("AuthorizationHeaderMalformed", 400, "another region"),
        ("PermanentRedirect", 301, "another region"),
    ],
)
def test_a_refused_request_to_s3_gives_one_sentence_and_is_not_retried(
    store: JobStore, gate: Gate, code: str, status: int, words: str
) -> None:
    gate.refuse = lambda _method, _path: denied(code, status)

    for ask in (
        lambda: store.put("job-1/a", b"x"),
        lambda: store.get("job-1/a"),
        lambda: store.find("job-1/a"),
    ):
        with pytest.raises(StoreRefusedError, match=rf"s3://bucket/the jobs/job-1/a: .*{words}"):
            ask()


def test_an_unreachable_store_is_named_and_may_recover(gate: Gate) -> None:
    store = S3Store("bucket", "jobs", patience=replace(PATIENCE, retries=0))
    gate.refuse = lambda _method, _path: denied("SlowDown", 503)
    with pytest.raises(StoreError) as caught:
        store.put("job-1/a", b"x")
    assert not isinstance(caught.value, StoreRefusedError)

    gate.refuse = lambda _method, _path: None
    assert store.put("job-1/a", b"x")


def test_without_credentials_the_store_cannot_be_opened(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setattr("bai_agent.aws.credentials.find_spec", lambda _name: None)

    with pytest.raises(StoreError, match=r"s3://bucket/jobs: there are no AWS credentials") as refusal:
        open_store("s3://bucket/jobs")

    assert "anonymous" not in str(refusal.value)  # a key of data sources


def test_the_given_credentials_region_and_endpoint_are_used(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.credentials import Credentials

    monkeypatch.delenv("S3_ENDPOINT")
    store = open_store(
        "s3://bucket/jobs",
        region="eu-west-3",
        endpoint=gate.url,
        credentials=from_botocore(Credentials("ANNA", "secret", "token")),
    )
    store.put("job-1/a", b"x")

    assert gate.access_keys[-1] == "ANNA"
    assert gate.regions[-1] == "eu-west-3"


def test_the_region_of_a_bucket_is_detected(gate: Gate) -> None:
    gate.bucket_region = "ap-south-1"
    open_store("s3://bucket/jobs").put("job-1/a", b"x")

    assert gate.regions[-1] == "ap-south-1"


def test_a_missing_object_is_not_reported_as_refused(store: JobStore) -> None:
    with pytest.raises(MissingObjectError):
        store.get("job-1/a")
    assert store.find("job-1/a") == []


@pytest.mark.parametrize(("code", "status"), [("InternalError", 500), ("AccessDenied", 403)])
def test_an_error_response_is_never_read_as_an_empty_object(gate: Gate, code: str, status: int) -> None:
    store = S3Store("bucket", "jobs", patience=replace(PATIENCE, retries=0))
    gate.refuse = lambda _method, _path: denied(code, status)

    with pytest.raises(StoreError, match=r"run-416/result\.json"):
        store.get("run-416/result.json")


@pytest.mark.parametrize("endpoint", ["http://localhost:port", "https://:9000"])
def test_an_invalid_endpoint_is_named(gate: Gate, endpoint: str) -> None:
    with pytest.raises(StoreError, match=f'the endpoint "{endpoint}" is not an address'):
        open_store("s3://bucket/jobs", endpoint=endpoint)


def test_a_server_that_does_not_speak_http_is_named(gate: Gate) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=answer, daemon=True).start()
        store = S3Store(
            "bucket",
            "jobs",
            endpoint=f"http://127.0.0.1:{server.getsockname()[1]}",
            patience=replace(PATIENCE, retries=0),
        )
        with pytest.raises(StoreError, match="did not answer as it should"):
            store.find("job-1/")
        server.shutdown(socket.SHUT_RDWR)


def test_every_write_has_a_checksum(store: JobStore, gate: Gate, tmp_path: Path) -> None:
    # given a small object, one on condition, and a file that goes in parts: Object Lock takes none without
    path = tmp_path / "model.bin"
    path.write_bytes(os.urandom(17 << 20))

    store.put("job-1/a", b"a")
    store.put("job-1/b", b"b", if_absent=True)
    store.put_file("job-1/c", path)

    assert len(gate.checksums) == 5
    assert dict(gate.checksums)["/bucket/the%20jobs/job-1/a"] == b64encode(sha256(b"a").digest()).decode()
    assert all(checksum for _, checksum in gate.checksums)


@pytest.mark.parametrize(
    ("bucket", "region", "address"),
    [
        ("mine", "cn-north-1", "https://mine.s3.cn-north-1.amazonaws.com.cn/"),
        ("my.own", "cn-northwest-1", "https://s3.cn-northwest-1.amazonaws.com.cn/my.own/"),
        ("mine", "us-gov-west-1", "https://mine.s3.us-gov-west-1.amazonaws.com/"),
    ],
)
def test_each_aws_partition_has_its_own_s3_address(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, bucket: str, region: str, address: str
) -> None:
    # given no endpoint of our own, and a network without a way out: the error names what was called
    monkeypatch.delenv("S3_ENDPOINT")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    once = replace(PATIENCE, retries=0)
    client = connect(bucket, patience=once, region=region)

    with pytest.raises(BaseError, match=re.escape(address)):
        obstore.get(client, "key")
