"""Which numbers of nodes a job's benchmark proposes by its hints, and when."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_runs import wait_until
from run_contexts import SteppingClock, make_context

from bai_agent.errors import NoAnswerError
from bai_agent.generations.policy import Policy
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.benchmark_tables import Benchmark
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Elastic, Restart
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.generation_records import Hints
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import WarningEvent
from bai_agent.job.run_directory import RunDir
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.nodes.members_file import write_members
from bai_agent.nodes.size_policy import INTERVAL_S, GoodputPolicy, Question, new_size_look, read_answer
from bai_agent.peers.elastic_monitor import ElasticMonitor
from bai_agent.strategy import goodput

SPEED = {"alpha_c": 0.1, "beta_c": 0.01, "alpha_n": 0.1, "beta_n": 0, "alpha_r": 0.1, "beta_r": 0, "gamma": 1}
GOOD: dict[str, Any] = {
    "initBatchSize": 64,
    "localBszBounds": [32, 256],
    "globalBatchSize": None,
    "maxBatchSize": 1024,
    "maxProfiledReplicas": 1,
    "gradientAccumulation": False,
    "gradParams": {"norm": 0.5, "var": 2.0},
    "perfParams": SPEED,
}
PAUSE_S = 300.0


class Job:
    """Generation 3 of a job of two to eight nodes, of which it has four, with two replicas each."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.questions: list[Question] = []
        self.answer: Callable[[], int] = lambda: 4
        self.policy = GoodputPolicy(
            self.find,
            generation=3,
            nodes=4,
            slots=2,
            least=2,
            most=8,
            pause_s=PAUSE_S,
            clock=lambda: self.now,
        )

    def find(self, question: Question) -> int:
        self.questions.append(question)
        return self.answer()

    def observe(
        self, text: str = json.dumps(GOOD), *, after_s: float = 0.0, generation: int = 3
    ) -> int | None:
        """Return what follows from hints, after a while, once no question is open."""
        self.now += after_s
        hints = Hints(node=0, generation=generation, text=text)
        before = len(self.questions)
        found = self.policy.observe(hints)
        if found is None and len(self.questions) > before:
            wait_until(lambda: not self.policy.is_asking, seconds=60)
            found = self.policy.observe(None)
        return found


@pytest.fixture
def job() -> Job:
    return Job()


def test_the_goodput_program_gets_the_hints_and_sizes_and_its_answer_is_proposed(job: Job) -> None:
    job.answer = lambda: 6

    assert job.observe(json.dumps({**GOOD, "more": "x" * 1000}), after_s=PAUSE_S) == 6

    [question] = job.questions
    assert (question.current, question.most, question.slots) == (4, 8, 2)
    assert question.hints.perfParams.alpha_c == 0.1
    assert question.hints.localBszBounds == [32, 256]


def test_nothing_is_proposed_before_a_generation_has_run_for_the_pause(job: Job) -> None:
    job.answer = lambda: 6

    assert job.observe(after_s=PAUSE_S - 1) is None
    assert not job.questions
    assert job.observe(after_s=1) == 6


def test_after_a_proposal_the_next_one_waits_for_the_pause(job: Job) -> None:
    job.answer = lambda: 6
    assert job.observe(after_s=PAUSE_S) == 6

    assert job.observe(after_s=PAUSE_S - 1) is None
    assert job.observe(after_s=1) == 6


def test_the_goodput_program_runs_at_most_once_a_minute(job: Job) -> None:
    assert job.observe(after_s=PAUSE_S) is None
    assert job.observe(after_s=INTERVAL_S - 1) is None
    assert len(job.questions) == 1

    assert job.observe(after_s=1) is None
    assert len(job.questions) == 2


@pytest.mark.parametrize(("answer", "proposed"), [(1, 2), (2, 2), (8, 8), (9, 8), (4, None)])
def test_a_proposal_is_another_number_within_the_range(job: Job, answer: int, proposed: int | None) -> None:
    job.answer = lambda: answer

    assert job.observe(after_s=PAUSE_S) == proposed


def test_hints_of_an_earlier_generation_are_ignored(job: Job) -> None:
    assert job.observe(after_s=PAUSE_S, generation=2) is None

    assert not job.questions


def test_the_run_continues_while_the_goodput_program_computes(job: Job) -> None:
    known = threading.Event()

    def answer() -> int:
        known.wait(60)
        return 6

    job.answer = answer
    job.now += PAUSE_S
    hints = Hints(node=0, generation=3, text=json.dumps(GOOD))

    assert job.policy.observe(hints) is None
    job.now += INTERVAL_S
    assert job.policy.observe(hints) is None
    known.set()
    wait_until(lambda: not job.policy.is_asking, seconds=60)
    assert job.policy.observe(hints) == 6
    assert len(job.questions) == 1


@pytest.mark.parametrize(
    ("hints", "key"),
    [
        ({}, "initBatchSize is missing"),
        ({**GOOD, "perfParams": None}, "perfParams"),
        ({**GOOD, "perfParams": {**SPEED, "gamma": 0}}, "perfParams.gamma"),
        ({**GOOD, "perfParams": {**SPEED, "alpha_n": -1}}, "perfParams.alpha_n"),
        ({**GOOD, "perfParams": {**SPEED, "beta_c": float("nan")}}, "perfParams.beta_c"),
        ({**GOOD, "perfParams": {**SPEED, "beta_c": 10**400}}, "perfParams.beta_c"),
        ({**GOOD, "initBatchSize": 2**40}, "initBatchSize"),
        ({**GOOD, "maxBatchSize": "many"}, "maxBatchSize"),
        ({**GOOD, "localBszBounds": [1]}, "localBszBounds"),
        ({**GOOD, "localBszBounds": {"a": 1}}, "localBszBounds"),
        ({**GOOD, "gradParams": {"norm": 1}}, "gradParams.var"),
        ({**GOOD, "gradientAccumulation": 1}, "gradientAccumulation"),
    ],
)
def test_unusable_hints_are_ignored_with_a_warning_that_names_the_key(job: Job, hints: Any, key: str) -> None:
    assert job.observe(json.dumps(hints), after_s=PAUSE_S) is None

    assert not job.questions
    [warning] = job.policy.take_warnings()
    assert warning.startswith("AdaptDL's hints are ignored, because they yield no number of nodes (")
    assert key in warning
    assert warning.endswith(").")
    assert len(warning) < 400


def test_hints_with_empty_optional_values_are_used(job: Job) -> None:
    empty = dict.fromkeys(("maxBatchSize", "localBszBounds", "gradParams"))

    job.observe(json.dumps({**GOOD, **empty}), after_s=PAUSE_S)
    job.observe(json.dumps({**GOOD, "localBszBounds": [32, None]}), after_s=PAUSE_S)

    assert len(job.questions) == 2
    assert not job.policy.take_warnings()


def test_a_failing_goodput_program_changes_nothing_and_is_run_again(job: Job) -> None:
    def fail() -> int:
        raise NoAnswerError("the program was ended by signal 24")

    job.answer = fail
    assert job.observe(after_s=PAUSE_S) is None
    assert job.policy.take_warnings() == [
        "The number of nodes is unchanged, because the goodput is unknown (the program was ended by signal 24)."
    ]

    job.answer = lambda: 5
    assert job.observe(after_s=INTERVAL_S) == 5


def test_the_answer_of_the_goodput_program_is_found_among_other_lines() -> None:
    text = f'loaded\n{goodput.MARK}{{"nodes": 3, "speedup": 2.5, "current": 1.0}}\nbye\n'

    assert read_answer(text, code=0).nodes == 3


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("ModuleNotFoundError: No module named 'scipy'\n", 1, 'ended with 1 and printed "ModuleNotFound'),
        ("", -24, "was ended by signal 24"),
        (f'{goodput.MARK}{{"nodes": 3, "speedup": 2.5, "current": 1.0}}\n', 1, "ended with 1"),
        (f"{goodput.MARK}{{}}\n", 0, "nodes is missing"),
        (f'{goodput.MARK}{{"nodes": 0, "speedup": 2.5, "current": 1.0}}\n', 0, "a number of nodes"),
        ("x" * 10_000, 0, "ended with 0"),
    ],
)
def test_invalid_output_of_the_goodput_program_is_refused(text: str, code: int, why: str) -> None:
    with pytest.raises(NoAnswerError, match=why) as error:
        read_answer(text, code=code)

    assert len(str(error.value)) < 400


class Look:
    """The look of node 0, alone in generation 0 of a job of one to four nodes, whose Python is a script."""

    def __init__(self, folder: Path, python: str) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").write_text(f"#!/bin/sh\n{python}\n")
        (folder / "bin" / "python3").chmod(0o755)
        benchmark = Benchmark(argv=("python3", "train.py"), env={"PATH": f"{folder}/bin:/usr/bin:/bin"})
        strategy = StrategyTable(name="adaptdl", nodes=4, min_nodes=1)
        elastic = Elastic(pause=timedelta(seconds=1))
        tables = {"benchmark": benchmark, "strategy": strategy, "elastic": elastic}
        self.clock = SteppingClock(step=1)
        self.ctx = make_context(RunDir(folder / "run"), clock=self.clock, tables=tables)
        write_members(self.ctx.rundir, Members(peers=(Peer(rank=0, address="10.0.0.1", slots=2),)))
        self.attempt = AttemptRecord(JobRecord(DirectoryStore(folder / "store"), "job"))
        policy = Policy(restart=Restart(), min_nodes=1, nodes=4, takes_proposals=True)
        self.monitor = ElasticMonitor(self.attempt, node=0, policy=policy, desired=1, limits=Limits())
        self.monitor.observe()

    def until(self, is_over: Callable[[], object], *, hints: object = GOOD) -> None:
        """Look again and again, as a run does, in generations that follow each other."""
        given = Hints(node=0, generation=0, text=json.dumps(hints))
        look = new_size_look(self.ctx, self.monitor, lambda: given)

        def looked() -> object:
            look()
            self.monitor.observe()
            return is_over()

        wait_until(looked, seconds=120)

    @property
    def warnings(self) -> list[str]:
        return [each.message for each in self.ctx.events.seen if isinstance(each, WarningEvent)]

    @property
    def proposed(self) -> list[int]:
        return [self.attempt.size_proposal(each).desired for each in self.attempt.signs_seen().proposals]


def test_the_answer_of_the_goodput_program_is_proposed_to_the_job(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    answer = json.dumps({"nodes": 3, "speedup": 2.5, "current": 1.0})
    it = Look(tmp_path, f"echo \"$1 $2 $OMP_NUM_THREADS\" > {asked}; echo '{goodput.MARK}{answer}'")

    it.until(lambda: it.proposed)

    assert (it.proposed, it.warnings) == ([3], [])
    program, _, question = asked.read_text().partition(" ")
    assert program == goodput.__file__
    assert question.endswith('"current": 1, "most": 4, "slots": 2} 1\n')


def test_warnings_about_hints_are_given_once_for_all_generations_and_agents(tmp_path: Path) -> None:
    it = Look(tmp_path, "echo no such module >&2; exit 1")
    failed = 'The number of nodes is unchanged, because the goodput is unknown (the program ended with 1 and printed "no such module").'

    for _ in range(2):
        before = it.clock.now
        it.until(lambda: it.clock.now > before + 3 * INTERVAL_S and it.warnings)  # noqa: B023
        it.until(lambda: len(it.warnings) > 1, hints={"restart": 1})

    ignored = "AdaptDL's hints are ignored, because they yield no number of nodes (initBatchSize is missing)."
    assert it.warnings == [failed, ignored]
    assert not it.proposed


@pytest.mark.parametrize("safe", ["", "1"])
def test_the_goodput_program_uses_the_benchmarks_packages(tmp_path: Path, safe: str) -> None:
    """With PYTHONSAFEPATH this program's folder, which has an adaptdl.py, is not on the path."""
    (tmp_path / "numpy.py").write_text("import sys; sys.exit(f'{__file__} {sys.path[0]}')")
    question = json.dumps({"hints": GOOD, "current": 1, "most": 2, "slots": 1})

    done = subprocess.run(
        [sys.executable, goodput.__file__, question],
        env={"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": safe},
        capture_output=True,
        text=True,
    )

    assert done.stderr.split() == [str(tmp_path / "numpy.py"), str(tmp_path)]
