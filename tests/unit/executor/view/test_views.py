"""Output for people and for programs about a record written by hand."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from handmade_job import HandmadeJob, Unwatched
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from bai_agent.job.descriptor.metric_tables import Better, Headline, Metric
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.figures import LIMIT
from executor.documents.job_view import JobView
from executor.documents.metrics import metric_table
from executor.documents.screen import Screen
from executor.documents.summary import show_summary
from executor.records.reading import result_of
from executor.records.series import Series
from executor.view.live import LiveView
from executor.view.plain import JsonView, PlainView
from executor.view.watch import View, watch


def finished_job(folder: Path, **details: Any) -> HandmadeJob:
    """A run of two phases and three metrics that printed three lines, one of them with colours and a bell."""
    job = HandmadeJob(folder)
    job.event("agent_started", pid=1)
    job.phases("prepare", "pull", until="run")
    job.prints("epoch 1 loss=0.5\n\x1b[32mepoch 2\x1b[0m loss=0.25\x07\nno newline at the end")
    job.measures("loss", 0.5, 0.25, units="nats")
    job.measures("bai_host_cpu_percent", 97.0, src="host")
    job.measures("bai_host_memory_used_bytes", 2.0 * 2**30, src="host")
    job.event("warning", message="a pattern was switched off")
    job.event("benchmark_exited", code=0, signal=None, wall_seconds=3.0)
    job.event("phase", phase="run", state="finished", seconds=3.25)
    job.phases("drain")
    job.ends(**details)
    return job


def picture_of(job: HandmadeJob) -> JobView:
    return JobView(job_id=job.record.job_id, job=job.job, place="/somewhere/digits-1")


def shown(job: HandmadeJob, view: View) -> None:
    watch(job.record, picture_of(job), view, Unwatched())


def terminal(*, width: int = 80, height: int = 24, encoding: str = "utf-8") -> tuple[Console, io.BytesIO]:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, errors="replace", write_through=True)
    console = Console(
        file=stream,
        force_terminal=True,
        width=width,
        height=height,
        color_system="standard",
        _environ={**os.environ, "TERM": "xterm"},
    )
    return console, raw


def without_control(text: str) -> str:
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)


def test_a_pipe_gets_the_benchmarks_bytes_and_plain_lines(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    shown(finished_job(tmp_path), PlainView())

    text = capfdbinary.readouterr().out.decode()
    told, _, summary = text.partition("[bai] drain finished in 0.2 s\n")
    assert told == (
        "[bai] job digits-1\n"
        "[bai] prepare finished in 0.2 s\n"
        "[bai] pull finished in 0.2 s\n"
        "[bai] a pattern was switched off\n"
        "epoch 1 loss=0.5\n\x1b[32mepoch 2\x1b[0m loss=0.25\x07\nno newline at the end\n"
        "[bai] run finished in 3.2 s\n"
    )
    assert "\x1b" not in summary
    assert "The benchmark finished successfully." in summary
    assert "/somewhere/digits-1" in summary
    assert not any(line.endswith(" ") for line in summary.splitlines())


def test_pulls_are_shown_by_path_without_bais_own_copy_of_the_scripts(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    # Given a job with scripts, data, and a warning after its benchmark's end
    job = HandmadeJob(tmp_path)
    data, scripts = "file:///my%20data/train.npz", "/the store/digits-1/scripts/"
    own = Source(
        src="file:///the%20store/digits-1/scripts/", path=".", kind=SourceKind.SCRIPTS, directory=True
    )
    job_view = JobView(job_id="digits-1", job=replace(job.job, sources=(own,)), place="")
    for src in (scripts, data):
        job.event("pull", src=src, path="", bytes=2048, total_bytes=2048, done=True)
    job.event("benchmark_exited", code=1)
    job.event("warning", message="No file matched.")
    job.ends("failed", 1, warnings=["No file matched."])

    # When it is shown
    watch(job.record, job_view, PlainView(), Unwatched())

    # Then the data are named as a person would, and the warning stands in the summary only
    told = capfdbinary.readouterr().out.decode()
    assert "[bai] pulled /my data/train.npz: 2.0 KiB\n" in told
    assert "scripts" not in told
    assert told.count("No file matched.") == 1


@dataclass
class Truncates:
    """The benchmark truncates its output at the first look at it, and ends at the second."""

    job: HandmadeJob
    looks: int = 0
    pause_s: float = 0.0

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        self.looks += 1
        if self.looks == 1:
            (self.job.node / "output.log").write_bytes(b"anew\n")
        else:
            self.job.ends()
        return None


def test_every_view_says_that_the_output_was_truncated(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    console, raw = terminal()
    stream = io.StringIO()
    views: list[View] = [PlainView(), LiveView(console), JsonView(stream)]
    for number, view in enumerate(views):
        job = HandmadeJob(tmp_path, f"job-{number}")
        job.prints("a first line\nand half a line")
        watch(job.record, picture_of(job), view, Truncates(job))

    plain = capfdbinary.readouterr().out.decode()
    live = without_control(raw.getvalue().decode())
    said = "[bai] the benchmark truncated its output; the output starts again\n"
    assert f"a first line\nand half a line\n{said}anew\n" in plain
    assert live.index("and half a line") < live.index(said.strip()) < live.index("anew")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each.get("line") or each["message"] for each in told if each["type"] in ("log", "notice")] == [
        "a first line",
        "and half a line",
        "the benchmark truncated its output; the output starts again",
        "anew",
    ]


@dataclass
class Installs:
    """A job that installs its requirements until somebody has looked at it twice."""

    job: HandmadeJob
    looks: int = 0
    pause_s: float = 0.0

    def observe(self, *, news: bool, cancelling: bool) -> str | None:
        self.looks += 1
        if self.looks == 2:
            self.job.event("requirements", path="requirements.txt", done=True)
            self.job.ends()
        return None


def test_requirements_that_are_being_installed_are_named(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    console, raw = terminal()
    views: list[View] = [PlainView(), LiveView(console)]
    for number, view in enumerate(views):
        job = HandmadeJob(tmp_path, f"job-{number}")
        job.phases("prepare", until="pull")
        job.event("requirements", path="requirements.txt", done=False)
        watch(job.record, picture_of(job), view, Installs(job))

    assert capfdbinary.readouterr().out.decode().count("[bai] installing requirements.txt\n") == 1
    assert "installing requirements.txt" in without_control(raw.getvalue().decode())


def test_json_output_has_one_object_a_line_and_the_result_last(tmp_path: Path) -> None:
    stream = io.StringIO()

    shown(finished_job(tmp_path), JsonView(stream))

    objects = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each["type"] for each in objects] == [
        *("job", "agent_started", "phase", "phase", "phase", "phase", "phase", "warning"),
        *("log", "log", "metric", "metric", "metric", "metric"),
        *("benchmark_exited", "phase", "phase", "phase", "log", "result"),
    ]
    assert objects[8] == {"type": "log", "line": "epoch 1 loss=0.5"}
    assert objects[10]["name"] == "loss"
    assert objects[10]["value"] == 0.5
    assert objects[-2] == {"type": "log", "line": "no newline at the end"}
    assert objects[-1]["outcome"] == "succeeded"


@pytest.mark.parametrize("width", [80, 132])
def test_a_terminal_shows_everything_and_is_restored(tmp_path: Path, width: int) -> None:
    console, raw = terminal(width=width)

    shown(finished_job(tmp_path), LiveView(console))

    text = raw.getvalue().decode()
    plain = without_control(text)
    assert "epoch 1 loss=0.5" in plain
    assert "no newline at the end" in plain
    assert "cpu 97 % · mem 2.0 GiB" in plain
    assert "[bai] a pattern was switched off" in plain
    assert "The benchmark finished successfully." in plain
    assert "\x07" not in text
    # The cursor was hidden while drawing and is shown again
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_a_terminal_without_unicode_gets_ascii_only(tmp_path: Path) -> None:
    console, raw = terminal(encoding="ascii")

    shown(finished_job(tmp_path), LiveView(console))

    text = raw.getvalue().decode("ascii")
    assert "?" not in without_control(text).replace("[?25", "")
    assert "loss (lower)" in text


def test_no_color_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console, raw = terminal()

    shown(finished_job(tmp_path), LiveView(console))

    colours = re.findall(r"\x1b\[([0-9;]*)m", raw.getvalue().decode())
    assert not [
        each for code in colours for each in code.split(";") if each.startswith(("3", "4")) and len(each) == 2
    ]


def test_the_summary_of_a_failed_run_gives_the_reason(tmp_path: Path) -> None:
    job = finished_job(
        tmp_path,
        outcome="failed",
        exit_code=1,
        sentence="The benchmark failed: it exited with code 7.",
        benchmark={
            "code": 7,
            "signal": None,
            "exec_error": None,
            "wall_seconds": 3.0,
            "user_seconds": 2.5,
            "system_seconds": 0.25,
            "peak_memory_bytes": 30 * 2**20,
        },
        last_lines=["Traceback (most recent call last):", "ValueError: no\x1b[2J numbers"],
        git={"commit": "0123456789abcdef", "branch": "main", "dirty": True},
        warnings=["2 values were no numbers"],
        kafka={"delivered": 10, "undelivered": 3, "error": "no broker"},
    )
    console, raw = terminal(width=100)
    job_view = picture_of(job)
    job_view.result = result_of(job.record)

    show_summary(console, job_view)

    plain = without_control(raw.getvalue().decode())
    for expected in (
        "│ ValueError: no numbers",
        "The benchmark failed: it exited with code 7.  (failed: bai's exit code is 1)",
        "exit code 7 · wall 3.0 s · user 2.5 s · system 0.2 s · peak memory 30.0 MiB",
        "0123456789ab (main), with uncommitted changes",
        "2 values were no numbers",
        "10 messages delivered, 3 not delivered",
        "never seen: loss, accuracy",
    ):
        assert expected in plain


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (96, "30.0 MiB (largest process) · 96.0 MiB (all processes, with cached files)"),
        # Pages of libraries that were in memory before: the largest process has them, and the tree's count does not.
        (20, "30.0 MiB (largest process)"),
        (None, "30.0 MiB (largest process)"),
    ],
)
def test_peak_memory_of_all_processes_is_shown_if_it_exceeds_the_largest_process(
    tmp_path: Path, tree: int | None, said: str
) -> None:
    peaks = {"peak_memory_bytes": 30 << 20, "tree_peak_memory_bytes": tree and tree << 20}
    job = finished_job(tmp_path, outcome="succeeded", exit_code=0, benchmark={"code": 0, **peaks})
    console, raw = terminal(width=200)
    job_view = picture_of(job)
    job_view.result = result_of(job.record)

    show_summary(console, job_view)

    lines = without_control(raw.getvalue().decode()).splitlines()
    (line,) = (each for each in lines if "peak memory" in each)
    assert line.strip().endswith(f"peak memory {said}")


def test_the_summary_omits_figures_of_a_benchmark_whose_end_was_not_observed(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("code", "signal", "exec_error", "wall_seconds", "peak_memory_bytes"))
    job = finished_job(tmp_path, outcome="lost", exit_code=5, benchmark={**nothing, "lost": True})
    console, raw = terminal()
    job_view = picture_of(job)
    job_view.result = result_of(job.record)

    show_summary(console, job_view)

    assert "benchmark" not in without_control(raw.getvalue().decode()).replace("The benchmark finished", "")


def test_a_thousand_metrics_leave_room_for_the_benchmarks_lines(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    for index in range(1000):
        job.measures(f"metric_{index:04}", 1.0)
    job.ends()
    console, raw = terminal(width=80, height=24)

    shown(job, LiveView(console))

    live = without_control(raw.getvalue().decode()).partition("digits-1 ──")[0]
    assert "… 990 more; bai metrics digits-1" in live
    assert set(re.findall(r"metric_\d+", live)) == {f"metric_{index:04}" for index in range(12)}


def test_byte_values_in_tables_are_formatted_as_sizes() -> None:
    drawn = io.StringIO()
    memory = _filled(Series("memory", "B"), [2.269e10])

    Console(file=drawn, width=120).print(Screen(width=120).grid(metric_table([memory])))

    assert drawn.getvalue().splitlines()[1].split() == ["memory", "▄", *["21.1", "GiB"] * 4, "1"]


series = st.builds(
    lambda name, units, better, values: _filled(Series(name, units, better), values),
    st.text(st.characters(codec="utf-8"), max_size=60),
    st.text(st.characters(codec="ascii"), max_size=12) | st.sampled_from(["B", "B/s"]),
    st.sampled_from([None, *Better]),
    st.lists(st.floats(-LIMIT, LIMIT), max_size=20),
)


def _filled(one: Series, values: list[float]) -> Series:
    one.add_all(values)
    return one


@given(st.lists(series, min_size=1, max_size=5), st.integers(60, 200), st.booleans())
def test_a_table_of_metrics_never_is_wider_than_the_screen(
    every: list[Series], width: int, final: bool
) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, width=300)

    console.print(Screen(width=width).grid(metric_table(every, final=final)))

    assert max(cell_len(line.rstrip()) for line in drawn.getvalue().splitlines()) <= width
    assert {"metric", "last"} <= set(drawn.getvalue().split())


def test_the_reason_of_an_end_before_the_benchmark_is_shown_once(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    job = HandmadeJob(tmp_path)
    why = "r.txt could not be installed."
    job.phases("prepare")
    job.event("phase", phase="pull", state="started")
    job.event("stop", reason="pull_failed", message=why)
    job.ends("pull_failed", 5, sentence=why)

    watch(job.record, JobView(job_id="digits-1", job=job.job, place=""), PlainView(), Unwatched())

    assert capfdbinary.readouterr().out.decode().count(why) == 1


def test_a_summary_shows_headline_and_spread_and_names_omissions(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.job = replace(
        job.job,
        metrics=(
            Metric(
                name="throughput", pattern="x", better=Better.HIGHER, headline=Headline.MAX, warmup_values=2
            ),
            Metric(name="never", pattern="x", warmup_values=9),
        ),
    )
    job.measures("throughput", 1, 1, *[100 + i for i in range(128)])
    job.measures("never", 5)
    job.ends()
    console, raw = terminal(width=100, height=40)

    shown(job, LiveView(console))

    screen = without_control(raw.getvalue().decode()).partition("digits-1 ──")[2]
    assert "max 227" in screen
    assert {"headline", "median", "stdev", "p95"} <= set(screen.split())
    assert "as warm-up: throughput (2)" in screen
    assert "throughput: not steady: still rises at the end" in screen
    assert "never: all its values (1) are warm-up" in screen
