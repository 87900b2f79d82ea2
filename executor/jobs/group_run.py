"""Runs a group of jobs: starts the jobs that the group's bounds allow, and follows all jobs to their end. The
group's ledger contains all state that must survive this process, so that another call can continue the group
at the same time or later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial

from bai_agent.errors import BaiError, StoreError
from bai_agent.job.outcome import ExitCode
from bai_agent.light_dataclass import dataclass, field
from executor.backends.backend import CapacityWait, LaunchNotice, SubmitListener, Watcher
from executor.errors import NotStartedError, UsageError
from executor.jobs.job_group import Decision, GroupRecord, GroupState, ended_costs, new_decision
from executor.jobs.resolved_request import FetchedScripts, resolved_request
from executor.jobs.scope import JobScope
from executor.jobs.wait import RetryWindow, may_pass
from executor.planning.matrix import GroupPlan, MatrixJob
from executor.planning.request import read_request
from executor.planning.requested_job import digest_of
from executor.records.reading import result_of

_PAUSE_S, _FAR_PAUSE_S = 0.25, 5.0
"""Time between two checks of jobs on this machine, and of jobs elsewhere (seconds)."""


class _OverCostError(BaiError):
    """The next job does not fit into the group's `max_cost` at the moment."""


class _OutdatedError(BaiError):
    """Another `bai` process has written a decision into the group's ledger at the same time."""


class _NoCapacityYetError(BaiError):
    """The job waits for capacity."""

    def __init__(self, wait: CapacityWait) -> None:
        super().__init__(wait.sentence)
        self.wait = wait


@dataclass(frozen=True, kw_only=True)
class GroupListener:
    """Callbacks of a group's run."""

    on_status: Callable[[str], None]
    exit_code: Callable[[BaiError], int]
    """Returns the exit code of an error."""
    cancelling: Callable[[], bool] = lambda: False
    """Returns whether the user has requested the group's end."""
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)


@dataclass(kw_only=True)
class GroupRun:
    """One call of `bai` that runs a group of jobs."""

    group: GroupRecord
    plan: GroupPlan
    scope: JobScope
    """The `JobScope` of the group's jobs: the backends that run the jobs, and the stores that are searched
    for earlier jobs whose artifacts are needed."""
    listener: GroupListener
    fetched: FetchedScripts
    """Scripts that were fetched for the jobs. The fetched files exist while the group runs."""
    _decisions: list[Decision] = field(default_factory=list)
    _ended: dict[str, float | None] = field(default_factory=dict)
    _exit_codes: dict[str, int] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    """Jobs that can no longer be followed, but are possibly still running. Lost jobs still count for
    max_parallel."""
    _watchers: dict[str, Watcher] = field(default_factory=dict)
    """Watchers of the running jobs that this call has found or started."""
    _due: dict[str, datetime] = field(default_factory=dict)
    """Jobs that wait for capacity → time of their next submission."""
    _again: set[str] = field(default_factory=set)
    """Jobs that earlier calls refused to start, and that this call tries once more."""
    _full: tuple[int, int] | None = None
    """Number of decisions and number of ended jobs at the time when the next job did not fit into the group's
    cost."""
    _cancelled: bool = False
    _over_cost: str = ""
    """Reason why the next job does not fit into the group's cost; empty if the job may fit."""

    def run(self) -> int:
        """Run the group until no job runs and no job is left to start; return the worst exit code of the
        jobs. Raises StoreError, RecordError."""
        self._decisions = self.group.decisions()
        self._again = {job_id for job_id, each in self._state.last.items() if each.refused is not None}
        reach = RetryWindow(far=self.group.store.folder is None)
        while True:
            try:
                if self._step():
                    return self._end()
                reach.reached()
            except _OutdatedError:
                continue
            except StoreError as error:
                self.listener.on_status(reach.failed(error))
            self.listener.sleep(_PAUSE_S if self.group.store.folder is not None else _FAR_PAUSE_S)

    @property
    def _state(self) -> GroupState:
        return GroupState(plan=self.plan, decisions=self._decisions, ended=self._ended)

    def _step(self) -> bool:
        """Check, cancel and start jobs as needed. Return whether the group is done: no job is followed any
        more, and no job can be started."""
        if self.listener.cancelling() and not self._cancelled:
            self.group.cancel()
        if not self._cancelled and self.group.cancelled():
            self._cancelled = True
            self.listener.on_status("the group is cancelled: no further job starts, and the running ones end")
        cancelled = self._cancelled
        self._decisions = self.group.decisions(self._decisions)
        self._look()
        for job_id in self._state.running:
            if cancelled:
                self._lost.discard(job_id)
                self._end_job(job_id)
            elif job_id not in self._lost:
                self._follow(job_id)
        while not self._is_to_end() and self._start_next():
            pass
        state = self._state
        may_start = not cancelled and not self._over_cost and len(self._lost) < self.plan.max_parallel
        return self._lost.issuperset(state.running) and not (may_start and state.pending(self._again))

    def _is_to_end(self) -> bool:
        """Return whether the user has requested the group's end. This method is called before each start,
        because a start may take minutes."""
        return self._cancelled or self.listener.cancelling() or self.group.cancelled()

    def _look(self) -> None:
        """Record the jobs that have ended since the last check."""
        before = set(self._ended)
        self._ended = ended_costs(self.group, self._state, self._ended)
        for job_id in sorted(self._ended.keys() - before):
            result = result_of(self.group.job(job_id))
            assert result is not None
            self._exit_codes[job_id] = int(result.exit_code)
            if self._watchers.pop(job_id, None) is not None:
                self._say(job_id, result.sentence)
            self._due.pop(job_id, None)
            self._lost.discard(job_id)

    def _follow(self, job_id: str) -> None:
        """Submit a possibly running job again if this is due, otherwise check the job."""
        due = self._due.get(job_id)
        # An earlier call may have been killed between the decision and the start of the job. So this call
        # submits the job again. A second submission of the same job id does not start a second job.
        if due <= self.listener.now() if due is not None else job_id not in self._watchers:
            self._submit(self._job(job_id))
        elif due is None:
            self._observe(job_id)

    def _end_job(self, job_id: str) -> None:
        """Cancel a job that is possibly running, because the group is cancelled."""
        record = self.group.job(job_id)
        if not record.exists():
            self._lose(job_id, ExitCode.CANCELLED, "it was not started")
            return
        with self._lost_unless_done(job_id, "the job could not be cancelled, and may still run: "):
            if not record.cancelled():
                self.scope.backends.of(record).cancel(record, now=False)
            self._observe(job_id)

    def _observe(self, job_id: str) -> None:
        with self._lost_unless_done(job_id):
            sentence = self._watcher(job_id).observe(news=False, cancelling=self._cancelled)
            if sentence:
                self._say(job_id, sentence)

    @contextmanager
    def _lost_unless_done(self, job_id: str, before: str = "") -> Iterator[None]:
        """Stop following a job if the `with` block fails. before: beginning of the reported sentence. Raises
        StoreError if the failed request may succeed later."""
        try:
            yield
        except BaiError as error:
            if may_pass(error):
                raise
            record = self.group.job(job_id)
            backend = self.scope.backends.of(record)
            if not self._cancelled and backend.statuses([record])[0].may_run:
                self._lost.add(job_id)
                self._exit_codes[job_id] = ExitCode.OURS
                self._say(job_id, f"{error}. The job may still run, so no other job takes its place")
            else:
                self._lose(job_id, ExitCode.OURS, f"{before}{error}")

    def _watcher(self, job_id: str) -> Watcher:
        if job_id not in self._watchers:
            record = self.group.job(job_id)
            follow = self.scope.backends.of(record).follow
            self._watchers[job_id] = follow(record, on_status=partial(self._say, job_id))
        return self._watchers[job_id]

    def _start_next(self) -> bool:
        """Start the next job if the bounds allow it; return whether another job may be started now."""
        state = self._state
        pending = state.pending(self._again)
        counts = (len(self._decisions), len(self._ended))
        if not pending or len(state.running) >= self.plan.max_parallel or self._full == counts:
            return False
        self._over_cost, self._full = "", None
        try:
            self._submit(pending[0])
        except _OverCostError as error:
            self._over_cost, self._full = str(error), counts
            return False
        return True

    def _submit(self, job: MatrixJob) -> None:
        """Start a job, or continue an interrupted start. Raises _OverCostError, _OutdatedError, and
        StoreError if it is unknown whether the job was started."""
        self._due.pop(job.job_id, None)
        launches: list[str] = []
        was_started = job.job_id in self._state.started
        try:
            self._start(job, launches.append)
        except (_OverCostError, _OutdatedError):
            raise
        except _NoCapacityYetError as error:
            self._due[job.job_id] = error.wait.again
            self._say(job.job_id, f"{error}; asking again at {error.wait.again:%H:%M:%S} UTC")
            return
        except BaiError as error:
            if may_pass(error):
                raise
            self._say(job.job_id, str(error))
            may_run = bool(launches) or (was_started and self.group.job(job.job_id).exists())
            if isinstance(error, NotStartedError) or not may_run:
                self._refuse(job, error)
                return
        self._watcher(job.job_id)

    def _start(self, job: MatrixJob, on_launch: Callable[[str], None]) -> None:
        request = self.plan.job_request(job)
        descriptor, _ = read_request(request)
        backend = self.scope.backends.of_request(request, descriptor)
        is_new = job.job_id not in self._state.started
        is_made = not is_new and self.group.job(job.job_id).exists()
        listener = SubmitListener(
            on_plan=lambda notice: self._reserve(job, notice),
            on_progress=partial(self._say, job.job_id),
            on_launch=on_launch,
            on_wait=_wait_elsewhere,
        )
        with resolved_request(
            request, descriptor, self.scope, job_id=job.job_id, fetched=self.fetched
        ) as resolved:
            if not is_made and digest_of(*resolved, self.group.left_out) != job.scripts_sha256:
                raise UsageError(
                    "its scripts have changed since the group was made; put them back, and resume the group"
                )
            if is_new and not backend.remote:
                self._decide(job, None, None)
                self._say(job.job_id, "starting")
            backend.submit(*resolved, job_id=job.job_id, listener=listener)

    def _reserve(self, job: MatrixJob, notice: LaunchNotice) -> None:
        """Reserve the maximum cost of a job before its launch."""
        needs_cost = self.plan.max_cost is not None
        bound, hourly = notice.cost(), notice.hourly()
        if needs_cost and bound is None:
            raise UsageError(
                "max_cost is set, but the cost of the job is not known; write the price of an hour under [prices] in the configuration"
            )
        before = self._state.started.get(job.job_id)
        if before is None:
            self._decide(job, bound, hourly)
            for sentence in (notice.sentence(cost=True), *notice.warnings()):
                self._say(job.job_id, sentence)
        elif needs_cost and (bound or 0.0) > (before.bound or 0.0) * (1 + 1e-9):
            raise UsageError(
                f"the job may now cost {bound:,.2f} USD, but only {before.bound or 0.0:,.2f} are reserved for the job"
            )

    def _decide(self, job: MatrixJob, bound: float | None, hourly: float | None) -> None:
        """Record the decision that a job may start. Raises _OverCostError, _OutdatedError."""
        if hourly is not None and (why := self._state.over_cost(job, bound)) is not None:
            raise _OverCostError(why)
        self._append(new_decision(job, bound=bound, hourly=hourly))

    def _refuse(self, job: MatrixJob, error: BaiError) -> None:
        """Record the decision that a job is not started, so that the next job can start."""
        code = int(self.listener.exit_code(error))
        self._append(new_decision(job, refused=str(error), exit_code=code))

    def _append(self, decision: Decision) -> None:
        if not self.group.decide(len(self._decisions), decision):
            raise _OutdatedError("another bai runs this group")
        self._decisions.append(decision)
        self._again.discard(decision.job_id)

    def _lose(self, job_id: str, code: int, sentence: str) -> None:
        """Stop following a job that will not have a result. The job's maximum cost still counts for the
        group's cost."""
        self._ended[job_id], self._exit_codes[job_id] = None, code
        self._say(job_id, sentence)

    def _end(self) -> int:
        """Report the jobs that were not started; return the worst exit code."""
        state = self._state
        left = state.pending(self._again)
        why = self._over_cost or (f"{', '.join(sorted(self._lost))} may still run" if self._lost else "")
        codes = [*self._exit_codes.values(), *(each.exit_code for each in state.last.values())]
        if left and why:
            count = f"{len(left)} job{' is' if len(left) == 1 else 's are'}"
            self.listener.on_status(f"{why}: {count} not started")
            codes.append(ExitCode.USAGE)
        elif left:
            codes.append(ExitCode.CANCELLED)
        return max(codes, default=0)

    def _job(self, job_id: str) -> MatrixJob:
        return next(each for each in self.plan.jobs if each.job_id == job_id)

    def _say(self, job_id: str, sentence: str) -> None:
        self.listener.on_status(f"{job_id} ({self._job(job_id).words}): {sentence}")


def _wait_elsewhere(wait: CapacityWait) -> None:
    raise _NoCapacityYetError(wait)
