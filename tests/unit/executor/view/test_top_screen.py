from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from handmade_job import START, HandmadeJob
from rich.cells import cell_len
from rich.console import Console

from bai_agent.job.descriptor.benchmark_tables import Repeat
from bai_agent.job.descriptor_file import job_table
from executor.records.newest import JobGlance
from executor.view.top_screen import TopScreen


def job(folder: Path, *, nodes: int = 1) -> HandmadeJob:
    made = HandmadeJob(folder, "digits-20261121-5209fd", nodes=nodes)
    for rank in range(nodes):
        node = made.on(rank)
        node.phases("prepare", "pull", until="run")
        node.measures("loss", 3.0, 2.0, 1.0, units="nats")
        node.measures("images per second of the whole cluster", 1234.5, units="images/s", src="emit")
        node.measures("bai_host_cpu_percent", 97.0, src="host", units="%")
        node.measures("bai_host_memory_used_bytes", 3.1 * 2**30, src="host", units="B")
        node.measures("bai_host_gpu0_utilization_percent", 88.0, src="host", units="%")
        node.measures("bai_host_network_receive_bytes_per_second", 2048, src="host", units="B/s")
    made.event("warning", message="Something is odd: \x1b[2J" + "and on " * 40)
    return made


def drawn(
    made: HandmadeJob,
    *,
    width: int = 80,
    height: int = 24,
    unicode: bool = True,
    hint: str | None = "q leaves",
) -> list[str]:
    glance = JobGlance(made.record)
    glance.look()
    screen = TopScreen(made.record.job_id, others=["other-1", "other-2"], unicode=unicode)
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=False, highlight=False)
    console.print(screen.draw(glance, width=width, height=height, hint=hint), soft_wrap=False)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_top_shows_phases_machine_metrics_and_other_jobs(tmp_path: Path) -> None:
    lines = drawn(job(tmp_path))
    text = "\n".join(lines)
    assert "digits-20261121-5209fd  run" in lines[0]
    assert "prepare 0.2 s · pull 0.2 s" in text
    assert [line.split() for line in lines if line.startswith("0 ")] == [
        ["0", "run", "97", "%", "3.1", "GiB", "88", "%", "2.0", "KiB/s"]
    ]
    (loss,) = [line for line in lines if line.startswith("loss ↓")]
    assert loss.split()[2:4] == ["1", "nats"]
    assert loss.endswith(("█▅▁", "█▄▁"))
    assert "also running: other-1, other-2" in text
    assert lines[-1] == "q leaves"


@pytest.mark.parametrize("width", [20, 33, 40, 58, 80, 200])
@pytest.mark.parametrize("nodes", [1, 3])
def test_no_line_is_wider_than_the_screen(tmp_path: Path, width: int, nodes: int) -> None:
    lines = drawn(job(tmp_path, nodes=nodes), width=width)
    assert all(cell_len(line) <= width for line in lines), lines
    assert not any("\x1b" in line for line in lines)
    assert any(line.startswith("lo") for line in lines)


def test_a_small_screen_shows_the_rows_that_fit_and_the_number_of_hidden_rows(tmp_path: Path) -> None:
    made = job(tmp_path)
    for number in range(50):
        made.measures(f"metric {number}", number)
    lines = drawn(made, height=15)
    assert len(lines) <= 14
    assert any(line.startswith("and ") and line.endswith(" more") for line in lines)


def test_a_terminal_without_unicode_gets_ascii(tmp_path: Path) -> None:
    made = job(tmp_path)
    made.event("warning", message="The number of nodes fell: 4 → 2 …")
    lines = drawn(made, unicode=False)
    assert "The number of nodes fell: 4 -> 2 .." in lines
    assert all(line.isascii() for line in lines)


def test_an_ended_job_shows_how_it_ended(tmp_path: Path) -> None:
    made = job(tmp_path)
    made.ends("failed", 1, sentence="The benchmark failed: it exited with code 7.")
    lines = drawn(made, hint=None)
    assert "FAILED" in lines[0]
    assert "The benchmark failed: it exited with code 7." in lines


@pytest.mark.parametrize(("until", "words"), [(None, "run 3 of 10"), (0.02, "run 3 of at most 10")])
def test_top_shows_the_number_of_the_current_repeat(tmp_path: Path, until: float | None, words: str) -> None:
    made = job(tmp_path)
    table = job_table(
        replace(made.job, repeat=Repeat(runs=10, until=until, metric="loss" if until else None))
    )
    made.store.put(made.record.key("job.toml"), tomli_w.dumps(table).encode())
    with (made.node / "metrics.jsonl").open("a") as file:
        record = {"src": "log", "name": "loss", "value": 1, "units": "", "timestamp": START, "repeat": 2}
        file.write(json.dumps(record) + "\n")
    assert words in drawn(made)[0]


def test_a_silent_job_is_reported(tmp_path: Path) -> None:
    made = HandmadeJob(tmp_path, started=START - 10**9)
    made.phases("prepare", until="run")
    assert any(line.startswith("the job has written nothing for ") for line in drawn(made))
