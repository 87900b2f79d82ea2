"""The order of a run's phases, and how a run ends from within each of them."""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from agent_runs import events_of, records_of
from run_contexts import InstantExtractor, ScriptedStopSource, SteppingClock, make_context

from bai_agent.benchmark.stopping import end_lost
from bai_agent.job.descriptor.benchmark_tables import Benchmark
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.descriptor.source_tables import Mount, MountType, Source
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir, read_json, write_json
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.machine.readiness import Node
from bai_agent.phases import pull_phase
from bai_agent.phases import run as phases_run
from bai_agent.phases.run import Phases, finish_publishing, run
from bai_agent.run.extractor import ExtractorProcess
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.clock import CLOCK
from bai_agent.runtime.stop import RunEndedError, StopReason
from bai_agent.sinks.sink import Delivery

BEFORE_THE_END = ("prepare", "pull", "join", "run")
ALL = (*BEFORE_THE_END, "drain", "end")
REASON = StopReason(Outcome.PULL_FAILED, "Something went wrong.")


@pytest.fixture
def record(tmp_path: Path) -> JobRecord:
    return JobRecord(DirectoryStore(tmp_path / "store"), "job-1")


class Recorder:
    """Phases that only note that they were entered; the last two are the real ones as well."""

    def __init__(
        self,
        rundir: RunDir,
        failing: Mapping[str, BaseException] = MappingProxyType({}),
        *,
        begins: bool = True,
    ) -> None:
        """failing: what the phase of that name raises. begins: whether the phase `run` begins a benchmark."""
        self.entered: list[str] = []
        self.lenient: list[bool] = []
        """Whether the event log forgave a full disk, in each of them."""
        self._rundir = rundir
        self._begins = begins
        self._failing = failing
        real = Phases()
        self.phases = replace(
            real,
            prepare=self._phase("prepare"),
            pull=self._phase("pull"),
            join=self._phase("join"),
            run=self._phase("run"),
            drain=self._phase("drain", real.drain),
            end=self._phase("end", real.end),
        )

    def _phase(
        self, name: str, then: Callable[[RunContext], None] = lambda _: None
    ) -> Callable[[RunContext], None]:
        def enter(ctx: RunContext) -> None:
            assert ctx.phase == name
            self.entered.append(name)
            self.lenient.append(ctx.events.lenient)
            if name == "run" and self._begins:
                end_lost(self._rundir)  # as of a benchmark whose shim was killed
            if name in self._failing:
                raise self._failing[name]
            then(ctx)

        return enter


def phases_told(rundir: RunDir) -> list[tuple[str, str]]:
    return [(each["phase"], each["state"]) for each in events_of(rundir.path) if each["type"] == "phase"]


def told_once(phases: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(each, state) for each in phases for state in ("started", "finished")]


# The order


def test_phases_run_in_order_and_are_reported_once(rundir: RunDir) -> None:
    recorder = Recorder(rundir)

    run(make_context(rundir), recorder.phases)

    assert recorder.entered == list(ALL)
    assert phases_told(rundir) == told_once(ALL)


def test_the_event_log_tolerates_a_full_disk_only_after_the_benchmark(rundir: RunDir) -> None:
    recorder = Recorder(rundir)

    run(make_context(rundir), recorder.phases)

    assert recorder.lenient == [False] * 4 + [True] * 2


def test_the_real_phases_run_a_benchmark_in_this_process(rundir: RunDir, record: JobRecord) -> None:
    command = Benchmark(argv=(sys.executable, "-c", "print('loss=7')"), inherit_env=True)
    tables = {"benchmark": command, "metrics": (Metric(name="loss", pattern=r"loss=(\d+)", required=True),)}
    extractor = ExtractorProcess(rundir)
    ctx = make_context(rundir, clock=CLOCK, record=record, extractor=extractor, tables=tables)

    try:
        outcome = run(ctx)
    finally:
        extractor.stop()

    assert outcome is Outcome.SUCCEEDED
    assert phases_told(rundir) == told_once(ALL)
    assert [each["value"] for each in records_of(rundir.path) if each["name"] == "loss"] == [7]
    assert record.result() == read_json(rundir.result)


@pytest.mark.parametrize("killed_in", ALL)
def test_a_restarted_agent_enters_the_unfinished_phases(killed_in: str, rundir: RunDir) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(make_context(rundir), Recorder(rundir, {killed_in: KeyboardInterrupt()}).phases)
    again = Recorder(rundir)

    run(make_context(rundir), again.phases)

    assert again.entered == list(ALL[ALL.index(killed_in) :])
    assert phases_told(rundir) == told_once(ALL)


def test_a_restarted_agent_writes_a_missing_result_again(rundir: RunDir) -> None:
    run(make_context(rundir), Recorder(rundir).phases)
    rundir.result.unlink()
    again = Recorder(rundir)

    run(make_context(rundir), again.phases)

    assert again.entered == ["end"]
    assert rundir.result.exists()


@pytest.mark.parametrize("hours", [0, 1, -1])
def test_the_duration_of_a_phase_includes_agents_that_were_killed(rundir: RunDir, hours: int) -> None:
    """hours: by which the clock is set between the two."""
    clock = SteppingClock()

    def pull(ctx: RunContext) -> None:
        clock.sleep(10)
        if clock.passed < 20:
            raise KeyboardInterrupt

    phases = replace(Recorder(rundir).phases, pull=pull)
    with pytest.raises(KeyboardInterrupt):
        run(make_context(rundir, clock=clock), phases)
    clock.sleep(7)
    clock.set_forward(3600 * hours)

    ctx = make_context(rundir, clock=clock)
    run(ctx, phases)

    assert ctx.events.finished_phases()["pull"] == pytest.approx(27, abs=0.01)


@pytest.mark.parametrize("hours", [0, 1, -1])
def test_the_duration_of_a_job_includes_agents_that_were_killed(rundir: RunDir, hours: int) -> None:
    """hours: by which the clock is set between the two agents, and while the second one runs."""
    clock = SteppingClock()

    def pull(ctx: RunContext) -> None:
        clock.sleep(10)
        if clock.passed < 20:
            raise KeyboardInterrupt
        clock.set_forward(3600 * hours)

    phases = replace(Recorder(rundir).phases, pull=pull)
    with pytest.raises(KeyboardInterrupt):
        run(make_context(rundir, clock=clock), phases)
    clock.sleep(7)
    clock.set_forward(3600 * hours)

    run(make_context(rundir, clock=clock), phases)

    result = read_json(rundir.result)
    assert result is not None
    assert result["seconds"] == pytest.approx(27, abs=0.01)


def test_a_failed_phase_is_reported_with_its_duration(rundir: RunDir) -> None:
    clock = SteppingClock()

    def pull(ctx: RunContext) -> None:
        clock.sleep(10)
        raise RunEndedError(StopReason(Outcome.PULL_FAILED, "It is gone."))

    run(make_context(rundir, clock=clock), replace(Recorder(rundir).phases, pull=pull))

    result = read_json(rundir.result)
    assert result is not None
    assert result["phases"]["pull"] == pytest.approx(10, abs=0.01)
    assert "run" not in result["phases"]


# Ends


@pytest.mark.parametrize("phase", BEFORE_THE_END)
@pytest.mark.parametrize("begins", [True, False])
def test_a_reason_to_stop_in_any_phase_ends_the_run(
    phase: str, begins: bool, rundir: RunDir, record: JobRecord
) -> None:
    recorder = Recorder(rundir, {phase: RunEndedError(REASON)}, begins=begins)
    ctx = make_context(rundir, record=record)

    outcome = run(ctx, recorder.phases)

    began = begins and phase == "run"
    entered = BEFORE_THE_END[: BEFORE_THE_END.index(phase) + 1]
    assert recorder.entered == [*entered, *(["drain"] if began else []), "end"]
    assert outcome is REASON.outcome
    published = record.result()
    assert published is not None
    assert published == read_json(rundir.result)
    assert (published["outcome"], published["sentence"]) == ("pull_failed", REASON.message)
    stops = [each for each in events_of(rundir.path) if each["type"] == "stop"]
    assert [(each["reason"], each["message"]) for each in stops] == [("pull_failed", REASON.message)]
    assert (phase, "finished") not in phases_told(rundir)
    assert recorder.lenient[-1]


@pytest.mark.parametrize("phase", BEFORE_THE_END)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_in_any_phase_ends_the_run_as_disk_full(
    phase: str, number: int, rundir: RunDir, record: JobRecord
) -> None:
    recorder = Recorder(rundir, {phase: OSError(number, "no space")})

    outcome = run(make_context(rundir, record=record), recorder.phases)

    assert outcome is Outcome.DISK_FULL
    assert recorder.entered[-1] == "end"
    assert ("drain" in recorder.entered) == (phase == "run")
    assert recorder.lenient[-1]
    published = record.result()
    assert published is not None
    assert str(rundir.path) in published["sentence"]


@pytest.mark.parametrize("phase", BEFORE_THE_END)
@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), PermissionError(errno.EACCES, "no")])
def test_an_unexpected_exception_in_a_phase_is_raised(
    phase: str, error: Exception, rundir: RunDir, record: JobRecord
) -> None:
    recorder = Recorder(rundir, {phase: error})

    with pytest.raises(type(error)):
        run(make_context(rundir, record=record), recorder.phases)

    assert recorder.entered[-1] == phase
    assert not rundir.result.exists()
    assert record.result() is None


def test_a_result_that_was_not_published_is_published_by_a_restarted_agent(
    rundir: RunDir, record: JobRecord
) -> None:
    ctx = make_context(rundir)  # without its record, as if the agent had been killed before the last step
    outcome = run(ctx, Recorder(rundir, {"pull": RunEndedError(REASON)}).phases)
    assert record.result() is None

    for _ in range(2):
        finish_publishing(ctx.job, rundir, record, None, rank=0, outcome=outcome)

    assert record.result() == read_json(rundir.result)


def test_mounts_of_an_agent_that_was_killed_at_its_end_are_unmounted_by_the_next_one(
    rundir: RunDir, record: JobRecord
) -> None:
    mount = Mount(type=MountType.NFS, src="server:/x", target="/bai-test-of-mounts")
    ctx = make_context(rundir, tables={"mounts": (mount,)})
    rundir.mounts.write_text(f"{mount.target}\n")
    write_json(rundir.result, {"outcome": Outcome.SUCCEEDED.value})

    finish_publishing(ctx.job, rundir, record, None, rank=0, outcome=Outcome.SUCCEEDED)

    assert not rundir.mounts.exists()


def test_data_on_a_shared_mount_is_pulled_only_by_the_first_node(rundir: RunDir) -> None:
    mount = Mount(type=MountType.NFS, src="server:/x", target="/shared")
    sources = tuple(
        Source(src="s3://b/k", path=path) for path in ("/shared", "/shared/a", "/shared-not", "own")
    )

    def pulled(rank: int, **tables: Any) -> list[str]:
        tables = {"mounts": (mount,), "sources": sources, **tables}
        node = Node(rank=rank, instance_id="i-1")
        return [each.path for each in pull_phase._sources(make_context(rundir, tables=tables, node=node))]

    assert pulled(0) == ["/shared", "/shared/a", "/shared-not", "own"]
    assert pulled(1) == ["/shared-not", "own"]


@pytest.mark.parametrize(("outcome", "stays"), [(Outcome.SUCCEEDED, False), (Outcome.FAILED, True)])
def test_the_virtual_environment_is_deleted_only_after_a_success(
    outcome: Outcome, stays: bool, rundir: RunDir, record: JobRecord
) -> None:
    ctx = make_context(rundir)
    rundir.venv.mkdir()
    write_json(rundir.result, {"outcome": outcome.value})

    finish_publishing(ctx.job, rundir, record, None, rank=0, outcome=outcome)

    assert rundir.venv.exists() == stays


# Pull and drain


def sources_that_fail(tmp_path: Path) -> dict[str, Any]:
    return {"sources": (Source(src=str(tmp_path / "nothing-here"), path="data"),)}


def test_an_import_that_failed_for_lack_of_file_descriptors_is_retried(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: str) -> None:
        raise ImportError("mmap.so: cannot open shared object file: Too many open files")

    monkeypatch.setattr(phases_run, "import_module", fails)
    ctx = make_context(rundir)

    with pytest.raises(ImportError):
        phases_run._import_end(ctx)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(OSError) as raised:
            phases_run._import_end(ctx)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert raised.value.errno == errno.EMFILE


def test_a_missing_source_ends_the_run(rundir: RunDir, tmp_path: Path) -> None:
    phases = replace(Recorder(rundir).phases, pull=Phases().pull)

    outcome = run(make_context(rundir, tables=sources_that_fail(tmp_path)), phases)

    assert outcome is Outcome.PULL_FAILED
    result = read_json(rundir.result)
    assert result is not None
    assert "nothing-here" in result["sentence"]


def test_a_reason_to_stop_found_while_pulling_ends_the_run(rundir: RunDir) -> None:
    cancelled = StopReason(Outcome.CANCELLED, "It was cancelled.")
    recorder = Recorder(rundir)
    phases = replace(recorder.phases, pull=Phases().pull)

    outcome = run(make_context(rundir, sources=[ScriptedStopSource(cancelled)]), phases)

    assert outcome is Outcome.CANCELLED
    assert recorder.entered == ["prepare", "end"]


class Tortoise:
    """A sink that notes what it is asked for."""

    name = "Tortoise"
    error = None

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.deadline = 0.0

    def start(self) -> None:
        self.calls.append("start")

    def flush_soon(self) -> None:
        self.calls.append("hurry")

    def finish(self, deadline: float) -> Delivery:
        self.calls.append("finish")
        self.deadline = deadline
        return Delivery(delivered=3, undelivered=1, error="it is slow", warnings=("One is missing.",))


def test_the_drain_phase_reports_what_each_sink_delivered(rundir: RunDir) -> None:
    clock, sink = SteppingClock(), Tortoise()
    limits = Limits(drain=timedelta(seconds=40))

    run(make_context(rundir, clock=clock, sinks=[sink], tables={"limits": limits}), Recorder(rundir).phases)

    assert sink.calls == ["hurry", "finish"]
    assert sink.deadline == clock.start + 40
    (delivery,) = (each for each in events_of(rundir.path) if each["type"] == "delivery")
    assert (delivery["sink"], delivery["delivered"], delivery["undelivered"]) == ("Tortoise", 3, 1)
    warnings = [each["message"] for each in events_of(rundir.path) if each["type"] == "warning"]
    assert "One is missing." in warnings


def extraction(rundir: RunDir) -> dict[str, Any]:
    (found,) = (each for each in events_of(rundir.path) if each["type"] == "extraction")
    return dict(found)


def test_the_drain_phase_waits_for_the_extractor_until_its_limit(rundir: RunDir) -> None:
    clock, sink = SteppingClock(), Tortoise()
    limits = Limits(extract_timeout=timedelta(minutes=7), drain=timedelta(seconds=40))
    extractor = InstantExtractor(stuck=True)
    ctx = make_context(rundir, clock=clock, sinks=[sink], extractor=extractor, tables={"limits": limits})

    run(ctx, Recorder(rundir).phases)

    assert extraction(rundir)["seconds"] == 420
    assert not extraction(rundir)["stalled"]
    # What was found until then has all of its own time.
    assert sink.deadline == clock.start + 420 + 40
    warnings = [each["message"] for each in events_of(rundir.path) if each["type"] == "warning"]
    assert any("bai extract job-1" in each for each in warnings)
    assert any("for 420 s" in each for each in warnings)


def test_the_extractor_of_a_cancelled_job_is_not_waited_for_long(rundir: RunDir) -> None:
    clock, sink = SteppingClock(), Tortoise()
    cancelled = ScriptedStopSource(StopReason(Outcome.CANCELLED, "It was cancelled."))
    limits = Limits(drain=timedelta(seconds=40))
    extractor = InstantExtractor(stuck=True)
    ctx = make_context(
        rundir,
        clock=clock,
        sources=[cancelled],
        sinks=[sink],
        extractor=extractor,
        tables={"limits": limits},
    )

    run(ctx, Recorder(rundir).phases)

    # Of the 40 s, the last 5 are the extractor's to say what is left.
    assert extraction(rundir)["seconds"] == 35
    assert sink.deadline == clock.start + 40
