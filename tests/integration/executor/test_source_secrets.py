"""A source address with a password or signature: used for the pull, and never shown."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from local_cli import LocalCli, local_cli

_PASSWORD, _SIGNATURE = "hunter2hunter2", "5ec3e75ec3e7"
_SECRETS = re.compile(f"{_PASSWORD}|{_SIGNATURE}")


class _Signed(BaseHTTPRequestHandler):
    """Has a file for whoever knows the signature."""

    def do_GET(self) -> None:
        content = b"data\n" if f"Signature={_SIGNATURE}" in self.path else b""
        self.send_response(200 if content else 403)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def cli(tmp_path: Path) -> LocalCli:
    return local_cli(tmp_path)


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Signed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield (
            f"http://me:{_PASSWORD}@127.0.0.1:{server.server_address[1]}/data.txt?version=3&X-Amz-Signature={_SIGNATURE}"
        )
        server.shutdown()


def benchmark(cli: LocalCli, address: str) -> Path:
    source = f'[[data.sources]]\nsrc = "{address}"\npath = "data.txt"\n'
    return cli.descriptor('print("loss=0.5", open("data.txt").read())', more=source)


def test_no_command_or_export_shows_credentials_in_a_source_address(cli: LocalCli, address: str) -> None:
    # Given two jobs that pulled from such an address
    file = benchmark(cli, address)
    printed = []
    for job in ("one", "two"):
        done = cli.bai("run", file, "--job-id", job)
        assert done.code == 0, done.stderr
        printed.append(done.stdout + done.stderr)
    assert "data" in cli.output("one")

    # When everything is asked that shows or exports a job
    views: list[tuple[str, ...]] = [
        ("list", "--json"),
        ("status", "one", "--json"),
        ("status", "one"),
        ("logs", "one"),
        ("metrics", "one", "--json"),
        ("compare", "one", "two"),
        ("compare", "one", "two", "--json"),
        ("compare", "one", "two", "-o", "compared.html"),
        *(("report", "one", "-o", f"report.{kind}") for kind in ("html", "md", "json", "csv")),
        ("extract", "one"),
        ("fetch", "one", "there"),
        ("export", "one", "--to", "tensorboard", "--dir", "board"),
    ]
    for view in views:
        done = cli.bai(*view)
        assert done.code in (0, 1), (view, done.stderr)
        printed.append(done.stdout + done.stderr)

    # Then none of it holds the password or the signature, and the address is told without them
    assert not [each for each in printed if _SECRETS.search(each)]
    files = [
        path
        for place in ("report.*", "compared.html", "there/**/*", "board/**/*")
        for path in cli.folder.glob(place)
        if path.is_file()
    ]
    assert len(files) > 8
    assert not [path.name for path in files if _SECRETS.search(path.read_text(errors="replace"))]
    for name in ("report.html", "report.json", "there/job.toml"):
        assert "/data.txt?" in (cli.folder / name).read_text()


def test_credentials_in_a_source_address_are_stored_only_in_job_and_request_files(
    cli: LocalCli, address: str
) -> None:
    assert cli.bai("run", benchmark(cli, address), "--job-id", "one").code == 0

    holding = {
        path.name
        for path in cli.store.rglob("*")
        if path.is_file() and _SECRETS.search(path.read_text(errors="replace"))
    }

    # What the agent pulls by, and what `--like` asks for again.
    assert holding == {"job.toml", "request.json"}


def test_a_source_address_with_a_new_signature_is_the_same_job(cli: LocalCli, address: str) -> None:
    assert cli.bai("run", benchmark(cli, address), "--job-id", "one").code == 0

    again = cli.bai("run", benchmark(cli, f"{address}&X-Amz-Date=2"), "--job-id", "one")
    like = cli.bai("run", "--like", "one", "--job-id", "two")

    assert (again.code, like.code) == (0, 0), again.stderr + like.stderr
    assert "data" in cli.output("two")
