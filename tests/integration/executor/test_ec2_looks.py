"""What `bai` says of jobs on EC2, from any machine with credentials: nothing is known here but the bucket and EC2."""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ec2_desk import Ec2Desk
from handmade_job import HandmadeJob

from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from executor.backends.ec2.clock import store_now
from executor.backends.ec2.monitor.diagnosis import JobStage
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.monitor.watcher import EVERY, InstanceWatcher
from executor.backends.ec2.session import AwsSession
from executor.backends.ec2.verdict import write_result
from executor.commands.watch import watch
from executor.view.job_view import JobView
from executor.view.json_lines import JsonView


def monitor(record: JobRecord, *, later: timedelta = timedelta()) -> JobMonitor:
    """Return who looks after a job; `later`: as if so much time had gone by at the store."""
    ahead = round(later.total_seconds() * 1000)
    return JobMonitor(
        record, lambda region: AwsSession(region or "us-east-1"), lambda url: store_now(url) + ahead
    )


def running(desk: Ec2Desk, job_id: str = "digits-1") -> tuple[JobRecord, str]:
    """Bring a job whose benchmark runs; return it and its instance."""
    made = desk.handmade(job_id)
    made.event("agent_started", pid=1)
    made.phases("prepare", "pull", "join", until="run")
    made.prints("loss=0.5\nstill at it\n")
    made.measures("loss", 0.5, units="nats")
    (instance,) = desk.launch(job_id)
    record = desk.bring(made, launched=[instance])
    for name in ("ready.json", "heartbeat.json"):
        record.store.put(record.node().key(f"{name}"), json.dumps({"instance_id": instance}).encode())
    return record, instance


def test_a_running_job_is_looked_at_through_its_bucket(desk: Ec2Desk) -> None:
    _, instance = running(desk)

    status = desk.bai("status", "digits-1", "--json")
    assert status.code == 0, status.err
    assert status.objects[0]["status"] == "RUNNING"
    assert instance in status.objects[0]["machine"]
    assert status.objects[0]["where"] == "ec2"
    assert "still at it" in desk.bai("logs", "last").out
    assert desk.bai("metrics", "dig", "--json").objects[0]["value"] == 0.5
    assert f"{instance} " in desk.bai("status", "digits-1").out


def test_a_job_whose_machine_is_gone_never_runs_and_gets_its_result(desk: Ec2Desk) -> None:
    # Given a running job whose machine somebody terminates
    record, instance = running(desk)
    desk.ec2.terminate_instances(InstanceIds=[instance])

    # When anybody asks
    listed = desk.bai("list", "--json").objects[0]
    before = record.result()
    status = desk.bai("status", "digits-1", "--wait", "--json")

    # Then nothing says that it runs, and the result is there for everybody
    assert (listed["status"], before) == ("ERROR", None)
    assert status.code == 5
    assert status.objects[0]["outcome"] == "interrupted"
    assert "Somebody terminated" in status.objects[0]["sentence"]
    result = record.result()
    assert result is not None
    assert result["on_behalf"]
    assert result["last_lines"] == ["loss=0.5", "still at it"]
    assert result["phases"] == {"prepare": 0.25, "pull": 0.25, "join": 0.25}


def test_an_agent_without_a_sign_of_life_is_silent_while_its_machine_runs(desk: Ec2Desk) -> None:
    record, instance = running(desk)

    assert monitor(record).observe().stage is JobStage.RUNNING
    assert monitor(record).all_well()
    later = monitor(record, later=timedelta(seconds=90))
    found = later.reconcile()

    assert found.stage is JobStage.SILENT
    assert not later.all_well()
    assert record.result() is None
    assert desk.state(instance) == "running"


def test_what_is_left_of_a_cancelled_job_is_terminated_after_its_grace(desk: Ec2Desk) -> None:
    record, instance = running(desk)
    record.cancel(by="test")

    assert monitor(record, later=timedelta(seconds=100)).reconcile().terminate == ()
    assert monitor(record, later=timedelta(seconds=200)).reconcile().stage is JobStage.ENDING
    assert desk.state(instance) == "terminated"
    monitor(record).reconcile()
    result = record.result()
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("cancelled", 4)


def test_a_refused_end_is_said_and_tried_again(desk: Ec2Desk) -> None:
    # Given a gang of which one machine ended too early, and an account that may not terminate the other for now
    made = desk.handmade("gang-1")
    file = made.store.folder / "gang-1" / "job.toml"
    file.write_text(file.read_text() + "\n[strategy]\nnodes = 2\n")
    machines = desk.launch("gang-1", count=2)
    record = desk.bring(made, launched=machines)
    desk.ec2.terminate_instances(InstanceIds=[machines[1]])
    desk.ec2.modify_instance_attribute(InstanceId=machines[0], DisableApiTermination={"Value": True})

    # When anybody asks
    status = desk.bai("status", "gang-1", "--json")

    # Then the person reads why it still runs, and no result says that it has ended
    assert status.code == 0, status.err
    (told,) = status.objects
    assert "It could not be ended: " in told["machine"]
    assert "OperationNotPermitted" in told["machine"]
    assert "It could not be ended: " in " ".join(desk.bai("status", "gang-1").out.split())
    assert told["outcome"] is None
    assert record.result() is None
    assert desk.state(machines[0]) == "running"

    # And who looks once it may be ended does that
    desk.ec2.modify_instance_attribute(InstanceId=machines[0], DisableApiTermination={"Value": False})
    assert "It could not be ended" not in desk.bai("status", "gang-1").out
    assert desk.state(machines[0]) == "terminated"
    assert record.result() is not None


def test_only_machines_with_the_tag_of_the_job_are_ended(desk: Ec2Desk) -> None:
    # Given a job whose agent says that it lives on a machine without our tags
    record = desk.bring(desk.handmade())
    (foreign,) = desk.launch(None)
    record.store.put(record.node().key("ready.json"), json.dumps({"instance_id": foreign}).encode())
    record.cancel(by="test")

    watched = monitor(record, later=timedelta(seconds=200))
    assert [each.id for each in watched.instances()] == [foreign]
    watched.reconcile()
    watched.end()

    assert desk.state(foreign) == "running"


@pytest.mark.parametrize("ended", [True, False])
def test_of_two_launches_of_a_job_only_the_one_written_down_counts(desk: Ec2Desk, ended: bool) -> None:
    # Given a job that two launched at once, of whom one was too late, and ended its machine or died before
    (too_late,) = desk.launch()
    (ours,) = desk.launch()
    job = desk.handmade()
    job.phases("prepare", "pull", "join")
    record = desk.bring(job, launched=[ours])
    record.store.put(record.key("attempts/0/nodes/0/heartbeat.json"), b"{}")
    if ended:
        desk.ec2.terminate_instances(InstanceIds=[too_late])

    answer = desk.bai("status", "digits-1", "--json")

    assert answer.objects[0]["machine"] == f"{ours} (m1.small) is running."
    assert record.result() is None
    assert (desk.state(ours), desk.state(too_late)) == ("running", "terminated")


def test_a_gang_that_lost_one_before_it_was_complete_is_ended(desk: Ec2Desk) -> None:
    made = desk.handmade("gang-1")
    text = (made.store.folder / "gang-1" / "job.toml").read_text()
    (made.store.folder / "gang-1" / "job.toml").write_text(text + "\n[strategy]\nnodes = 3\n")
    machines = desk.launch("gang-1", count=3)
    record = desk.bring(made, launched=machines)
    desk.ec2.terminate_instances(InstanceIds=[machines[1]])

    found = monitor(record).reconcile()

    assert found.verdict is not None
    assert [desk.state(each) for each in machines] == ["terminated"] * 3
    assert machines[1] in str((record.result() or {})["sentence"])


def test_a_refused_launch_that_nobody_wrote_a_result_for_gets_one(desk: Ec2Desk) -> None:
    record = desk.bring(desk.handmade(), launched=[])
    refusal = {"instances": [], "outcome": "quota", "sentence": "No more vCPUs."}
    record.store.put(record.key("attempts/0/launched.json"), json.dumps(refusal).encode())

    assert desk.bai("status", "digits-1").code == 0

    assert (record.result() or {})["outcome"] == "quota"


def test_a_result_is_written_once(desk: Ec2Desk) -> None:
    record, _ = running(desk)

    assert write_result(record, Outcome.LOST, "First.")
    assert not write_result(record, Outcome.LOST, "Second.")
    assert (record.result() or {})["sentence"] == "First."


def test_jobs_of_this_machine_and_of_the_bucket_are_listed_together(desk: Ec2Desk) -> None:
    running(desk, "far-1")
    HandmadeJob(Path(desk.folder / "home" / ".bai" / "jobs"), "near-1").ends()

    listed = {each["job_id"]: each["where"] for each in desk.bai("list", "--json").objects}
    only = desk.bai("list", "--json", "--store", "s3://bucket/jobs").objects

    assert listed == {"near-1": "local", "far-1": "ec2"}
    assert [each["job_id"] for each in only] == ["far-1"]
    assert desk.bai("status", "near-1", "--json").objects[0]["where"] == "local"
    assert "where" in desk.bai("list").out.splitlines()[0]


def test_a_descriptor_that_cannot_be_read_hides_no_other_job(desk: Ec2Desk) -> None:
    running(desk, "good-1")
    desk.store.put("newer-1/job.toml", b"version = 99\n")
    desk.store.put(".doctor/probe.json", b"{}")

    listed = desk.bai("list", "--json")

    assert {each["job_id"]: each["status"] for each in listed.objects} == {
        "good-1": "RUNNING",
        "newer-1": "UNREADABLE",
    }
    assert "version 99" in next(each["machine"] for each in listed.objects if each["job_id"] == "newer-1")


@pytest.mark.parametrize("name", ["attempts/0/launch.json", "attempts/0/launched.json", "result.json"])
def test_a_broken_record_is_named_ends_all_waiting_and_hides_no_other_job(desk: Ec2Desk, name: str) -> None:
    running(desk, "good-1")
    record, instance = running(desk, "broken-1")
    record.store.put(record.key(name), b'{"version": 2}')
    said = f"bai: s3://bucket/jobs/broken-1/{name}: "

    listed = desk.bai("list", "--json")
    waiting = [desk.bai(*words) for words in (("status", "broken-1", "--wait"), ("resume", "broken-1", "-f"))]

    assert {each["job_id"]: each["status"] for each in listed.objects} == {
        "good-1": "RUNNING",
        "broken-1": "UNREADABLE",
    }
    assert listed.err.startswith(said)
    for answer in waiting:
        assert answer.code == 5
        assert answer.err.splitlines()[-1].startswith(said)
    assert desk.state(instance) == "running"


def test_a_bucket_that_cannot_be_reached_does_not_hide_what_is_here(desk: Ec2Desk) -> None:
    HandmadeJob(Path(desk.folder / "home" / ".bai" / "jobs"), "near-1").ends()
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONFIG_FILE": "/nowhere"}

    listed = desk.bai("list", "--json", env=nobody)
    assert [each["job_id"] for each in listed.objects] == ["near-1"]
    assert "credentials" in listed.err
    assert listed.code == 5
    assert desk.bai("status", "near-1", env=nobody).code == 0
    assert "credentials" in desk.bai("status", "far-1", env=nobody).err


@pytest.mark.parametrize("reached", ["a missing bucket", "a web server", "nobody"])
def test_a_bucket_out_of_reach_is_never_an_empty_one(desk: Ec2Desk, reached: str) -> None:
    class WebServer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b"<html>There is nothing here")

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), WebServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options, env = ["--bucket", "missing"], {}
        if reached == "a web server":
            options, env = [], {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.server_port}"}
        elif reached == "nobody":
            options, env = [], {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}
        looks = [("list",), ("status", "last"), ("cancel", "digits-1"), ("fetch", "digits-1", "there")]
        answers = [desk.bai(*each, *options, env=env) for each in looks[: 2 if env else None]]
        server.shutdown()

    for answer in answers:
        assert answer.code == 5, answer.err
        assert answer.out == ""
        assert "no jobs" not in answer.err
        assert "no job " not in answer.err
        assert "s3://" in answer.err


def test_a_kept_machine_is_told_at_the_end_with_its_price(desk: Ec2Desk) -> None:
    # Given jobs that keep a failed machine, of which one failed, in an account with a price
    config = desk.folder / "config.toml"
    config.write_text(f'{config.read_text()}[prices]\n"m1.small" = 0.044\n')
    for job_id, outcome, code in (("failed-1", "failed", 1), ("good-1", "succeeded", 0)):
        made = desk.handmade(job_id, keeps=True)
        made.ends(outcome, code)
        desk.bring(made, launched=desk.launch(job_id))

    failed, good = (desk.bai("resume", each, "-f") for each in ("failed-1", "good-1"))

    assert (failed.code, good.code) == (1, 0)
    assert re.search(
        r"bai: i-\w+ is kept to look into until \d{4}-\d\d-\d\d \d\d:\d\d UTC, at about 0\.0440 USD an hour; "
        r"`bai release failed-1` lets it go",
        failed.err,
    ), failed.err
    assert "kept" not in good.err


def test_the_consoles_of_the_machines_are_shown(desk: Ec2Desk) -> None:
    _, instance = running(desk)

    shown = desk.bai("logs", "--boot", "digits-1")

    assert shown.out.startswith(f"== {instance} (running), node 0")
    assert len(shown.out.splitlines()) > 1


def test_a_watcher_asks_ec2_only_while_the_store_is_silent(desk: Ec2Desk) -> None:
    record, instance = running(desk)
    now = [0.0]
    watcher = InstanceWatcher(monitor(record, later=timedelta(seconds=90)), clock=lambda: now[0])

    assert watcher.observe(news=True, cancelling=False) is None
    now[0] += 40
    assert "no sign of life" in str(watcher.observe(news=False, cancelling=False))
    now[0] += EVERY / 2
    assert watcher.observe(news=False, cancelling=False) is None
    now[0] += EVERY
    assert watcher.observe(news=False, cancelling=False) is None
    desk.ec2.terminate_instances(InstanceIds=[instance])
    now[0] += EVERY
    assert "terminated" in str(watcher.observe(news=False, cancelling=False))
    assert record.result() is not None


def test_who_follows_a_job_hears_of_its_machine_and_gets_its_exit_code(desk: Ec2Desk) -> None:
    # Given a job that ends after it was joined
    record, _ = running(desk)
    done = desk.handmade("done-1")
    done.ends("failed", 1)
    desk.bring(done)
    assert desk.bai("resume", "done-1", "-f").code == 1

    # And one whose machine vanishes while somebody follows it
    stream, clock = io.StringIO(), itertools.count(0, 40)
    watcher = InstanceWatcher(monitor(record, later=timedelta(seconds=90)), clock=lambda: next(clock))
    watcher.pause_s = 0.01
    desk.ec2.terminate_instances(InstanceIds=[each.id for each in watcher.monitor.instances()])
    job_view = JobView(job_id="digits-1", job=record.job(), place="")
    result = watch(record, job_view, JsonView(stream), watcher, remote=True)

    assert result["exit_code"] == 5
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert any("terminated" in each["message"] for each in told if each["type"] == "notice")
    assert {"type": "log", "line": "still at it"} in told
    assert told[-1]["type"] == "result"


def test_nobody_waits_for_a_job_of_which_nothing_can_be_known_any_more(desk: Ec2Desk) -> None:
    # given a job whose time is up, no word of its agent, and an EC2 that does not answer
    made = desk.handmade()
    made.event("agent_started", pid=1)
    desk.bring(made, launched=["i-0123456789abcdef0"], expires=timedelta(minutes=-20))
    silent = {"AWS_ENDPOINT_URL_EC2": "http://127.0.0.1:1"}

    waited = desk.bai("status", "digits-1", "--wait", "--json", env=silent)
    log = desk.bai("logs", "digits-1", "-f", env=silent)

    (found,) = waited.objects
    assert (waited.code, found["status"], found["result"]) == (5, "UNKNOWN", None), waited.err
    assert "time is up" in found["machine"]
    assert log.code == 5
    assert "could not be asked" in log.err.splitlines()[-1]
