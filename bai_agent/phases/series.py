"""Decides whether the completed runs of a `[repeat]` job are enough, and returns the outcomes of the runs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Repeat
from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.outcome import OF_A_RUN, Outcome, signal_name
from bai_agent.job.record_types import RepeatEvent, RepeatOutcome, RunEnd
from bai_agent.job.repeats import FailedStep, RepeatedRun, RepeatedRuns, RepeatsFile, read_repeats
from bai_agent.job.run_directory import RunDir, read_json, write_json
from bai_agent.light_dataclass import replace
from bai_agent.run.run_context import RunContext
from bai_agent.strategy.launch import Role

if TYPE_CHECKING:
    from bai_agent.strategy.failure import Cause

log = logging.getLogger(__name__)

_PIECE = 4 << 20
"""Bytes of records that are read at once. The agent checks the benchmark after each piece of this size."""
_SHORT_RUN_SECONDS = 2.0
_EVENT_SECONDS = 1.0
"""Shortest time between two events about the start of runs (seconds)."""
_OF_A_RUN = b'"src":"run"'


class RepeatDecision:
    """Tells the shim after each run whether the completed runs meet `[repeat] until`.

    The decision depends only on records in `metrics.jsonl` and `repeats.jsonl`, so a restarted agent makes
    the same decision.
    """

    def __init__(self, job: Job, rundir: RunDir) -> None:
        self._rundir = rundir
        self._repeat = job.repeat if job.repeat is not None and job.repeat.until is not None else None
        self._metrics = [each for each in job.metrics if self._repeat and each.name == self._repeat.metric]
        self._runs = RepeatsFile(rundir.repeats)
        self._offset = 0
        self._values: dict[str, list[tuple[int, float]]] = {}
        """Time stamps and values of the metric in the current run, by series."""
        self._headlines: dict[tuple[str | None, str], dict[int, float]] = {}
        """Headlines of the successful runs, by arm and series, then by the number of the block."""
        self._complete = 0
        """Number of runs of which all records have been read."""
        self._hurried, self._since = 0, 0.0
        """`_hurried`: value of `_complete` at the last call of `hurries`. `_since`: time at which `hurries`
        last found a new value of `_complete`."""

    def hurries(self, now: float) -> bool:
        """Return whether the runs are so short that pauses between the runs matter. now: monotonic time
        (seconds)."""
        if self._complete != self._hurried:
            self._hurried, self._since = self._complete, now
        return self._complete > 0 and now - self._since < _SHORT_RUN_SECONDS

    def poll(self) -> None:
        """Read new records. A call costs so little that many calls per second are possible."""
        if self._repeat is None:
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            if self._rundir.metrics.stat().st_size > self._offset:
                self._read(self._repeat)

    def _read(self, repeat: Repeat) -> None:
        with self._rundir.metrics.open("rb") as file:
            file.seek(self._offset, os.SEEK_SET)
            whole, newline, _ = file.read(_PIECE).rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        name = f'"name":{json.dumps(repeat.metric)}'.encode()
        for line in whole.split(b"\n"):
            if name in line or _OF_A_RUN in line:
                with suppress(ValueError):
                    self._take(json.loads(line), repeat)

    def _take(self, record: Mapping[str, Any], repeat: Repeat) -> None:
        number = record.get("repeat")
        if record["name"] == repeat.metric and number is not None:
            # If each process has a log of its own, a label of the series already distinguishes the processes.
            # The process's number is therefore removed from the source.
            source = record["src"].partition("/")[0]
            series = json.dumps([source, record.get("labels")], sort_keys=True)
            self._values.setdefault(series, []).append((record["timestamp"], float(record["value"])))
        if record["src"] == "run" and number == self._complete:
            # A record with the source "run" comes after all other records of its run.
            self._complete += 1
            self._end_run(number, repeat)

    def _end_run(self, number: int, repeat: Repeat) -> None:
        runs = self._runs.look().measured
        run = runs[number] if number < len(runs) else None
        arms = max(1, len(repeat.arms))
        if run is not None and run.ended is not None and run.ended.code == 0:
            for series, values in self._values.items():
                headline = _headline(values, self._metrics[0], started=run.time)
                if headline is not None:
                    self._headlines.setdefault((run.arm, series), {})[number // arms] = headline
        self._values = {}
        if repeat.decided_after is None or self._complete < repeat.decided_after:
            return
        assert repeat.until is not None
        # Imported here, because only `until` needs this module.
        from bai_agent.phases.enough import enough_runs

        found = enough_runs(
            self._headlines,
            arms=[arm.name for arm in repeat.arms],
            until=repeat.until,
            least=repeat.decided_after // arms,
        )
        # The runs can be enough only after a whole block.
        whole = self._complete % arms == 0
        word = {**found.as_table(), "runs": self._complete, "enough": found.enough and whole}
        write_json(self._rundir.repeat_word, word)


def _headline(values: Sequence[tuple[int, float]], metric: Metric, *, started: int) -> float | None:
    """Return the headline of a run, computed without its warm-up values; None if no values are left."""
    begin = started + metric.warmup.total_seconds() * 1000 if metric.warmup is not None else 0
    measured = [value for time, value in values if time >= begin][metric.warmup_values :]
    from bai_agent.job.job_headlines import headline_of

    return headline_of(metric.headline, measured) if measured else None


class RepeatProgress:
    """Adds an event when a run starts, at most one per second."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx
        self._runs = RepeatsFile(ctx.rundir.repeats)
        told = (each.run for each in ctx.events.of(RepeatEvent))
        self._told = max(told, default=-1)
        self._next = 0.0

    def poll(self) -> None:
        """Check whether a new run has started. A call costs so little that many calls per second are possible."""
        repeat, now = self._ctx.job.repeat, self._ctx.clock.monotonic()
        if repeat is None or now < self._next:
            return
        runs = self._runs.look().runs
        if runs and runs[-1].run > self._told:
            self._told, self._next = runs[-1].run, now + _EVENT_SECONDS
            name = _name(runs[-1], repeat)
            self._ctx.events.add(
                RepeatEvent(run=self._told, repeat=runs[-1].repeat, name=f"{name[0].lower()}{name[1:]}")
            )


def repeat_outcomes(runs: RepeatedRuns) -> list[RepeatOutcome]:
    """Return the outcomes of all started runs, including a run whose preparation failed."""
    outcomes = [_outcome_of(number, run.ended, run.time, run.arm) for number, run in enumerate(runs.measured)]
    step = runs.failed_step
    if step is not None and step.step == "prepare" and step.repeat is not None and not step.ended.was_stopped:
        prepared = _outcome_of(step.repeat, step.ended, None, step.ended.arm)
        outcomes.append(replace(prepared, outcome=Outcome.PREPARE_FAILED.value, wall_seconds=None))
    return outcomes


def _outcome_of(number: int, ended: RunEnd | None, started: int | None, arm: str | None) -> RepeatOutcome:
    from bai_agent.benchmark.ending import classify  # as below: not needed before the benchmark starts

    ended = ended or RunEnd(lost=True)
    return RepeatOutcome(
        repeat=number,
        arm=arm,
        outcome=classify(ended)[0].value,
        code=ended.code,
        signal=ended.signal,
        started=started,
        ended=ended.time,
        wall_seconds=ended.wall_seconds,
        user_seconds=ended.user_seconds,
        system_seconds=ended.system_seconds,
        peak_memory_bytes=ended.peak_memory_bytes,
        ignored_code=ended.ignored_code,
    )


def repeat_here(ctx: RunContext) -> Repeat | None:
    """Return the job's `[repeat]` table; None if another node starts the runs."""
    return None if ctx.role is Role.SERVE else ctx.job.repeat


def series_end(
    ctx: RunContext, ended: RunEnd, outcome: Outcome, sentence: str, *, cause: Cause | None
) -> tuple[Outcome, str]:
    """Return this node's outcome and a sentence about the outcome. In a `[repeat]` job, the outcome and the
    sentence describe the whole series of runs, and the sentence names the first failed run.

    ended: content of exit.json. outcome, sentence: the result of classifying `ended`. cause: the process that
    failed first in the first failed run, if known.
    """
    repeat = repeat_here(ctx)
    if repeat is None or outcome not in OF_A_RUN:
        return outcome, sentence
    runs = read_repeats(ctx.rundir.repeats)
    good = sum(1 for each in runs.measured if each.ended is not None and each.ended.code == 0)
    of_all = (
        f"{good} of {'at most ' if repeat.until is not None else ''}{repeat.runs} runs had succeeded by then"
    )
    if ended.lost or outcome is Outcome.DISK_FULL or ended.was_stopped:
        return outcome, f"{sentence.rstrip('.')}; {of_all}."
    failed = [each for each in runs.runs if each.ended is not None and each.ended.code != 0]
    if failed:
        from bai_agent.benchmark.ending import classify

        first, why = classify(failed[0].ended or RunEnd(lost=True), cause)
        said = f"{_name(failed[0], repeat)}: {why}"
        if len(failed) > 1:
            said = f"{len(failed)} of {len(runs.runs)} runs failed; the first was {said[0].lower()}{said[1:]}"
        return first, said
    if runs.failed_step is not None:
        return Outcome.FAILED, _step_sentence(runs.failed_step, repeat)
    if good == 0 and repeat.max_time is not None:
        return (
            Outcome.FAILED,
            "[repeat] max_time was reached before the first measured run, because the warm-up runs took all the time.",
        )
    if good < repeat.runs and not _was_over(ctx, runs, ended):
        return (
            Outcome.FAILED,
            f"Not all runs were done: {of_all}. The log has the reason.",
        )
    times = "once" if good == 1 else f"{good} times"
    return outcome, f"The benchmark finished successfully {times}, in {ended.wall_seconds or 0:.1f} s."


def series_warnings(repeat: Repeat, runs: RepeatedRuns, rundir: RunDir) -> list[str]:
    """Return warnings if the series has fewer runs than wanted, or if its confidence interval is too wide."""
    done = len(runs.measured)
    warnings = []
    if repeat.until is not None and repeat.decided_after is not None:
        word = read_json(rundir.repeat_word) or {}
        if not _were_enough(runs, rundir):
            warnings.append(_not_enough(word, repeat.metric or "", repeat.until))
    elif (
        done < repeat.runs
        and repeat.max_time is not None
        and (repeat.min_runs is None or done < repeat.min_runs)
    ):
        warnings.append(f"{done} of {repeat.runs} runs were done when [repeat] max_time was reached.")
    return warnings


def _not_enough(word: Mapping[str, Any], metric: str, until: float) -> str:
    """Return a sentence that says why the runs do not meet `[repeat] until`."""
    width = word.get("interval")
    asked = f"[repeat] until asks for ±{until:.1%}"
    if width is None:
        return f'The interval of "{metric}" is not known; {asked}.'
    known = f'The interval of "{metric}" was ±{width:.1%} after {word["runs"]} runs'
    if width > until:
        return f"{known}; {asked}."
    if word.get("trend"):
        return f"{known}, but the runs have a trend, so their mean does not predict the next run. The machine may drift."
    return f"{known}, but only at the last check; {asked} at two checks in a row."


def _was_over(ctx: RunContext, runs: RepeatedRuns, ended: RunEnd) -> bool:
    """Return whether the series had a valid reason to end before its largest number of runs."""
    if ctx.job.runs_together:
        return (read_json(ctx.rundir.turn) or {}).get("begins") is False
    limit = ctx.job.repeat.max_time if ctx.job.repeat is not None else None
    took_all = limit is not None and (ended.wall_seconds or 0) >= limit.total_seconds()
    return took_all or _were_enough(runs, ctx.rundir)


def _were_enough(runs: RepeatedRuns, rundir: RunDir) -> bool:
    """Return whether these runs meet `[repeat] until`."""
    word = read_json(rundir.repeat_word) or {}
    return word.get("runs") == len(runs.measured) and bool(word.get("enough"))


def _name(run: RepeatedRun, repeat: Repeat) -> str:
    return _run_name(run.run, run.repeat, run.arm, repeat)


def _run_name(run: int, number: int | None, arm: str | None, repeat: Repeat) -> str:
    of_arm = f" ({arm})" if arm is not None else ""
    if number is None:
        return f"Warm-up run {run + 1} of {repeat.warmup_runs}{of_arm}"
    of = f" of {repeat.runs}" if repeat.min_runs is None else ""
    return f"Run {number + 1}{of}{of_arm}"


def _step_sentence(step: FailedStep, repeat: Repeat) -> str:
    run = _run_name(step.run, step.repeat, step.ended.arm, repeat)
    when = "before" if step.step == "prepare" else "after"
    error, code = step.ended.exec_error, step.ended.code
    if error is not None:
        how = str(error["message"]).replace("The benchmark's command", "its command").rstrip(".")
    elif code is not None:
        how = f"it exited with code {code}"
    elif step.ended.signal is not None:
        how = f"it was ended by {signal_name(step.ended.signal)}"
    else:
        how = "it could not be ended"
    return f"[repeat] {step.step} failed {when} {run[0].lower()}{run[1:]}: {how}."
