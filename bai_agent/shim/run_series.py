"""Starts the runs of a `[repeat]` job one after the other, in the shim's process. This module uses only the
standard library.

The shim adds a line to `repeats.jsonl` right before each run begins, and another line after the run's last
process has ended. The lines show which output belongs to which run. No run is ever started twice, because a
shim that dies is not replaced.
"""

from __future__ import annotations

import json
import time

from bai_agent.shim.durable import LineFile, now_ms
from bai_agent.shim.proc import boot_id

TYPE_CHECKING = False  # importing typing would be a tenth of the shim's memory
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Protocol

    class Commands(Protocol):
        """The methods of the shim that `RepeatRunner` calls."""

        @property
        def stop_reason(self) -> str | None: ...

        @property
        def stop_signal(self) -> int | None: ...

        @property
        def is_clear(self) -> bool: ...

        def run_command(
            self, argv: list[str], env: dict[str, str], *, cwd: str | None = None, begin: Any = None
        ) -> dict[str, Any]: ...

        def asked_to_stop(self) -> bool: ...

        def wait(self) -> None: ...

        def sizes(self) -> tuple[int, int]: ...

        def drain(self) -> bool: ...

        def say(self, text: str) -> None: ...


PREPARE, CLEANUP = "prepare", "cleanup"

_SUMS = (
    "left_behind",
    "user_seconds",
    "system_seconds",
    "context_switches_voluntary",
    "context_switches_involuntary",
)


class RepeatRunner:
    """Runs the benchmark several times, as the table `repeat` of the order describes."""

    def __init__(self, shim: Commands, order: dict[str, Any], *, none: dict[str, Any]) -> None:
        """none: result with the keys of exit.json that `run` returns if no command was started."""
        self._shim = shim
        self._order, self._none = order, none
        self._repeat: dict[str, Any] = order["repeat"]
        self._lines = LineFile(order["files"]["repeats"])
        self._ends: list[dict[str, Any]] = []
        """Results of all runs, and of preparations and clean-ups that failed."""
        self._failed: dict[str, Any] | None = None
        """Result of the first command that failed. None as long as no command has failed."""

    def run(self) -> dict[str, Any]:
        """Run all runs of the series. Return the result of the series, with the keys of exit.json."""
        begun = time.monotonic()
        for number, repeat in enumerate(self._plan()):
            if self._shim.asked_to_stop() or self._is_over(number, repeat, begun):
                break
            if not self._do(number, repeat):
                break
        return self._total(wall=time.monotonic() - begun)

    def _plan(self) -> Iterator[int | None]:
        """Yield None for each warm-up run, and then the number of each other run."""
        for _ in range(self._repeat["warmup_runs"]):
            yield None
        yield from range(self._repeat["runs"])

    def _do(self, number: int, repeat: int | None) -> bool:
        """Run the benchmark once, with its preparation and clean-up. Return whether the series can
        continue."""
        warmup = self._repeat["warmup_runs"]
        what = (
            f"run {repeat + 1} of {self._most}"
            if repeat is not None
            else f"warm-up run {number + 1} of {warmup}"
        )
        arms = self._repeat["arms"]
        arm = arms[self._repeat["sequence"][number]] if arms else None
        runs = {**self._order, **self._repeat, **(arm or {})}
        env = {**runs["env"], "BAI_REPEAT": f"warmup-{number}" if repeat is None else str(repeat)}
        place: dict[str, Any] = {"run": number, "repeat": repeat}
        if arm is not None:
            what += f", {arm['name']}"
            place["arm"] = arm["name"]
        runs["env"] = env
        if not self._around(PREPARE, place, runs, what):
            return False
        if self._shim.asked_to_stop():
            return False
        if not self._shim.drain():
            self._shim.say(f"{what} is not started: the disk is full")
            return False
        self._shim.say(what)

        def begin(pid: int, start: int) -> None:
            output, emitted = self._shim.sizes()
            process = {"pid": pid, "start": start, "boot_id": boot_id()}
            ends = {"output_bytes": output, "emit_bytes": emitted}
            self._lines.append({"event": "began", **place, **ends, **process, "time": now_ms()})

        ended = self._shim.run_command(runs["argv"], env, cwd=runs["cwd"], begin=begin)
        self._shim.drain()
        if self._repeat["ignore_failure"] and ended["code"]:
            ended = {**ended, "code": 0, "ignored_code": ended["code"]}
        self._lines.append({"event": "ended", **place, **ended})
        self._take(ended)
        failed = ended["code"] != 0
        if failed and (ended["exec_error"] is not None or not self._repeat["keep_going"]):
            self._around(CLEANUP, place, runs, what)
            return False
        return self._around(CLEANUP, place, runs, what)

    @property
    def _most(self) -> str:
        bound = self._repeat["decided_after"] is not None or self._repeat["min_runs"] is not None
        return f"{'at most ' if bound else ''}{self._repeat['runs']}"

    def _around(self, step: str, place: dict[str, Any], runs: dict[str, Any], what: str) -> bool:
        """Run the preparation or the clean-up (`step`) of a run. Return whether the series can continue."""
        if not self._shim.is_clear and self._ends:
            self._shim.say(f"no further run is started: processes of {what} cannot be ended")
            return False
        argv = runs[step]
        if not argv or self._shim.asked_to_stop():
            return True
        self._shim.say(f"{step} of {what}")
        ended = self._shim.run_command(argv, runs["env"], cwd=runs["cwd"])
        self._shim.drain()
        if ended["code"] == 0:
            return True
        self._lines.append({"event": "failed", "step": step, **place, **ended})
        self._take(ended)
        return False

    def _take(self, ended: dict[str, Any]) -> None:
        self._ends.append(ended)
        if ended["code"] != 0 and self._failed is None:
            self._failed = ended

    def _is_over(self, number: int, repeat: int | None, begun: float) -> bool:
        """Return whether the series ends now, without the run `number`."""
        if self._repeat["runs_together"]:
            return number > 0 and not self._begins(number, repeat)
        arms = max(1, len(self._repeat["arms"]))
        if repeat is not None and repeat % arms:
            return False  # A block is always finished, because its runs are compared with each other.
        limit, least = self._repeat["max_time_seconds"], self._repeat["min_runs"]
        may_end = number > 0 if least is None else repeat is not None and repeat >= least
        late = limit is not None and may_end and time.monotonic() - begun >= limit
        return late or self._is_enough(repeat)

    def _begins(self, number: int, repeat: int | None) -> bool:
        """Return whether the run `number` begins, after waiting for the coordinator's decision. Only jobs
        whose nodes start each run together need this decision."""
        self._lines.append({"event": "ready", "run": number, "repeat": repeat, "time": now_ms()})
        while not self._shim.asked_to_stop():
            word = self._word("turn")
            if word.get("run") == number:
                return bool(word.get("begins"))
            self._shim.wait()
        return False

    def _is_enough(self, repeat: int | None) -> bool:
        """Return whether the completed runs are enough. The method waits for the agent's decision, if the
        agent decides."""
        first = self._repeat["decided_after"]
        if first is None or repeat is None or repeat < first:
            return False
        while not self._shim.asked_to_stop():
            word = self._word("repeat_word")
            if word.get("runs") == repeat:
                return bool(word.get("enough"))
            self._shim.wait()
        return True

    def _word(self, file_name: str) -> dict[str, Any]:
        try:
            with open(self._order["files"][file_name], "rb") as file:
                word = json.load(file)
        except (OSError, ValueError, RecursionError):
            return {}
        return word if isinstance(word, dict) else {}

    def _total(self, *, wall: float) -> dict[str, Any]:
        """Return the result of the whole series: the result of the first failed command, or the last result
        if no command failed. The resources of all runs are added up."""
        if not self._ends:
            # Stopped before the first run finished: report that it never ran.
            never_ran = {"output_bytes": 0, "emit_bytes": 0, "wall_seconds": round(wall, 6)}
            return {**self._none, **self._stopped(), **never_ran}
        total = {**(self._failed or self._ends[-1])}
        if total["stop"] is None and total["stop_signal"] is None:
            total |= self._stopped()
        for key in _SUMS:
            total[key] = sum(each[key] for each in self._ends)
        names: dict[str, int] = {}
        for each in self._ends:
            for name, count in each["left_behind_names"].items():
                if name in names or len(names) < 10:
                    names[name] = names.get(name, 0) + count
        return {
            **total,
            "oom": any(each["oom"] for each in self._ends),
            "left_behind_names": names,
            "peak_memory_bytes": max(each["peak_memory_bytes"] for each in self._ends),
            "output_bytes": self._ends[-1]["output_bytes"],
            "emit_bytes": self._ends[-1]["emit_bytes"],
            "wall_seconds": round(wall, 6),
        }

    def _stopped(self) -> dict[str, Any]:
        return {"stop": self._shim.stop_reason, "stop_signal": self._shim.stop_signal}
