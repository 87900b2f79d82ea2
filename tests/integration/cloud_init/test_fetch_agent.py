"""The program that fetches the agent onto an instance, against a metadata service and an S3 that check its requests."""

from __future__ import annotations

import ast
import gzip
import io
import os
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from instance_services import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, Services
from server_certificates import certificate_from

from cloud_init.user_data import fetch_agent


@pytest.fixture
def services() -> Iterator[Services]:
    found = Services()
    server = found.serve()
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """As it lies on an instance."""
    path = tmp_path / "fetch_agent.py"
    path.write_text(fetch_agent())
    return path


def fetch(
    program: Path, services: Services, *arguments: str | Path, seconds: float = 30, **environment: str
) -> subprocess.CompletedProcess[str]:
    variables = {
        "PATH": os.environ["PATH"],
        "AWS_REGION": services.region,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": services.url,
        "S3_ENDPOINT": services.url,
        "BAI_FETCH_SECONDS": str(seconds),
    }
    return subprocess.run(
        [sys.executable, "-I", "-B", program, *arguments],
        env=variables | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def archive(**files: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content.encode()))
    return gzip.compress(packed.getvalue())


def test_a_bundle_is_fetched_checked_and_unpacked(services: Services, program: Path, tmp_path: Path) -> None:
    sha256 = services.put("bucket/agent/a.tar.gz", archive(start="hello"))
    folder = tmp_path / "agent" / sha256
    done = fetch(program, services, "bundle", "s3://bucket/agent/a.tar.gz", sha256, folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (folder / "start").read_text() == "hello"
    assert [path.name for path in folder.parent.iterdir()] == [sha256]


def test_an_existing_bundle_is_not_fetched_again(services: Services, program: Path, tmp_path: Path) -> None:
    done = fetch(program, services, "bundle", "s3://bucket/agent/a.tar.gz", "0" * 64, tmp_path)
    assert done.returncode == 0
    assert services.requests == []


def test_files_left_by_a_killed_fetch_do_not_affect_the_next_one(
    services: Services, program: Path, tmp_path: Path
) -> None:
    sha256 = services.put("bucket/a.tar.gz", archive(start="hello"))
    folder = tmp_path / sha256
    left = tmp_path / f"{sha256}.partial"
    left.mkdir()
    (left / "stray").write_text("x")
    (tmp_path / f"{sha256}.partial.tar.gz.part").write_text("x")
    assert fetch(program, services, "bundle", "s3://bucket/a.tar.gz", sha256, folder).returncode == 0
    assert [path.name for path in folder.iterdir()] == ["start"]


def test_keys_with_odd_characters_are_signed_as_s3_does(
    services: Services, program: Path, tmp_path: Path
) -> None:
    key = "jobs/a b+c~d(é)=&?/x.toml"
    sha256 = services.put(f"bucket/{key}", b"content")
    done = fetch(program, services, "file", f"s3://bucket/{key}", sha256, tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "out").read_bytes() == b"content"


def test_a_request_is_signed_after_its_credentials_have_come() -> None:
    names: dict[str, Any] = {"__name__": "fetch_agent"}
    exec(compile(fetch_agent(), "fetch_agent.py", "exec"), names)
    now = [1_800_000_000.0]
    signed = []

    def credentials() -> tuple[str, str, str]:
        now[0] += 3600
        return "key", "secret", "token"

    def answer(url: str, *, headers: dict[str, str], timeout_s: float) -> io.BytesIO:
        signed.append({name.lower(): value for name, value in headers.items()}["x-amz-date"])
        raise OSError

    names |= {
        "time": SimpleNamespace(**{**vars(time), "time": lambda: now[0]}),
        "credentials": credentials,
        "open_url": answer,
    }
    names["_learned"]["region"] = "eu-west-1"

    with pytest.raises(names["FetchError"]):
        list(names["get"]("s3://bucket/key"))

    assert signed == [time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now[0]))]


def test_a_bundle_with_a_wrong_checksum_is_refused(services: Services, program: Path, tmp_path: Path) -> None:
    services.put("bucket/a.tar.gz", archive(start="evil"))
    done = fetch(program, services, "bundle", "s3://bucket/a.tar.gz", "0" * 64, tmp_path / "x", seconds=1)
    assert done.returncode == 6
    assert "sha256" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fetch_agent.py"]


def test_a_file_that_is_not_an_archive_is_refused_at_once(
    services: Services, program: Path, tmp_path: Path
) -> None:
    sha256 = services.put("bucket/a.tar.gz", b"no archive")
    done = fetch(program, services, "bundle", "s3://bucket/a.tar.gz", sha256, tmp_path / "x")
    assert done.returncode == 6
    assert "unpacked" in done.stdout
    assert len([path for path, _ in services.requests if path == "/bucket/a.tar.gz"]) == 1


@pytest.mark.parametrize(
    ("status", "error", "code"), [(403, "AccessDenied", 4), (404, "NoSuchKey", 5), (503, "SlowDown", 3)]
)
def test_each_error_of_s3_has_an_exit_code_and_a_sentence(
    services: Services, program: Path, tmp_path: Path, status: int, error: str, code: int
) -> None:
    services.refuse = lambda path: (status, error) if path.startswith("/bucket") else None
    done = fetch(program, services, "file", "s3://bucket/key", "0" * 64, tmp_path / "x", seconds=1)
    assert done.returncode == code
    assert f"S3 answered {status} {error} for s3://bucket/key" in done.stdout


def test_an_object_that_appears_late_is_waited_for(services: Services, program: Path, tmp_path: Path) -> None:
    """Credentials, a role's rights and the network come some seconds after the machine."""
    sha256 = services.put("bucket/key", b"content")
    seen: list[str] = []

    def refuse(path: str) -> tuple[int, str] | None:
        seen.append(path)
        refusals = {
            "/latest/meta-data/iam/security-credentials/": (404, ""),
            "/bucket/key": (403, "AccessDenied"),
        }
        return refusals.get(path) if seen.count(path) == 1 else None

    services.refuse = refuse
    done = fetch(program, services, "file", "s3://bucket/key", sha256, tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, "")
    assert seen.count("/bucket/key") == 2


def test_requests_are_signed_with_s3s_time_if_the_clock_is_wrong(
    services: Services, program: Path, tmp_path: Path
) -> None:
    services.clock = timedelta(days=700)
    sha256 = services.put("bucket/key", b"content")
    assert fetch(program, services, "file", "s3://bucket/key", sha256, tmp_path / "out").returncode == 0


def test_a_clock_is_waited_for_until_it_is_set(services: Services, program: Path) -> None:
    services.clock = timedelta(days=700)
    seen: list[str] = []

    def set_at_the_second_look(path: str) -> None:
        seen.append(path)
        if len(seen) == 2:
            services.clock = timedelta(seconds=20)

    services.refuse = set_at_the_second_look
    done = fetch(program, services, "clock", "s3://bucket/jobs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert seen == ["/bucket", "/bucket"]


@pytest.mark.parametrize(
    ("ahead", "code"),
    [(timedelta(days=-700), 8), (timedelta(minutes=-20), 8), (timedelta(minutes=10), 9)],
)
def test_a_clock_that_is_never_set_is_reported(
    services: Services, program: Path, ahead: timedelta, code: int
) -> None:
    services.clock = ahead
    done = fetch(program, services, "clock", "s3://bucket/jobs", seconds=1)
    assert done.returncode == code
    assert "this machine's clock says" in done.stdout
    assert "S3's says" in done.stdout


def test_a_clock_that_cannot_be_compared_with_s3_is_reported(services: Services, program: Path) -> None:
    class Timeless(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(403)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Timeless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        done = fetch(program, services, "clock", "s3://bucket/jobs", S3_ENDPOINT=url)
        server.shutdown()
    assert (done.returncode, done.stdout) == (3, f"{url} sends no Date header\n")


@pytest.mark.parametrize("arguments", [["clock", "s3://bucket"], ["listed", "s3://bucket/key"]])
@pytest.mark.parametrize("years", [-10, 10])
def test_a_certificate_outside_its_time_is_blamed_on_the_clock(
    services: Services, program: Path, tmp_path: Path, arguments: list[str], years: int
) -> None:
    """Where S3 is reached by TLS, a clock that is years off is met by this before anything is answered."""
    certificate = certificate_from(datetime.now(timezone.utc) + timedelta(days=365 * years), tmp_path)
    server = Services().serve()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)

    done = fetch(
        program,
        services,
        *arguments,
        seconds=1,
        S3_ENDPOINT=f"https://127.0.0.1:{server.server_address[1]}",
        SSL_CERT_FILE=str(certificate),
    )
    server.shutdown()
    server.server_close()

    assert done.returncode == 8
    assert "S3's certificate disagrees" in done.stdout


def test_fetching_ends_within_the_limit_if_no_server_answers(
    services: Services, program: Path, tmp_path: Path
) -> None:
    done = fetch(
        program,
        services,
        *("file", "s3://bucket/key", "0" * 64, tmp_path / "x"),
        seconds=1,
        AWS_EC2_METADATA_SERVICE_ENDPOINT="http://127.0.0.1:1",
    )
    assert done.returncode == 3
    assert "metadata service cannot be reached" in done.stdout


def test_a_full_disk_is_reported(services: Services, program: Path) -> None:
    sha256 = services.put("bucket/key", b"content")
    done = fetch(program, services, "file", "s3://bucket/key", sha256, "/proc/nowhere")
    assert done.returncode == 7


def test_the_instance_id_and_launch_index_are_printed_and_an_object_is_looked_up(
    services: Services, program: Path
) -> None:
    services.launch_index = 3
    services.put("bucket/jobs/j/release.json", b"{}")
    assert fetch(program, services, "facts").stdout == "i-0123456789abcdef0 3\n"
    assert fetch(program, services, "listed", "s3://bucket/jobs/j/release.json").returncode == 0
    assert fetch(program, services, "listed", "s3://bucket/jobs/j/release").returncode == 1


def test_credentials_are_never_printed(services: Services, program: Path, tmp_path: Path) -> None:
    services.refuse = lambda path: (403, "AccessDenied") if path.startswith("/bucket") else None
    done = fetch(program, services, "file", "s3://bucket/key", "0" * 64, tmp_path / "x", seconds=1)
    for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
        assert secret not in done.stdout + done.stderr


def test_the_script_compiles_on_an_old_python() -> None:
    assert "bai_agent" not in fetch_agent()  # it is not there yet
    ast.parse(fetch_agent(), feature_version=(3, 6))
