"""Replaces PyTorch's torchrun, which takes ten seconds to start, with the same options, processes and end.

A process that fails ends the other processes. It may write an error file. The summary has torchrun's own
form.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = r"""#!{python}
import json, os, signal, subprocess, sys, tempfile, time
from datetime import datetime

options = dict(each[2:].split("=", 1) for each in sys.argv[1 : sys.argv.index("--no-python")])
command = sys.argv[sys.argv.index("--") + 1 :]
assert options["rdzv-backend"] == "static"
rank, address, port = int(options["node-rank"]), options["master-addr"], options["master-port"]
slots = int(options["nproc-per-node"])
shared = dict(MASTER_ADDR=address, MASTER_PORT=port, WORLD_SIZE=str(int(options["nnodes"]) * slots))
logs = tempfile.mkdtemp(prefix=options["rdzv-id"] + "_", dir=os.environ["PET_LOG_DIR"])


def start(attempt):
    children = []
    for local in range(slots):
        folder = os.path.join(logs, f"attempt_{{attempt}}", str(local))
        os.makedirs(folder)
        own = dict(RANK=str(rank * slots + local), LOCAL_RANK=str(local), TORCHELASTIC_RESTART_COUNT=str(attempt))
        error_file = os.path.join(folder, "error.json")
        children.append(subprocess.Popen(command, env=dict(os.environ, **shared, **own, TORCHELASTIC_ERROR_FILE=error_file)))
        children[-1].error_file = error_file
    return children


def watch(children):
    failures = {{}}
    while len(failures) == 0 and any(each.poll() is None for each in children):
        time.sleep(0.05)
        note(children, failures)
    note(children, failures)
    for each in children:
        if failures and each.poll() is None:
            each.terminate()
            each.wait()
    note(children, failures)
    return failures


def note(children, failures):
    for local, each in enumerate(children):
        if each.poll() and local not in failures:
            failures[local] = datetime.now().replace(microsecond=0)


def entry(number, local):
    child = children[local]
    code = child.returncode
    name = f" ({{signal.Signals(-code).name}})" if code < 0 else ""
    said = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    error_file = "<N/A>"
    if os.path.exists(child.error_file):
        error_file = child.error_file
        said = json.load(open(error_file))["message"]["extraInfo"]["py_callstack"].replace("\n", "\n  ")
    elif code < 0:
        said = f"Signal {{-code}}{{name}} received by PID {{child.pid}}"
    return f'''[{{number}}]:
  time      : {{failures[local].isoformat(sep="_")}}
  host      : here
  rank      : {{rank * slots + local}} (local_rank: {{local}})
  exitcode  : {{code}} (pid: {{child.pid}}) {{name}}
  error_file: {{error_file}}
  traceback : {{said}}'''


for attempt in range(int(options["max-restarts"]) + 1):
    children = start(attempt)
    failures = watch(children)
    if not failures:
        sys.exit(0)
root = min(failures, key=lambda each: (failures[each], each))
others = [entry(number, local) for number, local in enumerate(failures) if local != root]
place = "torch/distributed/elastic/multiprocessing/api.py:1003"
child = children[root]
sys.stderr.write(f'''E{{time.strftime("%m%d %H:%M:%S")}}.000000 {{os.getpid()}} {{place}}] failed (exitcode: {{child.returncode}}) local_rank: {{root}} (pid: {{child.pid}}) of binary: {{command[0]}}
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
{{command[0]}} FAILED
------------------------------------------------------------
Failures:
{{os.linesep.join(others) or "  <NO_OTHER_FAILURES>"}}
------------------------------------------------------------
Root Cause (first observed failure):
{{entry(0, root)}}
============================================================
''')
sys.exit(1)
"""

RECORDED = '''
import json, os, time, traceback
def recorded(main):
    """As torchelastic's `record`."""
    try:
        main()
    except Exception as error:
        extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
        message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": message}, file)
        raise
'''


def put_torchrun(folder: Path) -> Path:
    """Write the program below `folder`; return the folder for PATH."""
    program = folder / "launchers" / "torchrun"
    program.parent.mkdir()
    program.write_text(_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return program.parent
