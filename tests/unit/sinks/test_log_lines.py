"""The benchmark's output becomes JSON lines in a file, each line once, despite errors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_runs import wait_until

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.sink_tables import LogLines
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.job.schema.tables import read_table
from bai_agent.sinks import sinks_of
from bai_agent.sinks.log_lines import LogLinesFile
from bai_agent.sinks.sink import Delivery

IDENTITY = Identity(id="job", action_id="action", client_id="client", labels={"task_name": "t"})
LABELS = {"task_name": "t", "action-id": "action", "client-id": "client"}


class Run:
    """A run directory whose output grows, and the file that a shipper reads."""

    def __init__(self, folder: Path) -> None:
        self.rundir = RunDir(folder / "run")
        self.rundir.kept_output.parent.mkdir(parents=True)
        self.file = folder / "shipped" / "benchmark.jsonl"
        self.redactor = Redactor()

    def print(self, content: bytes) -> None:
        with self.rundir.kept_output.open("ab") as file:
            file.write(content)

    def sink(self) -> LogLinesFile:
        job = Job(job=IDENTITY, benchmark=Benchmark(argv=("x",)), log_lines=LogLines(path=str(self.file)))
        (made,) = sinks_of(job, self.rundir, rank=0, redactor=self.redactor)
        assert isinstance(made, LogLinesFile)
        return made

    @contextmanager
    def shipping(self) -> Iterator[LogLinesFile]:
        sink = self.sink()
        sink.start()
        try:
            yield sink
        finally:
            sink.finish(time.monotonic() + 30)

    def ship(self) -> Delivery:
        """Have all shipped that is there."""
        sink = self.sink()
        sink.start()
        return sink.finish(time.monotonic() + 30)

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_bytes().splitlines()]

    def texts(self) -> list[str]:
        return [each["log"] for each in self.entries()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_log_lines_have_the_format_that_the_benchmark_service_searches(run: Run) -> None:
    run.print("loss=1\n\nfertig: ü\r\nlast, without an end".encode())

    delivery = run.ship()

    assert delivery == Delivery(delivered=4, undelivered=0, error=None)
    assert run.texts() == ["loss=1", "", "fertig: ü", "last, without an end"]
    for each in run.entries():
        assert each["kubernetes"] == {"container_name": "benchmark", "labels": LABELS}
        assert each["@timestamp"].endswith("Z")


def test_a_line_without_newline_is_written_even_after_the_deadline(run: Run) -> None:
    run.print(b"one\ntwo")
    sink = run.sink()
    sink.start()
    wait_until(lambda: run.file.exists() and run.texts() == ["one"])

    sink.finish(time.monotonic() - 1.0)

    sink.join(60.0)
    assert run.texts() == ["one", "two"]


def test_lines_are_written_while_the_benchmark_runs(run: Run) -> None:
    with run.shipping() as sink:
        run.print(b"one\nhal")
        sink.flush_soon()
        wait_until(lambda: run.file.exists() and run.texts() == ["one"])
        run.print(b"f\n")

    assert run.texts() == ["one", "half"]


def test_a_restarted_agent_continues_after_the_last_written_line(run: Run) -> None:
    run.print(b"one\n")
    run.ship()
    run.print(b"two\n")

    assert run.ship().delivered == 2
    assert run.texts() == ["one", "two"]


def test_a_line_cut_off_by_a_killed_agent_does_not_corrupt_the_next(run: Run) -> None:
    run.file.parent.mkdir()
    run.file.write_text('{"log": "torn')
    run.print(b"one\n")

    run.ship()

    torn, whole = run.file.read_text().splitlines()
    assert torn == '{"log": "torn'
    assert json.loads(whole)["log"] == "one"


def test_a_file_that_was_moved_away_is_created_again(run: Run) -> None:
    with run.shipping() as sink:
        run.print(b"one\n")
        sink.flush_soon()
        wait_until(run.file.exists)
        run.file.rename(run.file.with_suffix(".1"))
        run.print(b"two\n")

    assert run.texts() == ["two"]


def test_truncated_output_is_read_from_its_beginning(run: Run) -> None:
    run.print(b"a long first line\n")
    run.ship()
    os.truncate(run.rundir.kept_output, 0)
    run.print(b"new\n")

    run.ship()

    assert run.texts() == ["a long first line", "new"]


def test_a_long_line_becomes_several_without_loss(run: Run) -> None:
    long = os.urandom(200_000).hex()
    run.print(f"{long}\nshort\n".encode())

    run.ship()

    *pieces, last = run.texts()
    assert "".join(pieces) == long
    assert max(len(each) for each in pieces) <= 64 * 1024
    assert last == "short"


def test_bytes_that_are_not_utf8_are_replaced(run: Run) -> None:
    run.print(b"\xff\x00ok\n")

    run.ship()

    assert run.texts() == ["�\x00ok"]


def test_secrets_are_redacted_in_log_lines(run: Run) -> None:
    run.redactor.know(["hunter2hunter2"])
    run.print(b"password hunter2hunter2\n")

    run.ship()

    assert run.texts() == ["password ***"]


@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
def test_a_path_that_is_not_a_file_is_reported_in_a_sentence(run: Run, kind: str) -> None:
    run.file.parent.mkdir()
    if kind == "folder":
        run.file.mkdir()
    elif kind == "link":
        run.file.symlink_to(run.file.parent / "elsewhere")
    else:
        os.mkfifo(run.file)
    run.print(b"one\ntwo\n")

    delivery = run.ship()

    assert (delivery.delivered, delivery.undelivered) == (0, 2)
    assert f"{run.file} cannot be written" in str(delivery.error)
    (warning,) = delivery.warnings
    assert "2 of 2 lines of the output did not reach" in warning


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(DescriptorError, match=r'\[log_lines\] path: "benchmark\.jsonl" is not absolute'):
        read_table(LogLines, {"path": "benchmark.jsonl"}, where="job.toml: [log_lines]")
