"""`bai status` and other commands for jobs on EC2: all they know comes from the bucket and EC2."""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest
from ec2_cli import Ec2Cli
from handmade_job import HandmadeJob

from bai_agent.errors import RecordError
from bai_agent.job.attempt import AttemptRecord, StopOrder
from bai_agent.job.generation_records import DecisionKind, Ledger, NextGeneration
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from executor.backends.ec2.clock import store_now
from executor.backends.ec2.inferred_result import write_result
from executor.backends.ec2.monitor.ec2_watcher import EVERY, InstanceWatcher
from executor.backends.ec2.monitor.ended_job import end_leftovers
from executor.backends.ec2.monitor.job_observation import JobStage
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.session import AwsSession
from executor.documents.job_view import JobView
from executor.records.reading import result_of
from executor.view.plain import JsonView
from executor.view.watch import watch


def monitor(record: JobRecord, *, later: timedelta = timedelta()) -> JobMonitor:
    """Return who looks after a job; `later`: as if so much time had gone by at the store."""
    ahead = round(later.total_seconds() * 1000)
    return JobMonitor(
        record, lambda region: AwsSession(region or "us-east-1"), lambda url: store_now(url) + ahead
    )


def running(cli: Ec2Cli, job_id: str = "digits-1") -> tuple[JobRecord, str]:
    """Bring a job whose benchmark runs; return it and its instance."""
    made = cli.handmade(job_id)
    made.event("agent_started", pid=1)
    made.phases("prepare", "pull", "join", until="run")
    made.prints("loss=0.5\nstill at it\n")
    made.measures("loss", 0.5, units="nats")
    (instance,) = cli.launch(job_id)
    record = cli.bring(made, launched=[instance])
    for name in ("ready.json", "heartbeat.json"):
        record.store.put(record.node().key(f"{name}"), json.dumps({"instance_id": instance}).encode())
    return record, instance


def test_a_running_job_is_observed_through_its_bucket(cli: Ec2Cli) -> None:
    _, instance = running(cli)

    status = cli.bai("status", "digits-1", "--json")
    assert status.code == 0, status.stderr
    assert status.objects[0]["status"] == "RUNNING"
    assert instance in status.objects[0]["machine"]
    assert status.objects[0]["where"] == "ec2"
    assert "still at it" in cli.bai("logs", "last").stdout
    assert cli.bai("metrics", "dig", "--json").objects[0]["value"] == 0.5
    assert f"{instance} " in cli.bai("status", "digits-1").stdout


def test_status_writes_the_result_of_a_job_whose_machine_is_gone(cli: Ec2Cli) -> None:
    # Given a running job whose machine somebody terminates
    record, instance = running(cli)
    cli.ec2.terminate_instances(InstanceIds=[instance])

    # When anybody asks
    listed = cli.bai("list", "--json").objects[0]
    before = record.result()
    status = cli.bai("status", "digits-1", "--wait", "--json")

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


def test_a_job_with_an_old_heartbeat_is_shown_as_silent_while_its_machine_runs(cli: Ec2Cli) -> None:
    record, instance = running(cli)

    assert monitor(record).observe().stage is JobStage.RUNNING
    assert monitor(record).all_well()
    later = monitor(record, later=timedelta(seconds=90))
    found = later.reconcile()

    assert found.stage is JobStage.SILENT
    assert not later.all_well()
    assert record.result() is None
    assert cli.state(instance) == "running"


def test_a_cancelled_jobs_machine_is_terminated_after_its_grace(cli: Ec2Cli) -> None:
    record, instance = running(cli)
    record.cancel(by="test")

    assert monitor(record, later=timedelta(seconds=100)).reconcile().terminate == ()
    assert monitor(record, later=timedelta(seconds=200)).reconcile().stage is JobStage.ENDING
    assert cli.state(instance) == "terminated"
    monitor(record).reconcile()
    result = record.result()
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("cancelled", 4)


def test_a_refused_termination_is_reported_and_retried(cli: Ec2Cli) -> None:
    # Given a gang of which one machine ended too early, and an account that may not terminate the other for now
    made = cli.handmade("gang-1")
    file = made.store.folder / "gang-1" / "job.toml"
    file.write_text(file.read_text() + "\n[strategy]\nnodes = 2\n")
    machines = cli.launch("gang-1", count=2)
    record = cli.bring(made, launched=machines)
    cli.ec2.terminate_instances(InstanceIds=[machines[1]])
    cli.ec2.modify_instance_attribute(InstanceId=machines[0], DisableApiTermination={"Value": True})

    # When anybody asks
    status = cli.bai("status", "gang-1", "--json")

    # Then the person reads why it still runs, and no result says that it has ended
    assert status.code == 0, status.stderr
    (told,) = status.objects
    assert "The machines could not be terminated: " in told["machine"]
    assert "OperationNotPermitted" in told["machine"]
    assert "The machines could not be terminated: " in " ".join(cli.bai("status", "gang-1").stdout.split())
    assert told["outcome"] is None
    assert record.result() is None
    assert cli.state(machines[0]) == "running"

    # And who looks once it may be ended does that
    cli.ec2.modify_instance_attribute(InstanceId=machines[0], DisableApiTermination={"Value": False})
    assert "The machines could not be terminated" not in cli.bai("status", "gang-1").stdout
    assert cli.state(machines[0]) == "terminated"
    assert record.result() is not None


def test_only_machines_with_the_tag_of_the_job_are_ended(cli: Ec2Cli) -> None:
    # Given a job whose agent says that it lives on a machine without our tags
    record = cli.bring(cli.handmade())
    (foreign,) = cli.launch(None)
    record.store.put(record.node().key("ready.json"), json.dumps({"instance_id": foreign}).encode())
    record.cancel(by="test")

    watched = monitor(record, later=timedelta(seconds=200))
    assert [each.id for each in watched.instances()] == [foreign]
    watched.reconcile()
    watched.end()

    assert cli.state(foreign) == "running"


@pytest.mark.parametrize("ended", [True, False])
def test_status_ignores_a_concurrent_launch_that_was_not_recorded(cli: Ec2Cli, ended: bool) -> None:
    # Given a job that two launched at once, of whom one was too late, and ended its machine or died before
    (too_late,) = cli.launch()
    (ours,) = cli.launch()
    job = cli.handmade()
    job.phases("prepare", "pull", "join")
    record = cli.bring(job, launched=[ours])
    record.store.put(record.key("attempts/0/nodes/0/heartbeat.json"), b"{}")
    if ended:
        cli.ec2.terminate_instances(InstanceIds=[too_late])

    answer = cli.bai("status", "digits-1", "--json")

    assert answer.objects[0]["machine"] == f"{ours} (m1.small) is running."
    assert record.result() is None
    assert (cli.state(ours), cli.state(too_late)) == ("running", "terminated")


def test_all_machines_are_terminated_if_one_is_lost_before_the_job_starts(cli: Ec2Cli) -> None:
    made = cli.handmade("gang-1")
    text = (made.store.folder / "gang-1" / "job.toml").read_text()
    (made.store.folder / "gang-1" / "job.toml").write_text(text + "\n[strategy]\nnodes = 3\n")
    machines = cli.launch("gang-1", count=3)
    record = cli.bring(made, launched=machines)
    cli.ec2.terminate_instances(InstanceIds=[machines[1]])

    found = monitor(record).reconcile()

    assert found.inferred is not None
    assert [cli.state(each) for each in machines] == ["terminated"] * 3
    assert machines[1] in str((record.result() or {})["sentence"])


def gang(cli: Ec2Cli, *, lost: list[int], keeps: bool = False) -> tuple[JobRecord, list[str]]:
    """Bring a job of three nodes that ended without those `lost`, and whose machines all run still; return their ids too."""
    made = cli.handmade("gang-1", nodes=3, keeps=keeps)
    if not keeps:
        file = made.store.folder / "gang-1" / "job.toml"
        file.write_text(f'{file.read_text()}\n[end]\npower = "off"\n')
    made.ends("peer_lost", 5, lost=lost)
    machines = cli.launch("gang-1", count=3)
    record = cli.bring(made, launched=machines)
    for sign in ("control/coordinator", "signs/1", "signs/2"):
        record.store.put(record.key(f"attempts/0/{sign}"), b"{}")
    return record, machines


def test_machines_of_lost_nodes_are_terminated_once_they_are_silent(cli: Ec2Cli) -> None:
    # Given a job that has ended without its nodes 0 and 2
    record, machines = gang(cli, lost=[0, 2])
    result = result_of(record)
    assert result is not None

    # When somebody looks while they still send heartbeats, and later
    early = end_leftovers(monitor(record), result).due
    late = end_leftovers(monitor(record, later=timedelta(seconds=20)), result).due

    # Then those that are silent are ended, and no others
    assert early == ()
    assert [each.id for each in late] == [machines[0], machines[2]]
    assert [cli.state(each) for each in machines] == ["terminated", "running", "terminated"]
    assert end_leftovers(monitor(record, later=timedelta(seconds=20)), result).due == ()


def test_status_names_the_machines_that_it_terminated(cli: Ec2Cli) -> None:
    record, machines = gang(cli, lost=[1])
    record.store.delete(record.key("attempts/0/signs/"))

    first, second = (cli.bai("status", "gang-1", "--json").objects[0] for _ in range(2))

    said = f"{machines[1]} (node 1) stopped sending heartbeats and is being terminated"
    assert (first["machine"], first["exit_code"]) == (said, 5)
    assert second["machine"] is None
    assert cli.state(machines[1]) == "terminated"


def test_a_silent_machine_of_a_lost_node_is_kept_if_the_job_keeps_failed_machines(cli: Ec2Cli) -> None:
    record, machines = gang(cli, lost=[1], keeps=True)
    record.store.delete(record.key("attempts/0/signs/"))

    assert "kept for inspection" in cli.bai("status", "gang-1", "--json").objects[0]["machine"]

    assert [cli.state(each) for each in machines] == ["running"] * 3


def test_a_job_whose_machines_all_hang_is_terminated(cli: Ec2Cli) -> None:
    made = cli.handmade("gang-1", nodes=2)
    machines = cli.launch("gang-1", count=2)
    record = cli.bring(made, launched=machines)
    for rank in (0, 1):
        record.store.put(record.node(rank).key("heartbeat.json"), b"{}")

    # For limits.store_away the job store may be out of reach of all of them
    assert monitor(record, later=timedelta(minutes=12)).reconcile().terminate == ()
    found = monitor(record, later=timedelta(minutes=13)).reconcile()

    assert [each.id for each in found.terminate] == machines
    assert [cli.state(each) for each in machines] == ["terminated"] * 2
    result = record.result() or {}
    assert (result["outcome"], result["exit_code"], result["on_behalf"]) == ("peer_lost", 5, True)
    assert f"Node 0 ({machines[0]})" in result["sentence"]


def elastic(cli: Ec2Cli, *, launched: int = 3) -> tuple[JobRecord, list[str]]:
    """Bring a job of two to four nodes that runs; return the ids of its machines too."""
    made = cli.handmade("elastic-1")
    file = made.store.folder / "elastic-1" / "job.toml"
    file.write_text(file.read_text() + '\n[strategy]\nname = "torchrun"\nnodes = 4\nmin_nodes = 2\n')
    made.event("agent_started", pid=1)
    made.phases("prepare", "pull", "join", until="run")
    machines = cli.launch("elastic-1", count=launched)
    record = cli.bring(made, launched=machines)
    for rank in range(launched):
        record.store.put(record.node(rank).key("heartbeat.json"), b"{}")
    first = NextGeneration(kind=DecisionKind.RUN, members=list(range(launched)), why="start")
    AttemptRecord(record).settle_generation(0, first)
    return record, machines


def test_an_elastic_job_with_fewer_machines_than_desired_is_healthy(cli: Ec2Cli) -> None:
    record, _ = elastic(cli)

    found = monitor(record).observe()

    assert (found.stage, found.sentence) == (JobStage.RUNNING, "3 machines are running.")
    assert monitor(record).all_well()


def test_a_lost_machine_does_not_end_an_elastic_job(cli: Ec2Cli) -> None:
    record, machines = elastic(cli)
    cli.ec2.terminate_instances(InstanceIds=[machines[0]])

    status = cli.bai("status", "elastic-1", "--json").objects[0]
    later = monitor(record, later=timedelta(minutes=1)).reconcile()

    assert status["status"] == "RUNNING"
    assert status["machine"] == f"2 machines are running; node 0 ({machines[0]}) is gone."
    assert later.inferred is None
    assert record.result() is None
    assert [cli.state(each) for each in machines[1:]] == ["running"] * 2


def test_a_machine_of_an_elastic_job_that_hangs_is_terminated_alone(cli: Ec2Cli) -> None:
    record, machines = elastic(cli)
    cli.age(record, timedelta(minutes=4))
    for rank in (0, 2):
        record.store.put(record.node(rank).key("heartbeat.json"), b"{}")

    found = monitor(record).reconcile()

    assert found.stage is JobStage.RUNNING
    assert f"Node 1 ({machines[1]}) has sent no heartbeat for 4m" in found.sentence
    assert [cli.state(each) for each in machines] == ["running", "terminated", "running"]
    assert record.result() is None


def test_an_elastic_job_without_machines_waits_and_then_ends(cli: Ec2Cli) -> None:
    record, machines = elastic(cli)
    park = NextGeneration(
        kind=DecisionKind.PARK, members=[2], why="lost", ledger=Ledger(waiting_since=now_ms())
    )
    AttemptRecord(record).settle_generation(1, park)
    # A late node that could not pull ended alone, long before
    AttemptRecord(record).end(NodeOutcome(rank=3, outcome="pull_failed", sentence="No data.", ended=1))
    cli.ec2.terminate_instances(InstanceIds=machines)

    early = monitor(record, later=timedelta(minutes=9)).reconcile()
    listed = cli.bai("list", "--json").objects[0]
    status = cli.bai("status", "elastic-1", "--json").objects[0]
    assert (early.stage, record.result()) == (JobStage.PARKED, None)
    assert listed["status"] == status["status"] == "PARKED"
    assert "No machine is left. The job waits for nodes (at least 2)" in status["machine"]

    monitor(record, later=timedelta(minutes=11)).reconcile()

    result = record.result() or {}
    assert (result["outcome"], result["exit_code"], result["on_behalf"]) == ("peer_lost", 5, True)
    assert result["sentence"].startswith("The job had 0 of at least 2 nodes for 10m: Somebody terminated")


@pytest.mark.parametrize("kind", [DecisionKind.RUN, DecisionKind.PARK])
def test_status_reports_a_lost_node(cli: Ec2Cli, kind: DecisionKind) -> None:
    record, machines = elastic(cli)
    cli.ec2.terminate_instances(InstanceIds=machines[:1])
    ledger = Ledger(waiting_since=now_ms() if kind is DecisionKind.PARK else None, losses={"0": 1})
    word = NextGeneration(kind=kind, members=[1, 2], why="lost", nodes=[0], ledger=ledger)
    AttemptRecord(record).settle_generation(1, word)

    table = cli.bai("status", "elastic-1", "--json").objects[0]
    shown = " ".join(cli.bai("status", "elastic-1").stdout.split())

    assert table["status"] == ("RUNNING" if kind is DecisionKind.RUN else "PARKED")
    assert table["generation"]["members"] == [1, 2]
    assert table["generation"]["left"] == {"0": "lost in generation 0"}
    assert "node 0 sent no heartbeat" in shown
    assert f"node 0 ({machines[0]}) is gone" in shown


def test_bai_scale_changes_the_number_of_nodes_within_the_range(cli: Ec2Cli) -> None:
    record, _ = elastic(cli)

    larger, outside, smaller = (cli.bai("scale", "elastic-1", nodes) for nodes in ("4", "5", "2"))

    # Nobody can tell what the request to EC2 was made of.
    assert larger.code == 0
    assert (
        "scaling to 4 nodes; 3 machines are running. No machine is launched for the job: version"
        in larger.stdout
    )
    assert (outside.code, outside.stdout) == (2, "")
    assert "5 nodes: elastic-1 runs on 2 to 4 nodes" in outside.stderr
    assert (smaller.code, smaller.stdout) == (0, "elastic-1: scaling to 2 nodes\n")
    attempt = AttemptRecord(record)
    assert [attempt.scale_request(each).desired for each in sorted(attempt.scale_requests())] == [4, 2]


def test_an_elastic_job_launched_by_hand_can_only_be_scaled_down(cli: Ec2Cli) -> None:
    record, _ = elastic(cli)
    for name in ("launch.json", "launched.json"):
        boto3.client("s3").delete_object(Bucket="bucket", Key=f"jobs/{record.key(f'attempts/0/{name}')}")

    larger, smaller = (cli.bai("scale", "elastic-1", nodes) for nodes in ("4", "2"))

    assert (larger.code, smaller.code) == (2, 0)
    assert "elastic-1 has 3 nodes whose machines were launched by hand" in larger.stderr


def test_the_cost_of_an_elastic_job_includes_all_its_machines(cli: Ec2Cli) -> None:
    record, _ = elastic(cli)
    launch = {"request": {"InstanceType": "m1.small"}}
    record.store.put(record.key("attempts/0/launch.json"), json.dumps(launch).encode())
    config = cli.folder / "config.toml"
    config.write_text(f'{config.read_text()}[prices]\n"m1.small" = 2.0\n')
    write_result(record, Outcome.SUCCEEDED, "Done.")

    listed = cli.bai("list", "--json").objects[0]

    assert listed["dollars"] == pytest.approx(3 * 2.0 * listed["seconds"] / 3600)


def test_a_parked_elastic_job_without_machines_can_be_cancelled(cli: Ec2Cli) -> None:
    record, machines = elastic(cli)
    cli.ec2.terminate_instances(InstanceIds=machines)

    assert cli.bai("cancel", "elastic-1").code == 0
    cli.bai("status", "elastic-1")

    assert (record.result() or {})["outcome"] == "cancelled"


@pytest.mark.parametrize("outcome", ["max_runtime", "nonsense"])
def test_a_recorded_decision_to_end_becomes_the_result_if_no_node_wrote_one(
    cli: Ec2Cli, outcome: str
) -> None:
    record, machines = elastic(cli)
    word = NextGeneration(kind=DecisionKind.END, outcome=outcome, sentence="It took too long.")
    with suppress(RecordError):  # It is written, and cannot be read.
        AttemptRecord(record).settle_generation(1, word)
    cli.ec2.terminate_instances(InstanceIds=machines)

    monitor(record).reconcile()

    result = record.result()
    assert (result or {}).get("outcome") == ("max_runtime" if outcome == "max_runtime" else None)


def test_status_shows_why_the_nodes_are_being_ended(cli: Ec2Cli) -> None:
    made = cli.handmade("gang-1", nodes=2)
    record = cli.bring(made, launched=cli.launch("gang-1", count=2))
    order = StopOrder(rank=1, outcome="failed", sentence="Node 1: The benchmark ended with exit code 7.")
    AttemptRecord(record).order_stop(order)

    status = cli.bai("status", "gang-1", "--json").objects[0]

    assert "The job is being ended: Node 1: The benchmark ended with exit code 7." in status["warnings"]


def test_status_writes_the_missing_result_of_a_refused_launch(cli: Ec2Cli) -> None:
    record = cli.bring(cli.handmade(), launched=[])
    refusal = {"instances": [], "outcome": "quota", "sentence": "No more vCPUs."}
    record.store.put(record.key("attempts/0/launched.json"), json.dumps(refusal).encode())

    assert cli.bai("status", "digits-1").code == 0

    assert (record.result() or {})["outcome"] == "quota"


def test_a_result_in_the_bucket_is_never_overwritten(cli: Ec2Cli) -> None:
    record, _ = running(cli)

    assert write_result(record, Outcome.LOST, "First.")
    assert not write_result(record, Outcome.LOST, "Second.")
    assert (record.result() or {})["sentence"] == "First."


def test_jobs_of_this_machine_and_of_the_bucket_are_listed_together(cli: Ec2Cli) -> None:
    running(cli, "far-1")
    HandmadeJob(Path(cli.folder / "home" / ".bai" / "jobs"), "near-1").ends()

    listed = {each["job_id"]: each["where"] for each in cli.bai("list", "--json").objects}
    only = cli.bai("list", "--json", "--store", "s3://bucket/jobs").objects

    assert listed == {"near-1": "local", "far-1": "ec2"}
    assert [each["job_id"] for each in only] == ["far-1"]
    assert cli.bai("status", "near-1", "--json").objects[0]["where"] == "local"
    assert "where" in cli.bai("list").stdout.splitlines()[0]


def test_a_descriptor_that_cannot_be_read_hides_no_other_job(cli: Ec2Cli) -> None:
    running(cli, "good-1")
    cli.store.put("newer-1/job.toml", b"version = 99\n")
    cli.store.put(".doctor/probe.json", b"{}")

    listed = cli.bai("list", "--json")

    assert {each["job_id"]: each["status"] for each in listed.objects} == {
        "good-1": "RUNNING",
        "newer-1": "UNREADABLE",
    }
    assert "version 99" in next(each["machine"] for each in listed.objects if each["job_id"] == "newer-1")


@pytest.mark.parametrize("name", ["attempts/0/launch.json", "attempts/0/launched.json", "result.json"])
def test_a_broken_record_is_named_and_hides_no_other_job(cli: Ec2Cli, name: str) -> None:
    running(cli, "good-1")
    record, instance = running(cli, "broken-1")
    record.store.put(record.key(name), b'{"version": 2}')
    said = f"bai: s3://bucket/jobs/broken-1/{name}: "

    listed = cli.bai("list", "--json")
    with ThreadPoolExecutor() as pool:
        waiting = list(
            pool.map(lambda words: cli.bai(*words, "broken-1"), (("status", "--wait"), ("resume", "-f")))
        )

    assert {each["job_id"]: each["status"] for each in listed.objects} == {
        "good-1": "RUNNING",
        "broken-1": "UNREADABLE",
    }
    assert listed.stderr.startswith(said)
    for answer in waiting:
        assert answer.code == 5
        assert answer.stderr.splitlines()[-1].startswith(said)
    assert cli.state(instance) == "running"


def test_an_unreachable_bucket_does_not_hide_local_jobs(cli: Ec2Cli) -> None:
    HandmadeJob(Path(cli.folder / "home" / ".bai" / "jobs"), "near-1").ends()
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONFIG_FILE": "/nowhere"}

    listed = cli.bai("list", "--json", env=nobody)
    assert [each["job_id"] for each in listed.objects] == ["near-1"]
    assert "credentials" in listed.stderr
    assert listed.code == 5
    assert cli.bai("status", "near-1", env=nobody).code == 0
    assert "credentials" in cli.bai("status", "far-1", env=nobody).stderr


@pytest.mark.parametrize("reached", ["a missing bucket", "a web server", "nobody"])
def test_an_unreachable_bucket_is_an_error_and_not_an_empty_list(cli: Ec2Cli, reached: str) -> None:
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
        answers = [cli.bai(*each, *options, env=env) for each in looks[: 2 if env else None]]
        server.shutdown()

    for answer in answers:
        assert answer.code == 5, answer.stderr
        assert answer.stdout == ""
        assert "no jobs" not in answer.stderr
        assert "no job " not in answer.stderr
        assert "s3://" in answer.stderr


def test_following_a_failed_job_to_its_end_names_the_kept_machine_and_its_price(cli: Ec2Cli) -> None:
    # Given jobs that keep a failed machine, of which one failed, in an account with a price
    config = cli.folder / "config.toml"
    config.write_text(f'{config.read_text()}[prices]\n"m1.small" = 0.044\n')
    for job_id, outcome, code in (("failed-1", "failed", 1), ("good-1", "succeeded", 0)):
        made = cli.handmade(job_id, keeps=True)
        made.ends(outcome, code)
        cli.bring(made, launched=cli.launch(job_id))

    failed, good = (cli.bai("resume", each, "-f") for each in ("failed-1", "good-1"))

    assert (failed.code, good.code) == (1, 0)
    assert re.search(
        r"bai: i-\w+ is kept for inspection until \d{4}-\d\d-\d\d \d\d:\d\d UTC, at about 0\.0440 USD an hour; "
        r"`bai release failed-1` releases the machine from inspection",
        failed.stderr,
    ), failed.stderr
    assert "kept" not in good.stderr


def test_logs_boot_shows_the_consoles_of_the_machines(cli: Ec2Cli) -> None:
    _, instance = running(cli)

    shown = cli.bai("logs", "--boot", "digits-1")

    assert shown.stdout.startswith(f"== {instance} (running), node 0")
    assert len(shown.stdout.splitlines()) > 1


def test_following_a_job_asks_ec2_only_while_the_store_has_no_news(cli: Ec2Cli) -> None:
    record, instance = running(cli)
    now = [0.0]
    watcher = InstanceWatcher(monitor(record, later=timedelta(seconds=90)), clock=lambda: now[0])

    assert watcher.observe(news=True, cancelling=False) is None
    now[0] += 40
    assert "no heartbeat" in str(watcher.observe(news=False, cancelling=False))
    now[0] += EVERY / 2
    assert watcher.observe(news=False, cancelling=False) is None
    now[0] += EVERY
    assert watcher.observe(news=False, cancelling=False) is None
    cli.ec2.terminate_instances(InstanceIds=[instance])
    now[0] += EVERY
    assert "terminated" in str(watcher.observe(news=False, cancelling=False))
    assert record.result() is not None


def test_following_a_job_shows_its_machine_and_returns_its_exit_code(cli: Ec2Cli) -> None:
    # Given a job that ends after it was joined
    record, _ = running(cli)
    done = cli.handmade("done-1")
    done.ends("failed", 1)
    cli.bring(done)
    assert cli.bai("resume", "done-1", "-f").code == 1

    # And one whose machine vanishes while somebody follows it
    stream, clock = io.StringIO(), itertools.count(0, 40)
    watcher = InstanceWatcher(monitor(record, later=timedelta(seconds=90)), clock=lambda: next(clock))
    watcher.pause_s = 0.01
    cli.ec2.terminate_instances(InstanceIds=[each.id for each in watcher.monitor.instances()])
    job_view = JobView(job_id="digits-1", job=record.job(), place="")
    result = watch(record, job_view, JsonView(stream), watcher, remote=True)

    assert result.exit_code == 5
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert any("terminated" in each["message"] for each in told if each["type"] == "notice")
    assert {"type": "log", "line": "still at it"} in told
    assert told[-1]["type"] == "result"


def test_waiting_for_an_expired_job_ends_although_ec2_does_not_answer(cli: Ec2Cli) -> None:
    # given a job whose time is up, no word of its agent, and an EC2 that does not answer
    made = cli.handmade()
    made.event("agent_started", pid=1)
    cli.bring(made, launched=["i-0123456789abcdef0"], expires=timedelta(minutes=-20))
    silent = {"AWS_ENDPOINT_URL_EC2": "http://127.0.0.1:1"}

    with ThreadPoolExecutor() as pool:
        waited, log = pool.map(
            lambda words: cli.bai(*words, "digits-1", env=silent),
            (("status", "--wait", "--json"), ("logs", "-f")),
        )

    (found,) = waited.objects
    assert (waited.code, found["status"], found["result"]) == (5, "UNKNOWN", None), waited.stderr
    assert "deadline has passed" in found["machine"]
    assert log.code == 5
    assert "could not be queried" in log.stderr.splitlines()[-1]
