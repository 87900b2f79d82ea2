"""The table of a job's generations."""

from __future__ import annotations

import pytest

from bai_agent.job.record_types import GenerationOutcome, HeadlineValue
from executor.documents.summary import generations_table, members_words


def generation(
    number: int, *members: int, speed: float | None = None, gap: float | None = None
) -> GenerationOutcome:
    headline = None
    if speed is not None:
        headline = HeadlineValue(value=speed, units="img/s", name="speed", per_node=speed / len(members))
    return GenerationOutcome(
        generation=number,
        outcome="failed",
        sentence=f"It failed {number}.",
        wall_seconds=60.0,
        members=list(members),
        gap_seconds=gap,
        headlines={"speed": headline} if headline is not None else {},
    )


def test_each_generation_has_nodes_times_headlines_and_end() -> None:
    found = [
        generation(0, 0, 1, 2, 3, speed=400),
        generation(1, 0, 2, 3, gap=2.5),
        generation(2, 0, 2, speed=220, gap=4),
    ]

    table = generations_table(found, metrics=1, most=9)

    assert [each.name for each in table.columns] == [
        *("generation", "nodes", "time", "before it", "speed", "per node", "end"),
    ]
    assert [[phrase.text for phrase in row] for row in table.rows] == [
        ["0", "4: 0–3", "1 min 00 s", "–", "400 img/s", "100 img/s", "It failed 0."],
        ["1", "3: 0, 2–3", "1 min 00 s", "2.5 s", "–", "–", "It failed 1."],
        ["2", "2: 0, 2", "1 min 00 s", "4.0 s", "220 img/s", "110 img/s", "It failed 2."],
    ]
    assert table.caption == "3 generations, and 6.5 s between generations in which nothing ran"


def test_only_the_last_of_many_generations_are_shown() -> None:
    found = [generation(number, 0, gap=1.0) for number in range(5)]

    assert [row[0].text for row in generations_table(found, metrics=2, most=2).rows] == ["3", "4"]
    assert "the last 2, and 5.0 s" in generations_table(found, metrics=2, most=2).caption
    assert not generations_table(found[:1], metrics=2, most=2).rows


@pytest.mark.parametrize(
    ("members", "words"),
    [([], ""), ([3], "1: 3"), ([2, 0, 1], "3: 0–2"), ([0, 2, 4, 5, 6, 9], "6: 0, 2, 4–6, 9")],
)
def test_members_of_a_generation_are_abbreviated_as_ranges(members: list[int], words: str) -> None:
    assert members_words(members) == words
