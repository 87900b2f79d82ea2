"""Jobs of several machines under a torchrun that stands for PyTorch's."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from sandbox.fake_aws import Machine
from sandbox.sandbox_cli import SandboxCli

# Stands for PyTorch's, which no image of the sandbox has: it takes the same options, and starts the command as one process.
TORCHRUN = """\
#!/bin/sh
while [ "$1" != -- ]; do
    case $1 in
    --node-rank=*) RANK=${1#*=} ;;
    --nnodes=*) WORLD_SIZE=${1#*=} ;;
    --master-addr=*) MASTER_ADDR=${1#*=} ;;
    --master-port=*) MASTER_PORT=${1#*=} ;;
    esac
    shift
done
shift
export RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
exec "$@"
"""
MORE = """\
[ml.script]
path = "scripts"
[env.vars]
PATH = "/var/lib/bai/jobs/job/scripts:/usr/sbin:/usr/bin:/sbin:/bin"
"""


def described(
    cli: SandboxCli, code: str, *, nodes: int | str = 2, more: str = "", limits: str = 'max_runtime = "10m"'
) -> Path:
    """Write the descriptor of a job of several nodes; "2:4": of an elastic one."""
    scripts = cli.folder / "scripts"
    scripts.mkdir()
    (scripts / "torchrun").write_text(TORCHRUN)
    (scripts / "torchrun").chmod(0o755)
    return cli.descriptor(code, nodes=nodes, more=MORE + more, limits=limits)


def wait_off(cli: SandboxCli, machines: list[Machine]) -> None:
    """Wait until all have powered themselves off; nobody else has ended them."""
    for machine in machines:
        machine.wait_off()
        reason = cli.aws.instance(machine.instance_id)["StateReason"]["Code"]
        assert reason == "Client.InstanceInitiatedShutdown"
        assert machine.exit_codes == [0]


def follow(cli: SandboxCli, file: Path) -> subprocess.Popen[str]:
    """Run a job, and follow it; what is said of it is in the file `followed`."""
    with (cli.folder / "followed").open("w") as said:
        return cli.start("run", file, "--on", "ec2", "--job-id", "job", stdout=said, stderr=said)


def wait_for_machines(cli: SandboxCli, follower: subprocess.Popen[str], count: int) -> list[Machine]:
    """Wait until so many machines have been launched, and return them."""
    deadline = time.monotonic() + 900
    while len(cli.aws.machines) < count:
        assert follower.poll() is None, (cli.folder / "followed").read_text()
        assert time.monotonic() < deadline, f"{len(cli.aws.machines)} of {count} machines were launched"
        time.sleep(0.5)
    return cli.aws.machines
