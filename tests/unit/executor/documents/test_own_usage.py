"""The sentence about the resource usage of bai's own programs."""

from __future__ import annotations

import pytest

from bai_agent.job.record_types import OwnUsage, ProcessUsage
from executor.documents.machines import usage_sentence, usage_share, usage_words

HALF = ProcessUsage(cpu_seconds=0.5, peak_memory_bytes=20 << 20)


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (
            OwnUsage(cpus=16, benchmark_seconds=125, agent=HALF, extractor=HALF, shim=HALF),
            "bai itself took 1.50 s of processor time: less than 0.1 % of what the machine's 16 CPUs had while "
            "the benchmark ran for 2 min 05 s; the start and end of bai are included.",
        ),
        (
            OwnUsage(cpus=1, benchmark_seconds=0.5, agent=HALF, extractor=HALF, shim=HALF),
            "bai itself took 1.50 s of processor time.",
        ),
        (
            OwnUsage(cpus=2, agent=HALF, extractor=HALF),
            "bai itself took at least 1.00 s of processor time.",
        ),
        (OwnUsage(cpus=2, agent=HALF), "bai itself took 0.50 s of processor time."),
    ],
    ids=["a long benchmark", "a short one", "a lost shim", "no benchmark"],
)
def test_the_share_is_relative_to_the_machines_processors(node: OwnUsage, sentence: str) -> None:
    assert usage_sentence([node]) == sentence


def test_usage_of_nodes_on_one_machine_is_relative_to_its_processors_once() -> None:
    nodes = [
        OwnUsage(rank=rank, cpus=4, benchmark_seconds=10, agent=HALF, extractor=HALF, shim=HALF)
        for rank in (0, 1)
    ]

    assert "on 2 nodes: 7.5 % of what the machine's 4 CPUs had" in usage_sentence(nodes, one_machine=True)
    assert "on 2 nodes: 3.8 % of what their 8 CPUs had" in usage_sentence(nodes)


def test_a_node_with_unknown_usage_has_no_share() -> None:
    whole = OwnUsage(cpus=2, benchmark_seconds=10, agent=HALF, extractor=HALF, shim=HALF)
    lost = OwnUsage(rank=1, cpus=2, agent=HALF, extractor=ProcessUsage(cpu_seconds=70, at_least=True))

    assert (
        usage_sentence([whole, lost]) == "bai itself took at least 1 min 12 s of processor time on 2 nodes."
    )
    assert [usage_share(each) for each in (whole, lost)] == ["7.5 %", "–"]
    assert list(usage_words(lost)) == [
        ("agent", "0.50 s, 20.0 MiB"),
        ("extractor", "at least 1 min 10 s"),
        ("shim", "–"),
    ]
