from __future__ import annotations

from typing import Any

from executor.records.machine_facts import NodeEnvironment, machine_warnings


def node(rank: int, environment: dict[str, Any] | None) -> NodeEnvironment:
    return NodeEnvironment(attempt=0, rank=rank, environment=environment)


def test_a_warning_of_all_nodes_is_shown_once_without_names() -> None:
    nodes = [node(rank, {"warnings": ["Swap was used."]}) for rank in range(3)]
    assert [each.text for each in machine_warnings(nodes)] == ["Swap was used."]


def test_a_warning_of_some_nodes_names_them() -> None:
    nodes = [node(rank, {"warnings": ["Swap was used."] if rank else []}) for rank in range(3)]
    assert [each.text for each in machine_warnings(nodes)] == ["node 1, 2: Swap was used."]


def test_minor_warnings_are_left_out() -> None:
    facts = {"warnings": ["The governor.", "Swap was used."], "minor": ["The governor."]}
    assert [each.sentence for each in machine_warnings([node(0, facts)])] == ["Swap was used."]


def test_different_container_images_of_the_nodes_are_reported_first() -> None:
    old, new = "0" * 64, "f" * 64
    nodes = [
        node(rank, {"container": {"image": image}, "warnings": ["Swap was used."]})
        for rank, image in enumerate([old, new, old])
    ]

    assert [each.text for each in machine_warnings(nodes)] == [
        "node 0, 2: Its container's image 000000000000 differs from that of other nodes; name the image by its digest.",
        "node 1: Its container's image ffffffffffff differs from that of other nodes; name the image by its digest.",
        "Swap was used.",
    ]
    assert [each.text for each in machine_warnings([nodes[0], nodes[2]])] == ["Swap was used."]


def test_a_malformed_environment_has_no_warnings() -> None:
    forged: list[Any] = [
        None,
        {},
        {"warnings": "text"},
        {"warnings": [1, None, {}], "minor": 3},
        {"container": 3},
    ]
    assert machine_warnings([node(rank, each) for rank, each in enumerate(forged)]) == []
