"""Real Horovod and PyTorch on several machines, under Open MPI: the example of docs/many-nodes.md, whose launcher loses its power."""

from __future__ import annotations

import platform
import re
import subprocess
import uuid
from pathlib import Path

import pytest
from image_pythons import BOOKWORMS, image_python, pytorch
from kafka_brokers import Broker
from torch_digits import EXAMPLES, assert_sent_once, records_in

from sandbox.deep_learning import PLACE as PYTORCH
from sandbox.ends import RUN, wait_inside
from sandbox.fake_aws import FakeAws, MachineShape
from sandbox.open_mpi import FOUR, open_mpi, sleeping_yield
from sandbox.open_mpi import PLACE as OPEN_MPI
from sandbox.sandbox_cli import SandboxCli
from sandbox.torchrun_nodes import wait_off

ROOT = Path(__file__).parents[2]
EPOCHS = 6
HOROVOD = "/opt/horovod"
YIELD = "/usr/local/lib/sleeping_yield.so"
_NEEDS = ("cloudpickle==3.1.2", "psutil==7.1.3", "pyyaml==6.0.3", "packaging==25.0")
_BUILD_SECONDS = 1500
# Horovod was linked with Debian's Open MPI, of which this part is not in the one from the package index.
CXX = Path(f"/usr/lib/{platform.machine()}-linux-gnu/libmpi_cxx.so.40")


def horovod() -> Path:
    """Return a folder with Horovod alone, built for the PyTorch of `pytorch()`; the first time takes minutes."""
    python = pytorch() / "bin" / "python"
    built = subprocess.run(
        [ROOT / "scripts" / "horovod", python],
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if built.returncode:
        pytest.fail(f"scripts/horovod: {built.stderr}", pytrace=False)
    return image_python("horovod", [built.stdout.strip(), *_NEEDS])


@pytest.mark.timeout(_BUILD_SECONDS + 1200)
def test_machines_under_horovod_train_one_model_and_continue_without_their_launcher(
    aws: FakeAws, cli: SandboxCli, kafka: Broker
) -> None:
    aws.expose(int(kafka.address.rpartition(":")[2]))
    mounts = {PYTORCH: pytorch(), OPEN_MPI: open_mpi(FOUR), HOROVOD: horovod()}
    # The three machines share the cores of this one with all other tests.
    aws.shape = MachineShape(mounts=mounts, files={str(CXX): CXX.read_bytes(), YIELD: sleeping_yield()})
    job = f"horovod-{uuid.uuid4().hex[:8]}"
    packages = f"{HOROVOD}/lib/python{BOOKWORMS}/site-packages"
    submit = f"submit {EXAMPLES}/horovod.toml --nodes 2:3 --job-id {job} --set env.vars.PYTHONPATH={packages}"
    submit += f" --set env.vars.LD_PRELOAD={YIELD} --set env.vars.OMPI_MCA_mpi_yield_when_idle=1"
    limits = "--set limits.grace=5s --set limits.peer_silence=20s --set checkpoint.every=1s"

    # Given three machines, one process each, that have learned together, and whose checkpoint is kept
    done = cli.bai(
        *submit.split(),
        *limits.split(),
        "--",
        "--epochs",
        str(EPOCHS),
        env={"BAI_KAFKA_BROKERS": kafka.address},
    )
    assert done.code == 0, done.stderr
    first, second, third = aws.machines
    run = RUN.replace("jobs/job", f"jobs/{job}")
    wait_inside(first, f"grep -q '^epoch=2 ' {run}/output.log && grep -q '\"checkpoint\"' {run}/events.jsonl")

    # When the machine of mpirun loses its power
    first.cut_power()

    # Then the second one's mpirun goes on with both that are left, from that checkpoint
    wait_off(cli, [second, third])
    status = cli.status(job)
    assert (status["status"], status["outcome"]) == ("SUCCEEDED", "succeeded"), status
    assert status["result"]["lost"] == [0]
    assert [each["members"] for each in status["result"]["generations"]] == [[0, 1, 2], [1, 2]]
    before, log = (cli.bai("logs", job, "--node", node).stdout for node in ("0", "1"))
    resumed = dict(re.findall(r"^process (\d) of 2 goes on after epoch (\d+)$", log, re.MULTILINE))
    assert sorted(resumed) == ["0", "1"]
    [epoch] = {int(each) for each in resumed.values()}
    assert epoch >= 1
    made = re.findall(r"^epoch=(\d+) step=\d+ loss=(\S+)", log, re.MULTILINE)
    assert [int(each) for each, _ in made] == list(range(epoch + 1, EPOCHS + 1))
    [begun] = re.findall(r"^epoch=1 step=\d+ loss=(\S+)", before, re.MULTILINE)
    assert float(made[-1][1]) < float(begun) / 2
    # Both have the same weights, to the last bit.
    weights = dict(re.findall(r"^weights of process (\d): ([0-9a-f]{16})$", log, re.MULTILINE))
    assert sorted(weights) == ["0", "1"]
    assert len(set(weights.values())) == 1
    stored = cli.objects(f"jobs/{job}/")
    sent = assert_sent_once(kafka, job, records_in(stored, (1, 2)))
    assert {(each.rank, each.process_rank) for each in sent} >= {("1", "0"), ("2", "1")}
    for path in ("artifacts/runs/model.pt", "artifacts/node-2/runs/model.pt"):
        assert len(stored[path]) > 100_000
