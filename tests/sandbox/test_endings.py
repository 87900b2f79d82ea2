"""However a job goes, its machine ends, and `bai status` says how it was.

Each test names the layer that ends the machine, and the bound of that layer. Nothing else can have done it: the deadman of
these jobs is over an hour away unless a test shortens it, and nobody terminates an instance but who is named.
"""

from __future__ import annotations

import base64
import json
import random
from datetime import timedelta

import pytest

from sandbox.ends import RUN, WAITS, agent, ended, outcome, wait_inside
from sandbox.sandbox_cli import SandboxCli

LOSS = """
[[output.metrics]]
name = "loss"
units = "nats"
pattern = 'loss=(\\S+)'
"""
TWO_RUNS = """
[repeat]
runs = 2
"""
WAITING_RUN = """\
echo begun $BAI_REPEAT
until [ -e /var/go-$BAI_REPEAT ]; do sleep 0.1; done
echo loss=$BAI_REPEAT.5
"""


def test_a_guardian_restarts_an_agent_killed_in_each_of_two_repeats(cli: SandboxCli) -> None:
    """Guardian: starts it again, up to six times; neither run notices, and each has its own records."""
    machine = cli.submit(cli.descriptor(WAITING_RUN, more=LOSS + TWO_RUNS))
    for run in (0, 1):
        started = f"grep -c agent_started {RUN}/events.jsonl | grep -qx {run + 1}"
        wait_inside(machine, f"grep -q 'begun {run}' {RUN}/output.log && {started}")
        machine.kill(agent(machine))
        machine.wait_for(f"agent start {run + 2}")
        machine.write(f"/var/go-{run}", "")

    status = ended(cli, machine, "done 0")

    assert outcome(status) == ("SUCCEEDED", "succeeded", 0)
    stored = cli.objects("jobs/job/attempts/0/nodes/0/")
    output = "".join(f"\n[bai] run {run + 1} of 2\nbegun {run}\nloss={run}.5\n" for run in (0, 1))
    assert stored[f"log/{0:020}"].decode() == output
    assert stored["events.jsonl"].count(b"agent_started") == 3
    assert stored["events.jsonl"].count(b"benchmark_started") == 1

    # The runs are told apart in the store, and by all who read it.
    runs = [json.loads(line) for line in stored["repeats.jsonl"].splitlines()]
    assert [(each["event"], each["repeat"]) for each in runs] == [
        ("began", 0),
        ("ended", 0),
        ("began", 1),
        ("ended", 1),
    ]
    records = [json.loads(line) for line in stored[f"metrics/{0:020}.jsonl"].splitlines()]
    losses = [(each["repeat"], each["value"]) for each in records if each["name"] == "loss"]
    assert losses == [(0, 0.5), (1, 1.5)]
    assert [(each["repeat"], each["outcome"]) for each in status["result"]["repeats"]] == [
        (0, "succeeded"),
        (1, "succeeded"),
    ]
    assert cli.bai("logs", "job", "--repeat", "1").stdout == "begun 1\nloss=1.5\n"
    report = json.loads(cli.bai("report", "job", "--format", "json").stdout)
    [loss] = [each for each in report["metrics"] if each["name"] == "loss"]
    assert [(each["repeat"], each["values"]) for each in loss["series"]] == [(0, [0.5]), (1, [1.5])]
    taken = [each["wall_seconds"] for each in runs if each["event"] == "ended"]
    assert [each["wall_seconds"] for each in report["result"]["repeats"]] == taken


def test_a_cancelled_job_ends_its_benchmark_and_its_machine(cli: SandboxCli) -> None:
    """Agent: ends the benchmark with SIGTERM, keeps what it said, and does not wait for its limits."""
    machine = cli.submit(cli.descriptor(f"trap 'echo farewell; exit' TERM\n{WAITS}"))
    wait_inside(machine, f"grep -q begun {RUN}/output.log")
    assert cli.bai("cancel", "job").code == 0

    status = ended(cli, machine, "done 4")

    assert outcome(status) == ("CANCELED", "cancelled", 4)
    assert cli.bai("logs", "job").stdout.endswith("farewell\n")


def test_an_interrupted_spot_machine_ends_its_job(cli: SandboxCli) -> None:
    """Agent: hears the notice, ends the benchmark with SIGTERM, and has all in the store before EC2's time."""
    code = f"trap 'echo farewell; echo kept >kept.txt; exit' TERM\n{WAITS}"
    more = '[aws.ec2.run_instances.InstanceMarketOptions]\nMarketType = "spot"\n[output]\nartifacts = ["kept.txt"]\n'
    machine = cli.submit(cli.descriptor(code, more=more))
    wait_inside(machine, f"grep -q begun {RUN}/output.log")
    cli.aws.give_spot_notice(machine.instance_id, after=timedelta(minutes=2))

    status = ended(cli, machine, "done 5")

    assert outcome(status) == ("ERROR", "interrupted", 5)
    assert "EC2 takes this spot instance back (terminate at " in status["sentence"]
    log = cli.bai("logs", "job").stdout
    assert (log.startswith("begun\n"), log.endswith("farewell\n")) == (True, True)
    assert cli.objects("jobs/job/artifacts/") == {"kept.txt": b"kept\n"}


def test_a_bundle_that_differs_from_the_submitted_one_is_refused(cli: SandboxCli) -> None:
    """Guardian: powers off when the bundle's sha256 is wrong, after asking again for five seconds."""
    assert cli.bai("bundle", "--arch", "x86_64", "--upload").code == 0
    [(name, content)] = cli.objects("agent/").items()
    broken = content[:-1] + bytes([content[-1] ^ 1])
    cli.aws.client("s3", "setup").put_object(Bucket=cli.aws.bucket, Key=f"agent/{name}", Body=broken)

    machine = cli.submit(cli.descriptor(WAITS))
    status = ended(cli, machine, "fetch-corrupt")

    assert outcome(status) == ("ERROR", "boot_failed", 5)
    assert "the agent's bundle differs from the submitted one" in status["sentence"]


def test_a_benchmark_that_never_ends_is_stopped_at_max_runtime(cli: SandboxCli) -> None:
    """Agent: ends it after max_runtime and grace, six seconds here, though it ignores SIGTERM."""
    limits = 'max_runtime = "5s"\ngrace = "1s"'
    machine = cli.submit(cli.descriptor('trap "" TERM; while :; do sleep 0.2; done', limits=limits))

    status = ended(cli, machine, "done 3")

    assert outcome(status) == ("FAILED", "max_runtime", 3)
    assert status["result"]["benchmark"]["signal"] == 9


def test_a_daemon_left_behind_by_a_benchmark_is_killed(cli: SandboxCli) -> None:
    """Shim: ends all descendants when the benchmark has ended; shown on a machine that is kept, so that no power-off did it."""
    hidden = "trap '' TERM HUP; while :; do sleep 0.4242; done"
    code = f'(setsid sh -c "{hidden}" hidden >/dev/null 2>&1 &)\nsleep 0.5\nexit 3'
    machine = cli.submit(cli.descriptor(code, ec2='keep_on_failure = "5m"'))
    machine.wait_for("keeping this machine for 300 s")

    assert machine.inside.processes("0.4242") == []
    kept = cli.status()
    assert outcome(kept) == ("FAILED", "failed", 1)
    assert kept["result"]["benchmark"]["left_behind"] >= 1
    assert f"{machine.instance_id} is kept for inspection" in kept["machine"]
    assert cli.aws.state(machine.instance_id) == "running"

    assert cli.bai("release", "job").code == 0
    assert ended(cli, machine, "done 1")["machine"] is None


def test_a_reboot_during_the_benchmark_ends_the_job_as_lost(cli: SandboxCli) -> None:
    """Boothook: starts the guardian again, whose agent ends the job: what was lost is not measured a second time."""
    machine = cli.submit(cli.descriptor("echo begun >>/var/begun\nreboot -ff\nsleep 600"))

    status = ended(cli, machine, "done 5")

    assert outcome(status) == ("ERROR", "lost", 5)
    assert machine.exit_codes == [133, 0]
    assert machine.read("/var/begun") == b"begun\n"


def test_after_a_reboot_a_job_with_restarts_continues(cli: SandboxCli) -> None:
    """Boothook: starts the guardian again, whose agent starts the benchmark once more, as the job allows it."""
    code = "echo $BAI_GENERATION >>/var/begun\n[ $BAI_GENERATION = 1 ] || { reboot -ff; sleep 600; }"
    restart = '[restart]\nmax_restarts = 1\nbackoff = "1s"'
    machine = cli.submit(cli.descriptor(code, more=restart))

    status = ended(cli, machine, "done 0")

    assert outcome(status) == ("SUCCEEDED", "succeeded", 0)
    assert machine.read("/var/begun") == b"0\n1\n"
    generations = status["result"]["generations"]
    assert [each["outcome"] for each in generations] == ["lost", "succeeded"]


def test_a_reboot_by_the_benchmark_ends_the_job_as_interrupted(cli: SandboxCli) -> None:
    """As above. The guardian says farewell, and the benchmark was ended by the machine, whoever of us went first."""
    machine = cli.submit(cli.descriptor("echo begun >>/var/begun\nreboot\nsleep 600"))

    status = ended(cli, machine, "terminated", "done 5")

    assert outcome(status) == ("ERROR", "interrupted", 5)
    assert machine.exit_codes == [133, 0]
    assert machine.read("/var/begun") == b"begun\n"


def test_a_descriptor_too_large_for_user_data_is_read_from_the_store(cli: SandboxCli) -> None:
    """No layer has to act: the descriptor is read from the store, checked by its sha256."""
    padding = "\n".join(f"# {random.Random(line).randbytes(100).hex()}" for line in range(300))
    machine = cli.submit(cli.descriptor(f"echo begun\n{padding}"))

    assert outcome(ended(cli, machine, "done 0")) == ("SUCCEEDED", "succeeded", 0)
    stored = cli.objects("jobs/job/")
    assert len(stored["job.toml"]) > 16_384
    request = json.loads(stored["attempts/0/launch.json"])["request"]
    assert len(base64.b64decode(request["UserData"])) < 16_384
    read = [call.resource for call in cli.aws.calls if call.instance_id and call.action == "GetObject"]
    assert f"{cli.aws.bucket}/jobs/job/job.toml" in read


def test_an_unreachable_kafka_delays_the_end_by_limits_drain(cli: SandboxCli) -> None:
    """Agent: waits for limits.drain, two seconds here; what was not delivered is in the result."""
    file = cli.descriptor("echo loss=0.5", limits='max_runtime = "1m"\ndrain = "2s"', more=LOSS)
    machine = cli.submit(file, env={"BAI_KAFKA_BROKERS": "127.0.0.1:1"})

    status = ended(cli, machine, "done 0")

    assert outcome(status) == ("SUCCEEDED", "succeeded", 0)
    assert status["result"]["kafka"]["undelivered"] > 0
    assert [each["value"] for each in status["metrics"] if each["name"] == "loss"] == [0.5]


def test_an_instance_whose_role_may_not_read_the_bundle_powers_off(cli: SandboxCli) -> None:
    """Guardian: powers off when S3 refuses the bundle, after asking again for a minute: a role may be new."""
    policies = cli.aws.policies
    policies.attach("instance", policies.documented("instance").without("ReadWhatWasSubmitted"))
    machine = cli.submit(cli.descriptor(WAITS))

    status = ended(cli, machine, "fetch-denied")

    assert outcome(status) == ("ERROR", "boot_failed", 5)
    assert "s3:GetObject" in status["sentence"]
    assert {(each.identity, each.action) for each in policies.take_refused()} == {
        ("instance", "s3:GetObject")
    }


def test_a_role_without_write_access_is_reported(cli: SandboxCli) -> None:
    """Agent: ends before the benchmark when the store refuses it; its result is written by who asks for it."""
    policies = cli.aws.policies
    policies.attach("instance", policies.documented("instance").without("WriteWhatNodesReport"))
    machine = cli.submit(cli.descriptor("echo begun >/var/begun"))

    status = ended(cli, machine, "done 5")

    assert outcome(status) == ("ERROR", "store_failed", 5)
    assert "access denied; the credentials need s3:GetObject and s3:PutObject" in status["sentence"]
    with pytest.raises(FileNotFoundError):
        machine.read("/var/begun")
    assert {(each.identity, each.action) for each in policies.take_refused()} == {
        ("instance", "s3:PutObject")
    }
