"""Starts an agent that outlives whoever asked for it, and hears from it whether it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from bai_agent.benchmark.pipes import read_to_end
from bai_agent.errors import BaiError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.run_directory import RunDir
from bai_agent.run.machine import Node

_START = 30.0
"""Seconds in which a detached agent must have said that it runs."""

_READY = b"ready"

# Neither -m nor PYTHONPATH: the one looks into the current folder first, the other would leak into the benchmark.
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from bai_agent.cli import main; main()"


def start_detached(descriptor: Path, rundir: RunDir, node: Node) -> ExitCode:
    """Start the agent in a session of its own; return when it runs, or with the code of its refusal.

    The reason of a refusal is then on stderr. Raises BaiError where it says nothing.
    """
    reader, writer = os.pipe()
    try:
        with rundir.agent_log.open("ab") as output:
            agent = subprocess.Popen(
                [
                    *(sys.executable, "-X", "utf8", "-c", _PROGRAM, Path(__file__).parents[2]),
                    *("run", descriptor.absolute(), "--dir", rundir.path, "--quiet", f"--ready-fd={writer}"),
                    *(
                        f"--rank={node.rank}",
                        *([f"--instance-id={node.instance_id}"] if node.instance_id else []),
                    ),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(writer,),
                start_new_session=True,
                cwd=rundir.path,
            )
        os.close(writer)
        writer = -1
        answer = read_to_end(reader, seconds=_START)
    except TimeoutError:
        # It has started nothing yet, and shall not do so when its user has been told that it does not run.
        agent.kill()
        raise BaiError(
            f"the agent did not say within {_START:g} s that it runs, and was ended; see {rundir.agent_log}"
        ) from None
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if answer == _READY:
        return ExitCode.SUCCEEDED
    code, _, message = answer.decode(errors="replace").partition(" ")
    if not message:
        raise BaiError(f"the agent did not start; {rundir.agent_log} may say why")
    print(f"bai-agent: {message}", file=sys.stderr)
    return ExitCode(int(code))


def say_ready(descriptor: int) -> None:
    """Tell whoever detached this agent that it runs; where they have gone meanwhile, it runs all the same."""
    _say(descriptor, _READY)
    os.close(descriptor)


def say_refused(descriptor: int, code: ExitCode, message: str) -> None:
    """Tell whoever detached this agent why it does not run."""
    _say(descriptor, f"{int(code)} {message}".encode(errors="replace"))


def _say(descriptor: int, word: bytes) -> None:
    with suppress(BrokenPipeError):
        os.write(descriptor, word)
