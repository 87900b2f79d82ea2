"""AdaptDL's protocol on two machines that its own goodput has launched, of which one loses its power and is replaced.

The replicas are stand-ins: no machine here has PyTorch. The number of machines is found by the real AdaptDL.
"""

from __future__ import annotations

import json
from typing import Any

from adaptdl_hints import QUICK
from image_pythons import BOOKWORMS, adaptdl
from stand_in_adaptdl import stand_in_adaptdl

from sandbox.ends import RUN, wait_inside
from sandbox.fake_aws import FakeAws, Machine, MachineShape
from sandbox.sandbox_cli import SandboxCli
from sandbox.torchrun_nodes import follow, wait_for_machines, wait_off

PLACE = "/opt/adaptdl"
MORE = f"""
[elastic]
pause = "1s"
replacements = 1
[ml.script]
path = "scripts"
[env.vars]
PYTHONPATH = "{PLACE}/lib/python{BOOKWORMS}/site-packages:/var/lib/bai/jobs/job/scripts/packages"
[aws.ec2.run_instances.InstanceMarketOptions]
MarketType = "spot"
"""


def test_goodput_adds_a_machine_and_a_lost_one_is_replaced(aws: FakeAws, cli: SandboxCli) -> None:
    aws.shape = MachineShape(mounts={PLACE: adaptdl().parents[2]})
    packages = cli.folder / "scripts" / "packages"
    packages.mkdir(parents=True)
    (packages / "torch.py").touch()  # a replica of AdaptDL's would need it
    (packages.parent / "train.py").write_text(stand_in_adaptdl("/var/go", hints=json.dumps(QUICK)))
    limits = 'max_runtime = "30m"\ngrace = "5s"\ndrain = "5s"\npeer_silence = "20s"'
    file = cli.descriptor("exec python3 train.py", nodes="1:2", strategy="adaptdl", more=MORE, limits=limits)

    # Given one machine, whose hints ask for a second one
    follower = follow(cli, file)
    first, second = wait_for_machines(cli, follower, 2)
    [begun] = begins(second, generation=1)
    assert begun[2:6] == [2, [first.facts.address, second.facts.address], 404, ["1"]]

    # When the first one loses its power
    first.cut_power()

    # Then the other one goes on from the last checkpoint, and both with the replacement
    [alone] = begins(second, generation=2)
    assert alone[1:6] == [0, 1, [second.facts.address], 404, ["1"]]
    third = wait_for_machines(cli, follower, 3)[2]
    [together] = begins(third, generation=3)
    assert together[1:6] == [1, 2, [second.facts.address, third.facts.address], 404, ["2"]]
    shown = cli.bai("status", "-v", "job").stdout
    assert "goodput proposed 2 nodes" in shown

    for machine in (second, third):
        machine.write("/var/go", "")
    wait_off(cli, [second, third])
    assert follower.wait(timeout=240) == 0, (cli.folder / "followed").read_text()
    result = cli.status()["result"]
    assert (result["outcome"], result["replaced"]) == ("succeeded", [0])
    launching = [call.identity for call in cli.aws.calls if call.action == "RunInstances"]
    assert launching == ["user"] * 3
    stored = cli.objects("jobs/job/attempts/0/")
    decided = [json.loads(stored[name]) for name in sorted(stored) if name.startswith("control/generation-")]
    assert [each["members"] for each in decided if each["kind"] == "run"] == [[0], [0, 1], [1], [1, 2]]
    assert [name for name in stored if name.startswith(("requests/", "signs/size-"))] == ["signs/size-0.json"]


def begins(machine: Machine, *, generation: int) -> list[list[Any]]:
    """Wait until a machine's replicas of a generation have begun; return how each was started."""
    wait_inside(machine, f"grep -q '^begun \\[{generation},' {RUN}/output.log")
    lines = machine.read(f"{RUN}/output.log").decode().splitlines()
    starts = [json.loads(line.removeprefix("begun ")) for line in lines if line.startswith("begun ")]
    return [each for each in starts if each[0] == generation]
