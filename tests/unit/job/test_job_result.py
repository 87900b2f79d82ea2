from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.decode import decode
from bai_agent.job.job_result import job_result
from bai_agent.job.record_types import (
    ArtifactCount,
    BenchmarkExit,
    CheckpointSummary,
    ExtractionSummary,
    GenerationOutcome,
    GitCommit,
    HeadlineValue,
    JobResult,
    KafkaDelivery,
    NeverNumber,
    NodeOutcome,
    OwnUsage,
    ProcessUsage,
    as_table,
)


def node(
    rank: int = 0, outcome: str = "succeeded", *, ended: int = 10, missing: tuple[str, ...] = ()
) -> NodeOutcome:
    return NodeOutcome(
        rank=rank,
        outcome=outcome,
        sentence=f"It {outcome}.",
        benchmark=BenchmarkExit(code=rank),
        phases={"pull": 1.0 + rank, "run": 5.0 - rank},
        metrics=ExtractionSummary(records=2, per_metric={"loss": 2}, required_missing=list(missing)),
        kafka=KafkaDelivery(delivered=2, undelivered=rank),
        last_lines=[f"node {rank}"],
        artifacts=ArtifactCount(files=1, bytes=10),
        started=rank,
        ended=ended,
        warnings=["slow disk"],
    )


@pytest.mark.parametrize(
    ("on_nodes", "outcome", "warned"),
    [((["fio"],), "succeeded", True), ((["fio"], []), "succeeded", False), ((["fio"],), "failed", False)],
)
def test_an_empty_preset_is_a_warning_if_all_nodes_succeeded(
    on_nodes: tuple[list[str], ...], outcome: str, warned: bool
) -> None:
    nodes = [
        replace(node(rank, outcome), metrics=ExtractionSummary(empty_presets=presets))
        for rank, presets in enumerate(on_nodes)
    ]

    result = job_result("digits-1", nodes)

    assert any('preset "fio" found nothing' in each for each in result.warnings or ()) == warned


def test_a_job_of_one_node_ends_as_its_node_did() -> None:
    git = GitCommit(commit="abc")

    result = job_result("digits-1", [node(outcome="failed")], git=git)

    assert (result.outcome, result.status, result.exit_code) == ("failed", "FAILED", 1)
    assert (result.sentence, result.last_lines, result.warnings) == ("It failed.", ["node 0"], ["slow disk"])
    assert (result.phases, result.git, result.started, result.ended) == (
        {"pull": 1.0, "run": 5.0},
        git,
        0,
        10,
    )


def test_the_node_that_failed_first_is_the_cause() -> None:
    nodes = [node(2, "lost", ended=30), node(0), node(1, "failed", ended=20)]

    result = job_result("digits-1", nodes)

    assert (result.outcome, result.sentence) == ("failed", "Node 1: It failed.")
    assert (result.last_lines, result.benchmark) == (["node 1"], BenchmarkExit(code=1))


@pytest.mark.parametrize(("server_ended", "cause"), [(1010, 1), (4000, 1), (9000, 0)])
def test_a_servers_end_explains_the_failure_of_its_client(server_ended: int, cause: int) -> None:
    client = node(0, "failed", ended=1000)
    server = replace(node(1, "failed", ended=server_ended), serves=True, is_server=True)

    assert job_result("job-1", [client, server]).sentence == f"Node {cause}: It failed."


def test_the_first_failure_counts_not_the_first_report() -> None:
    nodes = [replace(node(0, "failed", ended=20), failed=12), replace(node(1, "failed", ended=30), failed=11)]

    assert job_result("digits-1", nodes).sentence == "Node 1: It failed."


@pytest.mark.parametrize(("later_ms", "rank"), [(900, 1), (60_000, 0)])
def test_a_killed_process_is_the_cause_of_failures_around_it(later_ms: int, rank: int) -> None:
    nodes = [
        replace(node(0, "failed"), failed=10_000),
        replace(node(1, "oom"), failed=10_000 + later_ms),
        replace(node(2, "peer_failed"), failed=10),
    ]

    assert job_result("digits-1", nodes).sentence.startswith(f"Node {rank}: ")


def test_a_serving_node_that_failed_is_the_cause() -> None:
    launcher, serving = node(0, "failed", ended=5), replace(node(1, "lost", ended=20_000), serves=True)

    assert job_result("j", [launcher, serving]).outcome == "lost"
    assert job_result("j", [launcher, replace(serving, outcome="peer_failed")]).outcome == "failed"


@pytest.mark.parametrize("outcome", ["cancelled", "max_runtime"])
def test_a_job_ended_on_all_nodes_has_the_last_lines_of_the_launcher(outcome: str) -> None:
    launcher, serving = node(0, outcome, ended=20), replace(node(1, outcome, ended=10), serves=True)

    assert job_result("j", [launcher, serving]).last_lines == ["node 0"]
    told = job_result("j", [replace(launcher, outcome="peer_failed"), serving])
    assert (told.outcome, told.last_lines) == (outcome, ["node 1"])


@pytest.mark.parametrize("failed", ["failed", "killed"])
def test_a_launcher_that_fails_because_of_a_cancel_is_not_the_cause(failed: str) -> None:
    # Given a node that heard of it first, and ended its sshd
    serving = replace(node(1, "cancelled", ended=20), serves=True, failed=10)

    assert job_result("j", [replace(node(0, failed, ended=13), failed=12), serving]).outcome == "cancelled"
    assert job_result("j", [replace(node(0, failed, ended=13), failed=8), serving]).outcome == failed


@pytest.mark.parametrize(("failed", "rank"), [(4, 1), (6, 0)])
def test_a_process_on_a_serving_node_is_the_cause_if_it_failed_first(failed: int, rank: int) -> None:
    serving = replace(node(1, "failed", ended=20_000), serves=True, failed=failed)
    result = job_result("j", [replace(node(0, "failed", ended=30_000), failed=5), serving])
    assert result.sentence.startswith(f"Node {rank}: ")


def test_all_lost_nodes_are_named_in_the_result() -> None:
    nodes = [node(0, "peer_lost", ended=30), node(1, "peer_lost", ended=10), node(2, "peer_lost", ended=11)]
    named = [replace(each, sentence=f"Node {each.rank} (i-{each.rank}) gave no sign.") for each in nodes]

    result = job_result("digits-1", [replace(named[0], sentence=named[1].sentence), *named[1:]], lost={2, 1})

    assert (result.outcome, result.exit_code, result.lost) == ("peer_lost", 5, [1, 2])
    assert result.sentence == "Node 1 (i-1) gave no sign."
    assert result.warnings is not None
    assert [each for each in result.warnings if "gave no sign" in each] == ["Node 2 (i-2) gave no sign."]
    assert job_result("digits-1", [node(0), node(1)]).lost is None


def test_the_resource_usage_of_bai_is_reported_for_each_node() -> None:
    usage = [OwnUsage(rank=rank, cpus=2, agent=ProcessUsage(cpu_seconds=rank + 0.5)) for rank in range(2)]
    nodes = [replace(node(rank), own_usage=usage[rank]) for rank in range(2)]
    read = [decode(NodeOutcome, json.dumps(as_table(each)), where="x") for each in nodes]

    assert job_result("digits-1", [read[1], node(2), read[0]]).own_usage == usage
    # And of nodes of an older version nothing
    assert job_result("digits-1", [node(0), node(1)]).own_usage is None


def test_extractions_of_several_nodes_are_merged() -> None:
    result = job_result("digits-1", [node(0), node(1, ended=20)])

    assert (result.outcome, result.sentence) == ("succeeded", "It succeeded.")
    assert result.phases == {"pull": 2.0, "run": 5.0}
    assert result.kafka == KafkaDelivery(delivered=4, undelivered=1)
    assert result.artifacts == ArtifactCount(files=2, bytes=20)
    assert result.metrics is not None
    assert (result.metrics.records, result.metrics.per_metric) == (4, {"loss": 4})
    assert (result.started, result.ended) == (0, 20)
    assert result.warnings == ["Node 0: slow disk", "Node 1: slow disk"]


def test_the_result_lists_network_transports_of_all_nodes() -> None:
    nodes = [
        replace(node(0), transports={"NCCL": ["NET/Libfabric", "P2P"]}),
        node(1),
        replace(node(2), transports={"NCCL": ["NET/Socket", "P2P"], "Open MPI": ["pml/cm"]}),
    ]

    assert job_result("digits-1", nodes).transports == {
        "NCCL": ["NET/Libfabric", "P2P", "NET/Socket"],
        "Open MPI": ["pml/cm"],
    }
    assert job_result("digits-1", nodes[1:2]).transports is None


def test_a_required_metric_that_one_node_printed_is_not_missing() -> None:
    result = job_result("digits-1", [node(0), node(1, missing=("loss",))])

    assert result.outcome == "succeeded"


def test_a_required_metric_that_no_node_printed_fails_the_job() -> None:
    result = job_result("digits-1", [node(0, missing=("loss", "x")), node(1, missing=("loss",))])

    assert (result.outcome, result.exit_code) == ("required_metric_missing", 1)
    assert result.sentence == 'The benchmark ended well, but these required metrics were never seen: "loss".'


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_missing_required_metric_does_not_hide_another_failure(outcome: str) -> None:
    assert job_result("digits-1", [node(outcome=outcome, missing=("loss",))]).outcome == outcome


def test_result_files_are_missing_if_no_node_wrote_them() -> None:
    def wrote(*missing: str, required: bool) -> NodeOutcome:
        found = ExtractionSummary(
            results_missing=[] if required else list(missing),
            required_results_missing=list(missing) if required else [],
        )
        return NodeOutcome(outcome="succeeded", sentence="Well.", metrics=found)

    needed = job_result("j", [wrote("a.csv", required=True), wrote("a.csv", "b.csv", required=True)])
    assert (needed.outcome, needed.exit_code) == ("required_metric_missing", 1)
    assert (
        needed.sentence == 'The benchmark ended well, but these required result files gave no value: "a.csv".'
    )
    assert job_result("j", [wrote("a.csv", required=True), wrote(required=True)]).outcome == "succeeded"

    wanted = job_result("j", [wrote("a.csv", required=False), wrote("a.csv", required=False)])
    assert wanted.outcome == "succeeded"
    assert wanted.warnings == ['output.results "a.csv" gave no value on any node.']


def test_a_required_metric_in_unsearched_output_is_only_a_warning() -> None:
    unsearched = ExtractionSummary(required_missing=["loss"], remaining_bytes=1)

    result = job_result("digits-1", [NodeOutcome(outcome="succeeded", sentence="Well.", metrics=unsearched)])

    assert result.outcome == "succeeded"
    assert "Only a part of the output was searched" in (result.warnings or [""])[0]


def test_checkpoints_of_all_nodes_are_added_and_the_slowest_restore_counts() -> None:
    first = CheckpointSummary(
        kept=12,
        bytes=120,
        seconds=1.5,
        newest="checkpoint-0-11",
        restored=1,
        restored_bytes=10,
        restore_seconds=0.5,
    )
    second = CheckpointSummary(
        kept=1,
        bytes=10,
        seconds=0.5,
        newest="checkpoint-1-0",
        restored=1,
        restored_bytes=10,
        restore_seconds=2.0,
    )
    nodes = [
        NodeOutcome(rank=rank, outcome="succeeded", sentence="Well.", checkpoints=each)
        for rank, each in enumerate((first, second, CheckpointSummary()))
    ]

    assert job_result("digits-1", nodes).checkpoints == CheckpointSummary(
        kept=13,
        bytes=130,
        seconds=2.0,
        newest="checkpoint-1-0",
        restored=1,
        restored_bytes=20,
        restore_seconds=2.0,
    )
    assert job_result("digits-1", [NodeOutcome(outcome="succeeded", sentence="Well.")]).checkpoints is None


counts = st.dictionaries(st.text(max_size=5), st.integers(0, 2**40), max_size=3)
results = st.builds(
    JobResult,
    outcome=st.text(max_size=5),
    status=st.text(max_size=5),
    exit_code=st.integers(0, 6),
    sentence=st.text(max_size=5),
    benchmark=st.none()
    | st.builds(BenchmarkExit, code=st.none() | st.integers(0, 9), left_behind_names=counts),
    metrics=st.none()
    | st.builds(
        ExtractionSummary,
        per_metric=counts,
        never_numbers=st.none()
        | st.dictionaries(
            st.text(max_size=5),
            st.builds(NeverNumber, count=st.integers(0, 9), first=st.text(max_size=5)),
            max_size=2,
        ),
    ),
    git=st.none() | st.builds(GitCommit, commit=st.text(max_size=5), dirty=st.booleans()),
    warnings=st.none() | st.lists(st.text(max_size=5), max_size=2),
)


@given(results)
def test_a_written_result_is_read_back(result: JobResult) -> None:
    assert decode(JobResult, json.dumps(as_table(result)), where="x") == result


def test_a_required_metric_may_have_been_seen_by_a_node_that_was_lost() -> None:
    nodes = [node(missing=("loss", "accuracy")), node(2, missing=("loss", "accuracy"))]

    assert job_result("digits-1", nodes).outcome == "required_metric_missing"
    assert '"loss"' not in job_result("digits-1", nodes, lost=[1], seen=["loss"]).sentence
    assert job_result("digits-1", nodes, lost=[1], seen=["loss", "accuracy"]).outcome == "succeeded"
    assert job_result("digits-1", nodes[:1], seen=["loss", "accuracy"]).outcome == "succeeded"


def headline(value: float, units: str = "", over: str = "each") -> HeadlineValue:
    return HeadlineValue(value=value, name="speed", units=units, over_ranks=over, runs={"": [value]})


def part(
    generation: int, began: int, ended: int, *members: int, **headlines: HeadlineValue
) -> GenerationOutcome:
    """Return a node's part of a generation; began, ended: seconds."""
    return GenerationOutcome(
        generation=generation,
        outcome="failed",
        sentence=f"It failed {generation}.",
        started=1000 * began,
        ended=1000 * ended,
        wall_seconds=ended - began,
        members=list(members),
        headlines=headlines,
    )


def test_a_generation_of_a_job_is_merged_from_its_nodes() -> None:
    # Given three nodes, of which node 1 is lost, and node 2 joins later
    first, second = headline(10, "img/s", "sum"), headline(30, "img/s", "sum")
    nodes = [
        replace(node(0), generations=[part(0, 1, 9, 0, 1, speed=first), part(1, 12, 20, 0, 2, speed=first)]),
        node(1, "peer_lost"),
        replace(node(2, "failed"), generations=[part(1, 11, 21, 0, 2, speed=second)]),
    ]

    result = job_result("digits-1", nodes, lost=[1])

    told = result.generations or []
    assert [each.sentence for each in told] == ["It failed 0.", "It failed 1."]
    assert [(each.generation, each.members, each.gap_seconds, each.wall_seconds) for each in told] == [
        (0, [0, 1], None, 8),
        (1, [0, 2], 2.0, 10),
    ]
    assert [each.headlines["speed"].value for each in told] == [10, 40]
    assert told[1].headlines["speed"].nodes == {"0": 10, "2": 30}
    assert told[1].headlines["speed"].per_node == 20


@pytest.mark.parametrize(
    ("units", "over", "per_node"),
    [
        ("img/s", "each", 20.0),
        ("tokens per second", "mean", 20.0),
        ("GB/min", "each", 20.0),
        ("ms/step", "each", None),
        ("tokens/s/GPU", "each", None),
        ("", "sum", None),
    ],
)
def test_values_per_node_are_given_only_for_summed_rates(
    units: str, over: str, per_node: float | None
) -> None:
    # Given a number that one rank measured for all
    nodes = [
        replace(node(0), generations=[part(0, 1, 9, 0, 1, speed=headline(40, units, over))]),
        replace(node(1), generations=[part(0, 1, 9, 0, 1)]),
    ]

    (found,) = job_result("digits-1", nodes).generations or []

    assert found.headlines["speed"].per_node == per_node
    assert found.headlines["speed"].nodes == {"0": 40}


def test_the_reason_of_a_generations_end_comes_from_a_surviving_node() -> None:
    # Given a node that was lost in the first generation, and came back for the third one
    lost = replace(part(0, 1, 9, 0, 1), sentence="What ended the second one.")
    nodes = [
        replace(node(0), generations=[lost, part(2, 21, 30, 0, 1)]),
        replace(node(1), generations=[part(0, 1, 9, 0, 1), part(1, 11, 19, 1), part(2, 21, 30, 0, 1)]),
    ]

    told = job_result("digits-1", nodes).generations or []

    assert [(each.sentence, each.members) for each in told][:2] == [
        ("It failed 0.", [0, 1]),
        ("It failed 1.", [1]),
    ]


def test_a_node_that_hung_does_not_lengthen_the_reported_generation() -> None:
    # Given a leader that hung, and ended what it ran when the next generation had begun
    hung = part(0, 1, 25, 0, 1)
    nodes = [
        replace(node(0), generations=[hung, part(2, 31, 40, 1, 0)]),
        replace(node(1), generations=[part(0, 1, 9, 0, 1), part(1, 11, 30, 1), part(2, 31, 40, 1, 0)]),
    ]

    told = job_result("digits-1", nodes).generations or []

    assert [each.gap_seconds for each in told] == [None, 2.0, 1.0]
    assert told[0].wall_seconds == 8
