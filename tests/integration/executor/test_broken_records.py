"""Records in a store may be broken, foreign or of another version: commands give a sentence with the place, never a traceback."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from handmade_job import HandmadeJob, job_status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_cli import LocalCli
from rich.console import Console

from bai_agent.errors import BaiError, RecordError
from bai_agent.job.record_types import UnknownEvent
from bai_agent.job.run_directory import now_ms, read_json
from bai_agent.runtime.event_log import read_events
from executor.backends.ec2.launch.launch_decision import find_refusal
from executor.backends.ec2.launch.launch_record import read_decision, read_launch, read_refusal
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.session import AwsSession
from executor.backends.ec2.tags import parse_timestamp
from executor.documents.job_view import JobView
from executor.documents.listing import jobs_table
from executor.documents.screen import show_blocks
from executor.documents.status import StatusView, status_blocks
from executor.documents.summary import show_summary
from executor.jobs.job_list import ListedJob, last_values
from executor.jobs.job_lookup import started_of
from executor.jobs.wait import RetryWindow
from executor.records.follower import JobFollower
from executor.records.reading import events_of, result_of
from executor.records.run_state import RunState
from executor.records.statistics import Measurements
from executor.view.plain import PlainView

LAUNCH = {
    "version": 1,
    "job_id": "digits-1",
    "attempt": 0,
    "region": "us-east-1",
    "candidates": [{"subnet": "subnet-1", "az": "us-east-1a"}],
    "request": {"InstanceType": "t3.small"},
    "token": "token",
    "created": "2026-11-20T22:00:00Z",
    "expires": "2026-11-20T23:00:00Z",
    "boot_limit": 3600,
}
DECISION = {"instances": ["i-0123456789abcdef0"], "subnet": "subnet-1", "az": "us-east-1a", "time": 1}
REFUSAL = {"outcome": "capacity", "code": "InsufficientInstanceCapacity", "sentence": "No room."}
METRIC = {
    "seq": 0,
    "src": "log",
    "name": "loss",
    "value": 0.5,
    "units": "nats",
    "timestamp": 1_795_000_000_000,
}
EVENT = {"time": 1_795_000_000_000, "type": "phase", "phase": "run", "state": "finished", "seconds": 1.5}
PULL = {
    "time": 1_795_000_000_000,
    "type": "pull",
    "src": "s3://b/k",
    "bytes": 1,
    "total_bytes": 2,
    "done": True,
}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "result.json is not JSON"),
        (b"\xff\xfe", "result.json is not JSON"),
        (b"[" * 100_000, "result.json is not JSON"),
        (b"[]", "result.json is not a JSON object"),
        (b"{}", "result.json: outcome is missing"),
        (b" " * (100 << 20), "result.json has more than 16,777,216 bytes"),
        ({"exit_code": "five"}, "result.json: exit_code: expected an exit code from 0 to 6, got 'five'"),
        ({"exit_code": 77}, "result.json: exit_code: expected an exit code from 0 to 6, got 77"),
        ({"started": "yesterday"}, "result.json: started: expected milliseconds since the epoch"),
        ({"started": 10**30}, "result.json: started: expected milliseconds since the epoch"),
        ({"artifacts": {"files": 1}}, "result.json: artifacts.bytes is missing"),
        (
            {"own_usage": [{"agent": {"cpu_seconds": "some"}}]},
            "result.json: own_usage[0].agent.cpu_seconds: expected a time in seconds, got 'some'",
        ),
        ({"phases": {"run": "long"}}, "result.json: phases.run: expected a time in seconds, got 'long'"),
    ],
)
def test_a_broken_result_is_named_and_hides_no_other_job(
    cli: LocalCli, content: bytes | dict[str, Any], said: str
) -> None:
    # given a job whose result is broken, and one that is well
    HandmadeJob(cli.store, "good-1").ends()
    broken = HandmadeJob(cli.store, "broken-1")
    result = {**broken.ends(), **content} if isinstance(content, dict) else {}
    broken.store.put("broken-1/result.json", json.dumps(result).encode() if result else bytes(content))  # type: ignore[arg-type]

    listed = cli.bai("list", "--json")
    status = cli.bai("status", "broken-1")

    assert {each["job_id"]: each["status"] for each in listed.objects} == {
        "good-1": "SUCCEEDED",
        "broken-1": "UNREADABLE",
    }
    for answer in (listed, status):
        assert f"{broken.store.url}/broken-1/{said}" in answer.stderr
        assert answer.stderr.count("\n") == 1
    assert status.code == 5
    assert cli.bai("status", "good-1").code == 0


def test_a_broken_result_keeps_no_other_job_from_being_pruned(cli: LocalCli) -> None:
    broken = HandmadeJob(cli.store, "broken-1")
    broken.store.put("broken-1/result.json", b"{")
    HandmadeJob(cli.store, "good-1").ends()

    pruned = cli.bai("prune", "--older-than", "0s", "--json")

    assert [each["job_id"] for each in pruned.objects] == ["good-1"]
    assert f"{broken.store.url}/broken-1/result.json is not JSON" in pruned.stderr
    assert broken.record.exists()
    assert pruned.code == 0


def test_waiting_for_a_job_with_an_unknown_status_is_refused(cli: LocalCli) -> None:
    job = HandmadeJob(cli.store, "newer-1")
    result = job.ends()
    job.store.put("newer-1/result.json", json.dumps({**result, "status": "HIBERNATED"}).encode())
    said = (
        'bai: the record of newer-1 has the status "HIBERNATED", which this version of bai does not know; '
        "use the version that the job was started with, or a newer one"
    )

    waited = cli.bai("status", "newer-1", "--wait")
    pruned = cli.bai("prune", "--older-than", "0s", "--json")

    assert (waited.code, waited.stderr) == (5, f"{said}\n")
    assert cli.bai("status", "newer-1").code == 0
    assert (pruned.code, pruned.stdout) == (0, "")
    assert pruned.stderr.startswith(f"{said}; the job is not deleted\n")


def test_malformed_metric_records_are_counted_and_the_first_named(cli: LocalCli) -> None:
    job = HandmadeJob(cli.store)
    job.measures("loss", 0.5, 0.25)
    with (job.node / "metrics.jsonl").open("ab") as file:
        for line in (
            {key: value for key, value in METRIC.items() if key != "timestamp"},
            {**METRIC, "value": "0.5"},
            {**METRIC, "value": float("nan")},
            "nonsense",
        ):
            file.write(json.dumps(line).encode() + b"\n")
        file.write(b"{nonsense\n")
    job.ends()

    table, rows, status = (
        cli.bai("metrics", "last"),
        cli.bai("metrics", "last", "--format", "csv"),
        cli.bai("status", "last"),
    )

    assert table.stdout.splitlines()[1].split()[-1] == "2"
    assert len(rows.stdout.splitlines()) == 3
    for answer in (table, rows):
        assert f"{job.store.url}/digits-1/attempts/0/nodes/0/metrics: timestamp is missing" in answer.stderr
        assert "(5 lines skipped)" in answer.stderr
    assert "0.2500" in status.stdout
    assert [each.code for each in (table, rows, status)] == [0, 0, 0]


@pytest.mark.parametrize("units", [{}, {"units": None}])
def test_a_metric_record_without_units_is_shown(cli: LocalCli, units: dict[str, Any]) -> None:
    job = HandmadeJob(cli.store)
    record = {key: value for key, value in METRIC.items() if key != "units"} | units
    with (job.node / "metrics.jsonl").open("ab") as file:
        file.write(json.dumps(record).encode() + b"\n")
    job.ends()

    table, status = cli.bai("metrics", "last"), cli.bai("status", "last")

    for answer in (table, status):
        assert str(METRIC["name"]) in answer.stdout
        assert "None" not in answer.stdout
        assert answer.stderr == ""


def test_an_event_line_longer_than_16_mib_is_refused(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    (job.node / "events.jsonl").write_bytes(b"x" * (17 << 20))

    with pytest.raises(RecordError, match=r"nodes/0/events: the line at byte 0 is longer than 16 MiB"):
        list(events_of(job.record.node()))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("launch.json", b"no", "launch.json is not JSON"),
        (
            "launch.json",
            {**LAUNCH, "version": 2},
            "launch.json: version 2 of a launch; this `bai` reads version 1",
        ),
        (
            "launch.json",
            {**LAUNCH, "job_id": "other-1"},
            "launch.json: job_id: expected \"digits-1\", got 'other-1'",
        ),
        ("launch.json", {**LAUNCH, "expires": "soon"}, "launch.json: expires: expected a time"),
        (
            "launch.json",
            {**LAUNCH, "boot_limit": 2**62},
            "launch.json: boot_limit: expected a time in seconds",
        ),
        ("launch.json", {**LAUNCH, "candidates": [{}]}, "launch.json: candidates[0].subnet is missing"),
        ("launched.json", {"instances": "i-1"}, "launched.json: instances: expected a list, each a text"),
        ("launched.json", {"instances": []}, "launched.json: outcome is missing"),
    ],
)
def test_a_broken_launch_record_is_named_and_not_ignored(
    tmp_path: Path, name: str, content: bytes | dict[str, Any], said: str
) -> None:
    job = HandmadeJob(tmp_path)
    job.store.put("digits-1/attempts/0/launch.json", json.dumps(LAUNCH).encode())
    stored = content if isinstance(content, bytes) else json.dumps(content).encode()
    job.store.put(f"digits-1/attempts/0/{name}", stored)

    with pytest.raises(RecordError) as caught:
        JobMonitor(job.record, lambda region: AwsSession("us-east-1")).observe(ask=False)

    assert f"{job.store.url}/digits-1/attempts/0/{said}" in str(caught.value)
    with pytest.raises(RecordError):
        RetryWindow(far=True).failed(caught.value)


nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def mutated(draw: st.DrawFn, *, of: dict[str, Any]) -> bytes:
    """Draw a record with some values replaced or left out; sometimes it is not even JSON."""
    table = dict(of)
    for key in draw(st.sets(st.sampled_from(sorted(of)), max_size=3)):
        if draw(st.booleans()):
            table[key] = draw(nonsense)
        else:
            del table[key]
    content = json.dumps(table).encode()
    return draw(
        st.just(content)
        | st.just(content[:-3])
        | st.just(b"\xff")
        | nonsense.map(lambda x: json.dumps(x).encode())
    )


RESULT = {
    "version": 1,
    "outcome": "failed",
    "status": "FAILED",
    "exit_code": 1,
    "sentence": "It failed.",
    "benchmark": {"code": 1, "signal": None, "wall_seconds": 1.5, "peak_memory_bytes": 1},
    "phases": {"run": 1.0},
    "kafka": {"delivered": 1, "undelivered": 1},
    "last_lines": ["x"],
    "git": {"commit": "abc", "branch": "main", "dirty": True},
    "warnings": ["w"],
    "artifacts": {"files": 1, "bytes": 1},
    "own_usage": [{"cpus": 2, "benchmark_seconds": 9.5, "agent": {"cpu_seconds": 0.5}}],
    "started": 1_795_000_000_000,
    "ended": 1_795_000_001_000,
}  # fmt: skip
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(st.data())
def test_any_content_of_a_job_is_shown_or_named_as_broken(tmp_path: Path, data: st.DataObject) -> None:
    job = HandmadeJob(tmp_path / str(now_ms()) / str(data.draw(st.integers(0, 2**40))))
    job.store.put("digits-1/result.json", data.draw(mutated(of=RESULT)))
    for name, kinds in (("events.jsonl", (EVENT, PULL)), ("metrics.jsonl", (METRIC, METRIC))):
        with (job.node / name).open("wb") as file:
            for kind in kinds:
                file.write(data.draw(mutated(of=kind)) + b"\n")

    told: list[str] = []
    with redirect_stdout(io.StringIO()):
        try:
            found = job_status(job.record)
            show_blocks([jobs_table([ListedJob(status=found, name="")])])
            values, result = last_values(job.record), result_of(job.record)
            view = StatusView(job=job.job, status=found, values=values, result=result, verbose=True)
            show_blocks(status_blocks(view))
            job_view = JobView(job_id="digits-1", job=job.job, place="")
            news = JobFollower(job.record.node()).observe()
            job_view.apply(news)
            PlainView(io.BytesIO()).show(job_view, news)
            job_view.result = result_of(job.record)
            show_summary(Console(file=io.StringIO(), width=100), job_view)
        except BaiError as error:
            told.append(str(error))
    assert all("digits-1/" in each for each in told)
    assert started_of(job.record) >= 0
    state = RunState()
    for event in events_of(job.record.node()):
        state.apply(event)
    measurements = Measurements(job.job)
    measurements.add_lines((job.node / "metrics.jsonl").read_bytes())
    assert measurements.records + measurements.malformed.count >= 2


@quick
@given(st.data())
def test_any_content_of_a_launch_is_diagnosed_or_named_as_broken(tmp_path: Path, data: st.DataObject) -> None:
    job = HandmadeJob(tmp_path / str(now_ms()) / str(data.draw(st.integers(0, 2**40))))
    for name, kind in (("launch", LAUNCH), ("launched", DECISION | REFUSAL), ("refused/0", REFUSAL)):
        job.store.put(f"digits-1/attempts/0/{name}.json", data.draw(mutated(of=kind)))
    for name in ("ready", "heartbeat"):
        job.store.put(job.record.node().key(f"{name}.json"), data.draw(mutated(of={"instance_id": "i-1"})))
    monitor = JobMonitor(
        job.record, lambda region: AwsSession("us-east-1"), clock=lambda url: now_ms() + 10**9
    )

    told: list[str] = []
    for look in (
        lambda: monitor.observe(known=[], ask=False),
        lambda: read_launch(job.record),
        lambda: find_refusal(job.record),
        lambda: read_decision(job.record, attempt=0),
        lambda: read_refusal(job.record, 0, attempt=0),
    ):
        try:
            look()
        except BaiError as error:
            told.append(str(error))
    assert all("digits-1/attempts/0/" in each for each in told)


def test_timestamps_of_the_last_possible_year_are_refused() -> None:
    last = parse_timestamp("9998-12-31T23:59:59Z")
    assert last is not None
    assert last + timedelta(days=1) > datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert parse_timestamp("9999-12-31T23:59:59Z") is None


@pytest.mark.parametrize(
    "descriptor",
    [
        "version = 0x" + "f" * 5000,
        "version = " + "9" * 5000,
        "version = 1\njob = " + "[" * 500 + "]" * 500,
        "version = 1\njob.id = 'b'\nbenchmark.argv = ['true']\nmetrics = [{name = 'x', pattern = '(?a)(?u)x'}]",
        "version = 1\njob.id = 'b'\njob.attempt = 0xffffffffffffffffff\nbenchmark.argv = ['true']",
    ],
    ids=["hexadecimal", "digits", "deep", "flags", "attempt"],
)
def test_a_broken_descriptor_is_named_and_hides_no_other_job(cli: LocalCli, descriptor: str) -> None:
    HandmadeJob(cli.store, "a-good").phases("prepare", until="run")
    broken = HandmadeJob(cli.store, "b-broken")
    broken.store.put(broken.record.key("job.toml"), descriptor.encode())

    answer = cli.bai("list")
    named = cli.bai("status", "b-broken")

    assert "a-good" in answer.stdout
    assert "b-broken" in answer.stdout
    assert "Traceback" not in answer.stderr + named.stderr
    assert answer.code == 0
    assert named.code != 0
    assert "b-broken" in named.stderr


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"type": "x", "time": ' + b"9" * 5000 + b"}", b"{" * 99]
)
def test_lines_of_invalid_json_are_skipped(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content + b"\n" + b'{"type": "y"}\n')

    assert list(read_events(path)) == [UnknownEvent(table={"type": "y"})]
    assert read_json(path) is None
