"""Runs a command once on each node, by SSH: `python -I -S ssh_steps.py ADDRESS … -- NAME … -- COMMAND …`, on the node of mpirun.

It runs the commands before and after a run of a job with `[repeat]`. All nodes run it at once; it fails where
one of them fails, after all have ended. The other nodes get our own variables of these names. Values can be
read in ps: none may be a secret. It runs as a plain file: standard library only.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

_NO_METRICS = "BENCHMARK_AI_FIFO_FILEPATH=/dev/null"
"""Values emitted around a run are not metrics; elsewhere they could not be distinguished from the run's."""
_IN_ITS_FOLDER = 'cd -- "$BAI_WORK_PATH" && exec "$@"'


def main() -> int:
    """Run the command of our arguments; return 0, or what the first node ended with on which it failed."""
    at = sys.argv.index("--")
    addresses, rest = sys.argv[1:at], sys.argv[at + 1 :]
    at = rest.index("--")
    names, command = rest[:at], rest[at + 1 :]
    # sshd hands it to a shell: each word is quoted.
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
            sys.stderr.write(f"[bai] on {where} it {ended}\n")
            failed = failed or (code if code > 0 else 128 - code)
    return failed


def _start(words: list[str]) -> subprocess.Popen[bytes] | int:
    """Return the child; if it could not be started, the exit code of a shell."""
    try:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f'[bai] "{words[0]}" cannot be started: {error.strerror}\n')
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main())
