"""Replaces a training script that resumes where it was stopped: docs/elastic-training.md.

It needs only the standard library, and no PyTorch.
"""

from __future__ import annotations

TRAINS = r'''
import json, os, signal, socket, sys, time
from pathlib import Path

asked = False

def ask(*_):
    global asked
    asked = True

signal.signal(signal.SIGTERM, ask)
finish, pace = Path(sys.argv[1]), float(sys.argv[2])
rank, world, generation = (int(os.environ[each]) for each in ("RANK", "WORLD_SIZE", "BAI_GENERATION"))
meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

def connect():
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(meeting, 5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)

if rank == 0:
    with socket.create_server(meeting) as server:
        server.settimeout(60)
        peers = [server.accept()[0] for _ in range(world - 1)]
else:
    peers = [connect()]
for each in peers:
    each.settimeout(90)
files = [each.makefile("rw") for each in peers]

def receive(file):
    line = file.readline()
    if not line:
        sys.exit("a process is gone")
    return json.loads(line)

def send(file, values):
    print(json.dumps(values), file=file, flush=True)

def add_up(*values):
    """Return the sums over all processes; each waits for all others."""
    if rank:
        send(files[0], values)
        return receive(files[0])
    sums = [sum(column) for column in zip(values, *map(receive, files))]
    for each in files:
        send(each, sums)
    return sums

saved = Path(os.environ["BAI_CHECKPOINT_DIR"], "training.json")
resumed = os.environ["BAI_RESUMED"]
step = json.loads(saved.read_text())["step"] if resumed else 0
known, = add_up(step)
if known != step * world:
    sys.exit(f"the nodes have different checkpoints: here it is of step {step}")
node = os.environ["BAI_NODE"]
print(f"generation={generation} node={node} rank={rank} of {world} goes on after step {step}, {resumed or 'no checkpoint'}", flush=True)
while True:
    time.sleep(pace)
    stop, done = add_up(asked, finish.exists())
    step += 1
    if rank == 0:
        print(f"step={step} loss={100 / (step + 1)}", flush=True)
        if stop or done or step % 10 == 0:
            part = saved.with_suffix(".part")
            part.write_text(json.dumps(dict(step=step)))
            part.replace(saved)
    if stop or done:
        break
print(f"generation={generation} node={node} stops after step {step}", flush=True)
sys.exit(0 if done else 143)
'''
"""Makes steps until the file of its first argument exists on any node, and saves every tenth step.

Its second argument is the seconds of a step.
"""
