"""A result written on a machine's behalf has what the store knows, and no secret of the benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic_record import ElasticRecord

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import Change
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.ec2.inferred_result import write_result
from executor.records import reading

_JOB = """
version = 1
[job]
id = "j"
[benchmark]
argv = ["true"]
"""


@pytest.fixture
def record(tmp_path: Path) -> JobRecord:
    return JobRecord(DirectoryStore(tmp_path), "j")


def fill(record: JobRecord, *, job: str = _JOB, log: bytes = b"token pl4nted\nlast\n") -> None:
    record.store.put(record.key("job.toml"), job.encode())
    record.store.put(record.node().key(f"log/{0:020}"), log)


def result_of(record: JobRecord) -> dict[str, object]:
    content = record.store.get(record.key("result.json"))
    assert content is not None
    result: dict[str, object] = json.loads(content)
    return result


def test_last_lines_are_left_out_if_they_may_contain_secrets(record: JobRecord) -> None:
    fill(record, job=f'{_JOB}secrets = {{ TOKEN = "env:TOKEN" }}\n')

    assert write_result(record, Outcome.LOST, "It is lost.")

    assert result_of(record)["last_lines"] == []
    assert "bai logs" in str(result_of(record)["warnings"])
    assert "pl4nted" not in json.dumps(result_of(record))


def test_last_lines_are_kept_if_there_are_no_secrets(record: JobRecord) -> None:
    fill(record)

    assert write_result(record, Outcome.LOST, "It is lost.")

    assert result_of(record)["last_lines"] == ["token pl4nted", "last"]
    assert result_of(record)["warnings"] == []


def test_last_lines_are_those_of_the_node_that_is_the_cause(record: JobRecord) -> None:
    fill(record)
    record.store.put(record.node(1).key(f"log/{0:020}"), b"its last\n")

    assert write_result(record, Outcome.LOST, "It is lost.", rank=1)

    assert result_of(record)["last_lines"] == ["its last"]


def test_a_node_that_reported_its_own_failure_is_the_cause(record: JobRecord) -> None:
    fill(record)
    attempt = AttemptRecord(record)
    attempt.end(NodeOutcome(rank=0, outcome="peer_failed", sentence="Node 1 failed.", ended=1))
    attempt.end(
        NodeOutcome(
            rank=1, outcome="failed", sentence="It exited with code 7.", ended=2, last_lines=["no weights"]
        )
    )

    assert write_result(record, Outcome.LOST, "EC2 took the machines away.")

    result = result_of(record)
    assert (result["outcome"], result["exit_code"]) == ("failed", 1)
    assert (result["sentence"], result["last_lines"]) == ("Node 1: It exited with code 7.", ["no weights"])
    assert result["warnings"] == ["EC2 took the machines away."]


def test_nodes_that_only_lost_another_one_are_not_the_cause(record: JobRecord) -> None:
    fill(record)
    AttemptRecord(record).end(NodeOutcome(rank=1, outcome="peer_lost", sentence="Node 0 is silent.", ended=2))

    assert write_result(record, Outcome.LOST, "EC2 took the machines away.")

    assert (result_of(record)["outcome"], result_of(record)["sentence"]) == (
        "lost",
        "EC2 took the machines away.",
    )


def test_credentials_in_an_address_are_redacted(record: JobRecord) -> None:
    fill(record, log=b"pip: https://me:pl4nted@index/simple\n")

    assert write_result(record, Outcome.LOST, "https://me:pl4nted@host did not answer.")

    assert "pl4nted" not in json.dumps(result_of(record))
    assert result_of(record)["sentence"] == "https://***@host did not answer."


def test_generations_are_reported_as_far_as_the_store_has_them(tmp_path: Path) -> None:
    # Given a job whose first node was lost, and whose machines were all taken away while the second generation ran
    it = ElasticRecord(tmp_path)
    it.decides(0, 0, 1, 2)
    for node in (0, 1, 2):
        it.starts(node, 0, "")
    it.decides(1, 1, 2, why=Change.LOST, nodes=(0,))
    for node in (1, 2):
        it.starts(node, 1, "step=1\n")

    assert write_result(it.record, Outcome.INTERRUPTED, "EC2 took the machines away.")

    found = reading.result_of(it.record)
    assert found is not None
    told = [(each.generation, each.members, each.outcome, each.sentence) for each in found.generations or ()]
    assert told == [
        (0, [0, 1, 2], "peer_lost", "Node 0 sent no heartbeat."),
        (1, [1, 2], "interrupted", "EC2 took the machines away."),
    ]
