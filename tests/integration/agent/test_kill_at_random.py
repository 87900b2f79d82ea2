"""Agent and extractor are killed at random moments of a long run, while the broker goes away for a while."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agent_runs import environment, python_job, records_of, result_of, start_agent
from kafka_brokers import TopicReader

LINES = 60_000
KILLS_OF_THE_AGENT = 20
KILLS_OF_THE_EXTRACTOR = 5
LARGEST_BATCH = 2_000

# Nothing is flushed by hand; two more processes emit all the while; the last line has no newline.
PROGRAM = f"""
import json, os, subprocess, sys, time
EMITTER = '''
import json, os, sys, time
with open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w") as fifo:
    for number in range(3000):
        fifo.write(json.dumps({{"emitted_by_" + sys.argv[1]: number}}) + chr(10))
        fifo.flush()
        time.sleep(0.01)
'''
with open("starts", "a") as file:
    file.write(f"{{os.getpid()}}\\n")
emitters = [subprocess.Popen([sys.executable, "-c", EMITTER, name]) for name in ("first", "second")]
for step in range({LINES}):
    print(f"step={{step}} loss={{100 / (step + 1):.6f}} accuracy={{step / {LINES}:.6f}} rate={{step % 977}}.5e-03",
          end="" if step == {LINES - 1} else "\\n")
    if step % 100 == 99:
        time.sleep(0.06)
    while step == {LINES * 9 // 10} and not os.path.exists("finish"):
        time.sleep(0.05)
assert [emitter.wait() for emitter in emitters] == [0, 0]
"""

METRICS = [
    {"name": "loss", "pattern": r"loss=(?P<value>\d+\.\d+)"},
    {"name": "accuracy", "pattern": r"accuracy=(\d+\.\d+)", "required": True},
    {"name": "rate", "pattern": r"rate=(\S+)"},
]

KEY = ("src", "off", "i", "k", "name", "value")


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProgram]:
    broker = BrokerProgram(request.config.rootpath / "scripts" / "kafka", tmp_path / "kafka")
    broker.start()
    yield broker
    broker.stop()


class BrokerProgram:
    def __init__(self, script: Path, folder: Path) -> None:
        self._command = (sys.executable, script)
        self._folder = folder
        self.address = ""

    def start(self) -> None:
        arguments = ("start", "--dir", self._folder, "--json")
        done = subprocess.run([*self._command, *arguments], check=True, stdout=subprocess.PIPE, timeout=900)
        self.address = json.loads(done.stdout)["address"]

    def stop(self) -> None:
        subprocess.run([*self._command, "stop", "--dir", self._folder], check=True, timeout=90)


def test_an_agent_killed_at_random_moments_loses_and_duplicates_no_record(
    tmp_path: Path, broker: BrokerProgram
) -> None:
    rundir = tmp_path / "run"
    job = python_job(
        tmp_path,
        PROGRAM,
        metrics=METRICS,
        kafka={"brokers": [broker.address], "topic": "BAI_METRICS"},
        limits={"drain": "10m"},
    )

    killed = Killer(job, rundir, seed=20261120)
    code = killed.until_the_benchmark_ends(broker)

    assert code == 0
    assert killed.agents == KILLS_OF_THE_AGENT
    assert killed.extractors >= KILLS_OF_THE_EXTRACTOR
    result = result_of(rundir)
    assert result["outcome"] == "succeeded"
    assert result["benchmark"]["code"] == 0, "the benchmark saw a write error"
    assert killed.benchmarks == {int((rundir / "work" / "starts").read_text())}, (
        "it was not one benchmark all along"
    )

    records = records_of(rundir)
    assert_same([record["seq"] for record in records], list(range(len(records))))
    undisturbed = extracted_again(rundir, tmp_path / "again")
    for source in ("log", "emit"):
        assert_same(
            [key(each) for each in records if each["src"] == source],
            [key(each) for each in undisturbed if each["src"] == source],
        )
    assert_same(values(records, "loss"), [float(f"{100 / (step + 1):.6f}") for step in range(LINES)])
    for name in ("emitted_by_first", "emitted_by_second"):
        assert_same(values(records, name), list(range(3000)))

    assert result["kafka"]["undelivered"] == 0
    arrived = Counter(read_sequence_numbers(broker.address))
    assert_same(sorted(arrived), [each["seq"] for each in records])
    doubled = sum(times - 1 for times in arrived.values())
    assert doubled <= KILLS_OF_THE_AGENT * LARGEST_BATCH
    assert max(arrived.values()) <= 1 + KILLS_OF_THE_AGENT


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    """Compare long lists, and name the first difference: the whole one would take longer than the run."""
    differing = next(
        (at for at, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None
    )
    assert differing is None, f"at {differing}: {found[differing]} is not {wanted[differing]}"
    assert len(found) == len(wanted)


def values(records: list[dict[str, Any]], name: str) -> list[Any]:
    return [each["value"] for each in records if each["name"] == name]


class Killer:
    """Runs one job to its end, killing whoever works on it."""

    def __init__(self, job: Path, rundir: Path, *, seed: int) -> None:
        self._job, self._rundir = job, rundir
        self._random = random.Random(seed)
        self._surely = set(self._random.sample(range(KILLS_OF_THE_AGENT), KILLS_OF_THE_EXTRACTOR))
        """The agents that live until they have an extractor, however busy the machine is."""
        self.agents, self.extractors = 0, 0
        self.benchmarks: set[int] = set()

    def until_the_benchmark_ends(self, broker: BrokerProgram) -> int:
        agent = start_agent(self._job, self._rundir)
        try:
            while self.agents < KILLS_OF_THE_AGENT:
                self._kill_an_extractor(agent)
                time.sleep(self._random.uniform(0.1, 2.0))
                if self.agents == KILLS_OF_THE_AGENT // 2:
                    broker.stop()
                if self.agents == KILLS_OF_THE_AGENT - 3:
                    (self._rundir / "work" / "finish").touch()
                assert agent.poll() is None, f"the agent ended by itself: {agent.returncode}"
                agent.kill()
                agent.wait(timeout=60)
                self.agents += 1
                self._note_benchmark()
                agent = start_agent(self._job, self._rundir)
                if self.agents == KILLS_OF_THE_AGENT // 2 + 2:
                    broker.start()
            return agent.wait(timeout=600)
        finally:
            agent.kill()
            agent.wait(timeout=60)

    def _kill_an_extractor(self, agent: subprocess.Popen[bytes]) -> None:
        """Kill the extractor if the agent has one in time; an agent that is killed early has none yet."""
        seconds = self._random.uniform(0.1, 2.0)
        deadline = time.monotonic() + (60 if self.agents in self._surely else seconds)
        while time.monotonic() < deadline:
            time.sleep(0.02)
            for pid in children_of(agent.pid):
                if b"bai_agent.run.extractor" in command_of(pid):
                    time.sleep(self._random.uniform(0.0, 0.5))
                    os.kill(pid, signal.SIGKILL)
                    self.extractors += 1
                    return

    def _note_benchmark(self) -> None:
        started = self._rundir / "started.json"
        if started.exists():
            self.benchmarks.add(json.loads(started.read_bytes())["pid"])


def children_of(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(each) for each in text.split()]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def key(record: dict[str, object]) -> tuple[object, ...]:
    return tuple(record[name] for name in KEY)


def extracted_again(rundir: Path, other: Path) -> list[dict[str, object]]:
    """Return what one undisturbed extractor makes of the same logs."""
    other.mkdir()
    for name in ("job.toml", "output.log", "emit.log", "exit.json"):
        shutil.copyfile(rundir / name, other / name)
    command = [sys.executable, "-m", "bai_agent.run.extractor", str(other)]
    subprocess.run(command, check=True, timeout=300, env=environment())
    return records_of(other)


def read_sequence_numbers(address: str) -> list[int]:
    with closing(TopicReader(address, "BAI_METRICS")) as reader:
        return [int(dict(message.headers)["seq"]) for message in reader.read()]
