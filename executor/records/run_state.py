"""What a run's events tell: in which phase it is, since when, and what went by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bai_agent.job.outcome import Status

PHASES = ("prepare", "pull", "join", "run", "drain", "end")


@dataclass(frozen=True)
class Pulling:
    """How far one source has come."""

    src: str
    bytes: int
    total_bytes: int | None
    objects: int
    total_objects: int | None
    done: bool


@dataclass
class RunState:
    """The sum of the events applied so far. Times are ms UTC."""

    started: int | None = None
    phase: str | None = None
    """The phase that is under way, or that comes next."""
    since: int | None = None
    finished: dict[str, float] = field(default_factory=dict)
    pulls: dict[str, Pulling] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)
    """By the name of each place that metrics and logs go to and that is out of reach: a sentence."""
    stop: str | None = None
    """Why the run is being ended, once it is."""
    outcome: str | None = None
    agents: int = 0
    """How often an agent was started."""
    last_event: int | None = None

    def apply(self, event: Mapping[str, Any]) -> None:
        time, kind = event.get("time"), event.get("type")
        if isinstance(time, int):
            self.last_event = time
            self.started = self.started if self.started is not None else time
        if kind == "agent_started":
            self.agents += 1
            # It tells anew of what is out of reach, and nothing of what came back while no agent was there.
            self.troubles.clear()
        elif kind == "phase" and event.get("state") == "started":
            self.phase, self.since = str(event.get("phase")), time
        elif kind == "phase" and event.get("state") == "finished":
            self.finished[str(event.get("phase"))] = float(event.get("seconds") or 0.0)
        elif kind == "pull":
            self.pulls[str(event.get("src"))] = Pulling(
                src=str(event.get("src")),
                bytes=int(event.get("bytes") or 0),
                total_bytes=event.get("total_bytes"),
                objects=int(event.get("objects") or 0),
                total_objects=event.get("total_objects"),
                done=bool(event.get("done")),
            )
        elif kind == "stop":
            self.stop = str(event.get("message") or event.get("reason"))
        elif kind == "warning":
            self.warnings.append(str(event.get("message")))
        elif kind == "sink":
            sink = str(event.get("sink"))
            if event.get("error") is None:
                self.troubles.pop(sink, None)
            else:
                self.troubles[sink] = str(event.get("message"))
        elif kind == "outcome":
            self.outcome = str(event.get("outcome"))

    @property
    def cautions(self) -> tuple[str, ...]:
        """What a person should know while it goes on: warnings, and places that are out of reach."""
        return (*self.warnings, *self.troubles.values())

    @property
    def status(self) -> Status:
        """The status of a job without a result."""
        if self.phase is None:
            return Status.PENDING
        return Status.RUNNING if self.phase in ("run", "drain", "end") else Status.INITIALIZING
