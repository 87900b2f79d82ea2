"""A benchmark that prints more numbers than are extracted while it runs: its end waits for them, within a limit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_runs import (
    environment,
    events_of,
    extractors,
    records_of,
    result_of,
    run_agent,
    start_agent,
    wait_until,
    write_job,
)

LINES = 25_000
# No text stands in all of their matches, so that every line is searched with every one: that is slow.
SLOW = [{"name": f"metric_{n}", "pattern": rf"[{chr(97 + n)}_]\d+:(\d+)"} for n in range(24)]
METRICS = [*SLOW, {"name": "last", "pattern": r"at the (\d+)nd", "required": True}]
PADDING = 60 * "_1"
"""What each pattern tries sixty times in vain: makes a line some ten times as slow."""
KEY = ("src", "off", "i", "k", "name", "value")


def chatty_job(folder: Path, *, lines: int = LINES, padding: str = "", **limits: str) -> Path:
    """Write a job whose benchmark has ended long before its numbers are extracted."""
    text = folder / "text"
    text.write_text("".join(f"a1:{n} b2:{n + 1} c3:{n}{padding}\n" for n in range(lines)) + "at the 2nd\n")
    return write_job(folder, ["cat", text], metrics=METRICS, limits=limits)


def log_records(rundir: Path) -> list[tuple[Any, ...]]:
    records = records_of(rundir)
    assert [each["seq"] for each in records] == list(range(len(records)))
    return [tuple(each[name] for name in KEY) for each in records if each["src"] == "log"]


def extracted_undisturbed(rundir: Path, folder: Path) -> list[tuple[Any, ...]]:
    folder.mkdir()
    for name in ("job.toml", "output.log", "exit.json"):
        (folder / name).write_bytes((rundir / name).read_bytes())
    command = [sys.executable, "-m", "bai_agent.run.extractor", str(folder)]
    subprocess.run(command, check=True, timeout=120, env=environment(), stderr=subprocess.DEVNULL)
    return log_records(folder)


def extracting(rundir: Path) -> bool:
    """Return whether the benchmark has ended, and some of its numbers are there."""
    metrics = rundir / "metrics.jsonl"
    return (rundir / "exit.json").exists() and metrics.exists() and metrics.stat().st_size > 0


def grown(rundir: Path, *, by: int) -> Callable[[], bool]:
    """Return whether there are so many more bytes of records than now, or all."""
    metrics = rundir / "metrics.jsonl"
    wanted = by + (metrics.stat().st_size if metrics.exists() else 0)
    return lambda: (
        (rundir / "extracted.json").exists() or (metrics.exists() and metrics.stat().st_size >= wanted)
    )


def test_an_extraction_longer_than_limits_drain_loses_no_value(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(chatty_job(tmp_path, drain="1ms"), rundir)

    result = result_of(rundir)
    assert (code, result["outcome"]) == (0, "succeeded"), result
    assert len(log_records(rundir)) == 3 * LINES + 1
    assert result["metrics"]["remaining_bytes"] == 0
    (told,) = [each for each in events_of(rundir) if each["type"] == "extraction"]
    assert told["seconds"] > 0.001
    assert result["phases"]["drain"] >= told["seconds"]


def test_output_not_searched_at_extract_timeout_is_counted_and_changes_no_outcome(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(chatty_job(tmp_path, extract_timeout="0s"), rundir)

    result = result_of(rundir)
    assert (code, result["outcome"]) == (0, "succeeded"), result
    metrics = result["metrics"]
    assert metrics["remaining_bytes"] > 0
    assert metrics["log_bytes"] + metrics["remaining_bytes"] == (rundir / "output.log").stat().st_size
    assert metrics["records"] == len(records_of(rundir))
    (left, missing) = [each for each in result["warnings"] if "searched" in each]
    assert '"last"' in left
    assert f"{metrics['remaining_bytes']:,} bytes" in missing
    assert "bai extract job" in missing


def test_kills_during_the_extraction_lose_and_duplicate_no_record(tmp_path: Path) -> None:
    """Each kill comes after so many more bytes of records, so that all meet the extraction, however fast it is."""
    rundir = tmp_path / "run"
    # Records are written for each 128 KiB of the log, some 370 kB for each of 27 such blocks.
    job = chatty_job(tmp_path, padding=PADDING, drain="100ms")
    chance = random.Random(34)
    agent = start_agent(job, rundir)
    try:
        wait_until((rundir / "exit.json").exists)
        for number in range(6):
            wait_until(grown(rundir, by=chance.randrange(1, 600_000)), every=0.001)
            assert not (rundir / "extracted.json").exists(), f"all was extracted after {number} kills"
            if number % 2:
                (extractor,) = extractors(rundir)
                os.kill(extractor, signal.SIGKILL)
            else:
                agent.kill()
                agent.wait(timeout=60)
                agent = start_agent(job, rundir)
        assert not (rundir / "extracted.json").exists(), "the last kill met no extraction"
        assert agent.wait(timeout=120) == 0
    finally:
        agent.kill()
        agent.wait(timeout=60)

    assert result_of(rundir)["outcome"] == "succeeded"
    records = log_records(rundir)
    assert len(records) == 3 * LINES + 1
    assert records == extracted_undisturbed(rundir, tmp_path / "again")


@pytest.mark.parametrize("how", ["cancelled", "told to stop"])
def test_a_cancelled_run_does_not_wait_for_the_rest_of_the_extraction(tmp_path: Path, how: str) -> None:
    rundir = tmp_path / "run"
    with start_agent(chatty_job(tmp_path, lines=6 * LINES, padding=PADDING, drain="4s"), rundir) as agent:
        try:
            wait_until(lambda: extracting(rundir))
            if how == "cancelled":
                (rundir / "cancel.json").write_text(json.dumps({"time": 0, "by": "a test"}))
            else:
                agent.terminate()
            code = agent.wait(timeout=60)
        finally:
            agent.kill()

    # It had ended, and well, before anybody wanted that.
    result = result_of(rundir)
    assert (code, result["outcome"]) == (0, "succeeded"), result
    assert result["metrics"]["remaining_bytes"] > 0
