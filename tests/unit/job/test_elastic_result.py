"""The result of an elastic job: the decision that ended it, and the values of each node."""

from __future__ import annotations

from typing import Any

import pytest

from bai_agent.job.elastic_result import elastic_result
from bai_agent.job.generation_records import DecisionKind, NextGeneration
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import ExtractionSummary, GenerationOutcome, NodeOutcome


def node(rank: int, outcome: Outcome = Outcome.SUCCEEDED, **more: Any) -> NodeOutcome:
    return NodeOutcome(
        rank=rank, outcome=outcome.value, **{"sentence": f"The end of {rank}.", "failed": 5, **more}
    )


def end(outcome: Outcome, *members: int, why: str = "succeeded", sentence: str = "") -> NextGeneration:
    return NextGeneration(
        kind=DecisionKind.END, members=list(members), why=why, outcome=outcome.value, sentence=sentence
    )


def test_a_success_has_the_first_members_report_and_names_lost_nodes() -> None:
    nodes = [node(0, Outcome.INTERRUPTED), node(1), node(2)]

    result = elastic_result("job", end(Outcome.SUCCEEDED, 2, 1), nodes, lost={3: "Node 3 (i-3, 10.0.0.3)"})

    assert (result.outcome, result.exit_code, result.sentence) == ("succeeded", 0, "The end of 2.")
    assert {"Node 3 (i-3, 10.0.0.3) was lost.", "Node 0: The end of 0."} <= set(result.warnings or ())
    assert result.lost == [3]


def test_a_success_after_several_generations_names_the_last_one() -> None:
    generations = [GenerationOutcome(generation=each, outcome="succeeded") for each in (0, 3)]
    nodes = [node(0, sentence="It ended well after 4.0 s.", generations=generations)]

    result = elastic_result("job", end(Outcome.SUCCEEDED, 0), nodes, lost={})

    assert result.sentence == "It ended well after 4.0 s in generation 3."


def test_a_required_metric_that_no_node_saw_is_missing() -> None:
    metrics = ExtractionSummary(required_missing=["loss"])

    result = elastic_result("job", end(Outcome.SUCCEEDED, 0), [node(0, metrics=metrics)], lost={})

    assert result.outcome == "required_metric_missing"


def test_values_of_a_node_that_left_are_in_the_result() -> None:
    nodes = [
        node(0, metrics=ExtractionSummary(required_missing=["loss"])),
        node(1, Outcome.INTERRUPTED, metrics=ExtractionSummary(per_metric={"loss": 3})),
    ]

    result = elastic_result("job", end(Outcome.SUCCEEDED, 0), nodes, lost={})

    assert result.outcome == "succeeded"
    assert result.metrics is not None
    assert result.metrics.per_metric == {"loss": 3}


@pytest.mark.parametrize("why", ["too_few", "max_runtime"])
def test_a_decision_that_ends_the_whole_job_gives_its_outcome_and_sentence(why: str) -> None:
    nodes = [node(0, Outcome.FAILED), node(1, Outcome.PEER_LOST)]

    result = elastic_result(
        "job", end(Outcome.PEER_LOST, 0, why=why, sentence="Too few."), nodes, lost={1: "Node 1"}
    )

    assert (result.outcome, result.exit_code, result.sentence) == ("peer_lost", 5, "Too few.")


def test_a_failure_has_the_failed_nodes_report() -> None:
    nodes = [node(0, Outcome.PEER_FAILED), node(1, Outcome.FAILED, last_lines=["no such weights"])]

    result = elastic_result(
        "job", end(Outcome.FAILED, 0, 1, why="used_up", sentence="Decided."), nodes, lost={}
    )

    assert (result.outcome, result.sentence) == ("failed", "Node 1: The end of 1.")
    assert result.last_lines == ["no such weights"]


def test_a_required_metric_may_have_been_seen_by_a_lost_node() -> None:
    metrics = ExtractionSummary(required_missing=["loss", "accuracy"])
    nodes = [node(0, metrics=metrics)]

    one = elastic_result("job", end(Outcome.SUCCEEDED, 0), nodes, lost={1: "Node 1"}, seen=["loss"])
    both = elastic_result(
        "job", end(Outcome.SUCCEEDED, 0), nodes, lost={1: "Node 1"}, seen=["loss", "accuracy"]
    )

    assert (one.outcome, '"loss"' in one.sentence) == ("required_metric_missing", False)
    assert both.outcome == "succeeded"
