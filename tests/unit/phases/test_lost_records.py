"""What the leader takes from the records of a node that was lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from handmade_job import START, HandmadeJob

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import Headline, Metric, OverRanks, ResultFormat, Results
from bai_agent.job.elastic_result import elastic_result
from bai_agent.job.generation_records import DecisionKind, NextGeneration
from bai_agent.job.record_types import GenerationOutcome, NodeOutcome
from bai_agent.metrics.records import RecordFile, Value
from bai_agent.phases import lost_records
from bai_agent.phases.lost_records import outcomes_of_lost

HEARD = NodeOutcome(
    outcome="succeeded",
    sentence="",
    generations=[
        GenerationOutcome(generation=each, outcome="", started=START + 10_000 * each) for each in (0, 2)
    ],
)
MEMBERS = {0: [2, 1], 2: [0, 1]}


@pytest.fixture
def lost(tmp_path: Path) -> HandmadeJob:
    """A node with the losses 1 and 2 in the generation 0, 30 and 4 in the generation 2, and a line that was cut."""
    made = HandmadeJob(tmp_path / "store", "job", nodes=2).on(1)
    told = ((0, 1, 1.0), (0, 2, 2.0), (2, 20, 30.0), (2, 22, 4.0))
    records = RecordFile(made.node / "metrics.jsonl", [], restarts=True)
    for number, (generation, second, value) in enumerate(told):
        each = Value(0, "loss", repr(value), "nats")
        records.add_values("emit", number, [each], timestamp=START + 1000 * second, repeat=generation)
    records.close()
    with (made.node / "metrics.jsonl").open("ab") as file:
        file.write(b'{"seq":9,"src":"log","off":9,"i":0,"k":0,"name":"loss","value":77')
    return made


def described(made: HandmadeJob, **metric: Any) -> Job:
    metrics = (
        Metric(
            name="loss", pattern="x", required=True, over_ranks=OverRanks.SUM, headline=Headline.MAX, **metric
        ),
        Metric(name="accuracy", pattern="y", required=True),
    )
    results = (
        Results(path="a.json", format=ResultFormat.GOOGLE_BENCHMARK, required=True),
        Results(path="b.json", format=ResultFormat.GOOGLE_BENCHMARK),
    )
    return replace(made.job, metrics=metrics, results=results)


def test_headlines_and_generations_of_a_lost_node_are_read_from_its_records(
    tmp_path: Path, lost: HandmadeJob
) -> None:
    job = described(lost)

    (found,) = outcomes_of_lost(
        job, [lost.record.node(1)], [HEARD], members=MEMBERS, folder=tmp_path, over=lambda: False
    )

    assert found.metrics is not None
    assert (found.rank, found.metrics.records, found.metrics.per_metric) == (1, 4, {"loss": 4, "accuracy": 0})
    assert found.metrics.required_missing == ["accuracy"]
    headlines = found.metrics.headlines or {}
    assert (headlines["loss"].value, headlines["loss"].generation, headlines["loss"].runs) == (
        30.0,
        2,
        {"": [30.0]},
    )
    told = [(each.generation, each.headlines["loss"].value) for each in found.generations or []]
    assert told == [(0, 2.0), (2, 30.0)]
    assert not list(tmp_path.glob("lost-*"))


def test_a_generation_whose_members_were_lost_is_in_the_result(tmp_path: Path, lost: HandmadeJob) -> None:
    nodes = [lost.record.node(1)]

    found = outcomes_of_lost(
        described(lost), nodes, [HEARD], members=MEMBERS, folder=tmp_path, over=lambda: False
    )

    end = NextGeneration(kind=DecisionKind.END, members=[0], outcome="succeeded")
    only_last = replace(
        HEARD, generations=[replace((HEARD.generations or [])[1], outcome="succeeded", members=[0, 1])]
    )
    result = elastic_result("job", end, [only_last], lost={1: "Node 1", 2: "Node 2"}, measured=found)
    told = {each.generation: each for each in result.generations or ()}
    assert {number: each.members for number, each in told.items()} == MEMBERS
    assert told[0].outcome == "peer_lost"


def test_unread_result_files_of_a_lost_node_count_as_missing(tmp_path: Path, lost: HandmadeJob) -> None:
    job = described(lost)

    (found,) = outcomes_of_lost(
        job, [lost.record.node(1)], [HEARD], members=MEMBERS, folder=tmp_path, over=lambda: False
    )

    assert found.metrics is not None
    assert (found.metrics.results_missing, found.metrics.required_results_missing) == (["b.json"], ["a.json"])


def test_a_warm_up_counts_from_the_start_of_the_others(tmp_path: Path, lost: HandmadeJob) -> None:
    job = described(lost, warmup=timedelta(seconds=1.5))

    (found,) = outcomes_of_lost(
        job, [lost.record.node(1)], [HEARD], members=MEMBERS, folder=tmp_path, over=lambda: False
    )

    told = [(each.generation, each.headlines["loss"].value) for each in found.generations or []]
    assert told == [(0, 2.0), (2, 4.0)]


def test_missing_values_of_lost_nodes_cause_a_warning(
    tmp_path: Path, lost: HandmadeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [lost.record.node(1)]

    (late,) = outcomes_of_lost(lost.job, nodes, [HEARD], members=MEMBERS, folder=tmp_path, over=lambda: True)
    monkeypatch.setattr(lost_records, "_MOST_BYTES", 100)
    (many,) = outcomes_of_lost(lost.job, nodes, [HEARD], members=MEMBERS, folder=tmp_path, over=lambda: False)

    end = NextGeneration(kind=DecisionKind.END, members=[0], outcome="succeeded")
    for found, why in (
        (late, "no time was left"),
        (many, "the records of the node have more than 100 bytes"),
    ):
        heard = [replace(HEARD, generations=None)]
        result = elastic_result("job", end, heard, lost={1: "Node 1"}, measured=[found])
        (warning,) = [each for each in result.warnings or () if "The values of" in each]
        assert warning.startswith(f"Node 1: The values of this node are not in the result: {why}")
        assert result.outcome == "succeeded"
    assert not list(tmp_path.glob("lost-*"))
