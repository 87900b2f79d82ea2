"""An elastic job of four machines, of which one loses its power and another is taken back by EC2."""

from __future__ import annotations

import json
import re
from datetime import timedelta

from stand_in_training import TRAINS

from sandbox.ends import RUN, planned_seconds, seconds_on, wait_inside
from sandbox.sandbox_cli import SandboxCli
from sandbox.torchrun_nodes import described, follow, wait_for_machines, wait_off

ELASTIC = """
[elastic]
pause = "1s"
[checkpoint]
path = "checkpoints"
every = "5s"
[aws.ec2.run_instances.InstanceMarketOptions]
MarketType = "spot"
[[output.metrics]]
name = "loss"
pattern = 'step=(?P<step>[0-9]+) loss=(?P<value>[0-9.]+)'
required = true
"""


def test_an_elastic_job_continues_after_a_power_loss_and_a_spot_notice(cli: SandboxCli) -> None:
    limits = 'max_runtime = "15m"\ngrace = "5s"\npeer_silence = "20s"'
    file = described(cli, "exec python3 train.py /var/go 0.05", nodes="2:4", more=ELASTIC, limits=limits)
    (cli.folder / "scripts" / "train.py").write_text(TRAINS)
    machines = cli.submit_nodes(file)
    for machine in machines:
        machine.wait_for("agent start 1")

    # The first process's machine loses its power after it has kept a checkpoint: the other three go on without it.
    first, second, third, fourth = machines
    wait_inside(first, f"grep -q '^step=50 ' {RUN}/output.log && grep -q '\"checkpoint\"' {RUN}/events.jsonl")
    first.cut_power()
    wait_inside(second, f"grep -q 'generation=1 node=1 rank=0 of 3 goes on' {RUN}/output.log")
    goes_on_after = first_step(second.read(f"{RUN}/output.log").decode(), generation=1)

    # One of these three is to go within two minutes: it has left long before, and the two others go on.
    wait_inside(second, f"grep -q '^step={goes_on_after + 20} ' {RUN}/output.log")
    cli.aws.give_spot_notice(fourth.instance_id, after=timedelta(minutes=2))
    wait_off(cli, [fourth])
    for machine, who in ((second, "node=1 rank=0"), (third, "node=2 rank=1")):
        wait_inside(machine, f"grep -q 'generation=2 {who} of 2 goes on' {RUN}/output.log")
    stopped = second.read(f"{RUN}/output.log").decode()
    assert first_step(stopped, generation=2) == last_step(stopped, generation=1)

    for machine in (second, third):
        machine.write("/var/go", "")
    wait_off(cli, [second, third])
    status = cli.status()

    assert (status["status"], status["outcome"]) == ("SUCCEEDED", "succeeded"), status
    result = status["result"]
    assert result["lost"] == [0]
    assert any(re.fullmatch(r"Node 0 \(i-\w+, [0-9.]+\) was lost\.", each) for each in result["warnings"])
    assert any(each.startswith("Node 3: EC2 takes this spot instance back") for each in result["warnings"])
    # What each change cost is in the result.
    generations = result["generations"]
    assert [each["members"] for each in generations] == [[0, 1, 2, 3], [1, 2, 3], [1, 2]]
    assert all(each["gap_seconds"] > 0 for each in generations[1:])
    # Nobody has started anything twice, and no step is missing.
    records = [
        json.loads(each)
        for each in cli.bai("metrics", "job", "--name", "loss", "--format", "jsonl").stdout.splitlines()
    ]
    steps = {
        number: [each["step"] for each in records if each["generation"] == number] for number in range(3)
    }
    for number, found in steps.items():
        assert found == list(range(found[0], found[0] + len(found))), number
    assert steps[0][0] == 1
    assert steps[1][0] == goes_on_after + 1
    assert steps[2][0] == steps[1][-1] + 1
    assert [call.identity for call in cli.aws.calls if call.action == "TerminateInstances"] in ([], ["user"])


def test_a_machine_that_loses_power_is_replaced_while_a_command_follows(cli: SandboxCli) -> None:
    limits = 'max_runtime = "30m"\ngrace = "5s"\ndrain = "5s"\npeer_silence = "20s"'
    more = ELASTIC.replace('pause = "1s"', 'pause = "1s"\nreplacements = 1')
    file = described(cli, "exec python3 train.py /var/go 0.05", nodes="2:3", more=more, limits=limits)
    (cli.folder / "scripts" / "train.py").write_text(TRAINS)
    follower = follow(cli, file)
    first, lost, third = wait_for_machines(cli, follower, 3)
    wait_inside(lost, f"grep -q '\"run\"' {RUN}/events.jsonl")
    wait_inside(first, f"grep -q '^step=50 ' {RUN}/output.log")

    lost.cut_power()
    [fourth] = wait_for_machines(cli, follower, 4)[3:]
    wait_inside(fourth, f"grep -q 'generation=2 node=3 rank=2 of 3 goes on' {RUN}/output.log")

    for machine in (first, third, fourth):
        machine.write("/var/go", "")
    wait_off(cli, [first, third, fourth])
    assert follower.wait(timeout=120) == 0
    result = cli.status()["result"]
    assert [each["members"] for each in result["generations"]] == [[0, 1, 2], [0, 2], [0, 2, 3]]
    assert result["replaced"] == [1]
    assert "replaced" in cli.bai("status", "job").stdout
    # Nobody but the follower has launched anything, and the lost machine went first.
    launching = [call for call in cli.aws.calls if call.action == "RunInstances"]
    assert [call.identity for call in launching] == ["user", "user"]
    assert seconds_on(cli.aws.machines) <= planned_seconds(cli, file)


def test_an_interrupted_spot_machine_is_replaced_and_training_continues(cli: SandboxCli) -> None:
    more = """
[checkpoint]
path = "checkpoints"
[elastic]
replacements = 1
[ml.script]
path = "scripts"
[aws.ec2.run_instances.InstanceMarketOptions]
MarketType = "spot"
"""
    (cli.folder / "scripts").mkdir()
    (cli.folder / "scripts" / "train.py").write_text(TRAINS)
    alone = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=23456"
    limits = 'max_runtime = "30m"\ngrace = "5s"\ndrain = "5s"'
    file = cli.descriptor(
        f'{alone} exec python3 "$BAI_SCRIPTS_PATH/train.py" /var/go 0.05', more=more, limits=limits
    )
    follower = follow(cli, file)
    [first] = wait_for_machines(cli, follower, 1)
    wait_inside(first, f"grep -q '^step=40 ' {RUN}/output.log")

    cli.aws.give_spot_notice(first.instance_id, after=timedelta(minutes=2))
    second = wait_for_machines(cli, follower, 2)[1]
    wait_inside(
        second, f"grep -q ' node=1 rank=0 of 1 goes on' {RUN}/generations/*/output.log {RUN}/output.log"
    )
    second.write("/var/go", "")

    assert follower.wait(timeout=240) == 0
    status = cli.status()
    assert (status["status"], status["outcome"]) == ("SUCCEEDED", "succeeded"), status
    assert status["result"]["replaced"] == [0]
    assert [each["members"] for each in status["result"]["generations"]] == [[0], [1]]
    stops, goes_on = (
        number_after(pattern, cli.bai("logs", "job", "--node", node).stdout)
        for node, pattern in (("0", "generation=0 .* stops after step "), ("1", ".* goes on after step "))
    )
    assert goes_on == stops >= 40
    for machine in (first, second):
        machine.wait_off()
    assert seconds_on([first, second]) <= planned_seconds(cli, file)


def test_after_all_spot_machines_lose_power_new_ones_continue_from_the_last_checkpoint(
    cli: SandboxCli,
) -> None:
    limits = 'max_runtime = "30m"\ngrace = "5s"\ndrain = "5s"\npeer_silence = "20s"'
    more = ELASTIC.replace('pause = "1s"', 'pause = "1s"\nreplacements = 3')
    file = described(cli, "exec python3 train.py /var/go 0.05", nodes="2:3", more=more, limits=limits)
    (cli.folder / "scripts" / "train.py").write_text(TRAINS)
    follower = follow(cli, file)
    old = wait_for_machines(cli, follower, 3)
    wait_inside(
        old[0], f"grep -q '^step=50 ' {RUN}/output.log && grep -q '\"checkpoint\"' {RUN}/events.jsonl"
    )

    for machine in old:
        machine.cut_power()
    # Whatever was uploaded after it without a marker does not count.
    kept = cli.folder / "kept"
    assert cli.bai("fetch", "job", kept, "--checkpoint").code == 0
    [saved] = kept.glob("checkpoint-*/training.json")
    step, marker = json.loads(saved.read_text())["step"], saved.parent.name
    new = wait_for_machines(cli, follower, 6)[3:]
    wait_inside(new[0], f"grep -q 'generation=[0-9]* node=3 rank=0 of 3 goes on' {RUN}/output.log")

    for machine in new:
        machine.write("/var/go", "")
    wait_off(cli, new)
    assert follower.wait(timeout=240) == 0
    result = cli.status()["result"]
    assert result["outcome"] == "succeeded"
    stored = cli.objects("jobs/job/attempts/0/control/")
    decided = [json.loads(stored[name]) for name in sorted(stored) if name.startswith("generation-")]
    runs = [each["members"] for each in decided if each["kind"] == "run"]
    assert runs[0] == result["generations"][0]["members"] == [0, 1, 2]
    assert runs[-1] == result["generations"][-1]["members"] == [3, 4, 5]
    assert not {0, 1, 2} & {node for each in runs[1:] for node in each}
    assert result["replaced"] == [0, 1, 2]
    log = new[0].read(f"{RUN}/output.log").decode()
    assert f"goes on after step {step}, {marker}\n" in log.splitlines(keepends=True)[0]
    assert re.findall(r"^step=([0-9]+) ", log, re.MULTILINE)[0] == str(step + 1)
    launching = [call.identity for call in cli.aws.calls if call.action == "RunInstances"]
    assert launching == ["user"] * 4
    assert seconds_on(cli.aws.machines) <= planned_seconds(cli, file)


def first_step(log: str, *, generation: int) -> int:
    """Return the step after which a generation goes on, as a process of it says."""
    return number_after(f"generation={generation} .* goes on after step ", log)


def last_step(log: str, *, generation: int) -> int:
    """Return the step after which a generation stopped, as a process of it says."""
    return number_after(f"generation={generation} .* stops after step ", log)


def number_after(pattern: str, log: str) -> int:
    [found] = re.findall(f"^{pattern}([0-9]+)", log, re.MULTILINE)
    return int(found)
