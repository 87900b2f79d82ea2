"""The strategies `mpi` and `horovod` with one mpirun on this machine: Open MPI's own, and a stand-in that records its arguments."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from agent_runs import RUN_SECONDS, environment, records_of, result_of, run_agent, start_agent, write_job
from local_cli import LocalCli, local_cli

# Stands for Open MPI's: it tells its options, and starts the command as so many processes, as that does.
MPIRUN = """#!{python}
import json, os, subprocess, sys
count = int(sys.argv[sys.argv.index("-np") + 1])
command = sys.argv[sys.argv.index("-np") + 2 :]
root = sorted(name for name in os.environ if "ALLOW_RUN_AS_ROOT" in name)
print(json.dumps({{"options": sys.argv[1 : -len(command)], "root": root}}), flush=True)
ended = [
    subprocess.Popen(command, env=dict(os.environ, OMPI_COMM_WORLD_RANK=str(each))) for each in range(count)
]
sys.exit(max(each.wait() for each in ended))
"""
SAY_WHO = """
import os
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "of node", os.environ["BAI_NODE_RANK"], flush=True)
"""


def program(folder: Path, name: str, text: str) -> Path:
    """Write the program `name` into `folder`."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run(folder: Path, code: str, *, path: str, **strategy: Any) -> tuple[int, dict[str, Any], str]:
    """Run `code` (Python) under the strategy; return the exit code, the result, and the output."""
    script = folder / "benchmark.py"
    script.write_text(code)
    job = write_job(folder, [sys.executable, script], strategy={"name": "mpi", **strategy})
    ended = run_agent(job, folder / "run", env=environment(PATH=path))
    output = folder / "run" / "output.log"
    return ended, result_of(folder / "run"), output.read_text() if output.exists() else ""


def test_each_generation_of_an_mpi_job_has_separate_process_logs(tmp_path: Path) -> None:
    bin_folder = program(tmp_path / "bin", "mpirun", MPIRUN).parent
    script = tmp_path / "benchmark.py"
    script.write_text(
        "import os, sys\n"
        "generation = int(os.environ['BAI_GENERATION'])\n"
        "print(f\"v={generation}{os.environ['OMPI_COMM_WORLD_RANK']}\")\n"
        "sys.exit(3 if generation == 0 else 0)\n"
    )
    job = write_job(
        tmp_path,
        [sys.executable, script],
        strategy={"name": "mpi", "processes_per_node": "2"},
        restart={"max_restarts": 1, "backoff": "0s", "exit_codes": [3]},
        metrics=[{"name": "v", "pattern": r"v=(\d+)"}],
    )
    rundir = tmp_path / "run"

    code = run_agent(job, rundir, env=environment(PATH=f"{bin_folder}:{os.environ['PATH']}"))

    assert code == 0
    found = [each for each in records_of(rundir) if each["name"] == "v"]
    assert {(each["src"], each["generation"], each["value"]) for each in found} == {
        ("log/0", 0, 0),
        ("log/1", 0, 1),
        ("log/0/g1", 1, 10),
        ("log/1/g1", 1, 11),
    }
    assert len(found) == 4
    first = result_of(rundir)["generations"][0]
    assert (
        "process 0 exited with code 3" in first["sentence"]
        or "process 1 exited with code 3" in first["sentence"]
    )


def test_one_mpirun_starts_all_processes_without_cpu_binding(tmp_path: Path) -> None:
    bin_folder = program(tmp_path / "bin", "mpirun", MPIRUN).parent

    ended, result, output = run(
        tmp_path, SAY_WHO, path=f"{bin_folder}:{os.environ['PATH']}", processes_per_node="3"
    )

    assert (ended, result["outcome"]) == (0, "succeeded")
    first, *said = output.splitlines()
    asked = json.loads(first)
    assert asked["options"] == ["--host", "127.0.0.1:3", "--bind-to", "none", "-np", "3"]
    assert "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" in asked["root"]
    assert sorted(said) == [f"rank {rank} of node 0" for rank in range(3)]


def test_the_failure_of_one_mpi_process_fails_the_job(tmp_path: Path) -> None:
    bin_folder = program(tmp_path / "bin", "mpirun", MPIRUN).parent

    ended, result, _ = run(
        tmp_path,
        "import os, sys; sys.exit(7 * int(os.environ['OMPI_COMM_WORLD_RANK']))",
        path=f"{bin_folder}:{os.environ['PATH']}",
        processes_per_node="2",
    )

    assert (ended, result["outcome"], result["exit_code"]) == (1, "failed", 1)
    assert "7" in result["sentence"]


@pytest.mark.parametrize("strategy", ["mpi", "horovod"])
def test_a_job_without_mpirun_or_horovod_fails_before_its_start_and_says_what_to_install(
    tmp_path: Path, strategy: str
) -> None:
    # Given a machine without Open MPI, or with it and a Python that has no Horovod
    bin_folder = tmp_path / "bin"
    program(bin_folder, "other", MPIRUN)
    if strategy == "horovod":
        program(bin_folder, "mpirun", MPIRUN)
    missing = {
        "mpi": ("mpirun is not on this machine", "openmpi-bin"),
        "horovod": ('module "horovod"', "scripts/horovod"),
    }

    # When such a job is to run
    ended, result, output = run(tmp_path, SAY_WHO, path=str(bin_folder), name=strategy)

    # Then it says what to install
    assert (ended, result["outcome"], output) == (5, "prepare_failed", "")
    for words in missing[strategy]:
        assert words in result["sentence"]


def test_an_mpirun_started_by_the_command_gets_hosts_and_settings_from_the_environment(
    tmp_path: Path,
) -> None:
    code = """
import os
print("alone", "OMPI_COMM_WORLD_RANK" not in os.environ)
print(open(os.environ["OMPI_MCA_orte_default_hostfile"]).read())
print(os.environ["OMPI_MCA_orte_default_hostfile"] == os.environ["BAI_HOSTFILE"] == os.environ["PRTE_MCA_prte_default_hostfile"])
"""
    ended, _, output = run(tmp_path, code, path=os.environ["PATH"], processes_per_node="2", launch="user")

    assert (ended, output) == (0, "alone True\n127.0.0.1 slots=2\n\nTrue\n")


def test_open_mpi_runs_all_nodes_processes_on_this_machine(tmp_path: Path) -> None:
    # Given a shell program on two nodes of one process, which print a value each
    cli: LocalCli = local_cli(tmp_path)
    file = cli.descriptor("", strategy="mpi")
    words = "/bin/sh -c 'echo rank=$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE; echo loss=0.5'"
    text = file.read_text()
    start, end = text.index("benchmark_code"), text.index("[[output.metrics]]")
    file.write_text(
        text[:start]
        + f'benchmark_code = "{words}"\n'
        + text[end:]
        + "[hardware.distributed]\nnum_instances = 2\n"
    )

    # When it runs here
    done = cli.bai("run", file, "--job-id", "one")

    # Then Open MPI has started both, and their output is the job's
    assert done.code == 0, done.stdout + done.stderr
    assert "this machine replaces 2 nodes, as one node with 2 processes" in done.stdout + done.stderr
    lines = cli.output("one").splitlines()
    assert sorted(line for line in lines if line.startswith("rank")) == ["rank=0 of 2", "rank=1 of 2"]
    result = cli.result("one")
    assert (result["outcome"], result["metrics"]["per_metric"]) == ("succeeded", {"loss": 2})
    # And each process's numbers carry its rank, once
    shown = cli.bai("metrics", "one", "--json").stdout.splitlines()
    records = [each for each in map(json.loads, shown) if each["name"] == "loss"]
    assert sorted((each["src"], each["labels"]["process_rank"]) for each in records) == [
        ("log/0", "0"),
        ("log/1", "1"),
    ]
    table = cli.bai("metrics", "one").stdout
    assert "loss{process_rank=0}" in table
    assert "loss{process_rank=1}" in cli.bai("status", "one").stdout


def test_open_mpi_started_by_the_command_uses_all_slots(tmp_path: Path) -> None:
    job = write_job(
        tmp_path,
        ["mpirun", "/bin/sh", "-c", "echo rank=$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"],
        strategy={"name": "mpi", "processes_per_node": "3", "launch": "user"},
    )

    assert run_agent(job, tmp_path / "run") == 0

    said = (tmp_path / "run" / "output.log").read_text().splitlines()
    assert sorted(said) == [f"rank={rank} of 3" for rank in range(3)]


def test_the_last_lines_in_the_result_are_those_of_the_failed_mpi_process(tmp_path: Path) -> None:
    # Given a process that fails, and others that print before, after its last line, and when they are ended
    code = """
import os, signal, sys, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
def wait_for_others():
    for each in ("step-0", "step-2"):
        if os.path.exists(each):
            os.unlink(each)
        while not os.path.exists(each):
            time.sleep(0.02)
if rank == 1:
    wait_for_others()
    print("no such weights", flush=True)
    wait_for_others()
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: (print("bye", rank, flush=True), sys.exit(3)))
while True:
    print("step", rank, flush=True)
    open(f"step-{rank}", "w").close()
    time.sleep(0.05)
"""
    script = tmp_path / "benchmark.py"
    script.write_text(code)
    job = write_job(tmp_path, [sys.executable, script], strategy={"name": "mpi", "processes_per_node": "3"})

    assert run_agent(job, tmp_path / "run") == 1

    result = result_of(tmp_path / "run")
    assert result["outcome"] == "failed"
    assert result["sentence"].endswith(": process 1 exited with code 7.")
    assert result["last_lines"] == ["no such weights"]
    # Although others have printed after it
    later = (tmp_path / "run" / "output.log").read_text().partition("no such weights\n")[2]
    assert "step" in later


@pytest.mark.usefixtures("_no_memory_killer")
def test_an_mpi_process_killed_from_outside_is_named_in_the_result(tmp_path: Path) -> None:
    words = "[ $OMPI_COMM_WORLD_RANK != 2 ] || { echo begun; kill -9 $$; }; exec sleep 100"
    job = write_job(
        tmp_path,
        ["/bin/sh", "-c", words.replace("$", "$$")],
        strategy={"name": "mpi", "processes_per_node": "3"},
    )

    assert run_agent(job, tmp_path / "run") == 6

    result = result_of(tmp_path / "run")
    assert result["outcome"] == "killed"
    assert "process 2 was ended by SIGKILL" in result["sentence"]
    assert result["last_lines"] == ["begun"]


def test_output_lines_of_concurrent_mpi_processes_are_not_interleaved(tmp_path: Path) -> None:
    # Given processes that print much at the same time, which Open MPI itself cuts anywhere
    code = """
import os
for step in range(5000):
    print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "value", step, "." * (step % 150))
"""
    script = tmp_path / "benchmark.py"
    script.write_text(code)
    job = write_job(
        tmp_path,
        [sys.executable, script],
        strategy={"name": "mpi", "processes_per_node": "3"},
        metrics=[{"name": "value", "pattern": r"value (\d+)"}],
    )

    assert run_agent(job, tmp_path / "run") == 0

    # Then each line is there as it was printed, and each number once
    lines = (tmp_path / "run" / "output.log").read_text().splitlines()
    printed = [f"rank {rank} value {step} {'.' * (step % 150)}" for rank in range(3) for step in range(5000)]
    assert sorted(lines) == sorted(printed)
    found: dict[str, list[float]] = {}
    for each in records_of(tmp_path / "run"):
        if each["name"] == "value":
            found.setdefault(each["labels"]["process_rank"], []).append(each["value"])
    assert found == {str(rank): list(range(5000)) for rank in range(3)}


def test_output_without_a_newline_resets_the_no_output_limit(tmp_path: Path) -> None:
    # Given two processes, of which one prints dots for longer than limits.no_output, however busy the machine is
    code = """
import os, sys, time
for _ in range(50 if os.environ["OMPI_COMM_WORLD_RANK"] == "1" else 0):
    sys.stdout.write(".")
    sys.stdout.flush()
    time.sleep(0.2)
"""
    script = tmp_path / "benchmark.py"
    script.write_text(code)
    job = write_job(
        tmp_path,
        [sys.executable, script],
        strategy={"name": "mpi", "processes_per_node": "2"},
        limits={"no_output": "8s"},
    )

    assert run_agent(job, tmp_path / "run") == 0
    assert "." * 50 in (tmp_path / "run" / "output.log").read_text()


def test_cancelling_a_job_ends_the_processes_of_open_mpi(tmp_path: Path) -> None:
    # Given two processes under Open MPI
    job = write_job(
        tmp_path,
        ["/bin/sh", "-c", "echo pid=$$$$; exec sleep 300"],
        strategy={"name": "mpi", "processes_per_node": "2"},
    )
    output = tmp_path / "run" / "output.log"

    def pids() -> list[int]:
        lines = output.read_text().splitlines() if output.exists() else []
        return [int(line[4:]) for line in lines if line.startswith("pid=")]

    with start_agent(job, tmp_path / "run") as agent:
        try:
            deadline = time.monotonic() + RUN_SECONDS
            while len(pids()) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)

            # When the agent is told to end
            agent.terminate()
            agent.wait(timeout=RUN_SECONDS)
        finally:
            agent.kill()

    # Then nothing of them is left
    assert result_of(tmp_path / "run")["outcome"] == "interrupted"
    assert len(pids()) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids())
