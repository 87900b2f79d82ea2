"""A group of jobs that is run, killed and run again: its bounds, and what happens to refused and waiting jobs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from handmade_job import HandmadeJob, Unwatched

from bai_agent.errors import BaiError, RecordError, StoreError, StoreRefusedError
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.backend import CapacityWait, SubmitListener
from executor.commands.group_commands import cancel_group, continue_group, run_group
from executor.commands.job_options import JobOptions
from executor.errors import LaunchError, NoResultError, UndecidedError, UsageError
from executor.jobs.group_run import GroupListener, GroupRun
from executor.jobs.job_group import GroupRecord, GroupState, new_decision
from executor.jobs.resolved_request import FetchedScripts
from executor.planning.matrix import GroupPlan, matrix_plan
from executor.planning.request import JobRequest, Submitted
from executor.records.job_status import SILENT, UNLAUNCHED, JobStatus

SWEEP = """\
spec_version = "0.1.0"
[info]
description = "A sweep"
[hardware]
instance_type = "t3.small"
[ml]
benchmark_code = "echo hello"
[matrix]
max_parallel = 2
"ml.args" = ["a", "b"]
"env.vars.SIZE" = ["1", "2", "3"]
"""
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class KilledError(BaseException):
    """`kill -9` at a call of the store."""


@dataclass(frozen=True)
class FragileStore:
    """A store in a folder whose caller is killed before, or just after, its n-th call."""

    inner: DirectoryStore
    calls: list[str] = field(default_factory=list)
    number: int = 10**9
    after: bool = False

    @property
    def folder(self) -> Path:
        return self.inner.folder

    @property
    def url(self) -> str:
        return self.inner.url

    def __getattr__(self, name: str) -> Any:
        call: Callable[..., Any] = getattr(self.inner, name)

        def killed(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            last = len(self.calls) == self.number
            if last and not self.after:
                raise KilledError
            answer = call(*arguments, **options)
            if last:
                raise KilledError
            return answer

        return killed


@dataclass(frozen=True)
class Notice:
    bound: float | None

    def cost(self) -> float | None:
        return self.bound

    def hourly(self) -> float | None:
        return None if self.bound is None else 1.0

    def sentence(self, *, cost: bool) -> str:
        return "launching 1 machine"

    def warnings(self) -> list[str]:
        return []


@dataclass
class Cloud:
    """A place to run where a job ends some looks after its start. It outlives the process that runs the group."""

    store: DirectoryStore
    bounds: dict[str, float | None] = field(default_factory=dict)
    """Maximum cost by the last part of a job's id."""
    refusals: dict[str, BaiError] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    """Jobs for which there is no room at the first time."""
    asked: list[datetime] = field(default_factory=list)
    """When they were submitted."""
    running: dict[str, int] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    most: tuple[int, float] = (0, 0.0)
    """Most jobs at a time, and their most cost at a time."""
    steps: int = 3
    name: str = "ec2"
    remote: bool = True
    now: datetime = START
    unfollowed: str = UNLAUNCHED
    """Status of a job that cannot be followed."""

    def of(self, record: JobRecord) -> Cloud:
        return self

    def of_request(self, job_request: JobRequest, descriptor: object) -> Cloud:
        return self

    def bound(self, job_id: str) -> float | None:
        return self.bounds.get(job_id.rpartition(".")[2], 10.0)

    def submit(
        self, job_request: JobRequest, descriptor: object, *, job_id: str, listener: SubmitListener
    ) -> Submitted:
        name = job_id.rpartition(".")[2]
        record = JobRecord(self.store, job_id)
        if (error := self.refusals.get(name)) is not None and not isinstance(error, UndecidedError):
            raise error
        if not record.has("attempts/0/launch.json"):
            listener.on_plan(Notice(self.bound(job_id)))
            job = HandmadeJob(self.store.folder, job_id, written=False, keeps=True)
            self.store.put(record.key("attempts/0/launch.json"), b"{}")
        else:
            job = HandmadeJob(self.store.folder, job_id, written=False, keeps=True)
        listener.on_launch(job_id)
        if name in self.full:
            self.asked.append(self.now)
        if name in self.full and len(self.asked) == 1:
            later = self.now + timedelta(minutes=1)
            listener.on_wait(
                CapacityWait(
                    job_id=job_id,
                    sentence="there is no room",
                    again=later,
                    until=later,
                    key="",
                    is_cancelled=bool,
                )
            )
        if job_id not in self.started:
            self.started.append(job_id)
            self.running[job_id] = self.steps
            self.store.put(record.key("attempts/0/launched.json"), b"{}")
            count, cost = self.most
            at_once = sum(self.bound(each) or 0.0 for each in self.running)
            self.most = max(count, len(self.running)), max(cost, at_once)
        if error is not None:
            raise error
        return Submitted(record, job.job, new=True)

    def follow(self, record: JobRecord, *, on_status: Callable[[str], None]) -> Unwatched:
        return Unwatched()

    def statuses(self, records: Sequence[JobRecord]) -> list[JobStatus]:
        return [JobStatus(job_id=each.job_id, status=self.unfollowed, where=self.name) for each in records]

    def cancel(self, record: JobRecord, *, now: bool) -> str:
        record.cancel(by="a test")
        self.running[record.job_id] = 1
        return "cancelling"

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=20)
        for job_id in list(self.running):
            self.running[job_id] -= 1
            if not self.running[job_id]:
                del self.running[job_id]
                outcome = "cancelled" if JobRecord(self.store, job_id).cancelled() else "succeeded"
                self.end(job_id, outcome)

    def end(self, job_id: str, outcome: str = "succeeded") -> None:
        how = Outcome(outcome)
        result = {
            "job_id": job_id,
            "status": how.status.value,
            "outcome": outcome,
            "exit_code": int(how.exit_code),
            "sentence": "It ended.",
            "started": now_ms() - 1000,
            "ended": now_ms(),
            "seconds": 1.0,
        }
        self.store.put(f"{job_id}/result.json", json.dumps(result).encode())


@dataclass
class Sweep:
    """A group in a store, and what `bai` said about it."""

    cloud: Cloud
    group: GroupRecord
    plan: GroupPlan
    said: list[str] = field(default_factory=list)
    cancelling: bool = False
    looks: int = 0

    def run(self, store: Any = None, *, sleep: Callable[[float], None] | None = None) -> int:
        listener = GroupListener(
            on_status=self.said.append,
            exit_code=lambda error: 2,
            cancelling=lambda: self.cancelling,
            sleep=sleep or self.cloud.pass_time,
            now=lambda: self.cloud.now,
        )
        group = GroupRecord(store or self.group.store, self.group.group_id)
        scope: Any = SimpleNamespace(backends=self.cloud)
        with FetchedScripts() as fetched:
            return GroupRun(
                group=group, plan=self.plan, scope=scope, listener=listener, fetched=fetched
            ).run()

    @property
    def order(self) -> list[str]:
        return [each.job_id for each in self.plan.jobs]


def sweep(folder: Path, options: str = "", *, store: Path | None = None) -> Sweep:
    file = folder / "sweep.toml"
    file.write_text(SWEEP.replace("max_parallel = 2", f"max_parallel = 2\n{options}"))
    plan, _ = matrix_plan(JobRequest(file=file), "s")
    there = DirectoryStore(store or folder / "store")
    group = GroupRecord(there, "s")
    assert group.create(plan)
    return Sweep(Cloud(there), group, group.plan())


def test_a_group_runs_each_combination_once_and_no_more_at_a_time_than_allowed(tmp_path: Path) -> None:
    made = sweep(tmp_path)

    assert made.run() == 0

    assert made.cloud.started == made.order
    assert len(set(made.order)) == 6
    assert made.cloud.most[0] == 2


def test_a_group_killed_at_any_call_of_its_store_starts_nothing_twice_and_keeps_its_bounds(
    tmp_path: Path,
) -> None:
    whole = sweep(tmp_path, "max_cost = 25", store=tmp_path / "whole")
    counted = FragileStore(whole.group.store)  # type: ignore[arg-type]
    assert whole.run(counted) == 0
    assert whole.cloud.most == (2, 20.0)
    assert len(counted.calls) > 40

    # Each run writes some dozen files; the step has no factor in common with the calls of a look.
    step = 1 if os.environ.get("EVERY_FAULT") else 11
    for number in range(1, len(counted.calls) + 1, step):
        for after in (False, True):
            made = sweep(tmp_path, "max_cost = 25", store=tmp_path / f"{number}{after}")
            fragile = FragileStore(made.group.store, number=number, after=after)  # type: ignore[arg-type]
            with pytest.raises(KilledError):
                made.run(fragile)
            assert made.run() == 0, (number, after)

            assert sorted(made.cloud.started) == sorted(made.order), (number, after)
            assert made.cloud.most[0] <= 2, (number, after)
            assert made.cloud.most[1] <= 25, (number, after)


def test_two_processes_that_run_one_group_keep_its_bounds_together(tmp_path: Path) -> None:
    made = sweep(tmp_path, "max_cost = 25")
    other = replace(made, said=[])
    nested = [0]

    def sleep_while_the_other_runs(seconds: float) -> None:
        made.cloud.pass_time(seconds)
        if not nested[0]:
            nested[0] = 1
            # It ends when all jobs have ended.
            assert other.run() == 0

    assert made.run(sleep=sleep_while_the_other_runs) == 0

    assert sorted(made.cloud.started) == sorted(made.order)
    assert made.cloud.most == (2, 20.0)


def test_a_start_decision_made_first_by_another_process_wins(tmp_path: Path) -> None:
    made = sweep(tmp_path, "max_cost = 25")
    one, two = (new_decision(job, bound=10.0, hourly=1.0) for job in made.plan.jobs[:2])
    assert made.group.decide(0, one)

    assert not made.group.decide(0, two)
    assert made.group.decide(0, one)  # a put that was repeated
    assert made.group.decisions() == [one]


def test_no_job_is_started_beyond_max_cost_and_this_is_reported_once(tmp_path: Path) -> None:
    # given jobs whose machines cost their maximum, because it is unknown how long they ran
    made = sweep(tmp_path, "max_cost = 35")
    made.cloud.bounds = dict.fromkeys(("001", "002", "003", "004", "005", "006"), 10.0)

    def unmeasured(seconds: float) -> None:
        made.cloud.pass_time(seconds)
        for each in tmp_path.glob("store/*/attempts/0/launched.json"):
            each.unlink()

    # when
    code = made.run(sleep=unmeasured)

    # then
    assert code == 2
    assert made.cloud.started == made.order[:3]
    (sentence,) = [each for each in made.said if "max_cost" in each]
    assert sentence == (
        f"max_cost allows 35.00 USD, 30.00 are spent or reserved, and {made.order[3]} may cost 10.00: 3 jobs are not started"
    )
    # and a later call starts nothing either
    assert made.run() == 2
    assert made.cloud.started == made.order[:3]


def test_a_raised_cost_lets_the_rest_start_and_cannot_be_lowered(tmp_path: Path) -> None:
    # given a group that has reached its cost
    made = sweep(tmp_path, "max_cost = 9.5")
    assert made.run() == 2
    assert made.cloud.started == []

    # when it is raised
    made.group.raise_max_cost(10.5)

    # then the rest starts
    assert replace(made, plan=made.group.plan()).run() == 0
    assert made.cloud.started == made.order
    assert made.group.first_plan() == made.plan
    for wrong in (10.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=r"the group s has 10\.50 USD, and max_cost can only be raised"):
            made.group.raise_max_cost(wrong)


def test_raising_max_cost_of_a_group_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no max_cost"):
        sweep(tmp_path).group.raise_max_cost(10.0)


def test_unused_cost_of_an_ended_job_lets_the_next_one_start(tmp_path: Path) -> None:
    made = sweep(tmp_path, "max_cost = 11")

    assert made.run() == 0

    assert made.cloud.started == made.order
    assert made.cloud.most == (1, 10.0)


def test_a_job_of_unknown_cost_is_refused_under_a_bound_and_the_others_run(tmp_path: Path) -> None:
    made = sweep(tmp_path, "max_cost = 35")
    unknown = made.order[0].rpartition(".")[2]
    made.cloud.bounds[unknown] = None

    assert made.run() == 2

    assert made.cloud.started == made.order[1:]
    assert any("the cost of the job is not known" in each for each in made.said)


@pytest.mark.parametrize("error", [UsageError("no such type"), LaunchError("no capacity", Outcome.CAPACITY)])
def test_a_refused_job_stops_no_other_and_is_tried_again_by_a_later_call(
    tmp_path: Path, error: BaiError
) -> None:
    made = sweep(tmp_path)
    refused = made.order[2]
    made.cloud.refusals[refused.rpartition(".")[2]] = error

    assert made.run() == 2
    assert sorted(made.cloud.started) == sorted(set(made.order) - {refused})

    made.cloud.refusals.clear()
    assert made.run() == 0
    assert sorted(made.cloud.started) == sorted(made.order)


def test_a_job_whose_launch_is_undecided_keeps_its_reserved_cost(tmp_path: Path) -> None:
    made = sweep(tmp_path, "max_cost = 15")
    name = made.order[0].rpartition(".")[2]
    made.cloud.refusals[name] = UndecidedError("EC2 has not answered")

    assert made.run() == 0

    assert made.cloud.started == made.order
    assert made.cloud.most == (1, 10.0)


def test_a_job_that_waits_for_capacity_is_submitted_again_when_that_is_due(tmp_path: Path) -> None:
    made = sweep(tmp_path)
    waiting = made.order[0]
    made.cloud.full = {waiting.rpartition(".")[2]}

    assert made.run() == 0

    assert sorted(made.cloud.started) == sorted(made.order)
    assert made.cloud.started[0] != waiting
    assert made.cloud.asked == [START, START + timedelta(minutes=1)]
    assert any("there is no room; asking again at 00:01:00 UTC" in each for each in made.said)


def test_a_cancelled_group_starts_nothing_more_and_ends_what_runs(tmp_path: Path) -> None:
    made = sweep(tmp_path)
    made.cloud.steps = 1000

    def cancel_then(seconds: float) -> None:
        made.cancelling = True
        made.cloud.pass_time(seconds)

    assert made.run(sleep=cancel_then) == 4
    assert made.cloud.started == made.order[:2]
    assert made.run() == 4
    assert made.cloud.started == made.order[:2]


@pytest.mark.parametrize(
    "error",
    [
        LaunchError("EC2 is away", Outcome.CAPACITY),
        RecordError("job.toml is torn"),
        StoreRefusedError("no right to write"),
    ],
)
def test_a_running_job_that_cannot_be_cancelled_lets_the_others_end(tmp_path: Path, error: BaiError) -> None:
    made = sweep(tmp_path)
    made.cloud.steps = 1000
    failing, other = made.order[:2]
    cancel = made.cloud.cancel

    def cancel_one(record: JobRecord, *, now: bool) -> str:
        if record.job_id == failing:
            raise error
        return cancel(record, now=now)

    def cancel_then(seconds: float) -> None:
        made.cancelling = True
        made.cloud.pass_time(seconds)

    made.cloud.cancel = cancel_one  # type: ignore[method-assign]

    code = made.run(sleep=cancel_then)

    assert code >= 4
    assert JobRecord(made.cloud.store, other).cancelled()
    assert any(each.startswith(failing) and str(error) in each for each in made.said)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_cancel_during_a_start_lets_no_further_job_start(tmp_path: Path, elsewhere: bool) -> None:
    made = sweep(tmp_path)
    submit = made.cloud.submit

    def cancelled_meanwhile(*arguments: Any, **options: Any) -> Submitted:
        if elsewhere:
            made.group.cancel()
        made.cancelling = True
        return submit(*arguments, **options)

    made.cloud.submit = cancelled_meanwhile  # type: ignore[method-assign]

    assert made.run() == 4
    assert made.cloud.started == made.order[:1]


@pytest.mark.parametrize(
    ("numbers", "code", "advice"),
    [
        ([signal.SIGTERM], 143, "bai resume s` continues"),
        ([signal.SIGINT, signal.SIGINT], 130, "bai cancel s` asks them to end"),
    ],
)
def test_a_signal_ends_following_with_advice_which_command_continues(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    numbers: list[signal.Signals],
    code: int,
    advice: str,
) -> None:
    made = sweep(tmp_path)

    def signalled(group_run: GroupRun) -> None:
        for each in numbers:
            signal.raise_signal(each)

    monkeypatch.setattr(GroupRun, "run", signalled)

    ended = continue_group(made.group, JobOptions(), json_=False)

    assert ended == code
    assert advice in capsys.readouterr().err


def test_a_job_that_cannot_be_cancelled_does_not_prevent_cancelling_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sweep(tmp_path)
    running = [SimpleNamespace(job=each, status=SimpleNamespace(outcome=None)) for each in made.plan.jobs[:3]]
    monkeypatch.setattr("executor.commands.group_commands._view", lambda *_: SimpleNamespace(jobs=running))
    failing = made.order[0]

    def cancel(record: JobRecord, *, now: bool) -> str:
        if record.job_id == failing:
            raise LaunchError("EC2 is away", Outcome.CAPACITY)
        return "cancelling"

    made.cloud.cancel = cancel  # type: ignore[method-assign]
    options: Any = SimpleNamespace(backends=made.cloud)

    with pytest.raises(LaunchError, match="EC2 is away"):
        cancel_group(made.group, options, now=True, json_=False)

    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"{each}: cancelling" for each in made.order[1:3]] + [
        "s: no further job of the group starts"
    ]


def test_an_interruption_while_the_group_is_made_says_that_no_job_was_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("executor.planning.request.read_file", interrupted)

    code = run_group(JobRequest(file=Path("b.toml")), JobOptions(), group_id=None, json_=False)

    assert code == 130
    assert capsys.readouterr().err == "bai: interrupted before a job was started\n"


def test_a_job_that_can_never_report_is_given_up_and_its_cost_still_counts(tmp_path: Path) -> None:
    made = sweep(tmp_path, "max_cost = 15")

    class Hopeless(Unwatched):
        def observe(self, *, news: bool, cancelling: bool) -> str | None:
            raise NoResultError("nothing runs")

    made.cloud.follow = lambda record, *, on_status: Hopeless()  # type: ignore[method-assign]

    assert made.run() == 5
    assert made.cloud.started == made.order[:1]
    assert any(each.endswith("nothing runs") for each in made.said)


@pytest.mark.parametrize("ends", [False, True])
def test_a_job_that_cannot_be_followed_and_may_run_keeps_its_place(tmp_path: Path, ends: bool) -> None:
    # given a machine of the first job that goes on, while its record cannot be read any more
    made = sweep(tmp_path)
    lost = made.order[0]
    made.cloud.unfollowed = SILENT
    made.cloud.steps = 2
    follow = made.cloud.follow

    class Torn(Unwatched):
        def observe(self, *, news: bool, cancelling: bool) -> str | None:
            raise RecordError("job.toml is torn")

    def follow_but_one(record: JobRecord, *, on_status: Callable[[str], None]) -> Unwatched:
        return Torn() if record.job_id == lost else follow(record, on_status=on_status)

    def pass_time(seconds: float) -> None:
        if not ends and lost in made.cloud.running:
            made.cloud.running[lost] = 1000
        made.cloud.pass_time(seconds)

    made.cloud.follow = follow_but_one  # type: ignore[method-assign]

    # when
    code = made.run(sleep=pass_time)

    # then the other place alone is used, and the job's own end frees its place
    assert sorted(made.cloud.started) == sorted(made.order)
    assert made.cloud.most[0] == 2
    assert code == (0 if ends else 5)


def test_no_job_starts_after_one_that_may_run_and_took_the_only_place(tmp_path: Path) -> None:
    made = sweep(tmp_path)
    made.plan = replace(made.plan, max_parallel=1)
    made.cloud.unfollowed = SILENT
    follow = made.cloud.follow

    class Torn(Unwatched):
        def observe(self, *, news: bool, cancelling: bool) -> str | None:
            raise RecordError("job.toml is torn")

    made.cloud.follow = lambda record, *, on_status: Torn()  # type: ignore[method-assign]

    assert made.run() == 5
    assert made.cloud.started == made.order[:1]
    assert made.said[-1] == f"{made.order[0]} may still run: 5 jobs are not started"

    # when a later call can follow it
    made.cloud.follow = follow  # type: ignore[method-assign]
    assert made.run() == 0
    assert made.cloud.started == made.order
    assert made.cloud.most[0] == 1


def sweep_of_scripts(folder: Path) -> tuple[Sweep, Path]:
    """Return a group with scripts, and their folder."""
    scripts = folder / "scripts"
    scripts.mkdir()
    (scripts / "train.py").write_text("print(1)")
    (folder / "sweep.toml").write_text(SWEEP.replace("[matrix]", '[ml.script]\npath = "scripts"\n[matrix]'))
    plan, _ = matrix_plan(JobRequest(file=folder / "sweep.toml"), "s")
    store = DirectoryStore(folder / "store")
    GroupRecord(store, "s").create(plan)
    return Sweep(Cloud(store), GroupRecord(store, "s"), plan), scripts


def test_scripts_that_change_after_a_kill_between_decision_and_start_are_refused(tmp_path: Path) -> None:
    made, scripts = sweep_of_scripts(tmp_path)
    assert made.group.decide(0, new_decision(made.plan.jobs[0], bound=10.0, hourly=1.0))
    (scripts / "train.py").write_text("print(2)")

    assert made.run() == 2
    assert made.cloud.started == []

    (scripts / "train.py").write_text("print(1)")
    assert made.run() == 0
    assert sorted(made.cloud.started) == sorted(made.order)


def test_changed_scripts_end_a_group_before_its_next_job(tmp_path: Path) -> None:
    made, scripts = sweep_of_scripts(tmp_path)

    def edit(seconds: float) -> None:
        (scripts / "train.py").write_text("print(2)")
        made.cloud.pass_time(seconds)

    assert made.run(sleep=edit) == 2
    assert made.cloud.started == made.order[:2]
    assert any("its scripts have changed since the group was made" in each for each in made.said)

    (scripts / "train.py").write_text("print(1)")
    assert made.run() == 0
    assert made.cloud.started == made.order


def test_a_temporarily_unreachable_store_does_not_end_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sweep(tmp_path)
    failures = [StoreError("S3 is away")]

    @dataclass(frozen=True)
    class Remote(FragileStore):
        folder: Any = None

        def find(self, prefix: str) -> Any:
            if len(made.cloud.started) == 2 and failures:
                raise failures.pop()
            return self.inner.find(prefix)

    assert made.run(Remote(made.group.store)) == 0  # type: ignore[arg-type]
    assert sorted(made.cloud.started) == sorted(made.order)
    assert "S3 is away; trying again" in made.said


def test_committed_cost_is_that_of_ended_jobs_and_the_maximum_of_the_others(tmp_path: Path) -> None:
    made = sweep(tmp_path, "max_cost = 35")
    from executor.jobs.job_group import new_decision

    decisions = [new_decision(job, bound=10.0, hourly=1.0) for job in made.plan.jobs[:3]]
    state = GroupState(plan=made.plan, decisions=decisions, ended={made.order[0]: 0.5, made.order[1]: None})

    assert state.committed() == 20.5
    assert state.running == [made.order[2]]
    assert state.over_cost(made.plan.jobs[3], 14.5) is None
    assert state.over_cost(made.plan.jobs[3], 14.6) is not None
