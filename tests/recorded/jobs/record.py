"""Records jobs with the `bai` of the tree whose Python runs this: see README.md beside it.

The jobs are real runs on this machine. What names this machine is replaced by neutral text of the same meaning.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from agent_runs import environment
from cli_harness import CliHarness
from kafka_brokers import new_broker
from moto_aws import MotoAws, open_moto_aws
from mpi_node_agents import MpiNodes
from recorded_jobs import ACCOUNT, MARK, ROOT, answers, bring_bucket, bring_store
from sandbox.fake_aws.iam.identities import SETUP
from service_events import fetcher_event
from service_runs import KillPoint, ServiceRuns, allow_serving, open_service_runs
from stand_in_torchrun import put_torchrun

HERE = Path(__file__).parent
HOST, KERNEL = "recorder", "6.1.0"
"""Replacements for this machine's name and kernel."""
SECONDS = 180.0

RESULTS = """\
[[output.results]]
path = "out/latency.csv"
format = "csv"
values = ["latency"]
units = "ms"
step = "step"
"""
REPEAT = "[repeat]\nruns = 3\nwarmup_runs = 1\nkeep_going = true"
MPI = 'echo "step=$$OMPI_COMM_WORLD_RANK loss=$$((60 + OMPI_COMM_WORLD_RANK))"'


def write_descriptor(folder: Path, name: str, **given: str) -> Path:
    """Write a descriptor, and its scripts beside it; `given`: what fills its template."""
    usual = {
        "engine": "local", "instance_type": "local", "strategy": "single_node", "suite": "old", "script": "train.sh",
        "args": "100", "more": "",
    }  # fmt: skip
    shutil.copytree(HERE / "scripts", folder / "scripts", dirs_exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text((HERE / "benchmark.toml.in").read_text().format(**{**usual, **given}))
    return path


def script(name: str) -> str:
    return (HERE / "scripts" / f"{name}.sh").read_text()


def run(cli: CliHarness, *arguments: str | Path, code: int = 0) -> None:
    done = cli.bai(*arguments)
    assert done.code == code, f"{arguments}: {done.code}\n{done.stdout}\n{done.stderr}"


def wait_for(done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)


def holds(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


def record_local(root: Path, target: Path) -> None:
    """Record a job of each kind in a job store that is a folder."""
    store = root / "store"
    path = f"{put_torchrun(root)}:{os.environ['PATH']}"
    env = environment(BAI_STORE=str(store), XDG_CACHE_HOME=str(root / "cache"), PATH=path, HOME=str(root))
    cli = CliHarness(root, env)

    digits = write_descriptor(root, "digits", more=RESULTS)
    for number, scale in enumerate(("100", "101", "103", "150"), start=1):
        scaled = ("--set", f"ml.args={scale}", "--set", f"env.vars.SEED={number}")
        run(cli, "run", digits, "--job-id", f"digits-{number}", *scaled)
    nodes = write_descriptor(root, "nodes", strategy="torchrun", suite="nodes")
    run(cli, "run", nodes, "--nodes", "2", "--job-id", "nodes")
    repeat = write_descriptor(root, "repeat", suite="repeat", args="100 broken", more=REPEAT)
    run(cli, "run", repeat, "--job-id", "repeat", code=1)
    failed = write_descriptor(root, "failed", script="fail.sh", suite="failed")
    run(cli, "run", failed, "--job-id", "failed", code=1)
    going = "[repeat]\nruns = 4\nkeep_going = true"
    arms = [
        write_descriptor(root, name, suite="ab", args=args, more=going)
        for name, args in (("old", "100"), ("new", "120"))
    ]
    run(cli, "ab", *arms, "--runs", "4", "--seed", "5", "--job-id", "ab", code=1)
    record_mpi(root)

    run(
        cli,
        "run",
        write_descriptor(root, "wait", script="wait.sh", suite="wait"),
        "--job-id",
        "running",
        "-d",
    )
    node = store / "running" / "attempts" / "0" / "nodes" / "0"
    wait_for(lambda: holds(node / "metrics.jsonl", '"throughput"'), "a value")
    wait_for(lambda: holds(node / "metrics.jsonl", '"bai_host'), "a sample of the machine")
    shutil.copytree(store, target, ignore=_left_out)
    run(cli, "cancel", "running")
    run(cli, "status", "running", "--wait", code=4)


def record_mpi(root: Path) -> None:
    """Run a job on two nodes with addresses of their own; its record is brought to the others'."""
    (root / "mpi").mkdir()
    metrics = [{"name": "loss", "units": "nats", "pattern": r"step=(?P<step>\d+) loss=(?P<value>\S+)"}]
    nodes = MpiNodes(root / "mpi", ["/bin/sh", "-c", MPI], metrics=metrics)
    try:
        assert nodes.run() == [0, 0]
    finally:
        nodes.close()
    shutil.copytree(root / "mpi" / "store" / "job", root / "store" / "job", ignore=_left_out)


def _left_out(folder: str, names: list[str]) -> list[str]:
    """Return the names that git cannot keep (FIFOs, second names of a file), and those of reserved space."""
    found = []
    for name in names:
        status = os.lstat(Path(folder, name))
        second = status.st_nlink > 1 and Path(folder).name in ("log", "metrics")
        if (
            second
            or name.startswith((".", "reserved"))
            or stat.S_IFMT(status.st_mode) not in (stat.S_IFREG, stat.S_IFDIR)
        ):
            found.append(name)
    return found


def record_bucket(root: Path, target: Path) -> tuple[str, str]:
    """Record jobs on EC2 and the service's entries; return the end of its topics' names, and the account."""
    broker = new_broker(root / "kafka")
    try:
        with open_moto_aws() as aws, open_service_runs(root, broker, aws, environment()) as service:
            allow_serving(aws, "user")
            submit(root, service)
            serve(service, target)
            return "-" + service.topics["status"].rpartition("-")[2], aws.account
    finally:
        broker.stop()


def submit(root: Path, service: ServiceRuns) -> None:
    """Submit a job, and run it as its machine would."""
    ec2 = {"engine": "aws.ec2", "instance_type": "t3.small"}
    image = '[aws.ec2]\nimage = "ami-0deb1200000000001"'
    run(
        service.cli, "submit", write_descriptor(root, "submitted", more=image, **ec2), "--job-id", "submitted"
    )
    with service.agent("submitted") as agent:
        assert agent.wait(SECONDS) == 0


def serve(service: ServiceRuns, target: Path) -> None:
    """Have the service finish one request, begin others, and die; write what the bucket holds then."""
    service.start()
    publish(service, "served", script("train").replace("$1", "100"))
    service.wait_messages("executor", 1)
    with service.agent("served") as agent:
        assert agent.wait(SECONDS) == 0
        service.wait(lambda: not service.keys("open/served/"), "that nothing is open")
    publish(service, "serving", script("wait"))
    service.wait_messages("executor", 2)
    with service.agent("serving"):
        service.wait(lambda: ("RUNNING", "Benchmark running") in service.statuses("serving"), "the run")
        metrics = service.cli.folder / "machine-serving" / "run" / "metrics.jsonl"
        wait_for(lambda: holds(metrics, '"throughput"'), "a value")
        uploaded = "jobs/serving/attempts/0/nodes/0/metrics/"
        service.wait(lambda: any(map(len, service.keys(uploaded))), "the values in the bucket")
        # One request has its answer, which nobody has sent; another was accepted, and no more.
        answered = KillPoint(key=f"{service.aws.bucket}/service/answered/outbox/01-answer.json")
        accepted = KillPoint(key=f"{service.aws.bucket}/open/accepted/event.json")
        service.kill_at(answered, accepted)
        publish(service, "answered", script("train"))
        service.wait(lambda: service.keys("open/answered/"), "that the first one is accepted")
        publish(service, "accepted", script("train"))
        service.wait_killed()
        dump(service.aws, target)


def publish(service: ServiceRuns, action_id: str, code: str) -> None:
    """Ask the service for a job; each is another client's, so that they are launched at once."""
    metrics = [
        {"name": "loss", "units": "nats", "pattern": r"step=(?P<step>\d+) loss=(?P<value>\S+)", "better": "lower"},
        {"name": "throughput", "units": "images/s", "pattern": r"device=(?P<device>\w+) throughput=(?P<value>\S+)"},
    ]  # fmt: skip
    changes = {
        "info.labels.suite": "served",
        "host_metrics": {"enabled": False},
        "ml.benchmark_code": f"#!/bin/sh\n{code}",
        "output.metrics": metrics,
    }
    service.publish("fetcher", fetcher_event(changes, action_id=action_id, client_id=f"client-{action_id}"))


def dump(aws: MotoAws, target: Path) -> None:
    """Write what is in the bucket as files; the agent itself, which is large, is left out."""
    s3 = aws.client("s3", SETUP)
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=aws.bucket):
        for each in page.get("Contents", ()):
            if each["Size"] > 200_000:
                print(f"left out: {each['Key']}, {each['Size']} bytes")
                continue
            path = target / each["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(s3.get_object(Bucket=aws.bucket, Key=each["Key"])["Body"].read())


def neutralise(folder: Path, names: Mapping[str, str]) -> None:
    """Replace names of this machine in all files; fail where one is left."""
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        for name, neutral in names.items():
            content = content.replace(name.encode(), neutral.encode())
        path.write_bytes(content)
        for name in (*names, str(Path.home()), platform.node()):
            assert name.encode() not in content, f"{path} names {name}"


def write_answers(root: Path) -> None:
    """Write what this version says of the recorded jobs."""
    variables = {"HOME": str(root), "BAI_CONFIG": os.devnull}
    local = answers(CliHarness(root, environment(**variables, BAI_STORE=str(bring_store(root)))))
    with open_moto_aws() as aws:
        bring_bucket(aws, age=timedelta(days=2))
        account = {**aws.environment(), **variables, "BAI_STORE": f"s3://{aws.bucket}/jobs"}
        found = {"local": local, "bucket": answers(CliHarness(root, environment(**account)), ())}
    (HERE / "expected.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    with TemporaryDirectory(prefix="bai-record-") as folder:
        local, bucket = Path(folder, "a"), Path(folder, "b")
        local.mkdir()
        bucket.mkdir()
        record_local(local, Path(folder, "local"))
        mark, account = record_bucket(bucket, Path(folder, "bucket"))
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The longer ones first.
        names = {
            f"{local}/mpi/store": f"{ROOT}/store",
            str(local): ROOT,
            str(bucket): ROOT,
            mark: MARK,
            account: ACCOUNT,
            boot: str(uuid.UUID(int=0)),
            sys.prefix: "/usr",
            str(HERE.parents[2]): "/usr/lib/bai",
            os.environ["BAI_MACHINE"]: "recorded",
            platform.node(): HOST,
            platform.release(): KERNEL,
        }
        for place in ("local", "bucket"):
            neutralise(Path(folder, place), names)
            shutil.rmtree(HERE / place, ignore_errors=True)
            shutil.copytree(Path(folder, place), HERE / place)
        write_answers(Path(folder, "local"))


if __name__ == "__main__":
    os.environ["BAI_MACHINE"] = f"recording-{uuid.uuid4()}"
    # The benchmarks' Python is the distribution's.
    os.environ["PATH"] = "/usr/bin:/bin:/usr/sbin:/sbin"
    main()
