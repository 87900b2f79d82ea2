"""Several jobs on one machine: each reports the others, and an exclusive one waits."""

from __future__ import annotations

import signal

from agent_runs import events_of, wait_until
from local_cli import LocalCli
from run_warnings import own_warnings


def events(cli: LocalCli, job_id: str, kind: str) -> list[dict[str, object]]:
    path = cli.rundir(job_id).path
    return (
        [each for each in events_of(path) if each["type"] == kind] if (path / "events.jsonl").exists() else []
    )


def test_concurrent_jobs_report_each_other_and_an_exclusive_job_waits(cli: LocalCli) -> None:
    file = cli.descriptor()
    for job_id in ("one", "other"):
        assert cli.bai("run", "-d", file, "--job-id", job_id, "--", cli.go_file).code == 0
        cli.await_output(job_id, "loss=0.5")
    wait_until(lambda: events(cli, "one", "neighbour") != [])

    with cli.start("run", file, "--job-id", "alone", "--exclusive", "--", cli.go_file) as third:
        wait_until(lambda: events(cli, "alone", "waiting") != [])
        status = cli.bai("status", "alone")
        cli.go_file.touch()
        shown, _ = third.communicate(timeout=120)

    assert "Waits until this machine is free: one, other run here." in shown
    assert "Waits until this machine is free" in status.stdout
    assert own_warnings(cli.result("alone")) == []
    for job_id, neighbour in (("one", "other"), ("other", "one")):
        assert cli.bai("status", job_id, "--wait").code == 0
        (sentence,) = [each for each in cli.result(job_id)["warnings"] if "at the same time" in each]
        assert sentence.startswith(f"The job {neighbour} ran on this machine at the same time, for ")
        assert sentence in cli.bai("status", job_id).stdout


def test_ctrl_c_ends_a_job_that_waits_for_the_machine(cli: LocalCli) -> None:
    file = cli.descriptor()
    assert cli.bai("run", "-d", file, "--job-id", "one", "--", cli.go_file).code == 0
    cli.await_output("one", "loss=0.5")
    with cli.start("run", file, "--job-id", "alone", "--exclusive", "--", cli.go_file) as waits:
        assert waits.stdout is not None
        assert any("Waits until this machine is free: one runs here." in line for line in waits.stdout)
        waits.send_signal(signal.SIGINT)
        waits.communicate(timeout=120)
    cli.go_file.touch()

    assert waits.returncode == 4
    assert cli.result("alone")["outcome"] == "cancelled"
    assert not cli.rundir("alone").started.exists()


def test_exclusive_is_refused_for_a_job_on_ec2(cli: LocalCli) -> None:
    answer = cli.bai("run", cli.descriptor(), "--exclusive", "--on", "ec2")
    assert answer.code == 2
    assert "--exclusive: an instance has no other jobs" in answer.stderr
