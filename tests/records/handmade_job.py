"""A job's record written by hand, as an agent would write it: the formats of docs/run-directory.md."""

from __future__ import annotations

import copy
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import tomli_w

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.limit_tables import End, Power
from bai_agent.job.descriptor.metric_tables import Better, Metric
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.descriptor_file import job_table
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from executor.backends import Backends
from executor.records.job_status import JobStatus

START = 1_795_000_000_000


def job_status(record: JobRecord) -> JobStatus:
    """Return how a job stands, as its backend sees it."""
    return Backends().of(record).status(record)


class Unwatched:
    """Keeps no eye on a job that somebody follows."""

    pause_s = 0.0

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        return None


class HandmadeJob:
    """Writes what an agent and its benchmark would; no process is behind it."""

    def __init__(
        self,
        store: Path,
        job_id: str = "digits-1",
        *,
        name: str = "digits",
        started: int = START,
        keeps: bool = False,
        written: bool = True,
        nodes: int = 1,
        min_nodes: int | None = None,
        strategy: str = "torchrun",
        labels: dict[str, str] | None = None,
    ) -> None:
        """keeps: its machine, for an hour where it fails. written: its agents have begun to write.
        strategy: of several nodes."""
        self.store = DirectoryStore(store)
        self.record = JobRecord(self.store, job_id)
        self.node = store / self.record.node().place
        self.started = started
        self.job = Job(
            job=Identity(id=job_id, name=name, labels=labels or {}),
            benchmark=Benchmark(argv=("python3", "train.py")),
            metrics=(
                Metric(name="loss", pattern=r"loss=(\S+)", units="nats", better=Better.LOWER),
                Metric(name="accuracy", pattern=r"accuracy=(\S+)", units="ratio", better=Better.HIGHER),
            ),
            store=Store(url=self.store.url),
            strategy=StrategyTable(
                name=strategy if nodes > 1 else "single_node", nodes=nodes, min_nodes=min_nodes
            ),
            end=End(power=Power.OFF, keep_on_failure=timedelta(hours=1)) if keeps else End(),
        )
        self._seq = 0
        self._off = 0
        self.store.put(self.record.key("job.toml"), tomli_w.dumps(job_table(self.job)).encode())
        if not written:
            return
        for rank in range(nodes):
            self.on(rank)._begin()

    def on(self, rank: int) -> HandmadeJob:
        """Return the same job, with the events, the output and the records of another node."""
        other = copy.copy(self)
        other.node = self.node.parent / str(rank)
        return other

    def event(self, kind: str, *, time: int | None = None, **details: Any) -> None:
        self._append(
            "events.jsonl", {"time": self.started if time is None else time, "type": kind, **details}
        )

    def phases(self, *names: str, until: str | None = None) -> None:
        """Finish the phases `names`, and start `until`."""
        for name in names:
            self.event("phase", phase=name, state="started")
            self.event("phase", phase=name, state="finished", seconds=0.25)
        if until is not None:
            self.event("phase", phase=until, state="started")

    def prints(self, text: str | bytes) -> None:
        with (self.node / "output.log").open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def measures(self, name: str, *values: float, src: str = "log", units: str = "") -> None:
        for value in values:
            self._append(
                "metrics.jsonl",
                {
                    "seq": self._seq,
                    "src": src,
                    "off": self._off,
                    "i": 0,
                    "k": 0,
                    "name": name,
                    "value": value,
                    "units": units,
                    "timestamp": self.started + self._seq,
                },
            )
            self._seq += 1
            self._off += 10

    def record_of(self, name: str, value: float, *, time: int | None = None, **details: Any) -> None:
        """Append one record. details: keys that it has beside those of every record."""
        record = {
            "seq": self._seq,
            "src": "log",
            "off": self._off,
            "i": 0,
            "k": 0,
            "name": name,
            "value": value,
            "units": "",
        }
        timestamp = self.started + self._seq if time is None else time
        self._append("metrics.jsonl", {**record, "timestamp": timestamp, **details})
        self._seq += 1
        self._off += 10

    def ends(self, outcome: str = "succeeded", exit_code: int = 0, **details: Any) -> dict[str, Any]:
        status = {0: "SUCCEEDED", 1: "FAILED", 3: "FAILED", 4: "CANCELED", 5: "ERROR", 6: "FAILED"}[exit_code]
        result = {
            "version": 1,
            "job_id": self.record.job_id,
            "outcome": outcome,
            "status": status,
            "exit_code": exit_code,
            "sentence": "The benchmark finished successfully.",
            "benchmark": None,
            "phases": {},
            "metrics": None,
            "kafka": None,
            "last_lines": [],
            "git": None,
            "warnings": [],
            "artifacts": {"files": 0, "bytes": 0},
            "started": self.started,
            "ended": self.started + 12_000,
            **details,
        }
        self.store.put(self.record.key("result.json"), json.dumps(result).encode())
        return result

    def _begin(self) -> None:
        for stream in ("log", "metrics"):
            (self.node / stream).mkdir(parents=True)
        self._touch("output.log", f"log/{0:020}")
        self._touch("metrics.jsonl", f"metrics/{0:020}.jsonl")

    def _touch(self, name: str, link: str) -> None:
        (self.node / name).touch()
        os.link(self.node / name, self.node / link)

    def _append(self, name: str, value: dict[str, Any]) -> None:
        with (self.node / name).open("a") as file:
            file.write(json.dumps(value) + "\n")
