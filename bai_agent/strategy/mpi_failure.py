"""Finds reports of failures in mpirun's output. The patterns are taken from the help texts of Open MPI 4 and
5 (help-*.txt of ORTE and PRRTE)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bai_agent.job.peers import Peer
from bai_agent.strategy.failure import Cause
from bai_agent.strategy.process_ends import ProcessEnd

_RULE = "-" * 74 + "\n"
"""The line that mpirun prints before and after each help page."""
_FIRST_PAGE = f"{_RULE}Primary job  terminated normally, but "
_EXITED = re.compile(
    r"^ *Process name: \[[^\n]{1,80},(?P<rank>\d{1,9})\]\n *Exit code: +(?P<code>\d{1,3}) *$", re.MULTILINE
)
_KILLED = re.compile(
    r"noticed that process rank (?P<rank>\d{1,9}) with PID \d{1,9} on node \S{1,253}\s+exited on\s+signal (?P<signal>\d{1,3})\b"
)
_ABORTED = re.compile(
    r"MPI_ABORT was invoked on rank (?P<rank>\d{1,9}) in communicator [^\n]*\n(?:[^\n]*\n){0,2}?[^\n]*[Ee]rrorcode:? +(?P<code>\d{1,9})\b"
)
_LOST = re.compile(
    r"lost communication with a remote daemon\.\n(?:[^\n]*\n){0,4}?[^\n]*Remote daemon: \S{1,80} on node (?P<address>[A-Za-z0-9.:_-]{1,253})(?!\S)"
)
_OWN_LINE = re.compile(r"\[[^\]\s]{1,253}:\d{1,9}\] ")
"""Start of the lines that mpirun prints outside its help pages, such as the number of further processes with
the same message."""
_NOT_STARTED = re.compile(r"unable to reliably start one or more daemons")


def explain(
    log: str, peers: Sequence[Peer], *, ends: Sequence[ProcessEnd] = (), code: int | None = None
) -> Cause | None:
    """Return the process that failed first; None if it is not known. log: the end of the output of mpirun and
    its processes.

    ends: the recorded ends of processes on this node. A process that mpirun names and that has no recorded
    end is the cause, because the process ran on another node or was killed together with its wrapper. If
    there is no such process, the cause is the first process that failed by itself. code: exit code of a
    command that itself starts mpirun. A command that starts mpirun can continue after mpirun has failed, and
    can then fail for another reason. Therefore, mpirun's message is used only if the message matches the exit
    code and is the last output.
    """
    said = _said(log, peers)
    if said is not None and code is not None and not _is_end_of(said, log, code):
        said = None
    if said is not None and said.rank not in {each.rank for each in ends}:
        return said
    own = min((each for each in ends if each.failed), key=lambda each: (each.time, each.rank), default=None)
    if own is None:
        return said
    return Cause(
        process=_process(own.rank, peers), code=own.code, signal=own.signal, failed=own.time, rank=own.rank
    )


def _said(log: str, peers: Sequence[Peer]) -> Cause | None:
    """Return the failed process that mpirun reports; None if mpirun reports none.

    Ranks are numbered in the order of the nodes in mpirun's options.
    """
    # A process that calls MPI_Abort reports the abort itself. mpirun then only reports that another process
    # was killed.
    if found := _last(_ABORTED, log) or _last(_EXITED, log):
        rank = int(found["rank"])
        return Cause(
            process=_process(rank, peers), code=int(found["code"]), printed=_printed(log, found), rank=rank
        )
    if found := _last(_KILLED, log):
        rank, signal = int(found["rank"]), int(found["signal"])
        return Cause(process=_process(rank, peers), signal=signal, printed=_printed(log, found), rank=rank)
    if found := _last(_LOST, log):
        where = next((peer.mention for peer in peers if peer.address == found["address"]), found["address"])
        return Cause(
            process=f"the daemon of Open MPI on {where}",
            message="mpirun lost the connection",
            printed=_printed(log, found),
        )
    if found := _last(_NOT_STARTED, log):
        return Cause(
            process="mpirun",
            message="a daemon of Open MPI did not start on its node, or could not reach the launcher",
            printed=_printed(log, found),
        )
    return None


def _is_end_of(cause: Cause, log: str, code: int) -> bool:
    """Return whether a command exited with `code` because of the failure that mpirun reports in `log`."""
    own = cause.code if cause.signal is None else 128 + cause.signal
    if own is not None and own & 0xFF != code:
        return False
    in_page = False
    for line in log[len(cause.printed or "") :].splitlines(keepends=True):
        if line == _RULE:
            in_page = not in_page
        elif not in_page and line.strip() and not _OWN_LINE.match(line):
            return False
    return not in_page


def _last(pattern: re.Pattern[str], log: str) -> re.Match[str] | None:
    """Return the last match of `pattern` in `log`. The last match is needed because a command can start
    mpirun more than once."""
    return max(pattern.finditer(log), key=re.Match.start, default=None)


def _printed(log: str, found: re.Match[str]) -> str:
    """Return the part of the output before the help pages with which mpirun explains the failure."""
    page = log.rfind(_RULE, 0, found.start())
    first = log.rfind(_FIRST_PAGE, 0, found.start())
    return log[: first if first >= 0 else max(page, 0)]


def _process(rank: int, peers: Sequence[Peer]) -> str:
    left = rank
    for peer in peers if len(peers) > 1 else ():
        if left < peer.slots:
            return f"process {rank} on {peer.mention}"
        left -= peer.slots
    return f"process {rank}"
