"""An interactive shell in a run directory on this machine, with the benchmark's environment variables."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from bai_agent.benchmark.environment import prepare_environment, scripts_folder
from bai_agent.errors import BaiError
from bai_agent.generations.decision_file import generation_environment
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor_file import read_job
from bai_agent.job.peers import peer_of
from bai_agent.job.run_directory import RunDir
from bai_agent.nodes.members_file import members_of
from bai_agent.shim.proc import RUN_MARKER
from bai_agent.strategy import node_environment

_OF_THE_RUN_ALONE = (
    RUN_MARKER,
    "BENCHMARK_AI",
    "BENCHMARK_AI_FIFO_FILEPATH",
    "BENCHMARK_AI_FIFO_MAX_WAIT_TIME",
)
"""Variables of the benchmark's processes that are removed from the shell's environment. If the shell had
these variables, bai would stop the shell together with the benchmark, and would record metrics that the shell
emits."""


def open_shell(folder: Path, *, rank: int) -> NoReturn:
    """Replace this process by the caller's shell, in the run directory `folder` of node `rank`. Raises
    BaiError."""
    rundir = RunDir(folder.absolute()).newest_generation()
    _require_own(rundir)
    job = read_job(rundir.job, checked=True).of_node(rank)
    secrets = ", ".join(job.benchmark.secrets)
    print(
        f"bai: a shell in the run directory of {job.job.id} (node {rank}), {rundir.path}, with the environment of its benchmark"
        f"{f' without its secrets ({secrets})' if secrets else ''}; `exit` leaves the shell, and the job is not changed",
        file=sys.stderr,
        flush=True,
    )
    shell = shutil.which(os.environ.get("SHELL", "")) or "/bin/sh"
    os.chdir(rundir.path)
    environment = shell_environment(job, rundir, rank=rank, base=os.environ)
    os.execve(shell, [shell], environment)  # noqa: S606 - a person's own shell is what was asked for


def _require_own(rundir: RunDir) -> None:
    """Raise BaiError unless the run directory belongs to the caller. Variables in another user's run
    directory could make the caller's shell run that user's programs."""
    try:
        owners = {each.lstat().st_uid for each in (rundir.path, rundir.job)}
    except (FileNotFoundError, NotADirectoryError):
        raise BaiError(f"{rundir.path} is not a run directory, or its run has not started") from None
    except OSError as error:
        raise BaiError(f"{rundir.path} cannot be read: {error.strerror}") from error
    if owners != {os.geteuid()}:
        raise BaiError(f"{rundir.path} belongs to another user, so a shell would use that user's variables")


def shell_environment(job: Job, rundir: RunDir, *, rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the benchmark's environment, as an agent with the environment `base` would set it. Secrets are
    left out, and so are the variables that connect a process with the run."""
    secrets = job.benchmark.secrets
    sources = {each.partition(":")[2] for each in secrets.values() if each.startswith("env:")}
    hidden = {*secrets, *sources}
    node = generation_environment(rundir)
    with suppress(BaiError):  # its nodes have not met
        peers = members_of(rundir).peers
        node |= node_environment(job, peer_of(peers, rank), peers, hostfile=str(rundir.hostfile))
    env = prepare_environment(
        job,
        rundir,
        scripts=scripts_folder(job, rundir),
        secrets={},
        base={name: value for name, value in base.items() if name not in hidden},
        node=node,
    )
    return {name: value for name, value in env.items() if name not in {*hidden, *_OF_THE_RUN_ALONE}}
