"""Proposes a number of nodes for an elastic job, computed from the benchmark's hints. The descriptor requests
this with `[elastic] policy = "goodput"`.

AdaptDL's first replica sends hints from which the job's speed with other numbers of replicas can be computed.
Each minute, a small program (`strategy/goodput.py`) gets the newest hints and computes the best number of
nodes. The program runs in the benchmark's Python as the benchmark's user, because only that Python has
AdaptDL.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated

from bai_agent.benchmark.environment import working_folder
from bai_agent.benchmark.programs import ask
from bai_agent.decode import Rule, decode
from bai_agent.errors import BaiError, NoAnswerError, RecordError
from bai_agent.job.generation_records import Hints
from bai_agent.job.peers import peer_of
from bai_agent.job.record_types import Truth, WarningEvent
from bai_agent.light_dataclass import asdict, dataclass
from bai_agent.machine.software import benchmark_environment, find_python
from bai_agent.nodes.members_file import peers_of
from bai_agent.peers.elastic_monitor import ElasticMonitor
from bai_agent.run.run_context import RunContext
from bai_agent.strategy import goodput

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
"""Seconds between two runs of the program `strategy/goodput.py`."""
_HINTS = "hints"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

_Batch = Annotated[int, Rule("a batch size", 1, 2**31)]
_Parameter = Annotated[float, Rule("a number ≥ 0", 0)]


@dataclass(frozen=True, kw_only=True)
class _Speed:
    """AdaptDL's model of the time of a step. https://github.com/petuum/adaptdl, adaptdl/adaptdl/goodput.py"""

    alpha_c: _Parameter
    beta_c: _Parameter
    alpha_n: _Parameter
    beta_n: _Parameter
    alpha_r: _Parameter
    beta_r: _Parameter
    gamma: Annotated[float, Rule("a number from 1 to 100", 1, 101)]


@dataclass(frozen=True, kw_only=True)
class _Gradient:
    """AdaptDL's statistics of the gradient."""

    norm: _Parameter
    var: _Parameter


@dataclass(frozen=True, kw_only=True)
class GoodputHints:
    """The part of AdaptDL's hints that goodput depends on, with AdaptDL's names."""

    initBatchSize: _Batch  # noqa: N815
    perfParams: _Speed  # noqa: N815
    maxBatchSize: _Batch | None = None  # noqa: N815
    localBszBounds: Annotated[  # noqa: N815
        list[_Batch | None] | None, Rule("two batch sizes", check=lambda bounds: len(bounds) == 2)
    ] = None
    gradientAccumulation: Truth = False  # noqa: N815
    gradParams: _Gradient | None = None  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Question:
    """The input of the program `strategy/goodput.py`."""

    hints: GoodputHints
    current: int
    """Number of nodes in this generation."""
    most: int
    """Largest number of nodes that the job may have."""
    slots: int
    """Number of replicas on each node."""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """Output of the program `strategy/goodput.py`: the best number of nodes, and the speed-ups over one node
    with the best and with the current number of nodes."""

    nodes: Annotated[int, Rule("a number of nodes", 1, 2**31)]
    speedup: Annotated[float, Rule("a speed-up", 0, math.inf)]
    current: Annotated[float, Rule("a speed-up", 0, math.inf)]


class GoodputPolicy:
    """Computes the number of nodes that this node proposes to the job during one generation. The program that
    computes the number runs on a thread of its own."""

    def __init__(
        self,
        find_nodes: Callable[[Question], int],
        *,
        generation: int,
        nodes: int,
        slots: int,
        least: int,
        most: int,
        pause_s: float,
        clock: Callable[[], float],
    ) -> None:
        """find_nodes: function that runs the program and returns the best number of nodes; raises
        NoAnswerError. nodes, slots: number of nodes, and of slots, in this generation. least, most: smallest
        and largest number of nodes of the job. pause_s: shortest time between two proposals, and from the
        generation's start to the first proposal (seconds)."""
        self._find_nodes, self._clock = find_nodes, clock
        self._generation, self._nodes, self._slots = generation, nodes, slots
        self._least, self._most, self._pause_s = least, most, pause_s
        self._changed_s, self._asked_s = clock(), -math.inf
        """`_changed_s`: time at which the generation began or the last proposal was made. `_asked_s`: time at
        which the program last started."""
        self._thread: threading.Thread | None = None
        self._answer: int | None = None
        self._warnings: list[str] = []

    @property
    def is_asking(self) -> bool:
        """Whether the program that computes the number of nodes is still running."""
        return self._thread is not None and self._thread.is_alive()

    def observe(self, hints: Hints | None) -> int | None:
        """Return a number of nodes to propose, or None. The call starts the program again if a minute has
        passed since the program's last start.

        hints: the newest hints.
        """
        now = self._clock()
        if self.is_asking:
            return None
        answer, self._answer = self._answer, None
        wanted = min(max(answer, self._least), self._most) if answer is not None else self._nodes
        if wanted != self._nodes:
            self._changed_s = now
            return wanted
        is_due = now - self._changed_s >= self._pause_s and now - self._asked_s >= INTERVAL_S
        if is_due and hints is not None and hints.generation == self._generation:
            self._asked_s = now
            self._ask(hints)
        return None

    def take_warnings(self) -> list[str]:
        """Return the warnings about unusable hints and answers since the last call."""
        taken, self._warnings = self._warnings, []
        return taken

    def _ask(self, hints: Hints) -> None:
        try:
            found = decode(GoodputHints, hints.text, where=_HINTS)
        except RecordError as error:
            problem = str(error).removeprefix(f"{_HINTS}: ").partition("; ")[0]
            self._warn(f"AdaptDL's hints are ignored, because they yield no number of nodes ({problem}).")
            return
        question = Question(hints=found, current=self._nodes, most=self._most, slots=self._slots)
        # The program can take long, so it runs on a thread: the agent must watch the benchmark meanwhile.
        self._thread = threading.Thread(target=self._find, args=(question,), name="size-policy", daemon=True)
        self._thread.start()

    def _find(self, question: Question) -> None:
        try:
            self._answer = self._find_nodes(question)
        except NoAnswerError as error:
            self._warn(f"The number of nodes is unchanged, because the goodput is unknown ({error}).")

    def _warn(self, sentence: str) -> None:
        log.warning("%s", sentence)
        self._warnings.append(sentence)


def new_size_look(
    ctx: RunContext, elastic: ElasticMonitor, find_hints: Callable[[], Hints | None]
) -> Callable[[], None]:
    """Return a function that is called often while a generation runs, and proposes another number of nodes
    when a proposal is due."""
    strategy, peers = ctx.job.strategy, peers_of(ctx.rundir)
    policy = GoodputPolicy(
        partial(_nodes_wanted, ctx),
        generation=ctx.rundir.generation,
        nodes=len(peers),
        slots=peer_of(peers, ctx.node.rank).slots,
        least=strategy.min_nodes or 1,
        most=strategy.nodes,
        pause_s=ctx.job.elastic.pause.total_seconds(),
        clock=ctx.clock.monotonic,
    )

    def look() -> None:
        wanted = policy.observe(find_hints())
        if wanted is not None:
            elastic.propose(wanted)
        for warning in policy.take_warnings():
            if not _is_reported(ctx, warning):
                ctx.warn(warning)

    return look


def _is_reported(ctx: RunContext, warning: str) -> bool:
    """Return whether this or an earlier agent of this node has already reported a warning with the same text
    before " ("."""
    kind = warning.partition(" (")[0]
    return any(each.message.startswith(kind) for each in ctx.events.of(WarningEvent))


def _nodes_wanted(ctx: RunContext, question: Question) -> int:
    """Return the best number of nodes, which a program in the benchmark's Python computes. Raises
    NoAnswerError."""
    try:
        env, user = benchmark_environment(ctx.job, ctx.rundir, scripts=ctx.scripts)
        python = find_python(ctx.job, env=env, cwd=working_folder(ctx.job, ctx.rundir, scripts=ctx.scripts))
    except BaiError as error:
        raise NoAnswerError(str(error)) from error
    if python is None:
        raise NoAnswerError("the benchmark has no Python")
    argv = [python, goodput.__file__, json.dumps(asdict(question))]
    said = ask(argv, env={**env, **_ONE_THREAD}, user=user, timeout_s=goodput.SECONDS, with_stderr=True)
    answer = read_answer(said.text, code=said.code)
    log.info(
        "goodput: %d nodes (speed-up %.2f; with %d nodes %.2f)",
        answer.nodes,
        answer.speedup,
        question.current,
        answer.current,
    )
    return answer.nodes


def read_answer(text: str, *, code: int) -> _Answer:
    """Return the program's answer from its output. The program's output can also contain lines that Python's
    start-up files print. Raises NoAnswerError."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        if code == 0 and line.startswith(goodput.MARK):
            try:
                return decode(_Answer, line.removeprefix(goodput.MARK), where="the answer")
            except RecordError as error:
                raise NoAnswerError(str(error)) from error
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
    said = f' and printed "{lines[-1][:200]}"' if lines else ""
    raise NoAnswerError(f"the program {ended}{said}")
