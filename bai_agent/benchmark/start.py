"""Launches the benchmark's shim, and sends the shim the order to run the benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
from bai_agent.benchmark.orphans import kill_marked
from bai_agent.benchmark.prepared_shim import SHIM, PreparedShim
from bai_agent.benchmark.programs import find_program
from bai_agent.benchmark.state import State, state
from bai_agent.benchmark.user_access import give_to, require_access
from bai_agent.errors import ShimError
from bai_agent.files.pipes import read_to_end, write_within
from bai_agent.files.user_rights import User
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import ARM, Arm, Repeat
from bai_agent.job.peers import Peer
from bai_agent.job.run_directory import RunDir, make_folder
from bai_agent.light_dataclass import asdict, dataclass, replace
from bai_agent.strategy.launch import LAUNCHER_FOLDER, RUN_TOKEN, Launch, SshFrom, SshTo

if TYPE_CHECKING:
    from bai_agent.benchmark.container_image import Container

OOM_SCORE_ADJ = 500
"""Number by which the benchmark's OOM score exceeds the agent's (0 to 1000). If memory runs out, the kernel
kills the process with the highest score first."""

_USUAL_UMASK = 0o022

_LAUNCH_LIMIT_S = 60.0
"""Time limit for the shim to report that the benchmark runs (seconds), including the shim's fsyncs on a slow
disk."""

_DEATH_SECONDS = 1.0
"""Time limit for a shim to end after the shim has closed its streams (seconds)."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The agent's order to the shim, with all variables and secrets resolved."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    grace: timedelta
    """Grace period for processes that the benchmark leaves behind. In a shutdown, the grace period is at most
    5 s."""
    user: User | None = None
    umask: int = _USUAL_UMASK
    oom_score_adj: int = OOM_SCORE_ADJ
    py_spy: Path | None = None
    repeat: Repeat | None = None
    discard_stdout: bool = False
    """Whether the benchmark's standard output is discarded (/dev/null)."""
    runs_together: bool = False
    """Whether each run after the first waits for all nodes to begin together."""
    on_each_node: tuple[str, ...] = ()
    """Words that precede the commands before and after a run, so that these commands run on every node."""
    contained_env: Mapping[str, str] | None = None
    """The benchmark's variables in its container, if podman changes the user. `env` is then the environment
    of podman. None if the benchmark has no container."""
    arms: tuple[Order, ...] = ()
    """Orders for the arms of `[repeat]`. Each order has the command of one arm."""
    listens_at: str | None = None
    """Address of this node on which the shim listens as long as it lives. None if no other node connects to
    the shim."""
    hosts: tuple[Peer, ...] = ()
    """Hosts that the environment's `ssh` must reach before the start."""
    server: Peer | None = None
    """Node whose server must be ready before the start."""


def make_order(
    job: Job,
    rundir: RunDir,
    *,
    launch: Callable[[Job, tuple[str, ...]], Launch],
    node: Mapping[str, str],
    secrets: Mapping[str, str],
    token: str = "",
    umask: int = _USUAL_UMASK,
    script: Path | None = None,
) -> Order:
    """Return the order for `job`. Creates the work folder. Creates the script's file if the job descriptor
    contains the script's text.

    launch: the strategy's function that returns this node's launch for the job and the benchmark's command.
    node: the variables that describe the nodes. secrets: resolved secrets. token: secret with which the nodes
    sign requests to each other. umask: the umask of the agent's caller, for a benchmark that runs as the same
    user. Raises SetupError.
    """
    arms = job.repeat.arms if job.repeat is not None else ()
    # If another node starts this node's processes, that other node also repeats the runs.
    serves = isinstance(launch(job, ()).ssh, SshFrom)
    if arms and not serves:
        make = partial(make_order, launch=launch, node=node, secrets=secrets, token=token, umask=umask)
        return _order_of_arms(job, rundir, arms, make)
    scripts = scripts_folder(job, rundir)
    place = _Place(
        rundir=rundir,
        scripts=scripts,
        cwd=working_folder(job, rundir, scripts=scripts),
        user=find_user(job.benchmark.user),
    )
    container = _find_container(job, rundir)
    base: Mapping[str, str] = os.environ
    inherits = job
    if container is not None:
        base = container.environment
        inherits = replace(job, benchmark=replace(job.benchmark, inherit_env=True))
    env = prepare_environment(
        inherits, rundir, node=node, scripts=scripts, secrets=secrets, base=base, user=place.user
    )
    make_folder(rundir.work, private=rundir.path)
    if job.strategy.process_logs:
        make_folder(rundir.processes, private=rundir.path)
    words = command(job, file := script or rundir.script, env=env)
    place.give_files(file)
    make_command_executable(words, scripts=scripts, cwd=place.cwd, user=place.user)
    starts = launch(job, words)
    env |= place.launch_environment(starts, env, token=token)
    if isinstance(starts.ssh, SshFrom):
        argv = _serve(job, starts.ssh, place, env=env, secrets=secrets)
    elif container is None:
        argv = meet_needs(starts, command=words, env=env, cwd=place.cwd, user=place.user)
    else:
        argv = starts.argv
    for arm in arms:
        words = command(_job_of_arm(job, arm), file := _script_of_arm(rundir, arm), env=env)
        make_command_executable(words, scripts=scripts, cwd=place.cwd, user=place.user)
        place.give(file)
    order = Order(
        argv=argv,
        env=env,
        cwd=place.cwd,
        grace=job.limits.grace,
        user=place.user,
        umask=umask if place.user is None else _USUAL_UMASK,
        py_spy=find_py_spy(),
        repeat=None if serves else job.repeat,
        discard_stdout=job.output.discard_stdout and not serves,
        runs_together=job.runs_together,
        on_each_node=starts.on_each_node,
        hosts=starts.ssh.hosts if isinstance(starts.ssh, SshTo) else (),
        server=starts.server,
    )
    return order if container is None else _in_container(order, container, job, rundir)


def _find_container(job: Job, rundir: RunDir) -> Container | None:
    if job.benchmark.container is None:
        return None
    # Imported here, because most jobs have no container.
    from bai_agent.benchmark.container_image import find_container

    return find_container(job.benchmark.container, rundir)


def _in_container(order: Order, container: Container, job: Job, rundir: RunDir) -> Order:
    """Return an order with the commands of `order`, which are started in the container."""
    from bai_agent.benchmark.container import contained, own_environment

    inside = own_environment(order.env, job, container)
    words, env = contained(container, job, rundir, env=inside, cwd=order.cwd, user=order.user)
    # The benchmark's folder may only exist in the container's image.
    cwd = order.cwd if order.cwd.is_dir() else rundir.work
    return replace(
        order, argv=(*words, *order.argv), env=env, cwd=cwd, on_each_node=words, contained_env=inside
    )


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Folders of a benchmark, and the benchmark's user if it is not the agent's user."""

    rundir: RunDir
    scripts: Path | None
    cwd: Path
    user: User | None

    def give(self, file: Path) -> None:
        """Make the benchmark's user the owner of a file or folder, if the file or folder exists."""
        if self.user is not None and file.exists():
            give_to(self.user, file)

    def give_files(self, script: Path) -> None:
        """Make the user the owner of the benchmark's files. Raises SetupError if the user cannot enter one of
        the benchmark's folders."""
        if self.user is None:
            return
        own = [self.rundir.work, script, self.rundir.hostfile, self.rundir.processes]
        if self.scripts is not None:
            own.append(self.scripts)
        for each in own:
            self.give(each)
        # The shim reports paths that are missing or not directories.
        require_access(self.user, [each for each in (*own, self.cwd) if each.is_dir()])

    def launch_environment(self, starts: Launch, env: Mapping[str, str], *, token: str) -> dict[str, str]:
        """Return the variables that a launch adds to `env`. Creates the launcher's folder and the SSH client's files."""
        rundir = self.rundir
        if any(LAUNCHER_FOLDER in value for value in starts.env.values()):
            make_folder(rundir.launcher, private=rundir.path)
            self.give(rundir.launcher)
        names = {**env, LAUNCHER_FOLDER: str(rundir.launcher), RUN_TOKEN: token}
        added = {name: expand(value, names) for name, value in starts.env.items()}
        if starts.ssh is not None:
            added["BAI_WORK_PATH"] = str(self.cwd)
        if isinstance(starts.ssh, SshTo):
            # Imported here, because most jobs need no SSH.
            from bai_agent.benchmark.openssh import ready_client

            added["PATH"] = ready_client(starts.ssh, rundir, env={**env, **added}, user=self.user)
        return added


def _order_of_arms(job: Job, rundir: RunDir, arms: Sequence[Arm], make: Callable[..., Order]) -> Order:
    """Return the order of the first arm with the commands of all arms."""
    orders = tuple(
        make(
            _job_of_arm(job, arm),
            rundir.of_arm(arm.name) if job.arms_apart else rundir,
            script=_script_of_arm(rundir, arm),
        )
        for arm in arms
    )
    return replace(orders[0], repeat=job.repeat, arms=orders)


def _serve(
    job: Job, ssh: SshFrom, place: _Place, *, env: Mapping[str, str], secrets: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the command of the SSH server through which another node starts processes on this node."""
    from bai_agent.benchmark.openssh import ready_server

    inherited = os.environ if job.benchmark.inherit_env else {}
    return ready_server(
        ssh, place.rundir, env=env, secrets=secrets, inherited=inherited, cwd=place.cwd, user=place.user
    )


def _script_of_arm(rundir: RunDir, arm: Arm) -> Path:
    return rundir.script.with_name(f"{rundir.script.name}-{arm.name}")


def _job_of_arm(job: Job, arm: Arm) -> Job:
    """Return `job` with this arm as its only command."""
    assert job.repeat is not None
    own = job.of_arm(arm)
    benchmark = replace(own.benchmark, env={**own.benchmark.env, ARM: arm.name})
    return replace(own, benchmark=benchmark, repeat=replace(job.repeat, arms=()))


def launch(order: Order, rundir: RunDir, prepared: PreparedShim | None = None) -> State:
    """Start the benchmark, unless it was started before. Return the benchmark's state after the start.

    Raises ShimError if the benchmark did not run and may be launched again.
    """
    if (now := state(rundir)) is not State.NOT_STARTED:
        return now
    child = (prepared or PreparedShim(rundir)).take()
    _reap_in_the_end(child)
    try:
        said = _hand_over(child, _order_bytes(order, rundir))
    except TimeoutError:
        said = f"its shim did not answer within {_LAUNCH_LIMIT_S:g} s; is the disk of {rundir.path} hanging?"
        if not kill(child):
            # After the SIGKILL the shim does nothing more, but the shim looks alive as long as its process
            # exists and holds the lock.
            raise ShimError(f"{rundir.path}: the benchmark could not be launched: {said}") from None
    now = state(rundir)
    if now is State.NOT_STARTED:
        if not _ended(child):
            # The shim started the benchmark, but the benchmark deleted or renamed the files that record the
            # start.
            kill(child)
            kill_marked(str(rundir.path))
            said = "the benchmark deleted or renamed files of its run directory immediately"
        raise ShimError(
            f"{rundir.path}: the benchmark could not be launched: {said or 'its shim was killed'}"
        )
    return now


def find_py_spy() -> Path | None:
    """Return the py-spy that was installed with the agent. If no py-spy was installed with the agent, return
    the py-spy on PATH."""
    # In a virtual environment, py-spy is in the folder of the environment's Python. In a bundle, py-spy is
    # beside the package bai_agent.
    folders = Path(sys.executable).parent, SHIM.parents[2] / "bin", os.environ.get("PATH", "")
    found = find_program("py-spy", path=":".join(map(str, folders)))
    return Path(found) if found else None


def _ended(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(timeout=_DEATH_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _reap_in_the_end(child: subprocess.Popen[bytes]) -> None:
    """Reap the shim, whose exit code is not needed."""
    threading.Thread(target=child.wait, name="shim", daemon=True).start()


def _order_bytes(order: Order, rundir: RunDir) -> bytes:
    value = {
        "argv": list(order.argv),
        "env": dict(order.env),
        "cwd": str(order.cwd),
        "user": order.user and asdict(order.user),
        "grace_seconds": order.grace.total_seconds(),
        "umask": order.umask,
        "oom_score_adj": order.oom_score_adj,
        "py_spy": order.py_spy and str(order.py_spy),
        "discard_stdout": order.discard_stdout,
        "contained": order.contained_env is not None,
        "listens_at": order.listens_at,
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
    """Return the commands before or after a run, with `$(NAME)` expanded."""
    steps = {
        "prepare": (arm.prepare if arm is not None else ()) or repeat.prepare,
        "cleanup": (arm.cleanup if arm is not None else ()) or repeat.cleanup,
    }
    variables = order.env if order.contained_env is None else order.contained_env
    return {
        name: [*order.on_each_node, *(expand(word, variables) for word in command)] if command else []
        for name, command in steps.items()
    }


def _hand_over(child: subprocess.Popen[bytes], order: bytes) -> str:
    """Send the order to the shim, and return the messages that the shim wrote until it closed its stderr. The
    shim closes its stderr when the benchmark runs, or when the shim ends.

    Raises TimeoutError.
    """
    assert child.stdin is not None
    assert child.stderr is not None
    try:
        with child.stdin:
            write_within(child.stdin.fileno(), order, timeout_s=_LAUNCH_LIMIT_S)
    except BrokenPipeError:
        pass  # the shim died, and the state of the benchmark shows whether it runs
    with child.stderr:
        return read_to_end(child.stderr.fileno(), timeout_s=_LAUNCH_LIMIT_S).decode(errors="replace").strip()
