"""What another node wrote: read as it was written, or refused in a sentence."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.decode import checked
from bai_agent.errors import RecordError
from bai_agent.job.job_result import job_result
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import (
    ArtifactCount,
    BenchmarkExit,
    ExtractionSummary,
    HeadlineValue,
    KafkaDelivery,
    NeverNumber,
    NodeOutcome,
    OwnUsage,
    ProcessUsage,
    RepeatOutcome,
    as_table,
)

WHOLE = NodeOutcome(
    rank=1,
    outcome="failed",
    sentence="It exited with code 7.",
    benchmark=BenchmarkExit(
        code=7, exec_error={"errno": 2}, left_behind_names={"sleep": 2}, wall_seconds=1.5
    ),
    phases={"pull": 1, "run": 2.5},
    metrics=ExtractionSummary(
        per_metric={"loss": 2},
        headlines={"loss": HeadlineValue(value=0.5)},
        never_numbers={"speed": NeverNumber(count=1, first="fast")},
        warnings=["late"],
    ),
    kafka=KafkaDelivery(delivered=2, undelivered=0),
    last_lines=["loss=0.5"],
    artifacts=ArtifactCount(files=1, bytes=2),
    started=1,
    failed=2,
    ended=3,
    warnings=[],
    transports={"NCCL": ["NET/Socket"]},
    repeats=[RepeatOutcome(repeat=0, outcome="failed")],
    own_usage=OwnUsage(rank=1, agent=ProcessUsage(cpu_seconds=0.5)),
    complete=False,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value inside `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in items for place in places(each, (*path, key)))]


TABLE = as_table(WHOLE)
PLACES = places(TABLE)[1:]


def test_a_node_outcome_is_read_back_and_unknown_keys_are_ignored() -> None:
    newer = {**json.loads(json.dumps(TABLE)), "of another version": [1]}

    assert checked(NodeOutcome, newer, where="ended/1.json") == WHOLE


@given(st.sampled_from(PLACES), JSON)
def test_any_value_in_a_record_is_accepted_or_refused(place: tuple[Any, ...], value: Any) -> None:
    table = copy.deepcopy(TABLE)
    inner = table
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value

    try:
        outcome = checked(NodeOutcome, json.loads(json.dumps(table)), where="ended/1.json")
    except RecordError:
        return
    if outcome.outcome in [each.value for each in Outcome]:
        other = NodeOutcome(rank=0, outcome="peer_failed", sentence="", metrics=WHOLE.metrics)
        json.dumps(as_table(job_result("job", [other, outcome])), allow_nan=False)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"sentence": ""}, "ended/1.json: outcome is missing"),
        ({"outcome": "failed", "sentence": None}, "ended/1.json: sentence: expected a text, got None"),
        (
            {"outcome": "failed", "sentence": "", "repeats": [{"repeat": -1, "outcome": "failed"}]},
            "ended/1.json: repeats[0].repeat: expected a count, got -1",
        ),
        ([], "ended/1.json: expected a table, got []"),
    ],
)
def test_a_refused_record_is_reported_with_the_key(table: Any, sentence: str) -> None:
    with pytest.raises(RecordError) as caught:
        checked(NodeOutcome, table, where="ended/1.json")

    assert str(caught.value) == f"{sentence}; the file is corrupt or was written by another tool"
