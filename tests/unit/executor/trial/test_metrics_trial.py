"""A trial of patterns ends where a run would switch a pattern off."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bai_agent.job.descriptor.metric_tables import Headline, Metric
from executor.documents.screen import show_blocks
from executor.documents.trial import trial_blocks
from executor.errors import UsageError
from executor.trial.metrics_trial import MetricsTrial, try_metrics

METRICS = (
    Metric(name="step", pattern=r"step=(\d+)"),
    Metric(name="loss", pattern=r"loss=((?:[a1]+)+)b"),
)


def show(trial: MetricsTrial) -> None:
    print(trial.lines)


@pytest.mark.parametrize("show", [show, None], ids=["a summary", "records"])
def test_a_pattern_that_takes_too_long_is_named_with_its_line(
    show: Callable[[MetricsTrial], None] | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("step=1\nloss=" + "a" * 60 + "c\n")

    with pytest.raises(UsageError, match=r'pattern of "loss" takes more than 1 s on the line at byte 7, '):
        try_metrics(METRICS, log, show=show)


def test_a_log_within_the_limit_is_shown_from_the_child(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("step=1\nloss=11b\n")

    assert try_metrics(METRICS, log, show=show)

    assert capfd.readouterr().out == "2\n"


def test_an_end_by_another_signal_is_not_blamed_on_a_pattern(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("step=1\n")

    def killed(trial: MetricsTrial) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UsageError, match="was cut short"):
        try_metrics(METRICS, log, show=killed)


def test_the_warm_up_of_each_series_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    metric = Metric(
        name="rate",
        pattern=r"(?P<of>\w+)=(?P<value>\d+)",
        warmup_values=1,
        headline=Headline.MEAN,
        required=True,
    )
    log = tmp_path / "run.log"
    log.write_text("read=1000\nread=10\nwrite=2000\nwrite=20\n")

    def show(trial: MetricsTrial) -> None:
        (tried,) = trial.metrics
        for each in tried.rows:
            print(each.name, each.count, each.left_out, each.headline)
        show_blocks(trial_blocks(trial))

    assert try_metrics([metric], log, show=show)

    answer = capfd.readouterr().out
    assert answer.startswith("rate{of=read} 1 1 10.0\nrate{of=write} 1 1 20.0\n")
    assert "as warm-up: rate{of=read} (1), rate{of=write} (1)" in answer


def test_metrics_test_puts_excess_label_sets_into_one_row_without_a_headline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    metric = Metric(name="rate", pattern=r"(?P<of>\w+)=(?P<value>\d+)")
    log = tmp_path / "run.log"
    log.write_text("".join(f"n{number}={number}\n" for number in range(100)))

    def show(trial: MetricsTrial) -> None:
        (tried,) = trial.metrics
        shared = tried.rows[-1]
        print(len(tried.rows), tried.count, shared.name, shared.count, shared.headline_is)

    assert try_metrics([metric], log, show=show)

    assert capfd.readouterr().out == "65 100 rate{…} 36 None\n"
