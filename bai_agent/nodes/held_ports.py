"""Ports that a node reserves for programs that it starts later, and for requests of other nodes' agents."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bai_agent.peers.node_monitor import NodeMonitor
    from bai_agent.run.run_context import RunContext

log = logging.getLogger(__name__)


def hold_port(port: int = 0, *, address: str = "") -> socket.socket:
    """Return a bound socket that reserves a port for a program that this node starts later. The kernel
    assigns the port to no other process while the socket is open.

    port: the wanted port; 0 for any free port. address: the address to bind; "" for all addresses of this
    machine. Raises OSError. The returned socket does not listen, so a server that sets SO_REUSEADDR, such as
    sshd or PyTorch's TCPStore, can listen on the same port: see socket(7).
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((address, port))
    except OSError:
        held.close()
        raise
    return held


def hold_agent_port(address: str, port: int = 0) -> socket.socket | None:
    """Return a bound socket on which this node's agent can answer requests of other agents. Logs a failure,
    and returns None.

    port: 0 for any free port, or the port that an earlier agent of this node has published.
    """
    try:
        return hold_port(port, address=address)
    except OSError as error:
        log.warning(
            "the other nodes cannot send direct requests to this node: %s:%d: %s", address, port, error
        )
        return None


def answer_others(ctx: RunContext, others: NodeMonitor, *, key: bytes) -> None:
    """Start the server that answers other agents' requests and receives their wake-ups, unless the server
    already runs."""
    if ctx.agent_port is None or ctx.answers:
        return
    # A job of one node never imports this module, so such a job starts sooner.
    from bai_agent.peers.direct_question import AnswerPort

    ctx.answers = True
    AnswerPort(
        ctx.agent_port, rank=ctx.node.rank, key=key, answer=others.absence.answer, woken=others.woken
    ).start()
