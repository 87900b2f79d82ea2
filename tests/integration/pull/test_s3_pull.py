"""S3 sources against a real server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from s3_gate import Gate, denied

from bai_agent.errors import PullError, PullStopped
from bai_agent.job.descriptor.source_tables import Source, SourceKind, Unpack
from bai_agent.pull import PullProgress, pull
from bai_agent.pull.s3_source import PART, PATIENCE

LARGE = 40 << 20
"""More than two parts."""


def bring(
    tmp_path: Path,
    *sources: Source,
    job: str = "job",
    seconds: float = 60.0,
    stopping: Callable[[], bool] = lambda: False,
) -> list[PullProgress]:
    reports: list[PullProgress] = []
    pull(
        sources,
        folders={SourceKind.DATA: tmp_path / "data", SourceKind.SCRIPTS: tmp_path / "scripts"},
        manifest=tmp_path / f"{job}.json",
        deadline=time.monotonic() + seconds,
        report=reports.append,
        stopping=stopping,
    )
    return reports


def names(folder: Path) -> Sequence[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if ".bai-pulled" not in path.name and not path.is_dir()
    )


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def put(gate: Gate) -> Callable[..., None]:
    def store(**objects: bytes) -> None:
        for key, content in objects.items():
            gate.s3.put_object(Bucket="bucket", Key=key, Body=content)

    return store


def test_a_large_object_arrives_in_ranges_and_is_checked(
    tmp_path: Path, gate: Gate, put: Callable[..., None]
) -> None:
    content = os.urandom(LARGE)
    put(large=content)
    reports = bring(
        tmp_path,
        Source(src="s3://bucket/large", path="x", sha256=hashlib.sha256(content).hexdigest(), mode="0600"),
    )
    assert (tmp_path / "data/x").read_bytes() == content
    assert sorted(str(wanted) for _, wanted in gate.gets()) == [
        "bytes=0-16777215",
        "bytes=16777216-33554431",
        "bytes=33554432-41943039",
    ]
    assert reports[-1] == PullProgress(
        "s3://bucket/large", str(tmp_path / "data/x"), LARGE, LARGE, 1, 1, done=True
    )


def test_dropped_connections_are_resumed(tmp_path: Path, gate: Gate, put: Callable[..., None]) -> None:
    large, small = os.urandom(LARGE), os.urandom(100_000)
    put(**{"p/large": large, "p/small": small})
    gate.drops = 4
    bring(tmp_path, Source(src="s3://bucket/p/", path="x"))
    assert gate.drops == 0
    assert (tmp_path / "data/x/large").read_bytes() == large
    assert (tmp_path / "data/x/small").read_bytes() == small


@pytest.mark.parametrize(
    ("src", "directory"),
    [("s3://bucket/pre/fix/", False), ("s3://bucket/pre/fix", True), ("s3://bucket/pre/fix", False)],
)
def test_a_prefix_becomes_a_folder_including_unusual_names(
    tmp_path: Path, gate: Gate, put: Callable[..., None], src: str, directory: bool
) -> None:
    odd = [
        "a b",
        "c,d:e",
        "ü/ñ",
        "h#x",
        "100%",
        "a%20b",
        "a+b",
        "q?x=1",
        "[br]{c}<d>|^`\"'",
        "back\\s",
        ".dot",
        "empty",
    ]
    put(**{f"pre/fix/{name}": b"" if name == "empty" else name.encode() for name in odd})
    put(
        **{
            "pre/fix/": b"",
            "pre/fix/sub/": b"",
            "pre/fix/sub/x": b"1",
            "pre/fix/marker/": b"",
            "pre/fixed": b"no",
            ".bai-pulled": b"",
        }
    )
    put(**{"pre/fix/.bai-pulled": b"the record of whoever uploaded this"})
    reports = bring(tmp_path, Source(src=src, path="x", directory=directory))
    assert names(tmp_path / "data/x") == sorted([*odd, "sub/x"])
    for name in odd[:-1]:
        assert (tmp_path / "data/x" / name).read_bytes() == name.encode()
    assert (reports[-1].objects, reports[-1].total_objects) == (len(odd) + 1, len(odd) + 1)


def test_single_keys_may_have_unusual_names(tmp_path: Path, gate: Gate, put: Callable[..., None]) -> None:
    odd = ["a b", "c,d:e", "ü/ñ", "h#x", "100%", "a%20b", "a+b", "q?x=1"]
    put(**{f"k/{name}": name.encode() for name in odd})
    bring(
        tmp_path, *[Source(src=f"s3://bucket/k/{name}", path=f"n/{index}") for index, name in enumerate(odd)]
    )
    for index, name in enumerate(odd):
        assert (tmp_path / f"data/n/{index}").read_bytes() == name.encode()


@pytest.mark.parametrize("key", ["d/../../x", "d//x", "d/./x"])
def test_a_key_that_cannot_be_a_file_name_is_refused_by_name(
    tmp_path: Path, gate: Gate, put: Callable[..., None], key: str
) -> None:
    put(**{key: b"1"})
    for src in (f"s3://bucket/{key}", "s3://bucket/d/"):
        with pytest.raises(PullError, match="cannot be a file") as refusal:
            bring(tmp_path, Source(src=src, path="x"))
        assert key in str(refusal.value)
    assert names(tmp_path / "data") == []


def test_an_object_that_changed_since_the_job_was_planned_is_refused(
    tmp_path: Path, gate: Gate, put: Callable[..., None]
) -> None:
    put(model=b"weights")
    etag = gate.s3.head_object(Bucket="bucket", Key="model")["ETag"].strip('"')
    bring(tmp_path, Source(src="s3://bucket/model", path="same", etag=etag))
    put(model=b"others")

    with pytest.raises(PullError, match=f"{etag} was expected; the object has changed"):
        bring(tmp_path, Source(src="s3://bucket/model", path="changed", etag=etag))

    assert names(tmp_path / "data") == ["same"]


@pytest.mark.parametrize("large", ["p/a", "p/a/b"])
def test_an_object_with_the_name_of_a_folder_is_an_error_in_any_order(
    tmp_path: Path, gate: Gate, put: Callable[..., None], large: str
) -> None:
    # A large object is fetched after all small ones.
    put(**{"p/a": b"1", "p/a/b": b"2", large: bytes(PART + 1)})
    with pytest.raises(PullError, match=r"^s3://bucket/p/: a is there as a file and as a folder"):
        bring(tmp_path, Source(src="s3://bucket/p/", path="x"))


def test_sources_in_two_buckets_are_pulled_together(
    tmp_path: Path, gate: Gate, put: Callable[..., None]
) -> None:
    gate.s3.create_bucket(Bucket="other.bucket")
    gate.s3.put_object(Bucket="other.bucket", Key="k", Body=b"other")
    put(k=b"first")
    bring(tmp_path, Source(src="s3://bucket/k", path="one"), Source(src="s3://other.bucket/k", path="two"))
    assert (tmp_path / "data/one").read_bytes() + (tmp_path / "data/two").read_bytes() == b"firstother"


def test_a_synced_prefix_fetches_only_new_objects(
    tmp_path: Path, gate: Gate, put: Callable[..., None]
) -> None:
    put(**{f"p/{number}": b"old" for number in range(50)})
    source = Source(src="s3://bucket/p/", path="x")
    bring(tmp_path, source, job="one")
    gate.requests.clear()
    put(**{"p/7": b"new", "p/new": b"new"})
    gate.s3.delete_object(Bucket="bucket", Key="p/8")
    bring(tmp_path, source, job="two")
    assert sorted(path for path, _ in gate.gets()) == ["/bucket/p/7", "/bucket/p/new"]
    assert (tmp_path / "data/x/7").read_bytes() == b"new"
    assert not (tmp_path / "data/x/8").exists()


def test_a_repeated_pull_of_unchanged_objects_sends_no_request(
    tmp_path: Path, gate: Gate, put: Callable[..., None]
) -> None:
    put(k=b"1", **{"p/a": b"2"})
    sources = [Source(src="s3://bucket/k", path="k"), Source(src="s3://bucket/p/", path="p")]
    bring(tmp_path, *sources)
    gate.requests.clear()
    bring(tmp_path, *sources)
    assert gate.requests == []


def test_scripts_are_unpacked_in_place(tmp_path: Path, gate: Gate, put: Callable[..., None]) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("src/entrypoint.sh", ".config"):
            info = tarfile.TarInfo(name)
            info.mode, info.size = 0o777, 2
            tar.addfile(info, io.BytesIO(b"#!"))
    put(**{"anubis0/2cf5f8ef.tar": buffer.getvalue()})
    source = Source(
        src="s3://bucket/anubis0/2cf5f8ef.tar",
        path="2cf5f8ef.tar",
        kind=SourceKind.SCRIPTS,
        unpack=Unpack.IN_PLACE,
    )
    bring(tmp_path, source)
    assert names(tmp_path / "scripts") == [".config", "src/entrypoint.sh"]
    gate.requests.clear()
    bring(tmp_path, source, job="another")
    assert gate.gets() == []


def test_the_buckets_region_is_looked_up_and_a_given_one_overrides_it(
    tmp_path: Path, gate: Gate, put: Callable[..., None]
) -> None:
    put(k=b"1")
    gate.bucket_region = "eu-central-1"
    bring(tmp_path, Source(src="s3://bucket/k", path="one"))
    assert set(gate.regions) == {"eu-central-1"}
    gate.regions.clear()
    bring(tmp_path, Source(src="s3://bucket/k", path="two", region="ap-south-1"))
    assert set(gate.regions) == {"ap-south-1"}


def test_an_anonymous_source_is_not_signed(
    tmp_path: Path, gate: Gate, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_keys(monkeypatch)
    gate.s3.put_object(Bucket="bucket", Key="k", Body=b"1", ACL="public-read")
    put(private=b"1")
    bring(tmp_path, Source(src="s3://bucket/k", path="one", anonymous=True))
    assert not any(gate.signed)
    with pytest.raises(PullError, match="access denied"):
        bring(tmp_path, Source(src="s3://bucket/private", path="two", anonymous=True))


def test_credentials_come_from_a_profile(
    tmp_path: Path, gate: Gate, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(k=b"1")
    without_keys(monkeypatch)
    (tmp_path / "credentials").write_text("[me]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "me")
    bring(tmp_path, Source(src="s3://bucket/k", path="one"))
    assert (tmp_path / "data/one").read_bytes() == b"1"


class Metadata(BaseHTTPRequestHandler):
    """An instance's metadata service, version 2, with a role."""

    def log_message(self, *_: object) -> None:
        return

    def do_PUT(self) -> None:
        self.answer(b"token")

    def do_GET(self) -> None:
        if self.path.endswith("/security-credentials/"):
            self.answer(b"role")
            return
        credentials = {
            "AccessKeyId": "ROLEKEY",
            "SecretAccessKey": "s",
            "Token": "t",
            "Expiration": "2099-01-01T00:00:00Z",
            "Code": "Success",
        }
        self.answer(json.dumps(credentials).encode())

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_without_botocore_credentials_come_from_the_instances_role(
    tmp_path: Path, gate: Gate, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(k=b"1")
    without_keys(monkeypatch)
    monkeypatch.setattr("bai_agent.aws.credentials.find_spec", lambda _name: None)
    source = Source(src="s3://bucket/k", path="one")
    with pytest.raises(PullError, match="no AWS credentials"):
        bring(tmp_path, source)
    metadata = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=metadata.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{metadata.server_port}")
    bring(tmp_path, source)
    metadata.shutdown()
    metadata.server_close()
    assert gate.access_keys[-1] == "ROLEKEY"


def refuse_content(answer: tuple[int, bytes]) -> Callable[[str, str], tuple[int, bytes] | None]:
    return lambda _method, path: answer if path != "/bucket" else None


@pytest.mark.parametrize(
    ("src", "words"),
    [
        ("s3://bucket/no/such", "no such key"),
        ("s3://bucket/no/such/", "contains no files"),
        ("s3://no-such-bucket/k", "no bucket of that name"),
        ("s3://no-such-bucket/k/", "no bucket of that name"),
        ("s3:///k", "names no bucket"),
    ],
)
def test_a_missing_object_is_reported(tmp_path: Path, gate: Gate, src: str, words: str) -> None:
    with pytest.raises(PullError, match=words) as refusal:
        bring(tmp_path, Source(src=src, path="x"))
    assert src in str(refusal.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AccessDenied", "access denied, or there is no such key"),
        ("InvalidAccessKeyId", "unknown to S3"),
        ("SignatureDoesNotMatch", "wrong secret key"),
        ("ExpiredToken", "have expired"),
    ],
)
def test_a_refused_request_reports_its_reason(
    tmp_path: Path, gate: Gate, put: Callable[..., None], code: str, words: str
) -> None:
    put(k=b"1")
    gate.refuse = refuse_content(denied(code))
    with pytest.raises(PullError, match=words) as refusal:
        bring(tmp_path, Source(src="s3://bucket/k", path="x"))
    assert "s3://bucket/k" in str(refusal.value)


def test_an_object_that_may_be_listed_but_not_read_is_named(
    tmp_path: Path, gate: Gate, put: Callable[..., None]
) -> None:
    put(**{"p/a": b"1"})
    gate.refuse = lambda _method, path: denied("AccessDenied") if path.startswith("/bucket/p/a") else None
    with pytest.raises(PullError, match=r"p/a.*access denied"):
        bring(tmp_path, Source(src="s3://bucket/p/", path="x"))


@pytest.mark.parametrize(
    ("source", "table"),
    [
        (Source(src="s3://bucket/k", path="x"), "[[data.sources]]"),
        (Source(src="s3://bucket/k", path="x", server=True), "[[server.models]]"),
        (Source(src="s3://bucket/k", path="x", kind=SourceKind.SCRIPTS), None),
    ],
)
def test_missing_credentials_are_named_with_the_keys_that_the_table_has(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, source: Source, table: str | None
) -> None:
    without_keys(monkeypatch)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(PullError, match="s3://bucket/k: there are no AWS credentials") as refusal:
        bring(tmp_path, source)

    advised = re.findall(r"anonymous = true in (\S+)", str(refusal.value))
    assert advised == ([table] if table else [])


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [("http://127.0.0.1:1", "refused the connection"), ("http://no-such-host.invalid", "cannot be resolved")],
)
def test_an_unreachable_endpoint_is_named_with_its_error(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, endpoint: str, words: str
) -> None:
    monkeypatch.setattr("bai_agent.pull.s3_source.PATIENCE", replace(PATIENCE, retries=1))
    monkeypatch.setenv("S3_ENDPOINT", endpoint)
    with pytest.raises(PullError, match=words):
        bring(tmp_path, Source(src="s3://bucket/k", path="x"))


def test_an_object_replaced_while_it_is_read_is_an_error(
    tmp_path: Path, gate: Gate, put: Callable[..., None]
) -> None:
    put(large=os.urandom(LARGE))
    replaced = threading.Event()

    def replace(method: str, _path: str) -> None:
        if method == "GET" and not replaced.is_set():
            replaced.set()
            put(large=os.urandom(LARGE))

    gate.refuse = replace
    with pytest.raises(PullError, match="was replaced while it was read"):
        bring(tmp_path, Source(src="s3://bucket/large", path="x"))
    assert names(tmp_path / "data") == []


def test_a_stalled_transfer_ends_at_its_deadline_or_on_a_stop(
    tmp_path: Path, gate: Gate, put: Callable[..., None]
) -> None:
    put(k=os.urandom(1000))
    gate.hold = lambda _range: True
    with pytest.raises(PullError, match="pull_timeout"):
        bring(tmp_path, Source(src="s3://bucket/k", path="x"), seconds=1.0)
    with pytest.raises(PullStopped):
        bring(tmp_path, Source(src="s3://bucket/k", path="x"), stopping=lambda: bool(gate.gets()))
    assert not any(thread.name.startswith("pull-") for thread in threading.enumerate())


def test_a_pull_stopped_during_a_write_writes_nothing_afterwards(
    tmp_path: Path, gate: Gate, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a disk that takes a while for a piece, and an order to stop that comes meanwhile
    put(large=os.urandom(LARGE))
    ordered, returned = threading.Event(), threading.Event()
    late: list[str] = []
    on_the_disk = os.pwrite

    def slowly(descriptor: int, content: memoryview, offset: int) -> int:
        if not ordered.is_set():
            ordered.set()
            returned.wait(0.5)
        if returned.is_set():
            late.append(f"{len(content)} bytes at {offset}")
        return on_the_disk(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", slowly)
    # When it stops
    with pytest.raises(PullStopped):
        bring(tmp_path, Source(src="s3://bucket/large", path="x"), stopping=ordered.is_set)
    returned.set()
    # Then the piece under way was written before the file was closed, and the next ones never are
    time.sleep(0.3)
    assert ordered.is_set()
    assert late == []
