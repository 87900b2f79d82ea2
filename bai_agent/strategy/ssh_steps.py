"""Runs a command once on each node by SSH: `python -I -S ssh_steps.py ADDRESS … -- NAME … -- COMMAND …`. The
program runs on the node that runs mpirun.

The command is one that a job with `[repeat]` runs before or after each run. All nodes run the command in
parallel. If the command fails on a node, this program fails after all nodes have finished. The environment
variables NAME are copied to the other nodes. The variables' values are visible in ps, so no value can be a
secret. This program runs as a plain file, so it uses only the standard library.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

_NO_METRICS = "BENCHMARK_AI_FIFO_FILEPATH=/dev/null"
"""Environment variable that discards the values that the command emits. On other nodes, the command's values
could not be distinguished from values of the run."""
_IN_ITS_FOLDER = 'cd -- "$BAI_WORK_PATH" && exec "$@"'


def main() -> int:
    """Run the command in this program's arguments on all nodes. Return 0, or the exit code on the first node
    on which the command failed."""
    at = sys.argv.index("--")
    addresses, rest = sys.argv[1:at], sys.argv[at + 1 :]
    at = rest.index("--")
    names, command = rest[:at], rest[at + 1 :]
    # sshd passes the command to a shell, so each word is quoted.
    words = [
        "env",
        *(f"{name}={os.environ[name]}" for name in names if name in os.environ),
        _NO_METRICS,
        "/bin/sh",
        "-c",
        _IN_ITS_FOLDER,
        "sh",
        *command,
    ]
    started = [("this node", _start(command))]
    started += [(each, _start(["ssh", each, shlex.join(words)])) for each in addresses]
    failed = 0
    for where, child in started:
        code = child if isinstance(child, int) else child.wait()
        if code:
            ended = f"exited with code {code}" if code > 0 else f"was ended by signal {-code}"
            sys.stderr.write(f"[bai] on {where} the command {ended}\n")
            failed = failed or (code if code > 0 else 128 - code)
    return failed


def _start(words: list[str]) -> subprocess.Popen[bytes] | int:
    """Start a process and return it. If the process cannot be started, return the exit code that a shell
    would return."""
    try:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f'[bai] "{words[0]}" cannot be started: {error.strerror}\n')
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main())
