"""Killed at any moment and started again, the extractor misses nothing and records nothing twice."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from extraction_runs import entries, extracted, finish_run, make_run, records
from forked_programs import ForkedProgram, forked_program

from bai_agent.job.run_directory import RunDir

LIMIT_SECONDS = 120
RESULTS = [{"path": "*.json", "format": "bmf"}]
FIRST: dict[str, Any] = {
    "units": "ms",
    "headline": "median",
    "repaint": "last",
    "after": r"acc=0\.\d*3 ",
    "until": r"acc=0\.\d*7 ",
}
"""Keys of the first metric."""
CALLS = {"write": 9, "rename": 2, "fsync": 1}
"""Calls at which it is killed, and how many of each it makes at least."""
METRICS = [
    ("loss", r"(?P<word>\w+) (?P<step>\d+) loss=(?P<value>[\d.]+)(?P<unit>m?s)?"),
    ("accuracy", r"acc=([\d.]+)"),
    ("rate", r"(?i)RATE (\S+)"),
]


def contents(rundir: RunDir, src: str = "log") -> list[dict[str, Any]]:
    """Return all of what the log's records hold, but for when they were made."""
    return [
        {key: value for key, value in each.items() if key not in ("seq", "timestamp", "late")}
        for each in records(rundir)
        if each["src"] == src
    ]


def command(rundir: RunDir) -> list[str]:
    return [sys.executable, "-m", "bai_agent.run.extractor", str(rundir.path)]


def start(rundir: RunDir) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(rundir), stderr=subprocess.DEVNULL)


def extract(rundir: RunDir) -> None:
    subprocess.run(command(rundir), check=True, timeout=LIMIT_SECONDS, stderr=subprocess.DEVNULL)


def short_run(folder: Path) -> RunDir:
    output = b"".join(
        b"step %d loss=%d.5s acc=0.%d rate nan%s" % (n, n, n, b"\r" if n % 3 else b"\n") for n in range(4000)
    )
    emitted = b'{"a": 1, "b": 2}\n{"c": 3}\nhalf{"d": 4}'
    rundir = make_run(folder, METRICS, output=output, emitted=emitted, results=RESULTS, **FIRST)
    rundir.work.mkdir()
    write_results(rundir, 1.5)
    return rundir


def write_results(rundir: RunDir, value: float) -> None:
    table = {f"b{n}": {"latency": {"value": value + n}} for n in range(20)}
    (rundir.work / "results.json").write_text(json.dumps(table))


@pytest.fixture(scope="module")
def extractor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedProgram]:
    whenever_it_runs = ("bai_agent.metrics.process", "bai_agent.metrics.watchdog")
    folder = tmp_path_factory.mktemp("extractor")
    with forked_program(folder, "bai_agent.run.extractor:main", *whenever_it_runs) as program:
        yield program


def test_an_extractor_killed_at_any_system_call_loses_and_duplicates_no_record(
    extractor: ForkedProgram, tmp_path: Path
) -> None:
    def run(rundir: RunDir, **kill: Any) -> int:
        output = rundir.path.with_suffix(".out")
        return extractor.run([rundir.path], output=output, env=os.environ, **kill)

    def is_killed(rundir: RunDir, call: str, number: int) -> bool:
        code = run(rundir, call=call, number=number)
        assert code in (0, -signal.SIGKILL)
        if rundir.results.exists():
            # What the benchmark left in a file is another thing by then.
            write_results(rundir, -1)
        return code != 0

    # given what an undisturbed run records
    whole = short_run(tmp_path / "whole")
    assert run(whole) == 0
    expected, last = entries(whole), extracted(whole)
    in_log, in_file = contents(whole), contents(whole, "file")
    assert last["headlines"].keys() == {"loss{word=step}", "accuracy"}
    assert len(in_file) == 20

    for call, fewest in CALLS.items():
        recoveries = 0
        # Not as often as one run makes the call: the offset is written each second, so a slow run makes more of them.
        for number in itertools.count(1):
            # when it is killed at that call, and at that call again when it recovers
            rundir = short_run(tmp_path / f"{call}-{number}")
            killed = is_killed(rundir, call, number)
            recoveries += is_killed(rundir, call, number)
            assert run(rundir) == 0

            # then the records are those of the undisturbed run
            assert entries(rundir) == expected, (call, number)
            assert contents(rundir) == in_log, (call, number)
            assert contents(rundir, "file") == in_file, (call, number)
            assert extracted(rundir) == last, (call, number)
            if not killed:
                break
        assert number > fewest, f"{number - 1} kills at {call} met the extractor"
        assert recoveries, f"no kill at {call} met the extractor when it recovered"


@pytest.mark.parametrize("seed", [1, 2])
def test_an_extractor_killed_at_random_loses_and_duplicates_no_record(tmp_path: Path, seed: int) -> None:
    # given a benchmark that prints and emits in pieces that end anywhere, and an extractor that is killed meanwhile
    chance = random.Random(seed)
    output = b"".join(
        b"step %d loss=%d.25\r\x1b[1macc=%d.5\x1b[0m rate %de-3\n" % (n, n, n, n) for n in range(20_000)
    )
    emitted = b"".join(b'{"n": %d, "half": %d.5}\n' % (n, n) for n in range(3000))
    rundir = make_run(tmp_path / "disturbed", METRICS, exited=False, host_metrics=True, units="ms")
    kills = 0
    process = start(rundir)
    pieces_left = 10
    try:
        with rundir.output.open("ab", buffering=0) as log, rundir.emit.open("ab", buffering=0) as fifo:
            log_at = emit_at = 0
            while log_at < len(output) or emit_at < len(emitted):
                log.write(output[log_at : log_at + (size := chance.randrange(20_000))])
                log_at += size
                fifo.write(emitted[emit_at : emit_at + (size := chance.randrange(2000))])
                emit_at += size
                time.sleep(chance.random() / 10)
                pieces_left -= 1
                if pieces_left == 0:
                    process.kill()
                    process.wait(timeout=LIMIT_SECONDS)
                    kills += 1
                    process = start(rundir)
                    pieces_left = chance.randrange(5, 20)
        finish_run(rundir)
        assert process.wait(timeout=LIMIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait(timeout=LIMIT_SECONDS)

    # then it recorded what an undisturbed one does
    whole = make_run(tmp_path / "whole", METRICS, output=output, emitted=emitted, units="ms")
    extract(whole)
    assert kills > 3
    assert entries(rundir) == entries(whole)
    assert contents(rundir) == contents(whole)
    assert len(entries(rundir)["log"]) == 60_000
    undisturbed, disturbed = extracted(whole), extracted(rundir)
    assert undisturbed["headlines"].keys() == {"loss{word=step}", "accuracy", "rate"}
    host = len(entries(rundir, "host")["host"])
    assert host > 0
    assert disturbed == {**undisturbed, "records": undisturbed["records"] + host}


def test_an_extractor_of_many_process_logs_killed_at_random_loses_no_record(tmp_path: Path) -> None:
    # given eight processes that appear one by one and print in pieces that end anywhere
    chance = random.Random(3)
    printed = [
        b"".join(b"step %d loss=%d.25\r\x1b[1macc=%d.5\x1b[0m\n" % (n, n * rank, n) for n in range(600))
        for rank in range(8)
    ]
    at = [0] * len(printed)
    rundir = make_run(tmp_path / "disturbed", METRICS, processes=[b""], exited=False, units="ms")
    process, kills = start(rundir), 0
    try:
        while any(place < len(text) for place, text in zip(at, printed, strict=True)):
            for _ in range(chance.randrange(1, 30)):
                rank = chance.choice(
                    [each for each, text in enumerate(printed) if at[each] < len(text)] or [0]
                )
                with (rundir.processes / f"{rank}.log").open("ab") as file:
                    file.write(printed[rank][at[rank] : at[rank] + (size := chance.randrange(4000))])
                at[rank] += size
            time.sleep(chance.random() / 4)
            # when it is killed meanwhile
            process.kill()
            process.wait(timeout=LIMIT_SECONDS)
            kills += 1
            process = start(rundir)
        finish_run(rundir)
        assert process.wait(timeout=LIMIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait(timeout=LIMIT_SECONDS)

    # then it recorded what an undisturbed one does, of each process
    whole = make_run(tmp_path / "whole", METRICS, processes=printed, units="ms")
    extract(whole)
    assert kills > 3
    for rank in range(len(printed)):
        assert contents(rundir, f"log/{rank}") == contents(whole, f"log/{rank}")
        assert len(contents(rundir, f"log/{rank}")) == 1200
    assert extracted(rundir) == extracted(whole)
