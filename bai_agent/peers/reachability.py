"""Connects to ports of other nodes, to test whether the nodes reach each other and whether a member of an
elastic job is lost."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from bai_agent.errors import BaiError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.peers import Peer
from bai_agent.peers.direct_question import ANSWER_SECONDS, PeerAnswer, ask_all

CONNECT_SECONDS = 5.0
"""Timeout of a test connection (seconds). Within 5 s, the kernel tries to connect three times: at once, after
1 s and after 3 s."""
_AT_ONCE = 64
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH)


def unreachable(
    me: Peer, peers: Sequence[Peer], *, started: bool = True, timeout_s: float = CONNECT_SECONDS
) -> str | None:
    """Return a sentence that says why this node cannot connect to a reserved port of another node. Return
    None if this node can connect to all nodes.

    The ports are tested at the end of the `join` phase, because a launcher that cannot reach another node
    fails late and without a clear reason. torchrun, for example, fails after ten minutes. A port that refuses
    the connection counts as reached, because the program that will use the port does not listen yet. started:
    whether some nodes have possibly started their programs. If so, only the agents' ports are tested, because
    the programs must not receive test connections.
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
        # One unreachable node is enough for an answer, so the function does not wait for connections to the
        # other nodes.
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
        "Their security group must allow traffic between its members on all ports"
        if me.instance_id is not None
        else "Firewalls must allow traffic between the nodes' machines on all ports"
    )
    return f"{me.title} cannot reach {peer.mention} on port {port}: {why}. {fix}."


def find_lost(
    attempt: AttemptRecord,
    suspects: Iterable[Peer],
    *,
    generation: int,
    failed: bool,
    is_overdue: Callable[[int], bool],
    ask: Callable[[Peer], PeerAnswer | None],
) -> set[int]:
    """Return the numbers of the lost nodes of `suspects`, which are members of a generation.

    - A node is lost if its machine refuses connections to the agent and to the benchmark's shim, because then
      no process of the node is left. A node whose agent alone died is not lost, because a restarted agent
      continues to watch the running benchmark.
    - An agent that neither answers nor refuses the connection hangs, or its machine hangs. Its node counts as
      lost after half of `limits.peer_silence`, if the benchmark of another member has failed.

    failed: whether the benchmark of a member has failed. is_overdue: whether a node has been silent for half
    of `limits.peer_silence`.
    """
    asked = [each for each in suspects if each.agent_port and (failed or is_overdue(each.node))]
    died = find_refused((each, each.agent_port) for each in asked)
    ports = ((each, _shim_port(attempt, each.node, generation)) for each in asked if each.node in died)
    gone = find_refused((peer, port) for peer, port in ports if port)
    hung = [each for each in asked if failed and each.node not in died and is_overdue(each.node)]
    return gone | {node for node, answer in ask_all(hung, ask).items() if answer is None}


def _shim_port(attempt: AttemptRecord, node: int, generation: int) -> int:
    """Return the port of this generation's shim, which a node's last heartbeat contains; 0 if the heartbeat
    is of another generation."""
    try:
        sign = attempt.last_sign(node)
    except BaiError:
        return 0
    return sign.shim_port if sign.generation == generation else 0


def is_refused(address: str, port: int) -> bool:
    """Return whether a machine refuses a connection to a port. Return False if the machine does not
    answer."""
    try:
        socket.create_connection((address, port), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def find_refused(ports: Iterable[tuple[Peer, int]]) -> set[int]:
    """Return the numbers of the nodes whose machines refuse a connection to the given port. All machines are
    tested at the same time."""
    asked = list(ports)
    if not asked:
        return set()
    with ThreadPoolExecutor(min(_AT_ONCE, len(asked))) as pool:
        refused = pool.map(lambda each: is_refused(each[0].address, each[1]), asked)
        return {peer.node for (peer, _), each in zip(asked, refused, strict=True) if each}
