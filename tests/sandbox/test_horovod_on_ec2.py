"""Real Horovod and PyTorch on two machines, under one mpirun of Open MPI: the example of docs/many-nodes.md, as it is."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import uuid
from pathlib import Path

import pytest
from image_pythons import BOOKWORMS, image_python, pytorch
from kafka_brokers import Broker
from torch_digits import EXAMPLES, assert_measured_once, records_in

from sandbox.deep_learning import PLACE as PYTORCH
from sandbox.fake_aws import FakeAws, MachineShape
from sandbox.open_mpi import FOUR, open_mpi
from sandbox.open_mpi import PLACE as OPEN_MPI
from sandbox.sandbox_cli import SandboxCli

ROOT = Path(__file__).parents[2]
EPOCHS = 2
HOROVOD = "/opt/horovod"
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


def test_two_machines_under_horovod_learn_together(aws: FakeAws, cli: SandboxCli, kafka: Broker) -> None:
    aws.expose(int(kafka.address.rpartition(":")[2]))
    mounts = {PYTORCH: pytorch(), OPEN_MPI: open_mpi(FOUR), HOROVOD: horovod()}
    aws.shape = MachineShape(mounts=mounts, files={str(CXX): CXX.read_bytes()})
    job = f"horovod-{uuid.uuid4().hex[:8]}"

    packages = f"{HOROVOD}/lib/python{BOOKWORMS}/site-packages"
    run = f"run {EXAMPLES}/horovod.toml --on ec2 --job-id {job} --set env.vars.PYTHONPATH={packages}"
    to_kafka = {"BAI_KAFKA_BROKERS": kafka.address}
    with cli.start(*run.split(), "--", "--epochs", str(EPOCHS), env=to_kafka) as bai:
        shown, said = bai.communicate(timeout=480)

    assert bai.returncode == 0, shown + said
    assert len(aws.machines) == 2
    for machine in aws.machines:
        machine.wait_off()
        assert machine.exit_codes == [0]
    stored = cli.objects(f"jobs/{job}/")
    log = b"".join(
        stored[key] for key in sorted(stored) if key.startswith("attempts/0/nodes/0/log/")
    ).decode()
    weights = dict(re.findall(r"^weights of process (\d): ([0-9a-f]{16})$", log, re.MULTILINE))
    assert sorted(weights) == ["0", "1"]
    assert len(set(weights.values())) == 1
    losses = [float(each) for each in re.findall(r"^epoch=\d+ step=\d+ loss=(\S+)", log, re.MULTILINE)]
    assert len(losses) == EPOCHS
    assert losses[-1] < losses[0] / 2
    result = json.loads(stored["result.json"])
    assert (result["outcome"], result["metrics"]["per_metric"]["loss"]) == ("succeeded", EPOCHS)
    assert_measured_once(kafka, job, records_in(stored), epochs=EPOCHS, apart=True)
    for rank in (0, 1):
        assert len(stored[f"artifacts/rank-{rank}/runs/model.pt"]) > 100_000
