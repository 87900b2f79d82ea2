"""Logs of single processes of the benchmark: extracted as output.log is, and labelled by process."""

from __future__ import annotations

import json
import os
import resource
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    extracted,
    finish_run,
    make_run,
    records,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from bai_agent.job.descriptor_file import read_job
from bai_agent.job.run_directory import RunDir, boot_id
from bai_agent.metrics import logs
from bai_agent.metrics.checkpoint import read_checkpoint
from bai_agent.metrics.process import Extractor
from bai_agent.metrics.search_limit import SearchLimit
from bai_agent.metrics.watchdog import blame, open_mark

LOSS = ("loss", r"loss=(\S+)")
SPLIT = ("time", r"(?P<part>\w+) step=(?P<step>\d+) took (?P<value>\d+)")


def values(rundir: RunDir, name: str = "loss") -> dict[str, list[float]]:
    """Return what was recorded of each process, in order."""
    found: dict[str, list[float]] = {}
    for each in records(rundir):
        if each["name"] == name:
            found.setdefault(each["labels"]["process_rank"], []).append(each["value"])
    return found


def ended(rundir: RunDir, process: int | str, **said: Any) -> None:
    (rundir.processes / f"{process}.json").write_text(json.dumps(said))


def test_values_are_taken_from_process_logs_and_not_from_the_merged_log(tmp_path: Path) -> None:
    rundir = make_run(
        tmp_path, [LOSS], processes=[b"loss=1\nloss=2", b"loss=3\n"], output=b"loss=1\nloss=3\nloss=2\n"
    )

    extract(rundir)

    assert values(rundir) == {"0": [1, 2], "1": [3]}
    assert sorted(each["src"] for each in records(rundir) if each["name"] == "loss") == [
        "log/0",
        "log/0",
        "log/1",
    ]
    last = extracted(rundir)
    assert (last["lines"], last["log_bytes"], last["per_metric"]) == (3, 20, {"loss": 3})


def test_labels_of_a_pattern_are_added_to_the_process_rank(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [SPLIT], processes=[b"a_b step=4 took 7\nload step=5 took 8\n"])

    extract(rundir)

    first, second = (each for each in records(rundir) if each["name"] == "time")
    assert (first["step"], first["labels"]) == (4, {"process_rank": "0", "part": "a_b"})
    assert (second["step"], second["labels"]) == (5, {"process_rank": "0", "part": "load"})


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_restarting_after_any_prefix_gives_the_same_records(tmp_path: Path, with_checkpoint: bool) -> None:
    # given an undisturbed run of three processes
    printed = [b"loss=1 loss=2\nloss=x\nloss=3", b"loss=4\n", b"\nloss=5 loss=6\n"]
    whole = make_run(tmp_path, [LOSS], processes=printed, emitted=b'{"a": 1}\n')
    extract(whole)
    sources = ("log/0", "log/1", "log/2", "emit", "run")
    expected, last = entries(whole, *sources), extracted(whole)

    # when the file ends anywhere in it
    for _ in extract_after_any_prefix(whole, with_checkpoint=with_checkpoint, step=7):
        # then nothing is missing and nothing is there twice
        assert entries(whole, *sources) == expected
        assert extracted(whole) == last


piece = st.tuples(
    st.integers(0, 3), st.sampled_from([b"loss=%d\n", b"loss=%d ", b"\rx", b"\n", b"los", b"s=9\n"])
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(piece, st.sampled_from(["killed", "restarted later"])), max_size=25))
def test_each_value_is_recorded_once_despite_kills(steps: Sequence[Any]) -> None:
    printed = [b""] * 4
    with tempfile.TemporaryDirectory() as folder:
        rundir = make_run(Path(folder), [LOSS], processes=[b""], exited=False)
        for number, step in enumerate(steps):
            if step == "killed":
                extract_until_killed(rundir, rounds=1 + number % 3)
            elif step == "restarted later":
                # A checkpoint that is older than the records, as after a kill within a second.
                old = rundir.extractor_offset.read_bytes() if rundir.extractor_offset.exists() else None
                extract_until_killed(rundir)
                if old is not None:
                    rundir.extractor_offset.write_bytes(old)
            else:
                rank, text = step
                text = text % number if b"%" in text else text
                printed[rank] += text
                with (rundir.processes / f"{rank}.log").open("ab") as file:
                    file.write(text)
        finish_run(rundir)
        extract(rundir)

        # Each as if it had been the only one.
        with tempfile.TemporaryDirectory() as alone:
            for rank, text in enumerate(printed):
                expected = make_run(Path(alone, str(rank)), [LOSS], output=text)
                extract(expected)
                ours = [each[1:] for each in entries(rundir, f"log/{rank}")[f"log/{rank}"]]
                assert ours == [each[1:] for each in entries(expected, "log")["log"]]


def test_output_after_the_end_of_a_process_gives_no_metric(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], processes=[b"loss=1\nloss=2\n", b"loss=3\n"])
    ended(rundir, 0, code=0, signal=None, asked=None, time=1, output_bytes=7)

    extract(rundir)

    assert values(rundir) == {"0": [1], "1": [3]}


def test_a_process_that_starts_later_is_found(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], processes=[b"loss=1\n"], exited=False)
    late = iter((1, 12))

    def start_another(_: float) -> None:
        rank = next(late, None)
        if rank is None:
            finish_run(rundir)
        else:
            (rundir.processes / f"{rank}.log").write_bytes(b"loss=%d\n" % rank)

    Extractor(rundir, read_job(rundir.job), sleep=start_another).run()

    assert values(rundir) == {"0": [1], "1": [1], "12": [12]}
    assert not any("late" in each for each in records(rundir))


def test_output_written_while_no_extractor_ran_is_marked_late(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], processes=[b"loss=1\n"], exited=False)
    extract_until_killed(rundir)
    with (rundir.processes / "0.log").open("ab") as file:
        file.write(b"loss=2\n")
    finish_run(rundir)

    extract(rundir)

    assert [each.get("late") for each in records(rundir) if each["name"] == "loss"] == [None, True]


def test_only_a_limited_number_of_files_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MOST_OPEN", 3)
    rundir = make_run(tmp_path, [LOSS], processes=[b"loss=%d\n" % rank for rank in range(40)], exited=False)
    extract_until_killed(rundir)
    opened: list[int] = []

    def sleep(_: float) -> None:
        links = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        opened.append(sum(link.is_relative_to(rundir.processes) for link in links))
        finish_run(rundir)

    # At no time, the start included
    with few_files():
        Extractor(rundir, read_job(rundir.job), sleep=sleep).run()

    assert opened[0] == 3
    assert values(rundir) == {str(rank): [rank] for rank in range(40)}


@contextmanager
def few_files() -> Iterator[None]:
    """Let no more than some twenty files be opened meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Tried, not read from /proc: a thread that waits in accept() holds one that is not listed.
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    for each in free:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def write_runs(rundir: RunDir, *, runs: int, ranks: int) -> None:
    """Write what the processes of a series of runs leave, which have all ended, and make its job one with `[repeat]`."""
    rundir.job.write_text(rundir.job.read_text() + tomli_w.dumps({"repeat": {"runs": runs}}))
    rundir.processes.mkdir()
    lines = []
    for run in range(runs):
        place = {"run": run, "repeat": run, "output_bytes": 0, "emit_bytes": 0, "time": 5}
        lines.append({"event": "began", **place, "pid": 2**22 + 1, "start": 1, "boot_id": boot_id()})
        lines.append({"event": "ended", **EXITED, **place})
        for rank in range(ranks):
            (rundir.processes / f"{rank}-{run}.log").write_bytes(b"loss=%d\n" % (100 * run + rank))
            ended(rundir, f"{rank}-{run}", code=0, signal=None, asked=None, time=5, output_bytes=9)
    rundir.repeats.write_text("".join(json.dumps(each) + "\n" for each in lines))


@pytest.mark.parametrize("leaves_rest", [False, True])
@pytest.mark.parametrize("read_before", [False, True])
def test_only_a_limited_number_of_earlier_logs_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_before: bool, leaves_rest: bool
) -> None:
    # given a series whose extractor was killed, when it had read all logs or none
    monkeypatch.setattr(logs, "_MOST_OPEN", 3)
    rundir = make_run(tmp_path, [LOSS], exited=False, mpi=True)
    write_runs(rundir, runs=10, ranks=4)
    if read_before:
        extract_until_killed(rundir)
    finish_run(rundir)

    # when another one goes on
    with few_files():
        extractor = Extractor(rundir, read_job(rundir.job), sleep=lambda _: None)
        if leaves_rest:
            extractor.leave_rest()
        extractor.run()

    # then it can read all
    if leaves_rest and not read_before:
        assert extracted(rundir)["remaining_bytes"] == 352
    else:
        expected = {str(rank): [100 * run + rank for run in range(10)] for rank in range(4)}
        assert {rank: sorted(each) for rank, each in values(rundir).items()} == expected


def test_a_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], processes=[b"loss=1\n", b"loss=2\nloss="], exited=False)

    def truncate(_: float) -> None:
        if not rundir.exit.exists():
            (rundir.processes / "1.log").write_bytes(b"loss=3\n")
            finish_run(rundir)

    Extractor(rundir, read_job(rundir.job), sleep=truncate).run()

    assert [(each[1], each[6]) for each in entries(rundir, "log/1")["log/1"]] == [(0, 2), (1, 3)]
    assert values(rundir)["0"] == [1]
    (warning,) = (each for each in extracted(rundir)["warnings"] if "truncated" in each)
    assert warning.startswith("processes/1.log was truncated once")


def test_a_pattern_disabled_in_one_process_log_is_disabled_in_all(tmp_path: Path) -> None:
    # given two processes, of which one is at a line that a pattern takes too long for
    rundir = make_run(tmp_path, [LOSS], processes=[b"loss=1\nloss=2\n", b"loss=3\n"], exited=False)
    extract_until_killed(rundir)
    limit = SearchLimit(open_mark(rundir.extractor_search))
    limit.log = 0
    limit.search(0, 14)
    limit.rest()
    known = read_checkpoint(rundir.extractor_offset, metrics=1, metrics_file=rundir.metrics)
    assert known is not None
    for rank in range(3):
        with (rundir.processes / f"{rank}.log").open("ab") as file:
            file.write(b"loss=4\n")

    # when that is switched off, and the extraction goes on, with another restart
    blame(rundir.extractor_search, rundir.extractor_disabled, places=known.logs)
    extract_until_killed(rundir)
    rundir.extractor_offset.unlink()
    finish_run(rundir)
    extract(rundir)

    # then it is off from there on, also in the logs of others, and one warning says so
    assert values(rundir) == {"0": [1, 2], "1": [3]}
    (warning,) = (each for each in extracted(rundir)["warnings"] if "switched off" in each)
    assert "at byte 14 of processes/0.log" in warning


def test_a_required_metric_may_come_from_any_process(tmp_path: Path) -> None:
    rundir = make_run(
        tmp_path, [LOSS, ("other", "never")], processes=[b"nothing\n", b"loss=1\n"], required=True
    )
    extract(rundir)
    assert extracted(rundir)["required_missing"] == []


def test_links_and_pipes_among_the_logs_are_not_read(tmp_path: Path) -> None:
    # given a benchmark, which may be another user than we are, that puts these there
    (tmp_path / "secret").write_bytes(b"loss=666\n")
    rundir = make_run(tmp_path / "run", [LOSS], processes=[b"loss=1\n"])
    (rundir.processes / "1.log").symlink_to(tmp_path / "secret")
    os.mkfifo(rundir.processes / "2.log")
    for rank, make in enumerate((os.mkfifo, os.mkdir)):
        make(rundir.processes / f"{rank}.json")
    (rundir.processes / "3.log").mkdir()

    extract(rundir)

    assert values(rundir) == {"0": [1]}
