"""The status of each of several nodes, from the records that nodes write."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from handmade_job import START, HandmadeJob

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.peers import Peer
from bai_agent.job.record_types import NodeOutcome
from executor.documents.screen import show_blocks
from executor.documents.status import nodes_table
from executor.records.job_status import NodeStatus
from executor.records.node_status import node_statuses


@pytest.fixture
def job(tmp_path: Path) -> HandmadeJob:
    """A job of which node 0 runs, node 1 has failed, and node 2 has yet to start."""
    made = HandmadeJob(tmp_path, nodes=3)
    attempt = AttemptRecord(made.record)
    for rank in (0, 1):
        attempt.join(Peer(rank=rank, address=f"10.0.0.{rank}", instance_id=f"i-{rank}" if rank else None))
        attempt.sign(rank, {"phase": "run"})
        made.on(rank).phases("prepare", "pull", "join", until="run")
    attempt.end(NodeOutcome(rank=1, outcome="failed", sentence="It exited with code 7.", ended=START + 9))
    return made


def test_each_node_has_its_address_and_status(job: HandmadeJob) -> None:
    runs, failed, starts = node_statuses(job.record)

    assert (runs.address, runs.instance_id, runs.phase, runs.since) == ("10.0.0.0", None, "run", START)
    assert runs.last_sign is not None
    assert abs(runs.last_sign - time.time() * 1000) < 600_000
    assert (failed.address, failed.instance_id, failed.phase) == ("10.0.0.1", "i-1", None)
    assert (failed.outcome, failed.sentence, failed.ended) == ("failed", "It exited with code 7.", START + 9)
    assert starts == NodeStatus(rank=2)


def test_a_job_of_one_node_has_no_rows(tmp_path: Path) -> None:
    assert node_statuses(HandmadeJob(tmp_path).record) == []


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("ended/1.json", b'{"outcome": 3, "sentence": ""}', "attempts/0/ended/1.json: outcome"),
        ("ended/1.json", b"[", "attempts/0/ended/1.json is not JSON"),
        ("joined/1.json", b'{"address": 3}', "attempts/0/joined/1.json: address: expected an address"),
    ],
)
def test_a_broken_record_of_one_node_does_not_hide_others(
    job: HandmadeJob, name: str, content: bytes, why: str
) -> None:
    job.store.put(AttemptRecord(job.record).key(name), content)

    runs, broken, _ = node_statuses(job.record)

    assert (runs.phase, runs.trouble) == ("run", None)
    assert broken.trouble is not None
    assert why in broken.trouble


def test_the_table_shows_what_happened_to_each_node(
    job: HandmadeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    show_blocks([nodes_table(node_statuses(job.record), is_over=False)])
    heading, runs, failed, starts = capsys.readouterr().out.splitlines()

    assert heading.split() == ["node", "instance", "address", "phase", "last", "sign", "end"]
    assert runs.split()[:4] == ["0", "here", "10.0.0.0", "run"]
    assert runs.endswith("ago")
    assert failed.split() == ["1", "i-1", "10.0.0.1", *["failed:", "It", "exited", "with", "code", "7."]]
    assert starts.split() == ["2", "starting"]

    show_blocks([nodes_table(node_statuses(job.record), is_over=True)])
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        "2",
        *["did", "not", "say", "how", "it", "ended"],
    ]


def test_a_narrow_table_keeps_instances_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.documents.screen._PIPE_WIDTH", 70)
    node = NodeStatus(
        rank=1, instance_id="i-0123456789abcdef0", address="10.0.0.1", outcome="failed", sentence="x" * 99
    )

    show_blocks([nodes_table([node], is_over=False)])

    shown = capsys.readouterr().out
    assert "1     i-0123456789abcdef0  10.0.0.1" in shown
    assert shown.count("x") == 99
