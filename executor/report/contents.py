"""All that a report says of a job, read from its record: pure values, which the formats put into words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from typing_extensions import TypedDict

from bai_agent import __version__
from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job, Metric
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult, NodeOutcome, Text
from executor.analysis.runs import OverRuns, over_runs, runs_of
from executor.jobs.compared import ComparedJob
from executor.jobs.compared_pair import ComparedPair, compared_arms
from executor.planning.job_toml import shown_job_toml
from executor.planning.repetition import REQUEST
from executor.records.environments import NodeEnvironment, environments
from executor.records.follower import benchmark_starts
from executor.records.memory_floor import floor_of, memory_floor
from executor.records.node_status import node_outcomes
from executor.records.nodes import node_records
from executor.records.points import Points, PointSeries, read_points
from executor.records.reading import MalformedLines, result_of, validated
from executor.records.repeated_runs import failed_of
from executor.report.lines import Line, line_of
from executor.report.timeline import Lane, lane_of

HOST, RUN = "host", "run"
_HOST_PREFIX, _RUN_PREFIX = "bai_host_", "bai_run_"
_GPU = re.compile(r"gpu(\d+)_(.+)")
_TAIL = 2**16
"""Bytes of a node's output of which the last lines are shown."""


@dataclass(frozen=True, kw_only=True)
class MetricPart:
    """One metric, or one kind of sample of the machines, with all its series."""

    name: str
    units: str
    lines: list[Line]
    described: Metric | None = None
    """What the job descriptor says of it; None for what it does not name."""
    floor: float | None = None
    """What its values are only bounds up to, of peak memory; None if all are exact."""

    @property
    def count(self) -> int:
        """How many values there are, warm-up included."""
        return sum(len(line.points) for line in self.lines)


@dataclass(frozen=True, kw_only=True)
class LogTail:
    """The last lines of what the benchmark printed on a node."""

    rank: int
    lines: list[str]
    all_of_it: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """What there is to say about a job. Times are ms UTC."""

    record: JobRecord
    job: Job
    descriptor: str
    """`job.toml`, without secrets in its addresses."""
    result: JobResult | None
    created: int
    """When the report was made."""
    origin: int
    """What times on the page are counted from: the first thing that is known of the job."""
    lanes: list[Lane]
    """By rank."""
    metrics: list[MetricPart]
    host: list[MetricPart]
    facts: dict[str, list[tuple[str, float, str]]]
    """What was measured of the run as a whole: by fact, for each node its label, value and units."""
    records: int
    late: int
    malformed: MalformedLines
    unseen: list[str]
    """Metrics of the descriptor without a value."""
    environments: list[NodeEnvironment]
    outcomes: list[NodeOutcome]
    """Of several nodes, as far as they are known."""
    over_runs: list[OverRuns]
    """What its runs say together, of a job with `[repeat]` that has ended."""
    compared: list[ComparedPair]
    """The arms, each compared with the first one; empty for other jobs, and until the job has ended."""
    tail: LogTail | None
    instance_type: str | None
    spot: bool
    one_machine: bool
    """Whether its nodes, if there are several, share this machine."""
    hourly: float | None
    """USD for one instance, where the configuration says; on demand."""
    of_two_files: bool
    """Whether `bai ab` made it: of two descriptors, of which its record does not keep the text."""
    version: str = __version__

    @property
    def failed(self) -> frozenset[int]:
        """The runs that failed, whose values count in no headline."""
        return failed_of(self.result) if self.result is not None else frozenset()

    @property
    def nodes(self) -> int:
        return self.job.strategy.nodes

    @property
    def warnings(self) -> list[str]:
        """What a person should know before they believe the figures: of the run, then of its machines."""
        found = list((self.result.warnings if self.result is not None else None) or ())
        for each in self.environments:
            said = (each.environment or {}).get("warnings")
            where = f"Node {each.rank}: " if self.nodes > 1 else ""
            found += (
                [f"{where}{text}" for text in said if isinstance(text, str)] if isinstance(said, list) else []
            )
        return list(dict.fromkeys(found))

    @property
    def phases(self) -> dict[str, float]:
        """For how long each phase took, in seconds, on the node where it took longest."""
        found: dict[str, float] = {}
        for lane in self.lanes:
            for bar in lane.bars:
                found[bar.phase] = max(found.get(bar.phase, 0.0), bar.seconds)
        return found


@dataclass
class _Launch:
    """When machines were asked for and got, and what they are, as far as that is known."""

    asked: int | None = None
    launched: int | None = None
    instance_type: str | None = None
    spot: bool = False


class _LaunchTable(TypedDict):
    created: Text
    request: dict[str, Any]


def report_of(record: JobRecord, *, now: int, prices: Mapping[str, float]) -> Report:
    """Return what there is to say about a job that has ended or still runs. Raises StoreError, DescriptorError."""
    job = record.job()
    result = result_of(record)
    points = read_points(record)
    launch = _launch(record)
    lanes = [lane_of(node, asked=launch.asked, launched=launch.launched) for node in node_records(record)]
    machines = list(environments(record))
    starts = benchmark_starts(record.node())
    parts = _parts(points, job, starts, result)
    kind = launch.instance_type or _instance_type(machines)
    times = [bar.start for lane in lanes for bar in lane.bars]
    times += [line.points.timestamps[0] for part in parts.every() for line in part.lines]
    origin = min(times, default=result.started if result is not None and result.started is not None else now)
    seen = {part.name for part in parts.metrics}
    ended = job.repeat is not None and result is not None
    runs = runs_of(record.job_id, job, result, points, started=starts.get(None)) if ended else None
    return Report(
        record=record,
        job=job,
        descriptor=shown_job_toml(record),
        result=result,
        created=now,
        origin=origin,
        lanes=lanes,
        metrics=parts.metrics,
        host=parts.host,
        facts=parts.facts,
        records=points.records,
        late=points.late,
        malformed=points.malformed,
        unseen=[metric.name for metric in job.metrics if metric.name not in seen],
        environments=machines,
        outcomes=node_outcomes(record) if job.strategy.nodes > 1 else [],
        over_runs=over_runs(runs) if runs is not None else [],
        compared=compared_arms(ComparedJob(record, runs)) if runs is not None else [],
        tail=_tail(record, _told_rank(record, job)),
        instance_type=kind,
        spot=launch.spot,
        one_machine=launch.asked is None,
        hourly=prices.get(kind) if kind is not None else None,
        of_two_files=job.repeat is not None
        and bool(job.repeat.arms)
        and not record.store.find(record.key(REQUEST)),
    )


@dataclass
class _Parts:
    metrics: list[MetricPart] = field(default_factory=list)
    host: list[MetricPart] = field(default_factory=list)
    facts: dict[str, list[tuple[str, float, str]]] = field(default_factory=dict)

    def every(self) -> Iterator[MetricPart]:
        yield from self.metrics
        yield from self.host


def _parts(points: Points, job: Job, starts: Mapping[int | None, int], result: JobResult | None) -> _Parts:
    parts = _Parts()
    failed = failed_of(result) if result is not None else frozenset()
    memory = memory_floor(result.own_usage if result is not None else None)
    described = {metric.name: metric for metric in job.named_metrics()}
    metrics: dict[str, list[PointSeries]] = {name: [] for name in described}
    host: dict[str, list[tuple[str, PointSeries]]] = {}
    for key, series in points.series.items():
        if not len(series):
            continue
        if key.src == HOST:
            name = key.name.removeprefix(_HOST_PREFIX)
            gpu = _GPU.fullmatch(name)
            label, name = (f"GPU {gpu[1]}", f"gpu_{gpu[2]}") if gpu else ("", name)
            host.setdefault(name, []).append((label, series))
        elif key.src == RUN:
            where = _label(series, several=False)
            fact = key.name.removeprefix(_RUN_PREFIX)
            parts.facts.setdefault(fact, []).append((where, series.values[-1], series.units))
        else:
            metrics.setdefault(key.name, []).append(series)
    for name, found in metrics.items():
        if found:
            lines = [
                line_of(
                    each, _label(each, several=len(found) > 1, failed=failed), described.get(name), starts
                )
                for each in _ordered(found)
            ]
            parts.metrics.append(
                MetricPart(
                    name=name,
                    units=found[0].units,
                    lines=lines,
                    described=described.get(name),
                    floor=floor_of(described.get(name), memory),
                )
            )
    for name, samples in sorted(host.items(), key=lambda item: _host_order(item[0])):
        lines = [
            line_of(each, " ".join(filter(None, (label, _label(each, several=True)))), None, {})
            for label, each in samples
        ]
        parts.host.append(MetricPart(name=name, units=samples[0][1].units, lines=lines))
    return parts


HOST_FIRST = (
    "cpu_percent",
    "gpu_utilization_percent",
    "memory_used_bytes",
    "gpu_memory_used_bytes",
    "disk_read_bytes_per_second",
    "disk_write_bytes_per_second",
    "network_receive_bytes_per_second",
    "network_send_bytes_per_second",
)
"""Samples of a machine that explain a dip, in the order in which they are shown."""


def _host_order(name: str) -> tuple[int, str]:
    return (HOST_FIRST.index(name) if name in HOST_FIRST else len(HOST_FIRST), name)


def _ordered(found: Sequence[PointSeries]) -> list[PointSeries]:
    def number(text: str | None) -> tuple[int, str]:
        return (
            (int(text), "") if text is not None and text.isascii() and text.isdecimal() else (-1, text or "")
        )

    return sorted(
        found,
        key=lambda each: (
            each.key.labels,
            each.key.arm or "",
            each.key.repeat if each.key.repeat is not None else -1,
            number(each.key.rank),
            number(each.key.process_rank),
        ),
    )


def _label(series: PointSeries, *, several: bool, failed: Collection[int] = ()) -> str:
    """Return what tells a series from the others of its metric; empty where nothing does."""
    key = series.key
    words = [f"{name}={value}" for name, value in key.labels]
    if key.arm is not None:
        words.append(f"arm {key.arm}")
    if key.repeat is not None:
        words.append(f"repeat {key.repeat}{' (failed)' if key.repeat in failed else ''}")
    if key.rank is not None:
        words.append(f"node {key.rank}")
    if key.process_rank is not None:
        words.append(f"process {key.process_rank}")
    return ", ".join(words) or (key.src if several and key.src not in (HOST, RUN) else "")


def _launch(record: JobRecord) -> _Launch:
    launch = _Launch()
    found: dict[str, Any] | None = None
    with suppress(BaiError):
        key = record.key("attempts/0/launch.json")
        table = record.read_object(key)
        if table is not None:
            found = validated(_LaunchTable, table, where=f"{record.store.url}/{key}")
    if found is None:
        return launch
    with suppress(ValueError):
        launch.asked = round(
            datetime.fromisoformat(found["created"].replace("Z", "+00:00")).timestamp() * 1000
        )
    kind = found["request"].get("InstanceType")
    launch.instance_type = kind if isinstance(kind, str) else None
    options = found["request"].get("InstanceMarketOptions")
    launch.spot = isinstance(options, dict) and options.get("MarketType") == "spot"
    done = record.key("attempts/0/launched.json")
    launch.launched = next((each.modified for each in record.store.find(done) if each.key == done), None)
    return launch


def _instance_type(machines: Sequence[NodeEnvironment]) -> str | None:
    for each in machines:
        instance = (each.environment or {}).get("instance")
        kind = instance.get("type") if isinstance(instance, dict) else None
        if isinstance(kind, str):
            return kind
    return None


def _told_rank(record: JobRecord, job: Job) -> int:
    """Return the node whose output explains the end: the first one that failed, else the first."""
    if job.strategy.nodes == 1:
        return 0
    failed = [each for each in node_outcomes(record) if each.outcome != "succeeded"]
    return min(failed, key=lambda each: (each.failed or each.ended or 0, each.rank)).rank if failed else 0


def _tail(record: JobRecord, rank: int) -> LogTail | None:
    node = record.node(rank)
    size = node.size("log")
    if not size:
        return None
    start = max(0, size - _TAIL)
    content = b""
    while len(content) < size - start and (piece := node.read("log", start + len(content), limit=_TAIL)):
        content += piece
    lines = content.decode(errors="replace").splitlines()
    if start and len(lines) > 1:
        del lines[0]
    return LogTail(rank=rank, lines=lines[-_LINES:], all_of_it=not start and len(lines) <= _LINES)


_LINES = 60
