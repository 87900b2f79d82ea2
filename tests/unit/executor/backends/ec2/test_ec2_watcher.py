"""What a follower of a job on EC2 says of the job's machines."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from executor.backends.ec2.monitor.ec2_watcher import EVERY, InstanceWatcher
from executor.backends.ec2.monitor.job_observation import Diagnosis, JobStage


def test_a_sentence_in_which_only_time_spans_change_is_said_once() -> None:
    spans = iter(["10m", "9m59s", "9m", "59s", "1h1m40s", "1d"])
    monitor: Any = SimpleNamespace(
        is_elastic=True,
        all_well=lambda: False,
        reconcile=lambda: Diagnosis(
            JobStage.PARKED, f"The job waits for {next(spans)} more: no machine is left."
        ),
    )
    watcher = InstanceWatcher(monitor, clock=count(step=EVERY).__next__)

    said = [watcher.observe(news=False, cancelling=False) for _ in range(6)]

    assert said == ["The job waits for 10m more: no machine is left.", *[None] * 5]
