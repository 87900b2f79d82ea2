"""The supervisor of AdaptDL's replicas, asked over real connections."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bai_agent.job.peers import Peer
from bai_agent.job.run_directory import RunDir
from bai_agent.peers.adaptdl_supervisor import MOST_HINT_BYTES, AdaptdlSupervisor, start_supervisor

KEY = "0123abc/job-1"
PEERS = [Peer(rank=0, address="10.0.0.1", slots=2), Peer(rank=1, address="10.0.0.2")]
ADDRESSES = ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
SECONDS = 60


@pytest.fixture
def supervisor() -> Iterator[AdaptdlSupervisor]:
    made = AdaptdlSupervisor(node=3, job_key=KEY, hold_s=0.2)
    yield made
    made.close()


def asked(
    supervisor: AdaptdlSupervisor, method: str, path: str, content: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", supervisor.port, timeout=SECONDS)
    try:
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_supervisor_lists_one_address_for_each_replica_of_a_generation(
    supervisor: AdaptdlSupervisor,
) -> None:
    supervisor.begin(2, PEERS)

    status, content = asked(supervisor, "GET", f"/discover/{KEY}/2")

    assert (status, json.loads(content)) == (200, ADDRESSES)
    assert supervisor.environment == {
        "ADAPTDL_JOB_ID": KEY,
        "ADAPTDL_SUPERVISOR_URL": f"http://127.0.0.1:{supervisor.port}",
    }


def test_a_request_for_a_generation_that_has_not_begun_times_out_with_408(
    supervisor: AdaptdlSupervisor,
) -> None:
    supervisor.begin(1, PEERS)

    assert asked(supervisor, "GET", f"/discover/{KEY}/2")[0] == 408
    assert asked(supervisor, "GET", f"/discover/{KEY}/0")[0] == 410


def test_a_replica_is_held_until_its_generation_begins() -> None:
    supervisor = AdaptdlSupervisor(node=0, job_key=KEY, hold_s=SECONDS)
    found: list[tuple[int, bytes]] = []
    ask = threading.Thread(target=lambda: found.append(asked(supervisor, "GET", f"/discover/{KEY}/0")))
    try:
        ask.start()
        supervisor.begin(0, PEERS)
        ask.join(SECONDS)
    finally:
        supervisor.close()

    assert [(status, json.loads(content)) for status, content in found] == [(200, ADDRESSES)]


def test_many_replicas_are_held_at_the_same_time(supervisor: AdaptdlSupervisor) -> None:
    """A replica whose connection was closed would fail."""
    connections = [
        http.client.HTTPConnection("127.0.0.1", supervisor.port, timeout=SECONDS) for _ in range(100)
    ]
    try:
        for each in connections:
            each.request("GET", f"/discover/{KEY}/0")
        supervisor.begin(0, PEERS)

        assert {each.getresponse().status for each in connections} <= {200, 408}
    finally:
        for each in connections:
            each.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/discover/0123abd/job-1/0"),
        ("GET", "/discover/job-1/0"),
        ("GET", f"/discover/{KEY}/"),
        ("GET", f"/discover/{KEY}/-1"),
        ("GET", f"/discover/{KEY}/99999999999"),
        ("GET", f"/hints/{KEY}"),
        ("GET", "/"),
        ("PUT", "/hints/0123abd/job-1"),
        ("PUT", f"/discover/{KEY}/0"),
    ],
)
def test_requests_for_another_job_or_path_get_404(
    supervisor: AdaptdlSupervisor, method: str, path: str
) -> None:
    supervisor.begin(0, PEERS)

    assert asked(supervisor, method, path, b"{}" if method == "PUT" else None)[0] == 404
    assert (supervisor.hints, supervisor.take_warnings()) == (None, [])


def test_the_last_hints_are_stored_with_their_generation(supervisor: AdaptdlSupervisor) -> None:
    supervisor.begin(2, PEERS)

    for size in (32, 64):
        assert (
            asked(supervisor, "PUT", f"/hints/{KEY}", json.dumps({"initBatchSize": size}).encode())[0] == 200
        )

    hints = supervisor.hints
    assert hints is not None
    assert (hints.node, hints.generation, hints.text) == (3, 2, '{"initBatchSize": 64}')


def test_hints_that_are_garbage_are_ignored_and_reported_once(supervisor: AdaptdlSupervisor) -> None:
    kept = asked(supervisor, "PUT", f"/hints/{KEY}", b"{}")[0]
    deep = b"[" * 30_000
    codes = [
        asked(supervisor, "PUT", f"/hints/{KEY}", each)[0] for each in (b"", b"[1]", b"{", b"\xff", deep)
    ]

    assert (kept, codes) == (200, [400] * 5)
    assert supervisor.hints is not None
    assert supervisor.take_warnings() == ["AdaptDL's hints were not a JSON object, and are ignored."]
    asked(supervisor, "PUT", f"/hints/{KEY}", b"{")
    assert supervisor.take_warnings() == []


@pytest.mark.parametrize("length", [str(MOST_HINT_BYTES + 1), "10000000", "9" * 30, "x", "-1"])
def test_hints_that_are_too_large_are_refused_before_they_are_read(
    supervisor: AdaptdlSupervisor, length: str
) -> None:
    # Nothing of that length follows.
    status, _ = asked(supervisor, "PUT", f"/hints/{KEY}", b"{}", **{"Content-Length": length})

    assert status == 413
    assert supervisor.hints is None
    assert supervisor.take_warnings() == [
        "AdaptDL's hints were larger than 65536 bytes, or of unknown size, and are ignored."
    ]


def test_the_largest_hints_are_taken(supervisor: AdaptdlSupervisor) -> None:
    content = json.dumps({"x": "y" * (MOST_HINT_BYTES - 10)}).encode()
    assert len(content) <= MOST_HINT_BYTES

    assert asked(supervisor, "PUT", f"/hints/{KEY}", content)[0] == 200


def test_the_supervisor_of_a_restarted_agent_has_the_same_address_and_a_private_token(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    first = start_supervisor(rundir, node=0, job_id="j")
    told = first.environment
    first.close()
    again = start_supervisor(rundir, node=0, job_id="j")
    again.close()

    assert again.environment == told
    assert rundir.supervisor.stat().st_mode & 0o777 == 0o600
    assert len(told["ADAPTDL_JOB_ID"]) > 32
    assert start_other(tmp_path)["ADAPTDL_JOB_ID"] != told["ADAPTDL_JOB_ID"]


def start_other(folder: Path) -> dict[str, str]:
    other = folder / "other"
    other.mkdir()
    supervisor = start_supervisor(RunDir(other), node=0, job_id="j")
    supervisor.close()
    return supervisor.environment


@pytest.mark.parametrize("content", ["", "[]", '{"token": "a/b", "port": 1}', '{"token": "ab", "port": "1"}'])
def test_a_malformed_supervisor_file_is_replaced(tmp_path: Path, content: str) -> None:
    rundir = RunDir(tmp_path)
    rundir.supervisor.write_text(content)

    supervisor = start_supervisor(rundir, node=0, job_id="j")
    supervisor.close()

    assert json.loads(rundir.supervisor.read_text())["port"] == supervisor.port


def test_a_restarted_supervisor_takes_another_port_if_its_old_one_is_in_use(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    first = start_supervisor(rundir, node=0, job_id="j")
    second = start_supervisor(rundir, node=0, job_id="j")
    first.close()
    second.close()

    assert first.port != second.port
    assert first.environment["ADAPTDL_JOB_ID"] == second.environment["ADAPTDL_JOB_ID"]
