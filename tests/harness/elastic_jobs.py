"""An elastic job of real agents. Each agent reaches the store through its own gate, which causes faults."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from agent_runs import wait_until
from node_agents import Nodes
from s3_gate import Answer, Gate, denied

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import NextGeneration
from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store
from executor.records.generation_status import GenerationStatus, generation_status

UNTIL_TOLD = """
import os, sys, time
from pathlib import Path
flags = Path({flags!r})
generation, node = os.environ["BAI_GENERATION"], os.environ["BAI_NODE"]
fails, finish = flags / f"fail-{{generation}}-{{node}}", flags / "finish"
with open("starts", "a") as file:
    file.write(generation + "\\n")
if "BAI_CHECKPOINT_DIR" in os.environ:
    (Path(os.environ["BAI_CHECKPOINT_DIR"]) / "step").write_text(generation)
print("begun " + generation, flush=True)
while not finish.exists():
    if fails.exists():
        sys.exit(7)
    time.sleep(0.05)
print("loss=0.5")
"""
"""A benchmark that runs until a file tells it to fail (in a generation, on a node) or to finish."""
WAIT_S = 120
S3 = {"url": "s3://bucket/jobs", "region": "us-east-1"}


class ElasticJob:
    """An elastic job whose benchmark runs until `fail` or `finish`."""

    def __init__(self, folder: Path, make: Callable[..., Nodes], *, nodes: int, **tables: Any) -> None:
        tables = {
            "elastic": {"pause": "1s"},
            "restart": {"max_restarts": 999, "backoff": "0s"},
            "metrics": [{"name": "loss", "pattern": r"loss=(\S+)", "required": True}],
            **tables,
        }
        strategy = {"min_nodes": 1, **tables.pop("strategy", {})}
        self._flags, self._url = folder, tables.get("store", {}).get("url")
        self.all = range(nodes)
        self.nodes = make(UNTIL_TOLD.format(flags=str(folder)), nodes=nodes, strategy=strategy, **tables)

    @cached_property
    def record(self) -> JobRecord:
        return JobRecord(open_store(self._url or self.nodes.store.as_uri()), "job")

    @property
    def attempt(self) -> AttemptRecord:
        return AttemptRecord(self.record)

    @property
    def newest(self) -> NextGeneration:
        control = self.attempt.control()
        assert control.newest is not None
        return self.attempt.decision(control.newest, control)

    @property
    def number(self) -> int:
        newest = self.attempt.control().newest
        return -1 if newest is None else newest

    def status(self) -> GenerationStatus | None:
        """Return the status of the job's newest generation, as `bai status` shows it."""
        return generation_status(self.record, self.record.job())

    def signed_s(self) -> float:
        """Return the age of the oldest of all nodes' heartbeats."""
        return time.time() - min(signed for signed, _ in self.attempt.signs_seen().nodes.values()) / 1000

    def fail(self, generation: int, node: int) -> None:
        (self._flags / f"fail-{generation}-{node}").touch()

    def finish(self) -> None:
        (self._flags / "finish").touch()

    def wait(self, generation: int, *nodes: int) -> None:
        """Wait until a generation runs on these nodes."""
        for node in nodes:
            wait_until(lambda: generation in self.starts(node), seconds=WAIT_S)  # noqa: B023

    def wait_for_all(self, *, after: int) -> int:
        """Wait until a generation later than that one runs on all nodes; return its number."""

        def runs() -> bool:
            number = self.number
            return number > after and all(self.starts(node)[-1:] == [number] for node in self.all)

        wait_until(runs, seconds=WAIT_S, every=0.5)
        return self.number

    def starts(self, node: int) -> list[int]:
        """Return the generations whose benchmark was started on a node."""
        with suppress(FileNotFoundError):
            return [int(each) for each in (self.nodes.rundir(node) / "work" / "starts").read_text().split()]
        return []

    def check(self, *, restarts: int) -> None:
        """Let the job finish; fail unless it succeeded, with one start for each member of a generation."""
        self.finish()
        if self.nodes.agents:
            assert [self.nodes.wait(node) for node in self.all] == [0] * len(self.all)
        result = self.record.result()
        assert result is not None
        assert (result["outcome"], result["lost"]) == ("succeeded", None)
        control = self.attempt.control()
        decided = [self.attempt.decision(each, control) for each in control.decided]
        assert decided[-1].ledger.restarts == restarts
        for node in self.all:
            starts = self.starts(node)
            assert len(set(starts)) == len(starts), "a generation was started twice"
            assert all(node in decided[each].members for each in starts)


class FaultyPut:
    """Causes a fault at the next put of some objects below `control/`; for `Gate.around`."""

    def __init__(
        self, words: Sequence[str], spoil: Callable[[str, Callable[[], Answer]], Answer | None]
    ) -> None:
        """words: "generation", "begin", "launch". spoil: function of the object's name and the put."""
        self.left, self._spoil = list(words), spoil
        self._lock = threading.Lock()

    def __call__(self, method: str, path: str, ask: Callable[[], Answer]) -> Answer | None:
        folder, _, name = path.partition("?")[0].rpartition("/")
        word = name.partition("-")[0]
        if method != "PUT" or not folder.endswith("/control"):
            return ask()
        with self._lock:
            is_hit = word in self.left
            if is_hit:
                self.left.remove(word)
        return self._spoil(name, ask) if is_hit else ask()


def own_conflict(_: str, ask: Callable[[], Answer]) -> Answer:
    """Put the object, but answer that it already existed."""
    ask()
    status, body = denied("PreconditionFailed", 412)
    return status, {"Content-Type": "application/xml"}, body


def false_conflict(_: str, ask: Callable[[], Answer]) -> Answer:
    """Put nothing, and answer that another put is under way."""
    status, body = denied("ConditionalRequestConflict", 409)
    return status, {"Content-Type": "application/xml"}, body


def late_answer(_: str, ask: Callable[[], Answer]) -> Answer | None:
    """Put the object, but do not answer for longer than an agent waits."""
    ask()
    threading.Event().wait(7)
    return None


class Hang:
    """Stops an agent before the server receives its put, until `wake`."""

    def __init__(self, pid: int) -> None:
        self.name = ""
        self._pid, self._woken, self.has_put = pid, threading.Event(), threading.Event()

    def __call__(self, name: str, ask: Callable[[], Answer]) -> Answer | None:
        os.kill(self._pid, signal.SIGSTOP)
        self.name = name
        self._woken.wait(WAIT_S)
        answer = ask()
        self.has_put.set()
        return answer

    def wake(self) -> None:
        """Let the put reach the server, and then let the agent continue."""
        self._woken.set()
        self.has_put.wait(WAIT_S)
        os.kill(self._pid, signal.SIGCONT)


def start_apart(job: ElasticJob, gates: Sequence[Gate]) -> None:
    """Start all nodes, each with its own gate to the store."""
    for node in job.all:
        job.nodes.start(node, {"S3_ENDPOINT": gates[node].url})
    job.wait_for_all(after=-1)
