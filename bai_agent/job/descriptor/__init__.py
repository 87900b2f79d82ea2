"""The job descriptor contains all facts that the agents of one job need, so that the agents need no other
source.

The modules of this folder declare the tables of the job descriptor. `bai_agent/job/descriptor_file.py` reads
and writes the tables as TOML. `docs/job-descriptor.md` is the reference of the tables.
"""

from __future__ import annotations

from bai_agent.job.descriptor.benchmark_tables import Arm, Benchmark, Git, Identity, Output, Repeat
from bai_agent.job.descriptor.limit_tables import End, Limits
from bai_agent.job.descriptor.metric_tables import HostMetrics, Metric, Results
from bai_agent.job.descriptor.restart_tables import Checkpoint, Elastic, Restart, SizePolicy
from bai_agent.job.descriptor.sink_tables import CloudWatch, Kafka, LogLines, Prometheus, Store
from bai_agent.job.descriptor.source_tables import Mount, Source, SourceKind, overlapping_target
from bai_agent.job.descriptor.strategy_tables import (
    CONTAINER_STRATEGIES,
    SERVER_NODE,
    SHARED_FILES_STRATEGIES,
    TOGETHER_STRATEGIES,
    Server,
    StrategyTable,
)
from bai_agent.job.schema.declared import as_kind
from bai_agent.light_dataclass import dataclass, field, replace

VERSION = 1
"""Version of the format of the job descriptor's tables."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A whole job descriptor."""

    job: Identity
    benchmark: Benchmark
    version: int = VERSION
    strategy: StrategyTable = StrategyTable()
    limits: Limits = Limits()
    sources: tuple[Source, ...] = ()
    mounts: tuple[Mount, ...] = ()
    metrics: tuple[Metric, ...] = ()
    results: tuple[Results, ...] = ()
    host_metrics: HostMetrics = HostMetrics()
    kafka: Kafka | None = None
    log_lines: LogLines | None = None
    prometheus: Prometheus | None = None
    cloudwatch: CloudWatch | None = None
    output: Output = Output()
    repeat: Repeat | None = None
    restart: Restart = Restart()
    elastic: Elastic = Elastic()
    checkpoint: Checkpoint | None = None
    server: Server | None = None
    store: Store | None = None
    end: End = End()
    git: Git | None = None
    set: dict[str, str] = field(default_factory=dict)
    """Keys of the benchmark descriptor that `--set` overrides, each with the text given to `--set`. Only shown
    to users."""

    def __post_init__(self) -> None:
        arms = {each.name for each in self.repeat.arms} if self.repeat is not None else set()
        for source in self.sources:
            if source.arm is not None and source.arm not in arms:
                raise ValueError(f'[[sources]] arm "{source.arm}" is not defined in [[repeat.arms]]')
        self._check_mounts()
        if self.restart.max_restarts and self.strategy.max_restarts:
            raise ValueError("max_restarts is set in [restart] and [strategy]; remove it from [strategy]")
        self._check_elastic()
        self._check_server()
        if self.checkpoint is not None and self.checkpoint.origin is not None and self.store is None:
            raise ValueError("[checkpoint.origin] is a job in the job store, but there is no [store] table")
        self._check_container()
        if self.repeat is not None:
            self._check_repeat(self.repeat)

    def _check_repeat(self, repeat: Repeat) -> None:
        if self.restart.max_restarts:
            raise ValueError(
                "[restart] max_restarts cannot be combined with [repeat], because a restarted run is no valid measurement"
            )
        if self.is_elastic:
            raise ValueError(
                "[strategy] min_nodes cannot be combined with [repeat], because runs on different numbers of nodes cannot be compared"
            )
        if self.checkpoint is not None:
            raise ValueError(
                "[checkpoint] cannot be combined with [repeat], because a continued run is no valid measurement"
            )
        if self.runs_together and repeat.keep_going:
            raise ValueError(
                f"[repeat] keep_going cannot be used with {self.strategy.name} on several nodes: after a failed run on one node, the "
                "other nodes may wait for ever"
            )
        if self.arms_apart and self.strategy.nodes > 1 and self.strategy.name in SHARED_FILES_STRATEGIES:
            raise ValueError(
                f"[[sources]] arm: with the strategy {self.strategy.name} on several nodes, arms cannot have files of their own"
            )
        if repeat.metric is not None and all(each.name != repeat.metric for each in self.metrics):
            raise ValueError(f'[repeat] metric "{repeat.metric}" is not defined in [[metrics]]')

    def _check_mounts(self) -> None:
        if (overlap := overlapping_target([each.target for each in self.mounts])) is not None:
            raise ValueError(f"[[mounts]] target {self.mounts[overlap[0]].target} and {overlap[1]} overlap")

    def _check_elastic(self) -> None:
        least, most = self.strategy.min_nodes, self.strategy.nodes
        if self.elastic.policy is SizePolicy.GOODPUT and not self.strategy.is_supervised:
            raise ValueError(f'[elastic] policy "goodput" is for adaptdl, not for {self.strategy.name}')
        if least is None:
            if self.elastic != Elastic():
                raise ValueError("[elastic] is for jobs with [strategy] min_nodes, but min_nodes is missing")
        elif not least <= self.desired_nodes <= most:
            raise ValueError(f"[elastic] nodes must be from {least} to {most}, not {self.desired_nodes}")

    def _check_server(self) -> None:
        serves = self.strategy.name == "inference"
        if serves != (self.server is not None):
            raise ValueError("[server] is required by the strategy inference, and allowed only with it")
        if not serves:
            return
        if self.strategy.nodes != 2 or self.is_elastic:
            raise ValueError("[strategy] nodes must be 2 for the strategy inference: a client and its server")
        if self.restart_policy.max_restarts or self.checkpoint is not None:
            raise ValueError("[restart] and [checkpoint] are not for the strategy inference")

    def _check_container(self) -> None:
        if self.benchmark.container is not None and self.strategy.name not in CONTAINER_STRATEGIES:
            raise ValueError(
                f"[benchmark] container is for the strategies {', '.join(CONTAINER_STRATEGIES)}, not for {self.strategy.name}"
            )

    @property
    def is_elastic(self) -> bool:
        """Whether nodes may be lost and may join while the job runs."""
        return self.strategy.min_nodes is not None

    @property
    def desired_nodes(self) -> int:
        """Number of nodes that the job starts with."""
        if self.elastic.nodes is None and self.takes_proposals:
            return self.strategy.min_nodes or 1
        return self.elastic.nodes or self.strategy.nodes

    @property
    def takes_proposals(self) -> bool:
        """Whether the benchmark's hints may change the number of nodes."""
        is_fixed = self.elastic.policy is SizePolicy.FIXED
        return self.is_elastic and self.strategy.is_supervised and not is_fixed

    @property
    def restart_policy(self) -> Restart:
        """Rules for when a failed benchmark is restarted. In a fixed job, a restart has the same members."""
        if self.repeat is not None or not self.strategy.max_restarts:
            return self.restart
        return Restart(max_restarts=self.strategy.max_restarts)

    @property
    def may_restart(self) -> bool:
        """Whether a failed benchmark is started again."""
        return self.restart_policy.max_restarts > 0

    @property
    def has_generations(self) -> bool:
        """Whether the job may have more than one generation."""
        return self.is_elastic or self.may_restart

    @property
    def arms_apart(self) -> tuple[Arm, ...]:
        """All arms of the job, if each arm has its own folders. Empty if the arms share all folders. Each arm
        has its own folders if any source names an arm."""
        if self.repeat is None or all(each.arm is None for each in self.sources):
            return ()
        return self.repeat.arms

    def of_arm(self, arm: Arm) -> Job:
        """Return the job with `arm` as its only command."""
        benchmark = replace(self.benchmark, argv=arm.argv, script=arm.script, env=arm.env)
        if self.arms_apart:
            benchmark = replace(benchmark, requirements=arm.requirements)
        sources = tuple(replace(each, arm=None) for each in self.sources if each.arm in (None, arm.name))
        identity = replace(self.job, labels={**self.job.labels, **arm.labels})
        return replace(
            self, job=identity, benchmark=benchmark, sources=sources, repeat=None, git=arm.git or self.git
        )

    def is_server(self, node: int) -> bool:
        """Return whether a node runs the job's server."""
        return self.server is not None and node == SERVER_NODE

    def of_node(self, node: int) -> Job:
        """Return the job as a node runs it. In a job with a server, a node runs only the server's part or only
        the client's part."""
        if self.server is None:
            return self
        serves = self.is_server(node)
        identity = replace(self.job, labels={**self.job.labels, "role": "server" if serves else "client"})
        sources = [each for each in self.sources if each.kind is SourceKind.SCRIPTS or each.server is serves]
        own = replace(
            self,
            job=identity,
            sources=tuple(sources),
            # Both nodes have all metrics, because a required metric is missing only if neither node has seen
            # it.
            metrics=tuple(each if each.server is serves else each.unsearched() for each in self.metrics),
        )
        if not serves:
            return own
        server = self.server
        benchmark = replace(self.benchmark, argv=server.argv, script=server.script, env=server.env, cwd=None)
        return replace(own, benchmark=benchmark, repeat=None, output=Output())

    @property
    def runs_together(self) -> bool:
        """Whether each of several nodes starts its own part of every run."""
        return self.strategy.name in TOGETHER_STRATEGIES and self.strategy.nodes > 1

    def named_metrics(self) -> tuple[Metric, ...]:
        """Return the metrics of `[[metrics]]`, and the metrics that `[[results]]` names. Metrics of `[[results]]`
        have no pattern."""
        of_files = (
            as_kind(Metric, each, name=name, required=False) for each in self.results for name in each.names
        )
        return (*self.metrics, *of_files)
