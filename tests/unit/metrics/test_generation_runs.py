"""The extractor in a job with restarts: each line gets its generation, even if the extractor is killed anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from extraction_runs import (
    EXITED,
    entries,
    extract,
    extract_after_any_prefix,
    extract_until_killed,
    make_run,
    records,
)

from bai_agent.job.run_directory import RunDir, boot_id
from bai_agent.metrics.logs import source_of, source_of_number
from bai_agent.strategy.process_ends import ProcessLog

PATTERN = r"v=(\d+)"
NO_PID = 2**22 + 1


def restarted(folder: Path, printed: Sequence[bytes], *, lost: Sequence[int] = (), **more: Any) -> RunDir:
    """Make the run directory of a job whose generations printed that; the last one has not begun to end."""
    rundir = make_run(folder, [("v", PATTERN)], output=b"", exited=False, **more)
    rundir.job.write_text(rundir.job.read_text() + tomli_w.dumps({"restart": {"max_restarts": 9}}))
    for number, content in enumerate(printed):
        begin(rundir, number)
        print_(rundir, content)
        if number < len(printed) - 1:
            finish(rundir, number, lost=number in lost)
    return rundir


def begin(rundir: RunDir, number: int) -> None:
    own = rundir.of_generation(number)
    own.shim_folder.mkdir(parents=True, exist_ok=True)
    if number:
        own.decision.write_text("{}")
    process = {"shim_pid": NO_PID - 1, "shim_start": 1, "pid": NO_PID - 1, "start": 1, "boot_id": boot_id()}
    size = rundir.output.stat().st_size
    own.started.write_text(json.dumps({**process, "time": 5 + number, "output_bytes": size, "emit_bytes": 0}))


def print_(rundir: RunDir, content: bytes) -> None:
    rundir.output.write_bytes(rundir.output.read_bytes() + content)


def finish(rundir: RunDir, number: int, *, lost: bool = False) -> None:
    size = rundir.output.stat().st_size
    ended = {"lost": True} if lost else {**EXITED, "output_bytes": size, "emit_bytes": 0, "time": 6}
    rundir.of_generation(number).exit.write_text(json.dumps(ended))


def end(rundir: RunDir) -> None:
    rundir.end.parent.mkdir(exist_ok=True)
    rundir.end.write_text("{}")


def found(rundir: RunDir) -> list[tuple[int, float]]:
    return [(each["generation"], each["value"]) for each in records(rundir) if each["name"] == "v"]


def test_records_of_output_and_runs_have_their_generation(tmp_path: Path) -> None:
    rundir = restarted(tmp_path, [b"v=1\nv=2", b"v=3\n", b"v=4"])
    finish(rundir, 2)
    end(rundir)

    extract(rundir)

    assert found(rundir) == [(0, 1), (0, 2), (1, 3), (2, 4)]
    facts = [each for each in records(rundir) if each["name"] == "bai_run_wall_seconds"]
    assert [(each["generation"], each["off"]) for each in facts] == [(0, 0), (1, 1), (2, 2)]
    assert all("repeat" not in each for each in records(rundir))


def test_output_between_two_generations_gives_no_metric(tmp_path: Path) -> None:
    rundir = restarted(tmp_path, [b"v=1\n"])
    finish(rundir, 0)
    print_(rundir, b"v=999\n")
    begin(rundir, 1)
    print_(rundir, b"v=2\n")
    finish(rundir, 1)
    end(rundir)

    extract(rundir)

    assert found(rundir) == [(0, 1), (1, 2)]


def test_a_generation_without_a_recorded_end_ends_at_the_next_one(tmp_path: Path) -> None:
    rundir = restarted(tmp_path, [b"v=1\nv=2", b"v=3\n"], lost=[0])
    finish(rundir, 1, lost=True)
    end(rundir)

    extract(rundir)

    assert found(rundir) == [(0, 1), (0, 2), (1, 3)]


def test_the_extractor_ends_only_after_the_last_generation(tmp_path: Path) -> None:
    rundir = restarted(tmp_path, [b"v=1\n"])
    finish(rundir, 0)

    extract_until_killed(rundir, rounds=3)
    assert not rundir.extracted.exists()
    begin(rundir, 1)
    print_(rundir, b"v=2\n")
    finish(rundir, 1)
    end(rundir)
    extract(rundir)

    assert found(rundir) == [(0, 1), (1, 2)]


def test_the_extractor_does_not_wait_for_a_generation_that_was_never_launched(tmp_path: Path) -> None:
    rundir = restarted(tmp_path, [b"v=1\n"])
    finish(rundir, 0)
    unlaunched = rundir.of_generation(1)
    unlaunched.shim_folder.mkdir(parents=True)
    unlaunched.decision.write_text("{}")
    begin(rundir, 2)
    print_(rundir, b"v=2\n")
    finish(rundir, 2)
    end(rundir)

    extract(rundir)

    assert found(rundir) == [(0, 1), (2, 2)]


def test_a_node_may_be_in_some_generations_only(tmp_path: Path) -> None:
    # Given a node that is in the generations 2 and 5
    rundir = make_run(tmp_path, [("v", PATTERN)], output=b"", exited=False)
    rundir.job.write_text(rundir.job.read_text() + tomli_w.dumps({"restart": {"max_restarts": 9}}))
    extract_until_killed(rundir, rounds=2)
    for number, content in ((2, b"v=1\n"), (5, b"v=2\nv=3")):
        begin(rundir, number)
        print_(rundir, content)
        extract_until_killed(rundir, rounds=2)
        finish(rundir, number)
        print_(rundir, b"v=999\n")
    end(rundir)

    extract(rundir)

    assert found(rundir) == [(2, 1), (5, 2), (5, 3)]
    facts = [each for each in records(rundir) if each["name"] == "bai_run_wall_seconds"]
    assert [each["generation"] for each in facts] == [2, 5]


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_restarting_after_any_prefix_gives_the_same_records(tmp_path: Path, with_checkpoint: bool) -> None:
    rundir = restarted(tmp_path, [b"v=1\n", b"v=2\nv=3", b"v=4\n"], lost=[1])
    finish(rundir, 2)
    end(rundir)
    extract(rundir)
    whole = entries(rundir)

    for _ in extract_after_any_prefix(rundir, with_checkpoint=with_checkpoint, step=41):
        assert entries(rundir) == whole


def test_each_process_log_of_each_generation_has_its_own_source(tmp_path: Path) -> None:
    rundir = restarted(tmp_path, [b"", b""], processes=[b"v=1\n", b"v=2\n"])
    (rundir.processes / "0-g1.log").write_bytes(b"v=3\n")
    finish(rundir, 1)
    end(rundir)

    extract(rundir)

    of_processes = {
        (each["src"], each["generation"], each["labels"]["process_rank"], each["value"])
        for each in records(rundir)
        if each["name"] == "v"
    }
    assert of_processes == {("log/0", 0, "0", 1), ("log/1", 0, "1", 2), ("log/0/g1", 1, "0", 3)}


@pytest.mark.parametrize(
    "log",
    [
        ProcessLog(path=Path("3.log"), rank=3),
        ProcessLog(path=Path("3-7.log"), rank=3, run=7),
        ProcessLog(path=Path("999999-g12.log"), rank=999_999, generation=12),
    ],
)
def test_the_source_of_a_log_is_recovered_from_its_number(log: ProcessLog) -> None:
    from bai_agent.metrics.follow import Follower
    from bai_agent.metrics.logs import Log

    number = Log(source_of(log), Follower(()), (0, 0), log).number

    assert number is not None
    assert source_of_number(number) == source_of(log)
