"""Agents of an elastic job are killed at calls of a change, on all nodes in the same one, and started again.

`EVERY_FAULT=1` kills them at each of the calls instead of a sample (a quarter of an hour).
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from agent_runs import events_of, wait_until
from elastic_jobs import ElasticJob
from forked_programs import ForkedProgram, forked_program
from node_agents import Nodes

EVERY = os.environ.get("EVERY_FAULT") == "1"
CALLS = {"rename": 30, "write": 40, "link": 12, "fsync": 30, "mkdir": 8, "unlink": 6}
"""How many of them a thread makes in a change, at most; the store is a folder, so what goes there is among them."""
CHANGES = 8
MODULES = ("bai_agent.phases.run", "bai_agent.machine.probe", "bai_agent.run.stop_sources")


def test_an_agent_killed_at_any_call_between_two_generations_continues_the_change(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    # The first ones are surely made, so a sample of them kills.
    plans = [
        (call, number)
        for call, times in CALLS.items()
        for number in range(1, (times if EVERY else times // 6) + 1)
    ]
    chance = random.Random(20261125)
    job = ElasticJob(tmp_path, make, nodes=2)
    life = Life(job, [chance.sample(plans, len(plans) if EVERY else CHANGES) for _ in job.all])
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        try:
            agents = []
            for node in job.all:
                folder = tmp_path / f"killer-{node}"
                folder.mkdir()
                agents.append(stack.enter_context(forked_program(folder, "bai_agent.cli:main", *MODULES)))
            ended = [pool.submit(life.live, node, agents[node]) for node in job.all]
            job.wait_for_all(after=-1)
            for change in range(len(plans) if EVERY else CHANGES):
                life.change = change
                job.fail(change, 1)
                # No other generation comes in between: nobody is lost.
                assert job.wait_for_all(after=change) == change + 1
                life.end_survivors()
        finally:
            job.finish()
        assert [each.result() for each in ended] == [0, 0]

    job.check(restarts=life.change + 1)
    assert job.number == life.change + 2
    assert all(len(hits) >= CHANGES // 2 for hits in life.hits)
    # Else more of these calls are made than are tried.
    assert set().union(*life.hits).isdisjoint(CALLS.items()), {
        call: max(number for made, number in set().union(*life.hits) if made == call) for call in CALLS
    }


class Life:
    """The agents of a job's nodes, each of which is started again when it is killed."""

    def __init__(self, job: ElasticJob, plans: list[list[tuple[str, int]]]) -> None:
        """plans: for each node the calls at which its agents are killed, one in each change."""
        self._job, self._plans = job, plans
        self.change = -1
        """The newest change that has begun."""
        self.hits: list[set[tuple[str, int]]] = [set() for _ in plans]
        """For each node the calls at which an agent was killed."""
        self._at = [-1] * len(plans)
        """The change in which each node's agent is to be killed."""
        self._survived = [False] * len(plans)

    def live(self, node: int, agent: ForkedProgram) -> int:
        """Run a node's agents to the end of the job; return the exit code of the last one."""
        nodes, plans = self._job.nodes, iter(self._plans[node])
        while True:
            call, number = next(plans, (None, 0))
            self._at[node], self._survived[node] = self.change + 1, False
            code = agent.run(
                ["run", nodes.job, "--rank", str(node), "--quiet"],
                output=nodes.folder / f"agent-{node}.out",
                env=nodes.env,
                call=call,
                number=number,
                after=nodes.folder / f"fail-{self._at[node]}-1",
                seconds=1800 if EVERY else 300,
            )
            if code != -signal.SIGKILL:
                return code
            if call is not None and not self._survived[node]:
                self.hits[node].add((call, number))

    def end_survivors(self) -> None:
        """Kill the agents that made fewer calls in this change than theirs, so that the next one is killed in the next change."""
        for node, at in enumerate(self._at):
            if at == self.change:
                self._survived[node] = True
                events = events_of(self._job.nodes.rundir(node))
                with suppress(ProcessLookupError):
                    os.kill(
                        [each for each in events if each["type"] == "agent_started"][-1]["pid"],
                        signal.SIGKILL,
                    )
                wait_until(lambda: self._at[node] > self.change)  # noqa: B023
