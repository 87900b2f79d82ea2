"""What one agent does with one job, seen from outside: exit code, result, files, processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from agent_runs import (
    AGENT,
    begun,
    environment,
    events_of,
    is_alive,
    python_job,
    records_of,
    result_of,
    run_agent,
    start_agent,
    wait_until,
    write_job,
)
from run_warnings import own_warnings

TRAIN = """
for step in range(5):
    print(f"step={step} loss={1 / (step + 1):.3f}")
"""
FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)\n"
LOSS = [{"name": "loss", "pattern": r"loss=(\d+\.\d+)", "units": "nats", "required": True}]


def test_a_run_writes_metrics_a_result_and_events(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(python_job(tmp_path, TRAIN, metrics=LOSS), rundir)

    assert code == 0
    assert [(each["value"], each["units"]) for each in records_of(rundir) if each["src"] == "log"] == [
        (1, "nats"),
        (0.5, "nats"),
        (0.333, "nats"),
        (0.25, "nats"),
        (0.2, "nats"),
    ]
    facts = {each["name"]: each["value"] for each in records_of(rundir) if each["src"] == "run"}
    assert facts["bai_run_wall_seconds"] > 0
    assert facts["bai_run_peak_memory_bytes"] > 1_000_000
    result = result_of(rundir)
    assert result["sentence"].startswith("The benchmark finished successfully")
    assert result["metrics"]["per_metric"] == {"loss": 5}
    assert list(result["phases"]) == ["prepare", "pull", "join", "run", "drain"]
    assert [event["type"] for event in events_of(rundir)][-1] == "phase"
    assert (rundir / "log" / f"{0:020}").samefile(rundir / "output.log")
    assert (rundir / "metrics" / f"{0:020}.jsonl").samefile(rundir / "metrics.jsonl")


def test_a_failed_benchmarks_exit_code_and_last_lines_are_kept(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(python_job(tmp_path, "import sys\nprint('no such weights')\nsys.exit(7)\n"), rundir)

    assert code == 1
    assert result_of(rundir)["outcome"] == "failed"
    assert result_of(rundir)["benchmark"]["code"] == 7
    assert result_of(rundir)["last_lines"] == ["no such weights"]
    assert "7" in result_of(rundir)["sentence"]


@pytest.mark.parametrize(
    ("command", "outcome"), [("no-such-command-anywhere", "not_found"), ("/etc/hostname", "not_executable")]
)
def test_a_missing_and_an_unexecutable_command_have_outcomes_of_their_own(
    tmp_path: Path, command: str, outcome: str
) -> None:
    rundir = tmp_path / "run"

    code = run_agent(write_job(tmp_path, [command]), rundir)

    assert code == 1
    assert result_of(rundir)["outcome"] == outcome
    assert command in result_of(rundir)["sentence"]


def test_a_missing_required_metric_fails_the_run(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(python_job(tmp_path, "print('lots=1.0')", metrics=LOSS), rundir)

    assert code == 1
    assert result_of(rundir)["outcome"] == "required_metric_missing"
    assert '"loss"' in result_of(rundir)["sentence"]


def test_a_benchmark_that_exceeds_max_runtime_is_ended(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(python_job(tmp_path, FOREVER, limits={"max_runtime": "1s"}), rundir)

    assert code == 3
    assert result_of(rundir)["outcome"] == "max_runtime"
    assert "limits.max_runtime (1s)" in result_of(rundir)["sentence"]
    assert result_of(rundir)["benchmark"]["signal"] == signal.SIGTERM


def test_a_silent_benchmark_is_ended_and_its_stacks_are_logged(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = "import time\ndef wait_for_a_peer():\n    time.sleep(1000)\nprint('begun', flush=True)\nwait_for_a_peer()\n"

    # As long as a Python may take on a busy machine until it prints its first word.
    code = run_agent(python_job(tmp_path, program, limits={"no_output": "6s"}), rundir)

    assert code == 3
    assert result_of(rundir)["outcome"] == "no_output"
    assert b"wait_for_a_peer" in (rundir / "output.log").read_bytes()


def test_a_benchmark_that_only_emits_metrics_does_not_reach_the_no_output_limit(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = """
import os, time
with open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w") as fifo:
    for number in range(35):
        print('{"x": 1}', file=fifo, flush=True)
        time.sleep(0.2)
"""

    # A busy machine stops one that emits for a while.
    assert run_agent(python_job(tmp_path, program, limits={"no_output": "5s"}), rundir) == 0


def test_a_cancel_file_in_the_run_directory_ends_the_run(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    with start_agent(python_job(tmp_path, FOREVER), rundir) as agent:
        wait_until(begun(rundir))
        (rundir / "cancel.json").write_text("{}")

        assert agent.wait(timeout=60) == 4
    assert result_of(rundir)["outcome"] == "cancelled"


def test_sigterm_ends_the_run_gracefully(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = """
import signal, sys, time
def leave(number, frame):
    print("loss=0.125 at the checkpoint")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("begun")
while True: time.sleep(0.05)
"""
    with start_agent(python_job(tmp_path, program, metrics=LOSS), rundir) as agent:
        wait_until(begun(rundir))
        agent.terminate()

        assert agent.wait(timeout=60) == 5
    assert result_of(rundir)["outcome"] == "interrupted"
    assert [each["value"] for each in records_of(rundir) if each["src"] == "log"] == [0.125]


HIDES = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("hiding", "w").write(str(os.getpid()))
        os.rename("hiding", "hidden")
        while True:
            print("still here", flush=True)
            time.sleep(0.05)
    os._exit(0)
while not os.path.exists("hidden") or "stay" in sys.argv: time.sleep(0.05)
"""


@pytest.mark.parametrize("arguments", [[], ["stay"]], ids=["after its end", "when it is ended"])
def test_hidden_processes_of_the_benchmark_are_killed_after_its_end_or_a_stop(
    tmp_path: Path, arguments: list[str]
) -> None:
    rundir = tmp_path / "run"
    # The time in which it has hidden, or has ended by itself.
    limits = {"max_runtime": "8s" if arguments else "2m", "grace": "1s"}

    code = run_agent(python_job(tmp_path, HIDES, arguments=arguments, limits=limits), rundir)

    assert code == (3 if arguments else 0)
    pid = int((rundir / "work" / "hidden").read_text())
    assert not is_alive(pid)
    assert result_of(rundir)["benchmark"]["left_behind"] >= (0 if arguments else 1)


def test_a_restarted_agent_adopts_the_running_benchmark(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = "import os, time\nopen('starts', 'a').write('x')\nprint('begun')\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint('loss=0.5')\n"
    job = python_job(tmp_path, program, metrics=LOSS)
    with start_agent(job, rundir) as agent:
        wait_until(begun(rundir))
        agent.kill()
    (rundir / "work" / "go").touch()

    assert run_agent(job, rundir) == 0
    assert (rundir / "work" / "starts").read_text() == "x"
    assert [each["value"] for each in records_of(rundir) if each["src"] == "log"] == [0.5]
    assert run_agent(job, rundir) == 0, "an ended run says again how it ended"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (None, "code is missing"),
        ({"code": "three"}, "code: expected"),
        ({"wall_seconds": None}, "wall_seconds: expected a number"),
        ({"exec_error": {}}, "exec_error has no message"),
    ],
)
def test_a_malformed_exit_json_makes_the_benchmark_lost(
    tmp_path: Path, change: dict[str, Any] | None, named: str
) -> None:
    # given an agent that was killed, and an exit.json that was changed before the next one starts
    rundir = tmp_path / "run"
    job = write_job(tmp_path, ["sleep", "1"])
    with start_agent(job, rundir) as agent:
        wait_until(lambda: (rundir / "started.json").exists())
        agent.kill()
    wait_until(lambda: (rundir / "exit.json").exists())
    written = json.loads((rundir / "exit.json").read_bytes())
    (rundir / "exit.json").write_text(json.dumps({} if change is None else {**written, **change}))

    code = run_agent(job, rundir)

    assert code == 5
    assert result_of(rundir)["outcome"] == "lost"
    assert f"exit.json: {named}" in (rundir / "agent.log").read_text()


def test_a_benchmark_without_shim_is_lost_and_not_restarted(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = "import os, time\nopen('starts', 'a').write('x')\n" + FOREVER
    with start_agent(python_job(tmp_path, program), rundir) as agent:
        wait_until(begun(rundir))
        started = json.loads((rundir / "started.json").read_bytes())
        os.kill(started["shim_pid"], signal.SIGKILL)

        assert agent.wait(timeout=60) == 5
    assert result_of(rundir)["outcome"] == "lost"
    assert not is_alive(started["pid"])
    assert (rundir / "work" / "starts").read_text() == "x"


def test_a_second_agent_on_the_same_run_is_refused(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, FOREVER)
    with start_agent(job, rundir) as agent:
        wait_until(begun(rundir))

        second = subprocess.run([*AGENT, job, "--dir", rundir], capture_output=True, text=True, timeout=60)

        assert second.returncode == 5
        assert "another live process holds agent.lock" in second.stderr
        agent.terminate()
        agent.wait(timeout=60)


def test_a_run_directory_of_another_job_is_refused(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    assert run_agent(write_job(tmp_path, ["true"], name="first"), rundir) == 0

    second = subprocess.run(
        [*AGENT, write_job(tmp_path, ["true"], name="second"), "--dir", rundir],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert second.returncode == 2
    assert "holds the run of another job descriptor" in second.stderr


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    unwritable = Path("/proc/sys/run")

    done = subprocess.run(
        [*AGENT, write_job(tmp_path, ["true"]), "--dir", unwritable],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 5
    assert f"the run directory {unwritable} cannot be written" in done.stderr


@pytest.mark.parametrize("content", ["version = 99\n", "version = 1\n[job\n", "hello"])
@pytest.mark.parametrize("detach", [[], ["--detach"]], ids=["in front", "detached"])
def test_a_wrong_descriptor_is_a_usage_error(tmp_path: Path, content: str, detach: list[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text(content)

    done = subprocess.run([*AGENT, job, *detach], capture_output=True, text=True, timeout=60, cwd=tmp_path)

    assert done.returncode == 2
    assert str(job) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_detached_agent_outlives_its_caller(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, TRAIN, metrics=LOSS)

    done = subprocess.run([*AGENT, job, "--dir", rundir, "--detach"], timeout=60, env=environment())

    assert done.returncode == 0
    wait_until(lambda: (rundir / "result.json").exists())
    assert result_of(rundir)["outcome"] == "succeeded"


def test_a_refused_detached_agent_reports_it_to_its_caller(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, FOREVER)
    with start_agent(job, rundir) as agent:
        wait_until(begun(rundir))

        done = subprocess.run(
            [*AGENT, job, "--dir", rundir, "--detach"], capture_output=True, text=True, timeout=60
        )

        assert done.returncode == 5
        assert "another live process" in done.stderr
        agent.terminate()
        agent.wait(timeout=60)


def test_in_the_foreground_the_agent_shows_the_benchmarks_output(tmp_path: Path) -> None:
    job = python_job(tmp_path, TRAIN)

    done = subprocess.run(
        [*AGENT, job, "--dir", tmp_path / "run"], capture_output=True, timeout=60, env=environment()
    )

    assert done.stdout == b"".join(b"step=%d loss=%.3f\n" % (step, 1 / (step + 1)) for step in range(5))


def test_artifacts_are_kept_with_the_result(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = "import pathlib\npathlib.Path('runs').mkdir()\npathlib.Path('runs/model.bin').write_bytes(b'w' * 1000)\n"

    code = run_agent(python_job(tmp_path, program, output={"artifacts": ["runs/**"]}), rundir)

    assert code == 0
    assert (rundir / "artifacts" / "runs" / "model.bin").read_bytes() == b"w" * 1000
    assert result_of(rundir)["artifacts"] == {"files": 1, "bytes": 1000}


def test_a_secret_reaches_the_benchmark_and_nothing_else(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = "import os, sys\nsys.exit(0 if os.environ['HF_TOKEN'] == 'pl4nted-s3cret' else 9)\n"
    job = python_job(
        tmp_path, program, benchmark={"secrets": {"HF_TOKEN": "env:MY_TOKEN"}, "inherit_env": False}
    )

    assert run_agent(job, rundir, env=environment(MY_TOKEN="pl4nted-s3cret")) == 0

    held = [path for path in rundir.rglob("*") if path.is_file() and b"pl4nted-s3cret" in path.read_bytes()]
    assert held == []


_TELLS = """
import json, os
key = os.environ["KEY"]
print(key)
print("loss=" + key.splitlines()[1])
print("x" * 60, "loss=y" + os.environ["LONG"], flush=True)
with open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w") as fifo:
    fifo.write(json.dumps({"token": os.environ["LONG"]}) + "\\n")
    fifo.write("no JSON " + os.environ["LONG"] + "\\n")
    fifo.write(json.dumps({os.environ["LONG"]: 1}) + "\\n")
"""


def test_no_file_that_the_agent_writes_itself_contains_a_secret(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQ\n-----END KEY-----\n"
    long = "".join(f"{number:03}-s3cret-" for number in range(40))  # an example of it is cut
    job = python_job(
        tmp_path,
        _TELLS,
        benchmark={"secrets": {"KEY": "env:MY_KEY", "LONG": "env:MY_LONG"}},
        metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}],
    )

    assert run_agent(job, rundir, env=environment(MY_KEY=key, MY_LONG=long)) == 0

    result = result_of(rundir)
    assert "***" in result["last_lines"]
    assert any("no finite numbers" in warning for warning in result["warnings"])
    theirs = {"output.log", f"{0:020}", "emit.log", "metrics.jsonl", f"{0:020}.jsonl"}
    for path in rundir.rglob("*"):
        if path.is_file() and path.name not in theirs:
            for part in (*key.splitlines(), long[:20], long[100:120]):
                assert part not in path.read_text(errors="replace"), path


def test_a_secret_in_a_command_that_cannot_start_is_redacted(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = write_job(tmp_path, ["/nowhere/$(TOKEN)"], benchmark={"secrets": {"TOKEN": "env:MY_TOKEN"}})

    run_agent(job, rundir, env=environment(MY_TOKEN="pl4nted-s3cret"))

    assert result_of(rundir)["benchmark"]["exec_error"]["message"].count("***")
    assert "pl4nted" not in (rundir / "result.json").read_text()


def test_a_missing_secret_ends_the_run_before_the_pull(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    code = run_agent(
        write_job(tmp_path, ["true"], benchmark={"secrets": {"HF_TOKEN": "env:NOWHERE_TO_BE_FOUND"}}), rundir
    )

    assert code == 5
    assert result_of(rundir)["outcome"] == "prepare_failed"
    assert "NOWHERE_TO_BE_FOUND" in result_of(rundir)["sentence"]


def test_a_source_that_cannot_be_pulled_is_named(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    missing = (tmp_path / "no such file").as_uri()

    code = run_agent(write_job(tmp_path, ["true"], sources=[{"src": missing, "path": "data"}]), rundir)

    assert code == 5
    assert result_of(rundir)["outcome"] == "pull_failed"
    assert "no such file" in result_of(rundir)["sentence"]
    assert result_of(rundir)["benchmark"] is None


def test_an_agent_started_without_arguments_prints_its_usage(tmp_path: Path) -> None:
    done = subprocess.run(AGENT, capture_output=True, text=True, timeout=60, cwd=tmp_path)

    assert done.returncode == 2
    assert "JOB.toml" in done.stderr


@pytest.mark.parametrize(
    "what", ["os.rename(path, path + '.1')", "os.unlink(path); open(path, 'w').write('FAKE')"]
)
def test_a_log_that_the_benchmark_renames_is_still_read(tmp_path: Path, what: str) -> None:
    rundir = tmp_path / "run"
    program = f"""
import os, time
path = os.readlink("/proc/self/fd/1")
print("loss=1.0")
{what}
for step in range(35):
    print(f"loss=0.{{step:02}}")
    time.sleep(0.2)
"""

    # A busy machine stops one that prints for a while.
    code = run_agent(python_job(tmp_path, program, metrics=LOSS, limits={"no_output": "5s"}), rundir)

    assert code == 0
    assert len([each for each in records_of(rundir) if each["src"] == "log"]) == 36
    assert result_of(rundir)["last_lines"][-1] == "loss=0.34"


def test_a_truncated_output_is_an_event_and_later_output_is_extracted(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = """
import os, time
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.02)
print("loss=1.0 and more than what comes afterwards")
wait_for("truncate")
os.truncate(os.readlink("/proc/self/fd/1"), 0)
wait_for("go on")
print("loss=2.0")
"""
    with start_agent(python_job(tmp_path, program, metrics=LOSS), rundir) as agent:
        wait_until(
            lambda: (
                (rundir / "metrics.jsonl").exists() and b'"loss"' in (rundir / "metrics.jsonl").read_bytes()
            )
        )
        (rundir / "work" / "truncate").touch()
        wait_until(lambda: b"output_truncated" in (rundir / "events.jsonl").read_bytes())
        (rundir / "work" / "go on").touch()
        assert agent.wait(timeout=60) == 0

    assert [(each["value"], each.get("gen", 0)) for each in records_of(rundir) if each["src"] == "log"] == [
        (1, 0),
        (2, 1),
    ]
    assert [each["bytes"] for each in events_of(rundir) if each["type"] == "output_truncated"] == [45]


def test_a_very_large_output_causes_a_warning_that_suggests_timed_buffering(tmp_path: Path) -> None:
    rundir = tmp_path / "run"

    assert run_agent(python_job(tmp_path, "for line in range(300_000): print('line', line)"), rundir) == 0

    assert any('buffering = "timed"' in warning for warning in result_of(rundir)["warnings"])


def test_a_benchmark_without_python_gets_no_warning_of_pythons_buffering(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = "for ((i = 0; i < 100000; i++)); do echo line; done"

    assert run_agent(write_job(tmp_path, ["bash", "-c", program]), rundir) == 0

    result = result_of(rundir)
    assert result["metrics"]["lines"] * 0.75e-6 > 0.01 * result["benchmark"]["wall_seconds"]
    assert own_warnings(result) == []


def test_a_restarted_agent_redacts_the_secrets_of_a_benchmark_that_it_adopts(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    program = f"import os\nprint(os.environ['HF_TOKEN'], flush=True)\n{FOREVER}"
    job = python_job(tmp_path, program, benchmark={"secrets": {"HF_TOKEN": "env:MY_TOKEN"}})
    env = environment(MY_TOKEN="pl4nted-s3cret")
    with start_agent(job, rundir, env=env) as agent:
        wait_until(begun(rundir))
        agent.kill()
    (rundir / "cancel.json").write_text("{}")

    assert run_agent(job, rundir, env=env) == 4

    assert result_of(rundir)["last_lines"] == ["***", "begun"]


def test_last_lines_are_left_out_if_a_restarted_agent_cannot_resolve_a_secret(tmp_path: Path) -> None:
    rundir = tmp_path / "run"
    job = python_job(tmp_path, FOREVER, benchmark={"secrets": {"HF_TOKEN": "env:MY_TOKEN"}})
    with start_agent(job, rundir, env=environment(MY_TOKEN="pl4nted-s3cret")) as agent:
        wait_until(begun(rundir))
        agent.kill()
    (rundir / "cancel.json").write_text("{}")

    assert run_agent(job, rundir) == 4

    result = result_of(rundir)
    assert result["last_lines"] == []
    assert any("MY_TOKEN" in sentence for sentence in result["warnings"])


def test_the_benchmark_gets_ranks_and_addresses_of_its_nodes_in_its_environment(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "known = ('BAI_NODE', 'BAI_NUM', 'BAI_MASTER', 'BAI_ATTEMPT', 'BAI_MAX', 'BAI_MIN')\n"
        "names = sorted(name for name in os.environ if name.startswith(known))\n"
        "print(*(f'{name}={os.environ[name]}' for name in names), open(os.environ['BAI_HOSTFILE']).read(), *sys.argv[1:])\n"
    )
    job = python_job(
        tmp_path,
        program,
        arguments=["$(BAI_NODE_RANK)/$(BAI_NUM_NODES)"],
        strategy={"processes_per_node": "3"},
    )

    assert run_agent(job, tmp_path / "run") == 0

    assert (tmp_path / "run" / "output.log").read_text().split() == [
        "BAI_ATTEMPT=0",
        "BAI_MASTER_ADDR=127.0.0.1",
        "BAI_MAX_NODES=1",
        "BAI_MIN_NODES=1",
        "BAI_NODE=0",
        "BAI_NODE_ADDRS=127.0.0.1",
        "BAI_NODE_RANK=0",
        "BAI_NUM_NODES=1",
        *("127.0.0.1", "slots=3"),
        "0/1",
    ]


def test_output_of_remaining_processes_after_the_end_gives_no_metric(tmp_path: Path) -> None:
    # Given processes that print and emit after the benchmark's own end was seen, at once and when they are ended
    program = (
        "import os, subprocess, sys\n"
        "late = ('import os, signal, sys, time\\n'\n"
        "        'said = []\\n'\n"
        "        'def say(*_):\\n'\n"
        '        \'    print("loss=999", flush=True); open(os.environ["BENCHMARK_AI_FIFO_FILEPATH"], "w").write(\\\'{"emitted": 999}\\\\n\\\')\\n\'\n'
        "        '    said.append(1)\\n'\n"
        # It may be told to end before it has seen the end of the other one.
        "        'signal.signal(signal.SIGTERM, lambda *_: ([say() for _ in range(2 - len(said))], os._exit(0)))\\n'\n"
        '        \'open("ready-" + str(os.getpid()), "w").close()\\n\'\n'
        "        'while os.path.exists(\"/proc/\" + sys.argv[1]): time.sleep(0.005)\\n'\n"
        "        'say(); time.sleep(60)\\n')\n"
        "for _ in range(2): subprocess.Popen([sys.executable, '-c', late, str(os.getpid())], start_new_session=True)\n"
        "open(os.environ['BENCHMARK_AI_FIFO_FILEPATH'], 'w').write('{\"emitted\": 1}\\n' * 1000)\n"
        "import time\n"
        "while sum(each.startswith('ready-') for each in os.listdir()) < 2: time.sleep(0.02)\n"
        "print('loss=0.5\\n' * 1000 + 'loss=0.25', end='', flush=True)\n"
    )
    job = python_job(tmp_path, program, metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}])

    assert run_agent(job, tmp_path / "run") == 0

    result = result_of(tmp_path / "run")
    output = (tmp_path / "run" / "output.log").read_text()
    assert output.count("loss=999") == 4
    assert output.startswith("loss=0.5\n" * 1000 + "loss=0.25loss=999")
    assert result["metrics"]["per_metric"] == {"loss": 1001, "emitted": 1000}
    assert 999 not in [record["value"] for record in records_of(tmp_path / "run")]
    (warning,) = result["warnings"]
    assert warning.startswith(
        "2 processes of the benchmark were still running after the benchmark's end, and were ended: python"
    )
    assert "are not counted" in warning


_SLOW_PRINTER = """
#include <stdio.h>
#include <unistd.h>
int main(void) { for (int i = 0; i < 6; i++) { printf("loss=%d.0\\n", i); usleep(500000); } return 0; }
"""


@pytest.mark.parametrize("is_static", [True, False])
def test_a_static_program_with_block_buffered_output_causes_a_warning(
    tmp_path: Path, is_static: bool
) -> None:
    source, program = tmp_path / "p.c", tmp_path / "printer"
    source.write_text(_SLOW_PRINTER)
    subprocess.run(["gcc", *(["-static"] if is_static else []), "-o", program, source], check=True)
    rundir = tmp_path / "run"

    assert run_agent(write_job(tmp_path, [program], metrics=LOSS), rundir) == 0

    warnings = own_warnings(result_of(rundir))
    assert any("printer is a static program" in each for each in warnings) == is_static, warnings


def holds_a_process(pid: int) -> bool:
    """Return whether a process has a pidfd: the agent opens its own one of the shim when the benchmark has started."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if "pidfd" in str(each.readlink()):
                return True
    return False


def test_an_agent_out_of_file_descriptors_still_enforces_max_runtime(tmp_path: Path) -> None:
    # given an agent whose descriptors are all taken while its benchmark runs
    rundir = tmp_path / "run"
    agent = start_agent(write_job(tmp_path, ["sleep", "600"], limits={"max_runtime": "5s"}), rundir)
    try:
        wait_until(lambda: holds_a_process(agent.pid))
        _, most = before = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, most))

        # when max_runtime is over and they have not been given back
        # then the benchmark has ended, and the agent has not
        wait_until(lambda: (rundir / "exit.json").exists())
        assert agent.poll() is None

        # when they are given back, then the result says how it ended
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, before)
        assert agent.wait(timeout=60) == 3
    finally:
        agent.kill()
        agent.wait()
    assert result_of(rundir)["outcome"] == "max_runtime"
