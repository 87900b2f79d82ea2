"""Reads the contents of a report from the job's record. The contents are plain values; the modules of the
formats convert them to text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from bai_agent import __version__
from bai_agent.decode import checked
from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import Better, Metric
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import (
    ExtractionSummary,
    GenerationOutcome,
    JobResult,
    NodeOutcome,
    OwnUsage,
    RepeatOutcome,
    Text,
)
from bai_agent.light_dataclass import dataclass, field
from executor.analysis.measured_runs import OverRuns, over_runs, runs_of
from executor.jobs.compared import ComparedJob
from executor.jobs.compared_pair import ComparedPair, compared_arms
from executor.planning.job_toml import shown_job_toml
from executor.planning.rerun_record import REQUEST
from executor.records.counted_values import failed_of, floor_of, memory_floor
from executor.records.follower import benchmark_starts
from executor.records.generations import generations_of
from executor.records.machine_facts import NodeEnvironment, environments, table_in
from executor.records.node_status import node_outcomes
from executor.records.nodes import node_records
from executor.records.points import Points, PointSeries, read_points
from executor.records.reading import HOST, RUN, result_of
from executor.report.lines import Line, line_of, with_superseded
from executor.report.timeline import Lane, lane_of

_HOST_PREFIX, _RUN_PREFIX = "bai_host_", "bai_run_"
_GPU = re.compile(r"gpu(\d+)_(.+)")
_LINES = 60
"""Number of lines at the end of the benchmark's output that a report shows."""
_TAIL = 2**16
"""Number of bytes of a node's output that are read to find the output's last lines."""


@dataclass(frozen=True, kw_only=True)
class MetricPart:
    """One metric, or one kind of sample taken on the machines, with all series of the metric or sample."""

    name: str
    units: str
    lines: list[Line]
    described: Metric | None = None
    """The metric's table in the job descriptor; None if the descriptor has no such table."""
    floor: float | None = None
    """Smallest peak memory that can be measured; None if all values are exact."""

    @property
    def better(self) -> Better | None:
        """The direction that is better, if the descriptor names a direction."""
        return self.described.better if self.described is not None else None

    @property
    def is_repeated(self) -> bool:
        """Whether the metric has values of runs of `[repeat]`."""
        return any(line.points.key.repeat is not None for line in self.lines)

    @property
    def count(self) -> int:
        """Number of values, including the warm-up."""
        return sum(len(line.points) for line in self.lines)


@dataclass(frozen=True, kw_only=True)
class LogTail:
    """The last lines of the benchmark's output on a node."""

    rank: int
    lines: list[str]
    all_of_it: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """The whole content of a report on a job. Times are ms UTC."""

    record: JobRecord
    job: Job
    descriptor: str
    """Text of `job.toml`, without secrets in addresses."""
    result: JobResult | None
    created: int
    """Time at which the report was made."""
    origin: int
    """The earliest recorded time of the job, which is zero on the page's axes."""
    lanes: list[Lane]
    """Timelines of the nodes, in the order of their ranks."""
    metrics: list[MetricPart]
    host: list[MetricPart]
    facts: dict[str, list[tuple[str, float, str]]]
    """Measurements of the whole run: name of the measurement → label, value and units for each node."""
    points: Points
    """All metric records of the job, with their counts."""
    unseen: list[str]
    """Names of the descriptor's metrics that have no value."""
    environments: list[NodeEnvironment]
    outcomes: list[NodeOutcome]
    """Outcomes of the nodes that are already known, if the job has several nodes."""
    generations: Sequence[GenerationOutcome]
    """Past generations of an elastic job."""
    over_runs: list[OverRuns]
    """Metrics over the runs of an ended job with `[repeat]`."""
    compared: list[ComparedPair]
    """The arms, each compared with the first arm; empty for a job without arms, and until the job has
    ended."""
    tail: LogTail | None
    instance_type: str | None
    spot: bool
    one_machine: bool
    """Whether the job has several nodes that share this machine."""
    hourly: float | None
    """On-demand price of one instance (USD per hour); None if unknown."""
    of_two_files: bool
    """Whether `bai ab` made the job from several descriptors. The record of a job that `bai ab` made does not
    contain the text of its descriptors."""
    version: str = __version__

    @property
    def failed(self) -> frozenset[int]:
        """Numbers of the failed runs. Values of failed runs are in no headline."""
        return failed_of(self.result) if self.result is not None else frozenset()

    @property
    def nodes(self) -> int:
        return self.job.strategy.nodes

    @property
    def repeats(self) -> Sequence[RepeatOutcome]:
        """The runs of a job with `[repeat]` that has ended."""
        return (self.result.repeats if self.result is not None else None) or ()

    @property
    def own_usage(self) -> Sequence[OwnUsage]:
        """Usage of bai's own programs on each node, if the job has ended."""
        return (self.result.own_usage if self.result is not None else None) or ()

    @property
    def extracted(self) -> ExtractionSummary | None:
        """Counts of lines and records by the extractor, if the job has ended."""
        return self.result.metrics if self.result is not None else None

    @property
    def warnings(self) -> list[str]:
        """Warnings that are shown before the figures: first warnings about the run, then warnings about the
        machines."""
        found = list((self.result.warnings if self.result is not None else None) or ())
        for each in self.environments:
            where = f"Node {each.rank}: " if self.nodes > 1 else ""
            found += [f"{where}{text}" for text in each.sentences("warnings")]
        return list(dict.fromkeys(found))

    @property
    def phases(self) -> dict[str, float]:
        """Duration of each phase on the slowest node (seconds)."""
        found: dict[str, float] = {}
        for lane in self.lanes:
            for bar in lane.bars:
                found[bar.phase] = max(found.get(bar.phase, 0.0), bar.seconds)
        return found


@dataclass
class _Launch:
    """The known facts about a launch on EC2: its times and its instance type."""

    asked: int | None = None
    launched: int | None = None
    instance_type: str | None = None
    spot: bool = False


@dataclass(frozen=True, kw_only=True)
class _LaunchTable:
    created: Text
    request: dict[str, Any]
    server: dict[str, Any] | None = None


def report_of(record: JobRecord, *, now: int, prices: Mapping[str, float]) -> Report:
    """Return the contents of a report on an ended or running job. Raises StoreError, DescriptorError."""
    job = record.job()
    result = result_of(record)
    points = read_points(record)
    launch = _launch(record)
    lanes = [lane_of(node, asked=launch.asked, launched=launch.launched) for node in node_records(record)]
    machines = environments(record)
    starts = benchmark_starts(record.node())
    parts = _parts(points, job, starts, result)
    kind = launch.instance_type or _instance_type(machines)
    seen = {part.name for part in parts.metrics}
    runs = None
    if job.repeat is not None and result is not None:
        runs = runs_of(record.job_id, job, result, points, starts=starts)
    return Report(
        record=record,
        job=job,
        descriptor=shown_job_toml(record),
        result=result,
        created=now,
        origin=_origin(lanes, parts, result, now=now),
        lanes=lanes,
        metrics=parts.metrics,
        host=parts.host,
        facts=parts.facts,
        points=points,
        unseen=[metric.name for metric in job.metrics if metric.name not in seen],
        environments=machines,
        outcomes=node_outcomes(record) if job.strategy.nodes > 1 else [],
        generations=generations_of(record, result),
        over_runs=over_runs(runs) if runs is not None else [],
        compared=compared_arms(ComparedJob(record, runs)) if runs is not None else [],
        tail=_tail(record, _told_rank(record, job)),
        instance_type=kind,
        spot=launch.spot,
        one_machine=launch.asked is None,
        hourly=prices.get(kind or ""),
        of_two_files=_is_of_two_files(record, job),
    )


def _origin(lanes: Sequence[Lane], parts: _Parts, result: JobResult | None, *, now: int) -> int:
    """Return the earliest recorded time of the job (ms UTC)."""
    times = [bar.start for lane in lanes for bar in lane.bars]
    times += [line.points.timestamps[0] for part in parts.every() for line in part.lines]
    started = result.started if result is not None else None
    return min(times, default=now if started is None else started)


def _is_of_two_files(record: JobRecord, job: Job) -> bool:
    has_arms = job.repeat is not None and bool(job.repeat.arms)
    return has_arms and not record.store.find(record.key(REQUEST))


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
    described = {metric.name: metric for metric in job.named_metrics()}
    metrics: dict[str, list[PointSeries]] = {name: [] for name in described}
    host: dict[str, list[tuple[str, PointSeries]]] = {}
    for key, series in points.series.items():
        if not len(series):
            continue
        if key.src == HOST:
            label, name = _host_name(key.name)
            host.setdefault(name, []).append((label, series))
        elif key.src == RUN:
            fact = key.name.removeprefix(_RUN_PREFIX)
            where = _label(series, several=False)
            parts.facts.setdefault(fact, []).append((where, series.values[-1], series.units))
        else:
            metrics.setdefault(key.name, []).append(series)
    failed = failed_of(result) if result is not None else frozenset()
    memory = memory_floor(result.own_usage if result is not None else None)
    for name, found in metrics.items():
        if found:
            lines = [
                line_of(
                    each,
                    _label(each, several=len(found) > 1, failed=failed),
                    described.get(name),
                    starts,
                )
                for each in _ordered(found)
            ]
            lines = with_superseded(lines)
            parts.metrics.append(_metric_part(name, lines, described.get(name), memory))
    for name in sorted(host, key=_host_order):
        parts.host.append(_host_part(name, host[name]))
    return parts


def _metric_part(name: str, lines: list[Line], metric: Metric | None, memory: int) -> MetricPart:
    units, floor = lines[0].points.units, floor_of(metric, memory)
    return MetricPart(name=name, units=units, lines=lines, described=metric, floor=floor)


def _host_name(name: str) -> tuple[str, str]:
    """Return the GPU in a sample's name, if there is one, and the name without the GPU."""
    name = name.removeprefix(_HOST_PREFIX)
    gpu = _GPU.fullmatch(name)
    return (f"GPU {gpu[1]}", f"gpu_{gpu[2]}") if gpu else ("", name)


def _host_part(name: str, samples: Sequence[tuple[str, PointSeries]]) -> MetricPart:
    lines = [
        line_of(each, " ".join(filter(None, (label, _label(each, several=True)))), None, {})
        for label, each in samples
    ]
    return MetricPart(name=name, units=samples[0][1].units, lines=lines)


HOST_FIRST = (
    "cpu_percent", "gpu_utilization_percent", "memory_used_bytes", "gpu_memory_used_bytes",
    "disk_read_bytes_per_second", "disk_write_bytes_per_second",
    "network_receive_bytes_per_second", "network_send_bytes_per_second",
)  # fmt: skip
"""Samples of a machine that may explain drops of a metric, in the order in which they are shown."""


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
            each.key.part if each.key.part is not None else -1,
            number(each.key.rank),
            number(each.key.process_rank),
        ),
    )


def _label(series: PointSeries, *, several: bool, failed: Collection[int] = ()) -> str:
    """Return the name that distinguishes a series from the other series of the same metric; empty if no name
    is needed."""
    key = series.key
    words = [f"{name}={value}" for name, value in key.labels]
    if key.arm is not None:
        words.append(f"arm {key.arm}")
    if key.part is not None:
        words.append(f"{key.part_words}{' (failed)' if key.repeat in failed else ''}")
    if key.rank is not None:
        words.append(f"node {key.rank}")
    if key.process_rank is not None:
        words.append(f"process {key.process_rank}")
    return ", ".join(words) or (key.src if several and not key.is_own else "")


def _launch(record: JobRecord) -> _Launch:
    launch = _Launch()
    found: _LaunchTable | None = None
    with suppress(BaiError):
        key = record.key("attempts/0/launch.json")
        table = record.read_object(key)
        if table is not None:
            found = checked(_LaunchTable, table, where=f"{record.store.url}/{key}")
    if found is None:
        return launch
    with suppress(ValueError):
        launch.asked = round(datetime.fromisoformat(found.created.replace("Z", "+00:00")).timestamp() * 1000)
    kind = found.request.get("InstanceType")
    launch.instance_type = kind if isinstance(kind, str) else None
    if found.server is not None and launch.instance_type is not None:
        launch.instance_type += f" and {found.server.get('InstanceType')}"
    options = found.request.get("InstanceMarketOptions")
    launch.spot = isinstance(options, dict) and options.get("MarketType") == "spot"
    launch.launched = record.put_time("attempts/0/launched.json")
    return launch


def _instance_type(machines: Sequence[NodeEnvironment]) -> str | None:
    kinds = (table_in(each.facts, "instance").get("type") for each in machines)
    return next((kind for kind in kinds if isinstance(kind, str)), None)


def _told_rank(record: JobRecord, job: Job) -> int:
    """Return the rank of the node whose output explains how the job ended: the first node that failed,
    otherwise 0."""
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
