"""Waits until the other nodes accept SSH logins from this one, and reports clearer errors than the
launcher's own."""

from __future__ import annotations

import threading

from bai_agent.benchmark.programs import ask
from bai_agent.benchmark.start import Order
from bai_agent.errors import NoAnswerError
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.stop import RunEndedError

_ANSWER_SECONDS = 60.0
"""Seconds for all nodes to start their sshd and accept our login."""
_TRY_SECONDS = 20.0
_AT_ONCE = 32
_PAUSE_SECONDS = 0.2


def wait_for_hosts(ctx: RunContext, order: Order) -> None:
    """Return after `ssh` of the order's environment has run a command on each of its hosts. Raises
    RunEndedError."""
    deadline = ctx.clock.monotonic() + _ANSWER_SECONDS
    over = threading.Event()

    def late() -> bool:
        return over.is_set() or ctx.clock.monotonic() > deadline

    def reach(peer: Peer) -> str | None:
        """Return why the node could not be reached; None if it was reached."""
        while (words := _try(order, peer)) is not None and not late():
            over.wait(_PAUSE_SECONDS)
        return words

    # Imported here: a job whose nodes use no SSH also imports this module.
    from concurrent.futures import ThreadPoolExecutor, wait

    with ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="ssh") as pool:
        tries = {peer.rank: pool.submit(reach, peer) for peer in order.hosts}
        try:
            while wait(tries.values(), timeout=_PAUSE_SECONDS).not_done:
                ctx.watch.raise_reason()
        finally:
            over.set()
    for peer in order.hosts:
        if (words := tries[peer.rank].result()) is not None:
            raise RunEndedError.of(
                Outcome.JOIN_FAILED,
                f"{peer.title} did not let node {ctx.node.rank} in by SSH at port {peer.port} within {_ANSWER_SECONDS:.0f} s: "
                f"{words}. Nodes must reach each other on all ports.",
            )


def _try(order: Order, peer: Peer) -> str | None:
    try:
        answer = ask(
            ["ssh", peer.address, "true"],
            env=order.env,
            user=order.user,
            timeout_s=_TRY_SECONDS,
            with_stderr=True,
        )
    except NoAnswerError as error:
        return str(error)
    if not answer.code:
        return None
    said = answer.lines[-1] if answer.lines else ""
    return said.rstrip(".")[:300] or f"ssh exited with code {answer.code}"
