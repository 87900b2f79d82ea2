"""Real agents with a bucket as job store: what is uploaded despite failures of agent, network and machine."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agent_runs import environment, python_job, result_of, run_agent, start_agent, wait_until
from run_warnings import own_warnings
from s3_gate import Gate, denied

from bai_agent.job.record import JobRecord, Stream
from bai_agent.job.store import open_store

TRAIN = """
import sys, time
for step in range(int(sys.argv[1])):
    print(f"step={step} loss={1 / (step + 1):.3f}", flush=True)
    time.sleep(float(sys.argv[2]))
"""
LOSS = [{"name": "loss", "pattern": r"loss=(\d+\.\d+)", "required": True}]
FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)\n"


def s3_job(folder: Path, program: str, *arguments: object, **tables: Any) -> Path:
    store = {"url": "s3://bucket/jobs", "region": "us-east-1"}
    return python_job(folder, program, arguments=[str(each) for each in arguments], store=store, **tables)


def record() -> JobRecord:
    return JobRecord(open_store("s3://bucket/jobs"), "job")


def stream(name: Stream) -> bytes:
    whole = b""
    while piece := record().node().read(name, len(whole)):
        whole += piece
    return whole


def test_all_files_of_a_run_are_uploaded_to_the_bucket(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    program = TRAIN + "\nopen('model.bin', 'wb').write(b'weights')\n"
    job = s3_job(tmp_path, program, 5, 0, metrics=LOSS, output={"artifacts": ["*.bin"]})

    code = run_agent(job, rundir)

    assert code == 0
    assert stream("log") == (rundir / "output.log").read_bytes() != b""
    assert stream("metrics") == (rundir / "metrics.jsonl").read_bytes() != b""
    assert stream("events") == (rundir / "events.jsonl").read_bytes()
    assert record().result() == record().node().read_object("result.json") == result_of(rundir)
    assert own_warnings(result_of(rundir)) == []
    assert record().store.get("job/artifacts/model.bin") == b"weights"
    assert record().store.get("job/job.toml") == job.read_bytes()
    assert record().node().read_object("ready.json")["host"]  # type: ignore[index]


def test_all_generations_of_a_restarted_run_are_in_the_bucket(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    program = "import os, sys\nn = int(os.environ['BAI_GENERATION'])\nprint(f'loss={n}.5')\nsys.exit(n < 2)\n"
    restart = {"max_restarts": 2, "backoff": "100ms"}

    code = run_agent(s3_job(tmp_path, program, metrics=LOSS, restart=restart), rundir)

    assert code == 0
    assert stream("log") == b"loss=0.5\nloss=1.5\nloss=2.5\n"
    assert stream("metrics") == (rundir / "metrics.jsonl").read_bytes()
    assert stream("metrics").count(b'"name":"loss"') == 3
    assert stream("events").count(b'"type": "restart"') == 2
    result = record().result()
    assert result == result_of(rundir)
    assert result is not None
    assert [each["outcome"] for each in result["generations"]] == ["failed", "failed", "succeeded"]


def test_output_can_be_read_during_the_run(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    with running(s3_job(tmp_path, FOREVER), rundir) as agent:
        wait_until(lambda: stream("log") == b"begun\n")
        wait_until(lambda: b"benchmark_started" in stream("events"))
        wait_until(lambda: record().node().read_object("heartbeat.json"))
        assert record().result() is None

        record().cancel(by="anna")

        assert agent.wait(timeout=60) == 4
    assert record().result()["outcome"] == "cancelled"  # type: ignore[index]


def test_a_second_machine_with_the_same_rank_is_refused(tmp_path: Path, gate: Gate) -> None:
    job = s3_job(tmp_path, TRAIN, 3, 0)
    first, second = tmp_path / "first", tmp_path / "second"
    assert run_instance(job, first, "i-1") == 0
    before = {each.key: each.size for each in record().store.find("job/")}

    assert run_instance(job, second, "i-2") == 5

    assert result_of(second)["outcome"] == "prepare_failed"
    assert "taken by i-1" in result_of(second)["sentence"]
    assert not (second / "started.json").exists()
    assert {each.key: each.size for each in record().store.find("job/")} == before


def test_only_one_of_several_machines_started_together_runs_the_benchmark(tmp_path: Path, gate: Gate) -> None:
    job = s3_job(tmp_path, TRAIN, 3, 0)
    rundirs = [tmp_path / f"run-{number}" for number in range(4)]

    agents = [start_instance(job, rundir, f"i-{number}") for number, rundir in enumerate(rundirs)]
    codes = sorted(agent.wait(timeout=120) for agent in agents)

    assert codes == [0, 5, 5, 5]
    assert sum((rundir / "started.json").exists() for rundir in rundirs) == 1
    assert record().result()["outcome"] == "succeeded"  # type: ignore[index]


def test_only_the_machine_of_the_recorded_launch_runs_the_job(tmp_path: Path, gate: Gate) -> None:
    """The surplus machine comes first; nothing of it is in the store, and the other one finds its place free."""
    job = s3_job(tmp_path, TRAIN, 3, 0)
    for name, content in (("launch", b"{}"), ("launched", b'{"instances": ["i-good"]}')):
        record().store.put(f"job/attempts/0/{name}.json", content)
    before = {each.key for each in record().store.find("job/")}

    assert run_instance(job, tmp_path / "surplus", "i-surplus") == 5
    assert {each.key for each in record().store.find("job/")} == before
    assert not (tmp_path / "surplus/started.json").exists()
    gate.requests.clear()
    assert run_instance(job, tmp_path / "good", "i-good") == 0

    assert record().result()["outcome"] == "succeeded"  # type: ignore[index]
    asked = [path for method, path, _ in gate.requests if method == "GET" and "launch" in path]
    assert len(asked) == 1


def test_a_machine_whose_claim_of_a_rank_was_unanswered_recognises_its_own_claim(
    tmp_path: Path, gate: Gate
) -> None:
    job = s3_job(tmp_path, TRAIN, 3, 0)
    lost_answer = iter([True])

    def swallow(method: str, path: str) -> tuple[int, bytes] | None:
        # The claim reaches the bucket, but the answer does not reach us.
        if method == "PUT" and path.endswith("ready.json") and next(lost_answer, False):
            gate.s3.put_object(
                Bucket="bucket", Key="jobs/job/attempts/0/nodes/0/ready.json", Body=b'{"instance_id": "i-1"}'
            )
            return denied("InternalError", 500)
        return None

    gate.refuse = swallow
    assert run_instance(job, tmp_path / "run", "i-1") == 0


def test_a_run_is_not_started_if_the_store_cannot_be_written(tmp_path: Path, gate: Gate) -> None:
    gate.refuse = lambda method, _path: denied("AccessDenied") if method == "PUT" else None
    rundir = tmp_path / "run"

    assert run_agent(s3_job(tmp_path, TRAIN, 3, 0), rundir) == 5

    assert result_of(rundir)["outcome"] == "store_failed"
    assert "s3:PutObject" in result_of(rundir)["sentence"]
    assert not (rundir / "started.json").exists()


def test_a_run_waits_for_an_unreachable_store_before_its_start(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    with running(s3_job(tmp_path, TRAIN, 100, 0.05, metrics=LOSS), rundir) as agent:
        wait_until(lambda: (rundir / "started.json").exists())
        gate.refuse = lambda _method, _path: denied("SlowDown", 503)
        wait_until(lambda: (rundir / "exit.json").exists())
        time.sleep(1)
        gate.refuse = lambda _method, _path: None
        assert agent.wait(timeout=120) == 0

    assert stream("log") == (rundir / "output.log").read_bytes()
    assert stream("metrics") == (rundir / "metrics.jsonl").read_bytes()
    assert own_warnings(result_of(rundir)) == []


def test_an_unreachable_store_delays_the_end_by_at_most_limits_drain(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    limits = {"drain": "1s"}
    gate.swallow = lambda _method, _path: (rundir / "started.json").exists()

    assert run_agent(s3_job(tmp_path, TRAIN, 20, 0.05, metrics=LOSS, limits=limits), rundir) == 0

    warnings = " ".join(result_of(rundir)["warnings"])
    assert (
        f"{(rundir / 'output.log').stat().st_size} bytes of the output were not in the job store" in warnings
    )
    assert "of the metrics were not in the job store" in warnings


def test_unpublished_files_are_published_by_a_restarted_agent(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    job = s3_job(tmp_path, TRAIN, 20, 0.05, metrics=LOSS, limits={"drain": "1s"})
    away = denied("SlowDown", 503)
    gate.refuse = lambda _method, _path: away if (rundir / "started.json").exists() else None
    assert run_agent(job, rundir) == 0
    gate.refuse = lambda _method, _path: None
    assert record().result() is None

    assert run_agent(job, rundir) == 0

    assert record().result() == result_of(rundir)
    assert stream("log") == (rundir / "output.log").read_bytes()
    assert stream("events") == (rundir / "events.jsonl").read_bytes()


@pytest.mark.parametrize("network", ["there", "gone"])
def test_an_interrupted_agent_ends_before_the_machine_shuts_down(
    tmp_path: Path, gate: Gate, network: str
) -> None:
    rundir = tmp_path / "run"
    program = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER
    job = s3_job(tmp_path, program, end={"power": "off"}, limits={"grace": "10m", "drain": "10m"})
    with running(job, rundir) as agent:
        wait_until(lambda: b"begun" in stream("log"))
        if network == "gone":
            gate.swallow = lambda _method, _path: True

        agent.terminate()
        # The guardian kills it after 4.5 s: then there would be no result.
        assert agent.wait(timeout=60) == 5

    assert result_of(rundir)["outcome"] == "interrupted"
    assert result_of(rundir)["benchmark"]["signal"] == signal.SIGKILL
    if network == "there":
        assert record().result()["outcome"] == "interrupted"  # type: ignore[index]


def test_a_hanging_store_does_not_delay_the_run(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    gate.swallow = lambda method, path: method == "GET" and "list-type" in path
    job = s3_job(tmp_path, FOREVER, limits={"max_runtime": "1s"})

    assert run_agent(job, rundir) == 3

    gate.swallow = lambda _method, _path: False
    assert record().result()["outcome"] == "max_runtime"  # type: ignore[index]


def test_a_truncated_log_continues_in_the_bucket(tmp_path: Path, gate: Gate) -> None:
    program = """
import os, sys, time
print("A" * 999, flush=True)
while not os.path.exists("go"): time.sleep(0.05)
os.ftruncate(1, 0)
print("B" * 99, flush=True)
"""
    rundir = tmp_path / "run"
    with running(s3_job(tmp_path, program), rundir) as agent:
        wait_until(lambda: len(stream("log")) == 1000)
        (rundir / "work" / "go").touch()
        assert agent.wait(timeout=60) == 0

    assert stream("log") == b"A" * 999 + b"\n" + b"B" * 99 + b"\n"


def test_the_bucket_equals_the_local_files_after_random_kills(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    program = f"{TRAIN}import os\nwhile not os.path.exists('finish'): time.sleep(0.05)\n"
    job = s3_job(tmp_path, program, 300, 0.02, metrics=LOSS)
    moments = random.Random(4)
    kills = 8
    for number in range(kills):
        with running(job, rundir) as agent:
            if number % 2 == 0:
                # Every other one gets as far as the run, however busy the machine is.
                wait_until(partial(has_begun, agent, rundir, starts(rundir)))
            if number == kills - 2:
                # The benchmark ends near the last two kills; an agent that ends by itself first is not killed.
                (rundir / "work" / "finish").touch()
            with suppress(subprocess.TimeoutExpired):
                agent.wait(timeout=moments.uniform(0.3, 1.8))
            agent.kill()
    assert run_agent(job, rundir) == 0
    assert stream("log") == (rundir / "output.log").read_bytes()
    assert stream("metrics") == (rundir / "metrics.jsonl").read_bytes()
    assert stream("events") == (rundir / "events.jsonl").read_bytes()
    assert record().result()["outcome"] == "succeeded"  # type: ignore[index]
    assert starts(rundir) >= kills / 2


def has_begun(agent: subprocess.Popen[bytes], rundir: Path, before: int) -> bool:
    """Return whether this agent has begun with the run, or has ended."""
    return starts(rundir) > before or agent.poll() is not None


def starts(rundir: Path) -> int:
    """Return how often an agent began with the run, by its events; one that a kill cut off is none."""
    events = rundir / "events.jsonl"
    return events.read_bytes().count(b'"agent_started"') if events.exists() else 0


@contextmanager
def running(job: Path, rundir: Path, *, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Run an agent that does not outlive a failed test."""
    with start_agent(job, rundir, prefix=prefix) as agent:
        try:
            yield agent
        finally:
            agent.kill()


def start_instance(job: Path, rundir: Path, instance: str) -> subprocess.Popen[bytes]:
    return start_agent(job, rundir, more=("--instance-id", instance))


def run_instance(job: Path, rundir: Path, instance: str) -> int:
    return run_agent(job, rundir, more=("--instance-id", instance))


def test_the_secrets_of_a_run_are_nowhere_in_the_bucket(tmp_path: Path, gate: Gate) -> None:
    benchmark = {"secrets": {"TOKEN": "env:PLANTED"}}
    job = s3_job(tmp_path, "print('fine')", benchmark=benchmark)

    assert run_agent(job, tmp_path / "run", env=environment(PLANTED="hunter2hunter2")) == 0

    for each in record().store.find("job/"):
        assert b"hunter2" not in record().store.get(each.key), json.dumps(each.key)


def test_uploading_a_large_log_uses_bounded_memory(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"
    program = "for block in range(80): print(('x' * 1023 + chr(10)) * 1024, end='')\n"
    peak = 0
    # Not forked: what the others are forked from weighs more.
    with running(s3_job(tmp_path, program), rundir, prefix=["env"]) as agent:
        while agent.poll() is None:
            peak = max(peak, peak_memory(agent.pid))
            time.sleep(0.01)
        assert agent.returncode == 0

    assert record().node().size("log") == 80 << 20
    assert len(record().store.find(record().node().key("log/"))) == 10
    # Two objects' worth, and what the agent weighs without any store.
    assert 0 < peak < 80 << 20


def peak_memory(pid: int) -> int:
    """Return the most that the process has had in memory so far, in bytes; 0 where it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def test_the_environment_of_a_node_is_in_the_bucket(tmp_path: Path, gate: Gate) -> None:
    rundir = tmp_path / "run"

    assert run_agent(s3_job(tmp_path, TRAIN, 1, 0), rundir) == 0

    written = json.loads((rundir / "environment.json").read_bytes())
    assert written["python"]["executable"]
    assert record().node().read_object("environment.json") == written
