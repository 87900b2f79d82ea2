"""Launches the benchmark's shim, with all that the benchmark needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from bai_agent.benchmark import shim
from bai_agent.benchmark.children import kill
from bai_agent.benchmark.environment import (
    command,
    expand,
    find_user,
    make_command_executable,
    prepare_environment,
    scripts_folder,
    working_folder,
)
from bai_agent.benchmark.launch_needs import meet_needs
from bai_agent.benchmark.openssh import ready_client, ready_server
from bai_agent.benchmark.orphans import kill_marked
from bai_agent.benchmark.state import State, state
from bai_agent.benchmark.user_access import give_to, require_access
from bai_agent.errors import BaiError
from bai_agent.job.descriptor import ARM, Arm, Job, Repeat
from bai_agent.job.peers import Peer
from bai_agent.job.pipes import read_to_end, write_within
from bai_agent.job.run_directory import RunDir, make_folder
from bai_agent.job.user_rights import User
from bai_agent.strategy.launch import LAUNCHER_FOLDER, Launch, SshFrom, SshTo

OOM_SCORE_ADJ = 500
"""How much likelier than us the benchmark is to be chosen by the out-of-memory killer (0 to 1000)."""

_USUAL_UMASK = 0o022

_LAUNCH_LIMIT_S = 60.0
"""Seconds for the shim to say that the benchmark runs; its fsyncs on a slow disk are in them."""

_DEATH_SECONDS = 1.0
"""For a shim that has closed its streams to be dead, if it is dying."""


class ShimError(BaiError):
    """The benchmark's shim could not be started; the benchmark did not run."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """All that the shim needs to know, resolved."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    grace: timedelta
    """For processes that the benchmark leaves behind, and for a shutdown; at most 5 s of it are used."""
    user: User | None = None
    umask: int = _USUAL_UMASK
    oom_score_adj: int = OOM_SCORE_ADJ
    py_spy: Path | None = None
    repeat: Repeat | None = None
    discard_stdout: bool = False
    """Whether the standard output of a run is /dev/null."""
    runs_together: bool = False
    """Whether a run but the first waits for a word that it begins on all nodes."""
    on_each_node: tuple[str, ...] = ()
    """What stands in front of a command around a run."""
    arms: tuple[Order, ...] = ()
    """What each arm of `repeat` starts."""
    hosts: tuple[Peer, ...] = ()
    """Those that `ssh` of the environment has to reach before it starts."""


def make_order(
    job: Job,
    rundir: RunDir,
    *,
    launch: Callable[[Job, tuple[str, ...]], Launch],
    node: Mapping[str, str],
    secrets: Mapping[str, str],
    umask: int = _USUAL_UMASK,
    script: Path | None = None,
) -> Order:
    """Return what to launch for `job`. Makes the work folder, and the script's file where the job holds its text.

    `launch` is the strategy's: the job, and the benchmark's own command → what this node starts. `node`: the variables that tell the
    benchmark about the nodes. `secrets` are resolved ones; `umask` is the caller's, for a benchmark that runs as the same user.
    Raises SetupError.
    """
    arms = job.repeat.arms if job.repeat is not None else ()
    # Where another node starts the processes, it does the runs as well.
    serves = isinstance(launch(job, ()).ssh, SshFrom)
    if arms and not serves:
        orders = tuple(
            make_order(
                _job_of_arm(job, arm),
                rundir.of_arm(arm.name) if job.arms_apart else rundir,
                launch=launch,
                node=node,
                secrets=secrets,
                umask=umask,
                script=_script_of_arm(rundir, arm),
            )
            for arm in arms
        )
        # What is the same for both.
        return replace(orders[0], repeat=job.repeat, arms=orders)
    scripts = scripts_folder(job, rundir)
    script = script or rundir.script
    user = find_user(job.benchmark.user)
    env = prepare_environment(
        job, rundir, node=node, scripts=scripts, secrets=secrets, base=os.environ, user=user
    )
    make_folder(rundir.work, private=rundir.path)
    if job.strategy.process_logs:
        make_folder(rundir.processes, private=rundir.path)
    words = command(job, script, env=env)
    cwd = working_folder(job, rundir, scripts=scripts)
    if user is not None:
        own = (
            *(rundir.work, script, rundir.hostfile, rundir.processes),
            *([scripts] if scripts is not None else []),
        )
        for each in own:
            if each.exists():
                give_to(user, each)
        # What is not there at all, or is not a folder, the shim will say.
        require_access(user, [each for each in (*own, cwd) if each.is_dir()])
    make_command_executable(words, scripts=scripts, cwd=cwd, user=user)
    starts = launch(job, words)
    if any(LAUNCHER_FOLDER in value for value in starts.env.values()):
        make_folder(rundir.launcher, private=rundir.path)
        if user is not None:
            give_to(user, rundir.launcher)
    names = {**env, LAUNCHER_FOLDER: str(rundir.launcher)}
    env |= {name: expand(value, names) for name, value in starts.env.items()}
    if starts.ssh is not None:
        env["BAI_WORK_PATH"] = str(cwd)
    if isinstance(starts.ssh, SshTo):
        env["PATH"] = ready_client(starts.ssh, rundir, env=env, user=user)
    if isinstance(starts.ssh, SshFrom):
        inherited = os.environ if job.benchmark.inherit_env else {}
        argv = ready_server(
            starts.ssh, rundir, env=env, secrets=secrets, inherited=inherited, cwd=cwd, user=user
        )
    else:
        argv = meet_needs(starts, command=words, env=env, cwd=cwd, user=user)
    for arm in arms:
        # The node that starts processes here names these files.
        words = command(_job_of_arm(job, arm), file := _script_of_arm(rundir, arm), env=env)
        make_command_executable(words, scripts=scripts, cwd=cwd, user=user)
        if user is not None and file.exists():
            give_to(user, file)
    return Order(
        argv=argv,
        env=env,
        cwd=cwd,
        grace=job.limits.grace,
        user=user,
        umask=umask if user is None else _USUAL_UMASK,
        py_spy=find_py_spy(),
        repeat=None if serves else job.repeat,
        discard_stdout=job.output.discard_stdout and not serves,
        runs_together=job.runs_together,
        on_each_node=starts.on_each_node,
        hosts=starts.ssh.hosts if isinstance(starts.ssh, SshTo) else (),
    )


def _script_of_arm(rundir: RunDir, arm: Arm) -> Path:
    return rundir.script.with_name(f"{rundir.script.name}-{arm.name}")


def _job_of_arm(job: Job, arm: Arm) -> Job:
    """Return `job` as if the arm were all that it runs, again and again."""
    assert job.repeat is not None
    own = job.of_arm(arm)
    benchmark = replace(own.benchmark, env={**own.benchmark.env, ARM: arm.name})
    return replace(own, benchmark=benchmark, repeat=replace(job.repeat, arms=()))


def launch(order: Order, rundir: RunDir) -> State:
    """Start the benchmark, unless it was started before; return the state afterwards.

    Raises LaunchError where it did not come to run and may be launched again.
    """
    if (now := state(rundir)) is not State.NOT_STARTED:
        return now
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-X", "utf8", shim.__file__, str(rundir.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )
    _reap_in_the_end(child)
    try:
        said = _hand_over(child, _order_bytes(order, rundir))
    except TimeoutError:
        said = f"its shim did not answer within {_LAUNCH_LIMIT_S:g} s; is the disk of {rundir.path} hanging?"
        if not kill(child):
            # With SIGKILL before it, it does nothing more; but its lock would make it look alive.
            raise ShimError(f"{rundir.path}: the benchmark could not be launched: {said}") from None
    now = state(rundir)
    if now is State.NOT_STARTED:
        if not _ended(child):
            # It started the benchmark, which has deleted or renamed what would say so.
            kill(child)
            kill_marked(str(rundir.path))
            said = "it deleted or renamed the files of its run directory at once"
        raise ShimError(
            f"{rundir.path}: the benchmark could not be launched: {said or 'its shim was killed'}"
        )
    return now


def find_py_spy() -> Path | None:
    """Return the py-spy that came with the agent, else the one on PATH."""
    # In an environment it lies beside its Python, in a bundle beside our package.
    for folder in (Path(sys.executable).parent, Path(shim.__file__).parents[2] / "bin"):
        if (folder / "py-spy").exists():
            return folder / "py-spy"
    found = shutil.which("py-spy")
    return Path(found) if found else None


def _ended(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(timeout=_DEATH_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _reap_in_the_end(child: subprocess.Popen[bytes]) -> None:
    """Leave no zombie: the shim is our child, though we never need its exit code."""
    threading.Thread(target=child.wait, name="shim", daemon=True).start()


def _order_bytes(order: Order, rundir: RunDir) -> bytes:
    value = {
        "argv": list(order.argv),
        "env": dict(order.env),
        "cwd": str(order.cwd),
        "user": order.user
        and {
            "name": order.user.name,
            "uid": order.user.uid,
            "gid": order.user.gid,
            "groups": list(order.user.groups),
        },
        "grace_seconds": order.grace.total_seconds(),
        "umask": order.umask,
        "oom_score_adj": order.oom_score_adj,
        "py_spy": order.py_spy and str(order.py_spy),
        "discard_stdout": order.discard_stdout,
        "repeat": order.repeat and _repeat_table(order.repeat, order),
        "files": {
            "lock": str(rundir.shim_lock),
            "started": str(rundir.started),
            "stop": str(rundir.stop),
            "exit": str(rundir.exit),
            "repeats": str(rundir.repeats),
            "repeat_word": str(rundir.repeat_word),
            "turn": str(rundir.turn),
            "output": str(rundir.output),
            "fifo": str(rundir.fifo),
            "emit": str(rundir.emit),
        },
    }
    return json.dumps(value).encode()


def _repeat_table(repeat: Repeat, order: Order) -> dict[str, object]:
    return {
        "arms": [
            {
                "name": arm.name,
                "argv": list(each.argv),
                "env": dict(each.env),
                "cwd": str(each.cwd),
                **_steps(repeat, each, arm),
            }
            for arm, each in zip(repeat.arms, order.arms, strict=True)
        ],
        **_steps(repeat, order),
        "sequence": repeat.sequence,
        "runs": repeat.runs,
        "warmup_runs": repeat.warmup_runs,
        "runs_together": order.runs_together,
        "decided_after": repeat.decided_after,
        "max_time_seconds": repeat.max_time.total_seconds() if repeat.max_time is not None else None,
        "min_runs": repeat.min_runs,
        "keep_going": repeat.keep_going,
        "ignore_failure": repeat.ignore_failure,
    }


def _steps(repeat: Repeat, order: Order, arm: Arm | None = None) -> dict[str, list[str]]:
    """Return the commands around a run, with the variables in them replaced by their values."""
    steps = {
        "prepare": (arm.prepare if arm is not None else ()) or repeat.prepare,
        "cleanup": (arm.cleanup if arm is not None else ()) or repeat.cleanup,
    }
    return {
        name: [*order.on_each_node, *(expand(word, order.env) for word in command)] if command else []
        for name, command in steps.items()
    }


def _hand_over(child: subprocess.Popen[bytes], order: bytes) -> str:
    """Write the order; return what the shim said until it closed its stderr: the benchmark runs, or the shim ended.

    Raises TimeoutError.
    """
    assert child.stdin is not None
    assert child.stderr is not None
    try:
        with child.stdin:
            write_within(child.stdin.fileno(), order, timeout_s=_LAUNCH_LIMIT_S)
    except BrokenPipeError:
        pass  # it died; its state says the rest
    with child.stderr:
        return read_to_end(child.stderr.fileno(), timeout_s=_LAUNCH_LIMIT_S).decode(errors="replace").strip()
