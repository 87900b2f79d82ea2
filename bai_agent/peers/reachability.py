"""Whether the nodes of a job reach each other, tried right after they have met.

A launcher that cannot reach another node fails only after minutes (torchrun after ten), and hardly says why.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from bai_agent.job.peers import Peer

CONNECT_SECONDS = 5.0
"""By this time the kernel has tried three times: again after 1 s and 3 s."""
_AT_ONCE = 64
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH)


def unreachable(
    me: Peer, peers: Sequence[Peer], *, started: bool = True, timeout_s: float = CONNECT_SECONDS
) -> str | None:
    """Return a sentence that says why this node cannot reach another one on a port that it holds; None if it
    reaches all.

    A port that refuses counts as reached: its holder does not listen yet. started: whether nodes may already
    have started their programs, which listen on ports of their own and should not get test connections: then
    only the agents' ports are tried.
    """
    tries = [
        (peer, port)
        for peer in peers
        if peer.node != me.node
        for port in (peer.agent_port, 0 if started else peer.port)
        if port
    ]
    if not tries:
        return None
    pool = ThreadPoolExecutor(min(_AT_ONCE, len(tries)))
    try:
        left: set[Future[str | None]] = {
            pool.submit(_try, me, peer, port, timeout_s=timeout_s) for peer, port in tries
        }
        while left:
            done, left = wait(left, return_when=FIRST_COMPLETED)
            if found := next((each.result() for each in done if each.result() is not None), None):
                return found
        return None
    finally:
        # The first unreachable node is enough: the timeouts of the others are not waited for.
        pool.shutdown(wait=False, cancel_futures=True)


def _try(me: Peer, peer: Peer, port: int, *, timeout_s: float) -> str | None:
    try:
        socket.create_connection((peer.address, port), timeout=timeout_s).close()
    except TimeoutError:
        why = f"there was no answer within {timeout_s:.0f} s"
    except OSError as error:
        if error.errno not in _NO_WAY:
            return None
        why = f"{error.strerror}".lower()
    else:
        return None
    fix = (
        "Their security group must let its members in from each other on all ports"
        if me.instance_id is not None
        else "A firewall must let the nodes' machines in from each other on all ports"
    )
    return f"{me.title} cannot reach {peer.mention} on port {port}: {why}. {fix}."
