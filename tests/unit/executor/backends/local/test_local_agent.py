"""The agents of an elastic job on this machine: which of them are started when it is scaled or resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from elastic_record import ElasticRecord

from bai_agent.job.generation_records import DecisionKind
from bai_agent.job.run_directory import RunDir, locked
from executor.backends.backend import BackendOptions
from executor.backends.local.agent import AgentWatcher, local_agent
from executor.backends.local.local_backend import LocalBackend
from executor.configuration.config import read_settings
from executor.errors import UsageError
from executor.records.generation_status import desired_nodes


class Agents:
    """Stands for agents, which hold the locks that agents hold."""

    def __init__(self, made: ElasticRecord, stack: ExitStack) -> None:
        self.made = made
        self.started: list[int] = []
        self._locks: dict[int, ExitStack] = {}
        self._stack = stack

    def start(self, descriptor: Path, rundir: RunDir, options: list[str]) -> None:
        number = int(options[0].removeprefix("--rank="))
        self.started.append(number)
        self.live(number)

    def live(self, *numbers: int) -> None:
        for number in numbers:
            rundir = self.rundir(number)
            rundir.path.mkdir(parents=True, exist_ok=True)
            self._locks[number] = self._stack.enter_context(ExitStack())
            self._locks[number].enter_context(locked(rundir.agent_lock))

    def die(self, number: int) -> None:
        self._locks.pop(number).close()

    def end(self, number: int) -> None:
        self.die(number)
        self.rundir(number).result.write_text("{}")

    def rundir(self, number: int) -> RunDir:
        return RunDir(self.made.job.store.folder / self.made.record.node(number).place)


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    """The agents of a job of 2 to 4 nodes; all of the four nodes live."""
    with ExitStack() as stack:
        made = Agents(ElasticRecord(tmp_path), stack)
        monkeypatch.setattr("executor.backends.local.agent.start_agent", made.start)
        made.live(0, 1, 2, 3)
        yield made


@pytest.fixture
def backend() -> LocalBackend:
    return LocalBackend(BackendOptions(settings=read_settings))


def test_a_larger_job_gets_new_node_numbers(agents: Agents, backend: LocalBackend) -> None:
    record = agents.made.record
    assert backend.scale(record, 2) == "scaling to 2 nodes"
    agents.end(2)
    agents.end(3)

    said = backend.scale(record, 4)

    assert said == "scaling to 4 nodes; started node 4, 5"
    assert agents.started == [4, 5]
    assert desired_nodes(agents.made.attempt, agents.made.job.job) == 4


def test_dead_nodes_are_restarted_before_new_ones_are_added(agents: Agents, backend: LocalBackend) -> None:
    agents.end(3)
    agents.die(1)

    assert backend.scale(agents.made.record, 4) == "scaling to 4 nodes; started node 1, 4"


def test_a_size_outside_the_range_starts_nothing(agents: Agents, backend: LocalBackend) -> None:
    with pytest.raises(UsageError, match="runs on 2 to 4 nodes"):
        backend.scale(agents.made.record, 5)

    assert (agents.started, agents.made.attempt.scale_requests()) == ([], {})


def test_a_scale_that_was_killed_is_completed_by_resume(agents: Agents, backend: LocalBackend) -> None:
    agents.made.asks(2)
    agents.end(2)
    agents.end(3)
    # Killed before it started an agent.
    agents.made.asks(3)

    assert backend.resume(agents.made.record) == "the job's agent is running; started node 4"
    assert backend.resume(agents.made.record) == "the job's agent is running"


def test_resume_starts_the_agent_of_a_killed_node(agents: Agents, backend: LocalBackend) -> None:
    agents.die(1)
    assert backend.status(agents.made.record).agent_alive

    assert backend.resume(agents.made.record) == "the job's agent is running again"
    assert agents.started == [1]


def test_a_job_without_agents_is_dead_and_all_agents_are_restarted(
    agents: Agents, backend: LocalBackend
) -> None:
    for number in range(4):
        agents.end(number)
    assert backend.status(agents.made.record).status == "DIED"

    backend.resume(agents.made.record)

    # None of them wrote the result of the job.
    assert agents.started == [0, 1, 2, 3]


def test_the_nodes_of_a_job_are_known_without_its_descriptor(agents: Agents) -> None:
    agents.made.job.store.put(agents.made.record.key("job.toml"), b"broken")

    found = local_agent(agents.made.record)

    assert found is not None
    assert [each.rank for each in found.nodes] == [0]


@pytest.fixture
def one_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    """The agents of a job of AdaptDL of one to four nodes, of which one lives."""
    with ExitStack() as stack:
        made = Agents(ElasticRecord(tmp_path, is_adaptdl=True), stack)
        monkeypatch.setattr("executor.backends.local.agent.start_agent", made.start)
        made.live(0)
        yield made


def watcher_of(agents: Agents) -> AgentWatcher:
    agent = local_agent(agents.made.record)
    assert agent is not None
    return AgentWatcher(agent, agents.made.record, lambda sentence: None, look_s=0)


def test_nodes_requested_by_the_benchmarks_hints_are_started_once(one_agent: Agents) -> None:
    watcher = watcher_of(one_agent)
    assert watcher.observe(news=False, cancelling=False) is None
    one_agent.made.proposes(3)

    said = [watcher.observe(news=False, cancelling=cancelling) for cancelling in (True, False, False)]

    assert said == [None, "started node 1, 2: the benchmark's hints ask for more nodes", None]
    assert one_agent.started == [1, 2]


def test_nodes_requested_by_hints_that_end_at_once_are_not_started_for_ever(one_agent: Agents) -> None:
    watcher = watcher_of(one_agent)
    one_agent.made.proposes(2)

    for _ in range(5):
        if watcher.observe(news=False, cancelling=False) is not None:
            one_agent.end(one_agent.started[-1])

    assert one_agent.started == [1, 2]
    # Another proposal is another matter.
    one_agent.made.proposes(3)
    watcher.observe(news=False, cancelling=False)
    assert one_agent.started == [1, 2, 3, 4]


def test_a_scale_request_of_a_user_overrides_the_benchmarks_hints(one_agent: Agents) -> None:
    watcher = watcher_of(one_agent)
    one_agent.made.proposes(4)
    one_agent.made.asks(1)

    assert watcher.observe(news=False, cancelling=False) is None
    assert one_agent.started == []


def test_no_node_is_started_for_hints_after_the_end_of_the_job_is_decided(one_agent: Agents) -> None:
    """One node after another has done its work then."""
    watcher = watcher_of(one_agent)
    one_agent.made.proposes(2)
    watcher.observe(news=False, cancelling=False)
    one_agent.made.decides(0, 0, 1)
    one_agent.made.decides(1, 0, 1, kind=DecisionKind.END, begins=False)
    one_agent.end(1)

    assert watcher.observe(news=False, cancelling=False) is None
    assert one_agent.started == [1]
