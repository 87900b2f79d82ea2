"""The last values of a run are in a real Pushgateway, and to be scraped while it lasts."""

from __future__ import annotations

import base64
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_runs import events_of, wait_until
from free_ports import free_port
from local_cli import local_cli
from metric_files import append_records, new_run
from pushgateways import PASSWORD, USER, Gateway, running_gateway, samples_in

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.sink_tables import Prometheus
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks import sinks_of
from bai_agent.sinks.prometheus_sink import PrometheusSink


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), port=free_port()) as running:
        yield running


def sink_of(rundir: RunDir, job_id: str, *, redactor: Redactor | None = None, **table: Any) -> PrometheusSink:
    identity = Identity(id=job_id, action_id="a", client_id="c", labels={"task_name": "digits"})
    job = Job(job=identity, benchmark=Benchmark(argv=("true",)), prometheus=Prometheus(**table))
    (sink,) = sinks_of(job, rundir, rank=0, redactor=redactor or Redactor())
    assert isinstance(sink, PrometheusSink)
    return sink


def test_a_runs_last_values_are_in_the_pushgateway_at_its_end(tmp_path: Path, gateway: Gateway) -> None:
    cli = local_cli(tmp_path)
    descriptor = cli.descriptor(
        "for n in range(3): print(f'loss={n / 2}')", more=f'[prometheus]\npushgateway = "{gateway.address}"'
    )

    done = cli.bai("run", descriptor, "--job-id", "whole-run")

    assert done.code == 0, done.stdout + done.stderr
    found = gateway.samples("whole-run")
    ((labels, value),) = found["BAI_METRICS_loss"]
    assert value == 1.0
    assert labels["job"] == "bai"
    assert labels["rank"] == "0"
    assert labels["action_id"] == "whole-run"
    counts = {each["name"]: count for each, count in found["bai_values_total"]}
    assert counts["loss"] == 3
    (told,) = (
        each
        for each in events_of(cli.rundir("whole-run").path)
        if each["type"] == "delivery" and each["sink"] == "Prometheus"
    )
    assert (told["delivered"], told["undelivered"]) == (sum(counts.values()), 0)


def test_values_are_pushed_while_the_run_lasts(tmp_path: Path, gateway: Gateway) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(2))
    sink = sink_of(rundir, "lasting", pushgateway=gateway.address)
    sink.start()
    wait_until(lambda: gateway.samples("lasting"))
    append_records(rundir, range(2, 5))
    sink.flush_soon()

    wait_until(lambda: gateway.samples("lasting")["BAI_METRICS_loss"][0][1] == 2.0)

    assert sink.finish(time.monotonic() + 30).delivered == 5


def test_a_restarted_agent_pushes_the_same_values(tmp_path: Path, gateway: Gateway) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(5))
    for _ in range(2):
        sink = sink_of(rundir, "again", pushgateway=gateway.address)
        sink.start()
        told = sink.finish(time.monotonic() + 30)
        assert (told.delivered, told.undelivered) == (5, 0)

    assert [count for _, count in gateway.samples("again")["bai_values_total"]] == [5]


def test_a_pushgateway_that_starts_late_receives_all_values(tmp_path: Path) -> None:
    port = free_port()
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(4))
    sink = sink_of(rundir, "late", pushgateway=f"http://127.0.0.1:{port}")
    sink.start()
    wait_until(lambda: sink.error)
    assert f"http://127.0.0.1:{port} does not answer" in str(sink.error)

    with running_gateway(tmp_path, port=port) as gateway:
        told = sink.finish(time.monotonic() + 60)
        found = gateway.samples("late")

    assert (told.delivered, told.undelivered, told.error) == (4, 0, None)
    assert found["BAI_METRICS_loss"][0][1] == 1.5


def test_values_that_reach_no_pushgateway_are_counted_and_reported(tmp_path: Path) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(4))
    sink = sink_of(rundir, "away", pushgateway=f"http://127.0.0.1:{free_port()}")
    sink.start()

    told = sink.finish(time.monotonic() + 1)

    assert (told.delivered, told.undelivered) == (0, 4)
    assert "4 of 4 values did not reach Prometheus: http://127.0.0.1:" in told.warnings[0]


def test_the_pushgateway_password_is_resolved_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(4))
    redactor = Redactor()
    with running_gateway(tmp_path, port=free_port(), secured=True) as gateway:
        table = {"pushgateway": gateway.address, "username": USER, "password": "env:PUSH_PASSWORD"}

        monkeypatch.setenv("PUSH_PASSWORD", "not-it-at-all")
        sink = sink_of(rundir, "secured", redactor=redactor, **table)
        sink.start()
        refused = sink.finish(time.monotonic() + 30)

        monkeypatch.setenv("PUSH_PASSWORD", PASSWORD)
        sink = sink_of(rundir, "secured", redactor=redactor, **table)
        sink.start()
        taken = sink.finish(time.monotonic() + 30)

    assert (refused.delivered, refused.undelivered) == (0, 4)
    assert "answers 401" in str(refused.error)
    assert "check [prometheus] username and password" in str(refused.error)
    assert (taken.delivered, taken.undelivered) == (4, 0)
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert redactor.redact(f"{PASSWORD} not-it-at-all") == "*** ***"
    assert basic not in redactor.redact(basic)


def test_delete_on_end_removes_the_group_from_the_pushgateway(tmp_path: Path, gateway: Gateway) -> None:
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(2))
    sink = sink_of(rundir, "deleted", pushgateway=gateway.address, delete_on_end=True)
    sink.start()
    wait_until(lambda: gateway.samples("deleted"))

    told = sink.finish(time.monotonic() + 30)

    assert (told.delivered, told.undelivered) == (2, 0)
    assert gateway.samples("deleted") == {}


def test_prometheus_scrapes_while_the_run_lasts(tmp_path: Path) -> None:
    port = free_port()
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(3))
    sink = sink_of(rundir, "scraped", listen=f"127.0.0.1:{port}")
    sink.start()
    wait_until(lambda: sink.port)

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        kind, text = answer.headers["Content-Type"], answer.read().decode()
    told = sink.finish(time.monotonic() + 30)

    assert kind.startswith("text/plain; version=0.0.4")
    found = samples_in(text, "scraped")
    ((labels, value),) = found["BAI_METRICS_loss"]
    assert value == 1.0
    assert labels == {
        "action_id": "a",
        "client_id": "c",
        "job_id": "scraped",
        "rank": "0",
        "task_name": "digits",
    }
    assert (told.delivered, told.undelivered) == (3, 0)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)


def test_metrics_are_served_at_an_ipv6_address(tmp_path: Path) -> None:
    port = free_port()
    rundir = new_run(tmp_path / "run")
    append_records(rundir, range(3))
    sink = sink_of(rundir, "scraped", listen=f"[::1]:{port}")
    sink.start()
    wait_until(lambda: sink.port or sink.error)

    # Not every container has a loopback of IPv6.
    if sink.error is None:
        with urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=60) as answer:
            assert samples_in(answer.read().decode(), "scraped")["BAI_METRICS_loss"]
    else:
        assert f"cannot listen on [::1]:{port}" in sink.error
    told = sink.finish(time.monotonic() + 30)
    assert told.delivered + told.undelivered == 3


def test_an_address_in_use_is_reported_and_used_when_free(tmp_path: Path) -> None:
    port = free_port()
    first, second = (
        sink_of(new_run(tmp_path / name), name, listen=f"127.0.0.1:{port}") for name in ("one", "two")
    )
    first.start()
    wait_until(lambda: first.port)
    second.start()
    wait_until(lambda: second.error)
    assert f"cannot listen on 127.0.0.1:{port}" in str(second.error)

    first.finish(time.monotonic() + 30)
    second.flush_soon()
    wait_until(lambda: second.port)

    assert second.error is None
    second.finish(time.monotonic() + 30)
