"""Jobs of several machines under one mpirun: real sshd, real Open MPI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox.ends import RUN, wait_inside
from sandbox.fake_aws import Machine, MachineShape
from sandbox.open_mpi import FIVE, FOUR, PLACE, open_mpi
from sandbox.sandbox_cli import SandboxCli

SAY = """\
echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on node $BAI_NODE_RANK as $(id -un) in $(pwd)"
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exit 0
sleep 4
echo loss=0.5
"""
LOSS = """
[[output.metrics]]
name = "loss"
units = "nats"
pattern = 'loss=(\\S+)'
required = true
"""
# The second is as a user of the benchmark service writes it: the command itself calls mpirun, and names no host.
COMMANDS = {"mpirun": "exec /bin/sh say\n", "user": "mpirun -np 2 /bin/sh say\n"}


def machines_of(cli: SandboxCli, code: str, *, distributed: str, more: str) -> list[Machine]:
    scripts = cli.folder / "scripts"
    scripts.mkdir()
    (scripts / "say").write_text(SAY)
    more = LOSS + '[ml.script]\npath = "scripts"\n' + more
    limits = 'max_runtime = "5m"\nno_output = "20s"'
    return cli.submit_nodes(described(cli, code, distributed=distributed, limits=limits, more=more))


def described(cli: SandboxCli, code: str, *, limits: str, distributed: str = "", more: str = "") -> Path:
    """Write the descriptor of a job of two nodes under mpirun."""
    file = cli.descriptor(code, nodes=2, strategy="mpi", more=more, limits=limits)
    file.write_text(
        file.read_text().replace("[hardware.distributed]", f"[hardware.distributed]\n{distributed}")
    )
    return file


# Root's command calls mpirun by itself; the other one is that of an account whose password is locked, as AMIs have it.
FORMS = {
    "user": ("root", f'[env]\nvars = {{ PATH = "{PLACE}/bin:/usr/sbin:/usr/bin:/sbin:/bin" }}\n'),
    "mpirun": ("debian", '[env]\nuser = "debian"\n'),
}


@pytest.mark.parametrize(("version", "launch"), [(FOUR, "user"), (FIVE, "mpirun")])
def test_one_mpirun_reaches_both_machines(cli: SandboxCli, version: str, launch: str) -> None:
    cli.aws.shape = MachineShape(mounts={PLACE: open_mpi(version)})
    account, more = FORMS[launch]
    machines = machines_of(cli, COMMANDS[launch], distributed=f'launch = "{launch}"', more=more)

    for machine in machines:
        machine.wait_off()
        assert machine.exit_codes == [0]

    status = cli.status()
    stored = cli.objects("jobs/job/")
    attempt = "attempts/0/"
    pieces = sorted(key for key in stored if key.startswith(f"{attempt}nodes/0/log/"))
    log = b"".join(stored[key] for key in pieces).decode()
    assert (status["status"], status["outcome"]) == ("SUCCEEDED", "succeeded"), (status, log)
    said = sorted(line.partition(" in ")[0] for line in log.splitlines() if line.startswith("rank "))
    assert said == [f"rank {rank} of 2 on node {rank} as {account}" for rank in (0, 1)]
    assert json.loads(stored["result.json"])["metrics"]["per_metric"] == {"loss": 1}
    assert json.loads(stored[f"{attempt}nodes/1/result.json"])["outcome"] == "succeeded"
    joined = json.loads(stored[f"{attempt}joined/1.json"])
    assert joined["engine"] == f"mpirun (Open MPI) {version}"
    assert joined["public_key"].startswith("ssh-ed25519 ")
    assert not any(b"PRIVATE KEY" in content for content in cli.objects().values())


FAILS = """\
echo begun
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || { sleep 2; echo no such weights; exit 7; }
sleep 600
"""
LIMITS = 'max_runtime = "10m"\ngrace = "1s"\ndrain = "1s"\npeer_silence = "20s"'


def test_agents_end_every_machine_after_a_failure_or_lost_launcher(cli: SandboxCli) -> None:
    cli.aws.shape = MachineShape(mounts={PLACE: open_mpi(FOUR)})
    file = described(cli, "echo begun\nsleep 600", limits=LIMITS)
    jobs = {job: cli.submit_nodes(file, job_id=job) for job in ("goes", "cut")}
    for job, machines in jobs.items():
        for rank, machine in enumerate(machines):
            run = RUN.replace("jobs/job", f"jobs/{job}")
            wait_inside(machine, f"grep -q begun {run}/processes/{rank}.log")

    (goes, its_worker), (cut_off, others_worker) = jobs.values()
    goes.cut_power()
    cut_off.plug(False)
    cut_off.forward(cli.aws.control_plane.port, None)
    # The workers see that at once; the launcher without a cable ends when it has missed the store for limits.peer_silence. Meanwhile:
    fails = cli.submit_nodes(described(cli, FAILS, limits=LIMITS), job_id="fails")

    for machine in (its_worker, others_worker, *fails, cut_off):
        machine.wait_off()
        reason = cli.aws.instance(machine.instance_id)["StateReason"]["Code"]
        assert (reason, machine.exit_codes) == ("Client.InstanceInitiatedShutdown", [0])
    assert not [call for call in cli.aws.calls if call.action == "TerminateInstances"]
    for job, launcher in (("goes", goes), ("cut", cut_off)):
        # Its worker has made the result, before anybody looks.
        result = json.loads(cli.objects(f"jobs/{job}/")["result.json"])
        assert (result["outcome"], result["lost"]) == ("peer_lost", [0])
        who = f"Node 0 ({launcher.instance_id}, {launcher.facts.address}), the coordinator,"
        assert f"{who} sent no heartbeat for 20 s" in result["sentence"]
        assert cli.status(job)["exit_code"] == 5
    own = json.loads(cut_off.read(f"{RUN.replace('jobs/job', 'jobs/cut')}/result.json"))
    assert "Node 0 could not reach the job store for 20 s" in own["sentence"]
    status = cli.status("fails")
    assert (status["status"], status["outcome"], status["exit_code"]) == ("FAILED", "failed", 1), status
    assert status["sentence"].startswith("Node 1: ")
    assert json.loads(cli.objects("jobs/fails/")["result.json"])["last_lines"] == ["begun", "no such weights"]
