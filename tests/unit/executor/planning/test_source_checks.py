"""Sources that a web server refuses are reported before a run; temporary errors are left to the pull."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bai_agent.job.descriptor.source_tables import Source
from executor.planning.source_checks import refused_sources


@contextmanager
def server(*, head: int, get: int) -> Iterator[str]:
    """Yield the address of a server that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(head)

        def do_GET(self) -> None:
            self._answer(get)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}/train.csv?token=s3cret"
        finally:
            made.shutdown()
            thread.join(60)


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refused_source_is_named_without_its_query(status: int) -> None:
    with server(head=status, get=status) as address:
        (said,) = refused_sources([Source(src=address, path="train.csv")])

    assert f"answers {status}" in said
    assert "/train.csv" in said
    assert "s3cret" not in said


@pytest.mark.parametrize(("head", "get"), [(200, 200), (403, 206), (405, 200), (404, 200), (503, 503)])
def test_a_source_that_may_appear_later_is_left_to_the_pull(head: int, get: int) -> None:
    with server(head=head, get=get) as address:
        assert refused_sources([Source(src=address, path="train.csv")]) == []


def test_a_source_that_is_already_in_place_is_not_requested(tmp_path: Path) -> None:
    (tmp_path / "train.csv").touch()

    with server(head=404, get=404) as address:
        assert refused_sources([Source(src=address, path=str(tmp_path / "train.csv"))]) == []


def test_a_source_on_an_unreachable_server_is_left_to_the_pull() -> None:
    with server(head=404, get=404) as address:
        pass

    assert refused_sources([Source(src=address, path="train.csv")]) == []
