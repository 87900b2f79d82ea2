"""Runs torchrun, PyTorch's launcher, on every node, and reads its reports of failures:
https://docs.pytorch.org/docs/stable/elastic/run.html

Each process whose main function has torchelastic's decorator `record` writes its exception into a separate
file below the `--log-dir` folder. At its end, torchrun prints a summary of all failed processes. torchrun
writes its own errors into TORCHELASTIC_ERROR_FILE: https://docs.pytorch.org/docs/stable/elastic/errors.html
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from bai_agent.decode import parse_json
from bai_agent.errors import DescriptorError, RecordError
from bai_agent.job.descriptor import Job
from bai_agent.job.peers import Peer
from bai_agent.light_dataclass import dataclass
from bai_agent.strategy.failure import Cause, LeftFile, Remains
from bai_agent.strategy.launch import LAUNCHER_FOLDER, Launch, Needs

_OWN_FILE = "torchrun.json"
"""File in the launcher's folder with an error of torchrun itself, or with a copy of a failed process's error
file."""

_FILE = re.compile(r"[^/]+/attempt_(?P<attempt>\d{1,9})/(?P<local>\d{1,9})/error\.json")
_ROOT = "Root Cause (first observed failure):"
_FAILURES = "\nFailures:\n"
_ENTRY = re.compile(
    r"^ *time *: (?P<time>[\d_:T.-]{1,40}) *\n(?: *host *: [^\n]*\n)?"
    r" *rank *: (?P<rank>\d{1,9}) \(local_rank: (?P<local>\d{1,9})\) *\n"
    r" *exitcode *: (?P<code>-?\d{1,9}) ",
    re.MULTILINE,
)
_FIRST_WORD = re.compile(
    r"^[A-Z]\d{4} [\d:.]+ +\d+ [^\n]*torch/distributed/elastic/[^\n]*\] (?:failed \(exitcode: |Sending process \d+ closing signal )",
    re.MULTILINE,
)
"""Start of torchrun's first message about a failure. torchrun names the failed process and stops the other
processes before it prints its summary."""
_DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that are never a consequence of another process's failure. The consequence of another process's
failure is an exception or SIGABRT."""
_CONSEQUENCE_S = 5.0
"""Time after a failure in which another failure is possibly a consequence of the first failure (seconds).
torchrun reports whole seconds, and processes that communicate with a failed process fail shortly after the
failed process. torchrun itself sends SIGKILL only after 30 s."""


class Torchrun:
    """Starts `torchrun` on each node. The coordinator's torchrun runs PyTorch's TCPStore, through which the
    processes find each other.

    The rendezvous is static: bai assigns the ranks. For a restart, bai starts a new torchrun on each node.
    torchrun starts the benchmark's command unchanged as each of its processes.
    """

    def check(self, job: Job) -> None:
        if job.repeat is not None and job.strategy.max_restarts:
            raise DescriptorError(
                "[strategy] max_restarts: a job with [repeat] is not restarted, because a restarted run measures nothing; "
                "remove max_restarts or [repeat]"
            )

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        options = {
            "nnodes": str(len(peers)),
            "nproc-per-node": str(me.slots),
            "node-rank": str(me.rank),
            "rdzv-backend": "static",
            # All nodes have already met when torchrun starts, but a timeout of zero would make the rendezvous
            # fail.
            "rdzv-conf": f"timeout={max(1, int(job.limits.join.total_seconds()))}",
            "master-addr": peers[0].address,
            "master-port": str(peers[0].port),
            "rdzv-id": f"{job.job.id}-{job.job.attempt}",
            "local-addr": me.address,
            "max-restarts": "0",
            "monitor-interval": "0.1",
            # With "0", torchrun passes on the output of the processes unchanged.
            "redirects": "0",
            "tee": "0",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        # Without TORCH_ELASTIC_SHUTDOWN_TIMEOUT, torchrun kills its processes 30 s after SIGTERM, whatever
        # the grace period (PyTorch 2.12 and later read the variable).
        grace = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(math.ceil(job.limits.grace.total_seconds()))}
        return Launch(
            argv=("torchrun", *words, "--no-python", "--", *command),
            env={
                # The launcher's folder is passed in a variable. An option would need the folder's path, which
                # is not known here.
                "PET_LOG_DIR": f"$({LAUNCHER_FOLDER})",
                "TORCHELASTIC_ERROR_FILE": f"$({LAUNCHER_FOLDER})/{_OWN_FILE}",
                **pytorch_environment(job, me, alone=len(peers) == 1, more=grace),
            },
            needs=Needs(
                program="install PyTorch (the package torch) where the benchmark's PATH finds it, or name its Python with [env] python",
                cpus=me.slots * (job.strategy.cpus_per_process or 0),
            ),
        )

    def explain(self, job: Job, remains: Remains, me: Peer, peers: Sequence[Peer]) -> Cause | None:
        return explain(remains, me, peers)


def pytorch_environment(job: Job, me: Peer, *, alone: bool, more: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for processes that use PyTorch, including those in `more`. Variables that
    the job sets itself are left out."""
    environment = dict(more)
    if job.strategy.cpus_per_process is not None:
        # torchrun binds processes to the CPUs near their GPUs, or does not bind them. If OMP_NUM_THREADS is
        # unset and there are several processes, torchrun sets the variable to 1.
        environment["OMP_NUM_THREADS"] = str(job.strategy.cpus_per_process)
    if not alone and me.interface is not None:
        # Without GLOO_SOCKET_IFNAME, Gloo looks up the host's own name. If the name is unknown, or /etc/hosts
        # maps it to the loopback address, Gloo uses the loopback address.
        environment["GLOO_SOCKET_IFNAME"] = me.interface
    return {name: value for name, value in environment.items() if name not in job.benchmark.env}


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """A failed process in torchrun's summary."""

    rank: int
    local: int
    code: int
    """Exit code of the process; minus the number of the signal if a signal ended the process."""
    time: float
    """Time of the failure (seconds since the epoch, rounded down); NaN if unknown."""


@dataclass(frozen=True, kw_only=True)
class _Exception:
    """An exception that a process, or torchrun itself, has recorded."""

    message: str
    traceback: Sequence[str]
    written: int


def explain(remains: Remains, me: Peer, peers: Sequence[Peer]) -> Cause | None:
    """Return the process that failed first; None if it is not known.

    The first choice is a process that a deadly signal killed, because the end of another process cannot have
    caused such a signal. The second choice is the process with the earliest exception, according to the
    precise times in the exceptions' files. The last choice is the process that torchrun saw fail first.
    """
    root, listed = _summary(remains.log)
    told = _told(remains.files)
    killed = root and _killed(root, listed)
    own = _own_failure(remains.files)
    # If there is no summary, torchrun did not end because of a process, and files of processes are from an
    # earlier attempt. If there is a summary, torchrun's file is a copy of a process's file.
    if own is not None and root is None and own.message not in {each.message for each in told.values()}:
        return own
    if killed:
        local = killed.local
    elif told:
        local = min(told, key=lambda each: (told[each].written, each))
    elif root:
        local = root.local
    else:
        return own
    return _cause(
        listed.get(local),
        told.get(local),
        local=local,
        rank=sum(peer.slots for peer in peers[: me.rank]) + local,
        printed=_printed(remains.log),
    )


def _killed(root: _Failure, listed: Mapping[int, _Failure]) -> _Failure | None:
    near = [
        each
        for each in listed.values()
        if -each.code in _DEADLY and not each.time - root.time > _CONSEQUENCE_S
    ]
    return min(near, key=lambda each: (each.time, each.rank), default=None)


def _own_failure(files: Iterable[LeftFile]) -> Cause | None:
    """Return the exception that torchrun itself recorded; None if torchrun recorded no exception."""
    own = next((each for file in files if file.path == _OWN_FILE and (each := _exception(file))), None)
    if own is None:
        return None
    return Cause(process="torchrun itself", message=own.message, traceback=own.traceback, failed=own.written)


def _cause(
    failure: _Failure | None, told: _Exception | None, *, local: int, rank: int | None, printed: str | None
) -> Cause:
    code = failure.code if failure else None
    rank = failure.rank if failure else rank
    seen = int(failure.time * 1000) + 999 if failure and math.isfinite(failure.time) else None
    return Cause(
        process=f"the process of local rank {local}"
        if rank is None
        else f"process {rank} (local rank {local})",
        code=code if code is not None and code > 0 else None,
        signal=-code if code is not None and code < 0 else None,
        message=told.message if told else "",
        traceback=told.traceback if told else (),
        failed=told.written if told else seen,
        printed=printed,
    )


def _summary(log: str) -> tuple[_Failure | None, Mapping[int, _Failure]]:
    """Return the root cause in torchrun's last summary, and all failed processes in the summary by their
    local ranks."""
    at = log.rfind(_ROOT)
    if at < 0:
        return None, {}
    begun = log.rfind(_FAILURES, 0, at)
    others = _failures(log[begun:at]) if begun >= 0 else ()
    found = next(iter(_failures(log[at:])), None)
    return found, {each.local: each for each in (*others, *([found] if found else []))}


def _failures(text: str) -> Iterable[_Failure]:
    for found in _ENTRY.finditer(text):
        yield _Failure(
            rank=int(found["rank"]),
            local=int(found["local"]),
            code=int(found["code"]),
            time=_seconds(found["time"]),
        )


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("_", "T")).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan


def _printed(log: str) -> str | None:
    found = _FIRST_WORD.search(log)
    return log[: found.start()] if found else None


def _told(files: Iterable[LeftFile]) -> Mapping[int, _Exception]:
    """Return the exceptions that processes recorded in torchrun's last attempt, by local rank. A new attempt
    begins each time torchrun itself restarts the processes."""
    found = [(each, match) for each in files if (match := _FILE.fullmatch(each.path))]
    last = max((int(match["attempt"]) for _, match in found), default=0)
    exceptions = (
        (int(match["local"]), _exception(file)) for file, match in found if int(match["attempt"]) == last
    )
    return {local: each for local, each in exceptions if each is not None}


def _exception(file: LeftFile) -> _Exception | None:
    """Return the exception in a file that torchelastic wrote; None if the file contains no exception."""
    try:
        message = parse_json(file.content, where=file.path)["message"]
        stack = ""
        if isinstance(message, dict):
            stack = message["extraInfo"]["py_callstack"]
            message = message["message"]
    except (RecordError, KeyError, TypeError):
        return None
    if not isinstance(message, str) or not isinstance(stack, str):
        return None
    lines = [line.rstrip() for line in stack.splitlines()]
    first = next((line for line in message.splitlines() if line.strip()), "")
    return _Exception(
        message=" ".join(first.split()), traceback=[line for line in lines if line], written=file.modified
    )
