"""The first phase: the machine claims its rank in the store, and errors are found early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent_runs import events_of
from run_contexts import IdleUploader, ScriptedStopSource, SteppingClock, make_context

from bai_agent.errors import StoreError, StoreRefusedError
from bai_agent.job.descriptor.benchmark_tables import Benchmark
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir, read_json
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.machine.readiness import Node, wait_for_gpus
from bai_agent.phases.prepare import prepare, secrets_of, start_uploader
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.clock import Clock
from bai_agent.runtime.stop import RunEndedError, StopReason
from bai_agent.sinks.job_store.node_store import NodeStore

CANCELLED = StopReason(Outcome.CANCELLED, "It was cancelled.")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """A job store that is elsewhere: not where the run directory is."""
    return DirectoryStore(tmp_path / "store")


def part_of(store: DirectoryStore) -> NodeStore:
    return NodeStore(record=JobRecord(store, "job-1"), rank=0, attempt=0)


def on_instance(
    name: str, rundir: RunDir, store: DirectoryStore, waits: Callable[..., list[str]] = lambda *_: []
) -> RunContext:
    node = Node(instance_id=name)
    return make_context(rundir, node_store=part_of(store), node=node, wait_for_machine=waits)


def ended(ctx: RunContext) -> StopReason:
    """Return why `prepare` ended the run."""
    with pytest.raises(RunEndedError) as error:
        prepare(ctx)
    assert not ctx.rundir.ready.exists()
    return error.value.reason


# The place in the store


def test_the_rank_is_claimed_and_the_descriptor_is_stored(rundir: RunDir, store: DirectoryStore) -> None:
    ctx = on_instance("i-1", rundir, store)

    prepare(ctx)

    record = JobRecord(store, "job-1")
    ready = record.node().read_object("ready.json")
    assert ready is not None
    assert ready["instance_id"] == "i-1"
    assert ready == read_json(rundir.ready)
    assert store.get("job-1/job.toml") == rundir.job.read_bytes()
    assert isinstance(ctx.uploader, IdleUploader)
    assert ctx.sinks == [ctx.uploader]
    start_uploader(ctx)
    assert len(ctx.sinks) == 1


def test_a_second_machine_is_refused(tmp_path: Path, store: DirectoryStore) -> None:
    prepare(on_instance("i-1", RunDir(tmp_path / "one"), store))
    second = on_instance("i-2", RunDir(tmp_path / "two"), store)

    reason = ended(second)

    assert reason.outcome is Outcome.PREPARE_FAILED
    assert "is taken by i-1" in reason.message
    assert second.uploader is None
    assert not second.rundir.store_offset.exists()


def test_a_late_machine_of_an_ended_job_does_not_join(rundir: RunDir, store: DirectoryStore) -> None:
    record = JobRecord(store, "job-1")
    store.put(record.key("attempts/0/launches/1/launched.json"), b'{"instances": ["i-1"], "first_node": 0}')
    store.put(record.key("result.json"), b'{"outcome": "succeeded"}')
    node_store = NodeStore(record=record, rank=0, attempt=0, launch=1)
    ctx = make_context(rundir, node_store=node_store, node=Node(instance_id="i-1", launch=1), record=record)

    reason = ended(ctx)

    assert (reason.outcome, ctx.has_part) == (Outcome.SUCCEEDED, False)
    assert "was over before this machine could take part" in reason.message
    assert record.node().read_object("ready.json") is None


def test_a_restarted_agent_does_not_claim_its_rank_again(rundir: RunDir, store: DirectoryStore) -> None:
    prepare(on_instance("i-1", rundir, store))
    key = part_of(store).key("ready.json")
    (store.folder / key).unlink()
    again = on_instance("i-1", rundir, store)

    prepare(again)

    assert not store.find(key)
    assert again.uploader is not None


class Unreachable(DirectoryStore):
    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        raise StoreError(f"{key}: no route to the store")


class Refusing(DirectoryStore):
    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        raise StoreRefusedError(f"{key}: access denied")


def test_an_unreachable_store_ends_the_run_after_the_claim_time(rundir: RunDir, tmp_path: Path) -> None:
    clock = SteppingClock()

    reason = ended(make_context(rundir, node_store=part_of(Unreachable(tmp_path)), clock=clock))

    assert reason.outcome is Outcome.STORE_FAILED
    assert 120 < clock.passed < 140


def test_a_store_that_refuses_is_not_asked_again(rundir: RunDir, tmp_path: Path) -> None:
    clock = SteppingClock()

    reason = ended(make_context(rundir, node_store=part_of(Refusing(tmp_path)), clock=clock))

    assert reason.outcome is Outcome.STORE_FAILED
    assert reason.message.endswith("/ready.json: access denied.")
    assert clock.passed == 0


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[DirectoryStore]:
    over = threading.Event()

    class Hanging(DirectoryStore):
        def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
            over.wait()
            raise StoreError("too late")

        def find(self, prefix: str) -> list[StoredObject]:
            over.wait()
            raise StoreError("too late")

    yield Hanging(tmp_path / "store")
    over.set()


def test_a_store_that_hangs_ends_the_run_after_the_claim_time(
    rundir: RunDir, hanging: DirectoryStore
) -> None:
    clock = SteppingClock(step=60)

    reason = ended(make_context(rundir, node_store=part_of(hanging), clock=clock))

    assert reason.outcome is Outcome.STORE_FAILED
    assert reason.message == f"The job store {hanging.url} did not answer within 120 s."
    assert clock.passed >= 125


def test_a_cancel_ends_the_wait_for_a_store(rundir: RunDir, hanging: DirectoryStore) -> None:
    clock = SteppingClock(step=1)
    ctx = make_context(
        rundir, node_store=part_of(hanging), clock=clock, sources=[ScriptedStopSource(CANCELLED, after=2)]
    )

    assert ended(ctx) is CANCELLED


def test_a_cancel_in_the_store_does_not_prevent_storing_the_result(rundir: RunDir, tmp_path: Path) -> None:
    class Slow(DirectoryStore):
        def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
            time.sleep(0.2)
            return super().put(key, content, if_absent=if_absent)

    cancelled = replace(CANCELLED, by_store=True)
    sources = [ScriptedStopSource(cancelled, after=0)]
    ctx = make_context(rundir, node_store=part_of(Slow(tmp_path / "store")), sources=sources)

    prepare(ctx)

    assert ctx.uploader is not None
    assert ctx.watch.reason() == cancelled


# What the benchmark needs


def test_resolved_secrets_of_the_benchmark_are_redacted(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHASES_TOKEN", "hunter2-and-more")
    ctx = make_context(
        rundir, tables={"benchmark": Benchmark(argv=("true",), secrets={"TOKEN": "env:PHASES_TOKEN"})}
    )

    prepare(ctx)

    assert secrets_of(ctx) == {"TOKEN": "hunter2-and-more"}
    assert "hunter2" not in ctx.redactor.redact("it is hunter2-and-more")
    assert ctx.may_quote


def test_an_unresolvable_secret_is_named_before_anything_runs(rundir: RunDir) -> None:
    benchmark = Benchmark(argv=("true",), secrets={"TOKEN": "env:NOBODY_HAS_SET_THIS"})

    reason = ended(make_context(rundir, tables={"benchmark": benchmark}))

    assert reason.outcome is Outcome.PREPARE_FAILED
    assert "env:NOBODY_HAS_SET_THIS" in reason.message


def test_a_restarted_agent_needs_no_secrets_after_the_benchmark(rundir: RunDir) -> None:
    benchmark = Benchmark(argv=("true",), secrets={"TOKEN": "env:NOBODY_HAS_SET_THIS"})
    ctx = make_context(rundir, tables={"benchmark": benchmark})
    rundir.started.write_text("{}")

    prepare(ctx)

    assert not ctx.may_quote


def test_an_unknown_strategy_ends_the_run_as_bad_descriptor(rundir: RunDir) -> None:
    reason = ended(make_context(rundir, tables={"strategy": StrategyTable(name="gossip")}))

    assert reason.outcome is Outcome.BAD_DESCRIPTOR
    assert '"gossip"' in reason.message


def test_an_unknown_user_is_named(rundir: RunDir) -> None:
    reason = ended(make_context(rundir, tables={"benchmark": Benchmark(argv=("true",), user="no-such-user")}))

    assert reason.outcome is Outcome.PREPARE_FAILED
    assert "no-such-user" in reason.message


# The machine


@pytest.fixture
def gpu(tmp_path: Path) -> Callable[..., list[str]]:
    """A machine with a GPU whose driver never answers."""
    device = tmp_path / "machine/sys/bus/pci/devices/0000:00:1e.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")

    def wait(stopping: Callable[[], bool], clock: Clock) -> list[str]:
        smi = ("sh", "-c", "echo no driver; exit 9")
        return wait_for_gpus(stopping=stopping, clock=clock, root=tmp_path / "machine", smi=smi)

    return wait


def test_a_machine_that_never_becomes_ready_ends_the_run(
    rundir: RunDir, gpu: Callable[..., list[str]]
) -> None:
    clock = SteppingClock()
    node = Node(instance_id="i-1")

    reason = ended(make_context(rundir, node=node, wait_for_machine=gpu, clock=clock))

    assert reason.outcome is Outcome.PREPARE_FAILED
    assert "not ready within 300 s: nvidia-smi ended with 9: no driver" in reason.message
    assert clock.passed == pytest.approx(300, abs=1)


def test_a_reason_to_stop_ends_the_wait_for_the_machine(
    rundir: RunDir, gpu: Callable[..., list[str]]
) -> None:
    clock = SteppingClock()
    ctx = make_context(
        rundir,
        node=Node(instance_id="i-1"),
        wait_for_machine=gpu,
        sources=[ScriptedStopSource(CANCELLED, after=2)],
        clock=clock,
    )

    assert ended(ctx) is CANCELLED
    assert 0 < clock.passed < 10


def test_ready_json_is_written_after_the_wait_for_the_machine(rundir: RunDir, store: DirectoryStore) -> None:
    before: list[bool] = []

    def waits(stopping: Callable[[], bool], clock: Clock) -> list[str]:
        before.append(rundir.ready.exists())
        return ["A disk is missing."]

    prepare(on_instance("i-1", rundir, store, waits))

    assert before == [False]
    assert rundir.ready.exists()
    assert [each["message"] for each in events_of(rundir.path)] == ["A disk is missing."]


def test_a_run_on_the_users_machine_does_not_wait_for_gpus_and_disks(rundir: RunDir) -> None:
    def waits(stopping: Callable[[], bool], clock: Clock) -> list[str]:
        raise AssertionError("it waits")

    prepare(make_context(rundir, wait_for_machine=waits))

    assert rundir.ready.exists()
    assert rundir.output.samefile(rundir.kept_output)
    assert rundir.metrics.samefile(rundir.kept_metrics)
