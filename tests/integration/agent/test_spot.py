"""A run on a spot instance that EC2 interrupts ends in time and keeps its results."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from agent_runs import begun, environment, events_of, python_job, result_of, start_agent, wait_until
from instance_services import Services

from bai_agent.job.outcome import Outcome
from bai_agent.run.spot import SpotNotice

SAVES = """
import signal, sys, time
def save(*_):
    print("loss=0.5", flush=True)
    open("checkpoint", "w").write("saved")
    sys.exit(9)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
time.sleep(600)
"""


@pytest.fixture
def metadata() -> Iterator[Services]:
    """The metadata service of a spot instance."""
    services = Services(metadata={"instance-life-cycle": "spot"})
    server = services.serve()
    yield services
    server.shutdown()
    server.server_close()


def notice(services: Services, *, seconds: float) -> None:
    at = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    services.metadata["spot/instance-action"] = json.dumps(
        {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    )


def look(services: Services, warnings: list[str]) -> SpotNotice:
    found = SpotNotice(
        {"AWS_EC2_METADATA_SERVICE_ENDPOINT": services.url}, warn=warnings.append, pause_s=0.01
    )
    found.start()
    return found


def test_a_spot_notice_ends_the_run_and_keeps_its_results(tmp_path: Path, metadata: Services) -> None:
    job = python_job(
        tmp_path,
        SAVES,
        metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}],
        output={"artifacts": ["checkpoint"]},
        limits={"grace": "1ms"},
    )
    rundir = tmp_path / "run"
    env = environment(AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata.url)
    with start_agent(job, rundir, more=["--instance-id", "i-0123456789abcdef0"], env=env) as agent:
        wait_until(begun(rundir))
        notice(metadata, seconds=100)
        assert agent.wait(timeout=90) == 5

    result = result_of(rundir)
    assert (result["outcome"], result["benchmark"]["code"]) == ("interrupted", 9)
    assert "takes this spot instance back (terminate at " in result["sentence"]
    assert (rundir / "artifacts" / "checkpoint").read_text() == "saved"
    assert result["metrics"]["per_metric"] == {"loss": 1}


def test_the_benchmark_is_killed_while_there_is_time_for_the_result(
    tmp_path: Path, metadata: Services
) -> None:
    program = SAVES.replace("save)", "signal.SIG_IGN)", 1)
    job = python_job(tmp_path, program, limits={"grace": "10m", "drain": "10m"})
    rundir = tmp_path / "run"
    env = environment(AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata.url)
    with start_agent(job, rundir, more=["--instance-id", "i-0123456789abcdef0"], env=env) as agent:
        wait_until(begun(rundir))
        notice(metadata, seconds=12)
        taken_away = time.time() + 12
        assert agent.wait(timeout=90) == 5

    assert result_of(rundir)["outcome"] == "interrupted"
    assert result_of(rundir)["benchmark"]["signal"] == 9
    stopped = next(event["time"] for event in events_of(rundir) if event["type"] == "benchmark_exited")
    assert stopped / 1000 < taken_away


def test_a_rebalance_recommendation_causes_a_warning_and_does_not_end_the_run(metadata: Services) -> None:
    warnings: list[str] = []
    metadata.metadata["events/recommendations/rebalance"] = '{"noticeTime": "2020-10-27T08:22:00Z"}'
    found = look(metadata, warnings)

    wait_until(lambda: found.reason(None) or warnings)
    assert found.reason(None) is None
    notice(metadata, seconds=60)
    wait_until(lambda: found.reason(None))

    assert len(warnings) == 1
    assert "recommends" in warnings[0]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"action": 1}', '{"action": "stop", "time": "soon"}', "[" * 100_000]
)
def test_an_unreadable_spot_notice_counts_as_one_of_two_minutes(metadata: Services, content: str) -> None:
    metadata.metadata["spot/instance-action"] = content
    found = look(metadata, [])

    wait_until(lambda: found.reason(None))

    reason = found.reason(None)
    assert reason is not None
    assert reason.outcome is Outcome.INTERRUPTED
    assert reason.deadline is not None
    assert 60 < reason.deadline - time.monotonic() <= 120


def test_an_on_demand_instance_does_not_poll_for_spot_notices(metadata: Services) -> None:
    metadata.metadata["instance-life-cycle"] = "on-demand"
    found = look(metadata, [])

    found.join(60)

    assert not found.is_alive()
    assert found.reason(None) is None
    assert not [path for path, _ in metadata.requests if "spot/" in path]


def test_an_unreachable_metadata_service_is_asked_again(metadata: Services) -> None:
    metadata.refuse = lambda path: (503, "Busy")
    found = look(metadata, [])
    wait_until(lambda: any(status == 503 for _, status in metadata.requests))
    notice(metadata, seconds=60)
    metadata.refuse = lambda path: None

    wait_until(lambda: found.reason(None))
