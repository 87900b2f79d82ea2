"""The rule by which AdaptDL's hints become a number of nodes, with the real AdaptDL, against the rule as AdaptDL on AWS has it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from adaptdl_hints import BOUNDED, QUICK, SLOW
from image_pythons import adaptdl, hosts_version

from bai_agent.benchmark.programs import ask
from bai_agent.nodes.size_policy import read_answer
from bai_agent.strategy import goodput

SECONDS = 300
ANSWERS = f"""
import json, runpy, sys
wanted = runpy.run_path({goodput.__file__!r})["nodes_wanted"]
print(json.dumps([wanted(**each)["nodes"] for each in json.load(sys.stdin)]))
"""
REFUSALS = f"""
import json, runpy, sys
wanted = runpy.run_path({goodput.__file__!r})["nodes_wanted"]
def refusal(question):
    try:
        return wanted(**question)
    except Exception as error:
        return type(error).__name__
print(json.dumps([refusal(each) for each in json.load(sys.stdin)]))
"""
RULE = """
import json, sys
import numpy as np
np.int = int
from adaptdl.goodput import GoodputFunction, GradParams, PerfParams

def rule(hints, current, most, slots):
    gradient = hints["gradParams"] or {"norm": 1.0, "var": 1.0}
    function = GoodputFunction(PerfParams(**hints["perfParams"]), GradParams(gradient["norm"], gradient["var"]), hints["initBatchSize"])
    def speed(nodes):
        return function.optimize(
            nodes, nodes * slots, max_batch_size=hints["maxBatchSize"], accumulation=hints["gradientAccumulation"],
            atomic_bsz_range=tuple(hints["localBszBounds"]) if hints["localBszBounds"] else None)[0]
    best, best_speed = 0, 0.0
    for nodes in range(1, most + 1):
        if speed(nodes) / nodes >= speed(1) * 0.5:
            best, best_speed = nodes, speed(nodes)
    if best_speed < speed(current) * 1.05 or abs(best + 1 - current) < 0.15 * current:
        best = current
    return best

print(json.dumps([rule(**each) for each in json.load(sys.stdin)]))
"""
"""The loop of adaptdl_ray/aws/optimizer.py, which asks for one number of nodes at a time."""


def generated(count: int) -> list[dict[str, Any]]:
    """Return questions about jobs of many kinds, the same each time."""
    draw = random.Random(24)
    questions = []
    for _ in range(count):
        first = draw.choice([16, 64, 128, 1000])
        accumulates = draw.random() < 0.5
        bounds = draw.choice(
            [None, [max(1, first // draw.choice([1, 2, 8])), first * draw.choice([1, 2, 16])]]
        )
        speed = {
            key: 10 ** draw.uniform(-8, 0)
            for key in ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r")
        }
        most = draw.randint(1, 24)
        hints = {
            "initBatchSize": first,
            "maxBatchSize": draw.choice([None, first, first * 8, first * 100]),
            "localBszBounds": bounds,
            "gradientAccumulation": accumulates,
            "gradParams": draw.choice(
                [None, {"norm": 0.0, "var": 1.0}, {"norm": draw.random(), "var": 10 * draw.random()}]
            ),
            "perfParams": {**speed, "gamma": draw.uniform(1, 10)},
        }
        questions.append(
            {
                "hints": hints,
                "current": draw.randint(1, most),
                "most": most,
                "slots": draw.choice([1, 1, 2, 8]),
            }
        )
    return questions


def recorded() -> list[dict[str, Any]]:
    names = (
        "initBatchSize",
        "maxBatchSize",
        "localBszBounds",
        "gradientAccumulation",
        "gradParams",
        "perfParams",
    )
    return [
        {"hints": {name: hints[name] for name in names}, "current": current, "most": most, "slots": slots}
        for hints in (QUICK, SLOW, BOUNDED)
        for current, most, slots in (
            (1, 4, 1),
            (2, 4, 1),
            (4, 4, 1),
            (1, 16, 1),
            (12, 16, 1),
            (1, 4, 2),
            (3, 4, 8),
        )
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(adaptdl(hosts_version())), "OPENBLAS_NUM_THREADS": "1"}


@cache
def answers(program: str, questions: str) -> list[Any]:
    """Return what a program says to each of the questions, a JSON list."""
    done = subprocess.run(
        ["/usr/bin/python3", "-c", program],
        input=questions,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_the_number_of_nodes_for_given_hints_equals_that_of_adaptdl_on_aws() -> None:
    questions = [*recorded(), *generated(100)]

    found = answers(ANSWERS, json.dumps(questions))

    assert found == answers(RULE, json.dumps(questions))
    # The table has jobs that grow, shrink and stay.
    changes = [wanted - each["current"] for wanted, each in zip(found, questions, strict=True)]
    assert min(sum(by > 0 for by in changes), sum(by < 0 for by in changes), changes.count(0)) > 5


def test_the_goodput_program_answers_within_its_cpu_and_memory_limits() -> None:
    question = recorded()[0]

    said = ask(
        ["/usr/bin/python3", goodput.__file__, json.dumps(question)],
        env=environment(),
        timeout_s=SECONDS,
        with_stderr=True,
    )

    answer = read_answer(said.text, code=said.code)
    assert (answer.nodes, answer.current) == (4, 1.0)


def test_contradictory_or_unusable_hints_raise_an_error() -> None:
    changes: list[dict[str, Any]] = [
        {"localBszBounds": [128, 256]},
        {"perfParams": {**dict.fromkeys(QUICK["perfParams"], 0.0), "gamma": 1.0}},
        {"maxBatchSize": 1},
    ]
    questions = [{**recorded()[0], "hints": {**recorded()[0]["hints"], **change}} for change in changes]

    assert answers(REFUSALS, json.dumps(questions)) == ["ValueError", "ValueError", "AssertionError"]


def test_a_goodput_program_that_loops_for_ever_is_killed_by_its_cpu_limit(tmp_path: Path) -> None:
    """Packages of the benchmark may do anything at their import."""
    (tmp_path / "numpy.py").write_text("while True: pass")
    hurried = tmp_path / "goodput.py"
    text = Path(goodput.__file__).read_text()
    hurried.write_text(text.replace(f"CPU_SECONDS = {goodput.CPU_SECONDS}", "CPU_SECONDS = 1"))
    assert hurried.read_text() != text

    said = ask(
        ["/usr/bin/python3", str(hurried), json.dumps(recorded()[0])],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout_s=SECONDS,
    )

    assert said.code in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM)
