"""Jobs of several machines, from `bai submit` to the end of all of them."""

from __future__ import annotations

import json
import signal
import subprocess

from sandbox.ends import RUN, agent, wait_inside
from sandbox.sandbox_cli import SandboxCli
from sandbox.torchrun_nodes import described, wait_off

LOSS = """
[[output.metrics]]
name = "loss"
units = "nats"
pattern = 'loss=(\\S+)'
required = true
"""
# Each machine is reached where it says that it is; none ends, and powers itself off, before all have reached all.
GREETS = """\
echo "rank $RANK of $WORLD_SIZE on node $BAI_NODE_RANK at $MASTER_ADDR"
IFS=,
for address in $BAI_NODE_ADDRS; do
    until bash -c "exec 3<>/dev/tcp/$address/22; head -c 3 <&3; echo" 2>/dev/null; do sleep 0.5; done
done
python3 - "$RANK" "$WORLD_SIZE" "$MASTER_ADDR" <<END
import socket, sys, time
rank, world = map(int, sys.argv[1:3])
if rank == 0:
    with socket.create_server(("", 7000)) as server:
        peers = [server.accept()[0] for _ in range(1, world)]
while rank:
    try:
        with socket.create_connection((sys.argv[3], 7000)) as coordinator:
            coordinator.recv(1)
        break
    except ConnectionRefusedError:
        time.sleep(0.2)
END
[ "$RANK" != 0 ] || echo loss=0.5
"""


# All listen on one port, each at its own address, and each tells the others who it is.
FINDS = """\
exec python3 - <<'END'
import os, socket, time
addresses, rank = os.environ["BAI_NODE_ADDRS"].split(","), int(os.environ["BAI_NODE_RANK"])
with socket.create_server((addresses[rank], 7000)) as server:
    for address in addresses:
        while address != addresses[rank]:
            try:
                with socket.create_connection((address, 7000), 60) as peer:
                    peer.sendall(b"node %d" % rank)
                break
            except ConnectionRefusedError:
                time.sleep(0.2)
    for _ in addresses[1:]:
        peer, (address, _) = server.accept()
        with peer, peer.makefile() as said:
            print(f"node {rank} of {len(addresses)} heard {said.read()} at {address}")
print("loss=0.5")
END
"""


def test_a_command_on_each_machine_finds_the_others_by_their_addresses(cli: SandboxCli) -> None:
    machines = cli.submit_nodes(cli.descriptor(FINDS, nodes=2, strategy="each_node", more=LOSS))
    wait_off(cli, machines)

    status = cli.status()

    assert (status["status"], status["outcome"]) == ("SUCCEEDED", "succeeded"), status
    addresses = [each.facts.address for each in machines]
    for rank in (0, 1):
        pieces = cli.objects(f"jobs/job/attempts/0/nodes/{rank}/log/")
        said = b"".join(pieces[key] for key in sorted(pieces)).decode()
        assert f"node {rank} of 2 heard node {1 - rank} at {addresses[1 - rank]}\n" in said
    # Nothing was prepared for logins between them.
    joined = json.loads(cli.objects("jobs/job/attempts/0/joined/")["1.json"])
    assert joined["public_key"] is None
    assert json.loads(cli.objects("jobs/job/")["result.json"])["metrics"]["per_metric"] == {"loss": 2}


def test_four_machines_join_and_write_one_result(cli: SandboxCli) -> None:
    machines = cli.submit_nodes(described(cli, GREETS, nodes=4, more=LOSS))
    wait_off(cli, machines)

    status = cli.status()

    assert (status["status"], status["outcome"]) == ("SUCCEEDED", "succeeded"), status
    [launch] = [call for call in cli.aws.calls if call.action == "RunInstances"]
    assert (launch.parameters["MinCount"], launch.parameters["MaxCount"]) == ("4", "4")
    stored = cli.objects("jobs/job/attempts/0/")
    first = machines[0].facts.address
    assert len(machines) == 4
    for rank, machine in enumerate(machines):
        assert json.loads(stored[f"nodes/{rank}/ready.json"])["instance_id"] == machine.instance_id
        pieces = cli.objects(f"jobs/job/attempts/0/nodes/{rank}/log/")
        said = b"".join(pieces[key] for key in sorted(pieces)).decode().split("\n")
        assert said[:5] == [f"rank {rank} of 4 on node {rank} at {first}", *["SSH"] * 4]
    assert json.loads(stored["control/stop.json"])["finished"]
    assert json.loads(cli.objects("jobs/job/")["result.json"])["metrics"]["per_metric"] == {"loss": 1}


def test_a_job_ends_if_machines_are_lost_hang_or_are_cut_off(cli: SandboxCli) -> None:
    """Agent: the one that is left makes the result. `bai status`: terminates the machine that hangs. Deadman: the one that is cut off."""
    cli.aws.fleet.power_off_grace = 1.0
    file = described(
        cli,
        "echo begun\nsleep 600",
        nodes=4,
        limits='max_runtime = "10m"\ngrace = "1s"\npeer_silence = "20s"',
    )
    follower = cli.start(
        "run", file, "--on", "ec2", "--job-id", "job", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    machines = cli.aws.wait_for_machines(4)
    for machine in machines:
        # Four that boot at once on a busy host take their time.
        machine.wait_for("agent start 1")
        wait_inside(machine, f"grep -q begun {RUN}/output.log")

    # An agent that is killed is there again before anybody misses it; whoever follows is needed by nobody
    follower.kill()
    follower.wait()
    machines[1].kill(agent(machines[1]))
    wait_inside(machines[1], f"grep -c agent_started {RUN}/events.jsonl | grep -qx 2")

    hangs, goes, left, cut_off = machines
    hangs.hang()
    goes.cut_power()
    cut_off.plug(False)
    cut_off.forward(cli.aws.control_plane.port, None)
    for process in cut_off.inside.processes("/var/lib/bai/"):
        if "guardian.sh" in process.argv[1] or "start_agent.py" in " ".join(process.argv):
            cut_off.kill(process.pid, signal.SIGSTOP)
    cut_off.write("/var/lib/bai/boot/limit", "5\n")
    wait_off(cli, [left])
    cut_off.wait_off()

    first, second = (cli.bai("status", "job", "--wait", "--json") for _ in range(2))
    hangs.wait_off()

    assert (first.code, second.code) == (5, 5), first.stderr
    ended = first.objects[0]["result"]
    assert (ended["outcome"], ended["lost"]) == ("peer_lost", [0, 1, 3])
    said = [ended["sentence"], *ended["warnings"]]
    for rank, machine in ((0, hangs), (1, goes), (3, cut_off)):
        title = f"Node {rank} ({machine.instance_id}, {machine.facts.address})"
        who = f"{title}, the coordinator," if rank == 0 else title
        assert f"{who} sent no heartbeat for 20 s." in said
    assert f"{hangs.instance_id} (node 0) stopped sending heartbeats" in first.objects[0]["machine"]
    assert second.objects[0]["result"] == ended
    assert "BAI-END deadline" in cut_off.console()
    reasons = [cli.aws.instance(each.instance_id)["StateReason"]["Code"] for each in (hangs, cut_off)]
    assert reasons == ["Client.UserInitiatedShutdown", "Client.InstanceInitiatedShutdown"]
    [call] = [call for call in cli.aws.calls if call.action == "TerminateInstances"]
    assert call.identity == "user"


def test_a_process_that_fails_on_one_machine_is_started_again_on_all(cli: SandboxCli) -> None:
    code = (
        "echo loss=0.$BAI_GENERATION$RANK\necho $BAI_GENERATION >>/var/begun\n"
        "[ $BAI_GENERATION$RANK != 01 ] || exit 7\n[ $BAI_GENERATION = 1 ] || sleep 600\n"
    )
    restart = '[restart]\nmax_restarts = 1\nbackoff = "1s"\n'
    file = described(cli, code, more=LOSS + restart)

    machines = cli.submit_nodes(file)
    wait_off(cli, machines)
    result = cli.status()["result"]
    assert [each["outcome"] for each in result["generations"]] == ["failed", "succeeded"]
    assert result["generations"][0]["sentence"].startswith("Node 1: ")
    assert [each.read("/var/begun") for each in machines] == [b"0\n1\n"] * 2
