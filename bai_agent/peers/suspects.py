"""Members whose ports show that they are lost before they were silent for `limits.peer_silence`.

- No process of a node is left if its machine refuses connections to its agent and to the shim of its
  benchmark, which listens as long as it lives. An agent that died alone is not a loss: it is restarted, and
  adopts its benchmark.
- If an agent neither answers nor refuses, it hangs, or its machine does. If the benchmark of another member
  has failed, half of the time is enough to assume that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bai_agent.errors import BaiError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.peers import Peer
from bai_agent.peers.direct_question import PeerAnswer, ask_all, find_refused


def find_lost(
    attempt: AttemptRecord,
    suspects: Iterable[Peer],
    *,
    generation: int,
    failed: bool,
    is_overdue: Callable[[int], bool],
    ask: Callable[[Peer], PeerAnswer | None],
) -> set[int]:
    """Return the numbers of the members of a generation that are lost, of those `suspects`.

    failed: whether the benchmark of a member has failed. is_overdue: whether a node has been silent for half of the time.
    """
    asked = [each for each in suspects if each.agent_port and (failed or is_overdue(each.node))]
    died = find_refused((each, each.agent_port) for each in asked)
    ports = ((each, _shim_port(attempt, each.node, generation)) for each in asked if each.node in died)
    gone = find_refused((peer, port) for peer, port in ports if port)
    hung = [each for each in asked if failed and each.node not in died and is_overdue(each.node)]
    return gone | {node for node, answer in ask_all(hung, ask).items() if answer is None}


def _shim_port(attempt: AttemptRecord, node: int, generation: int) -> int:
    """Return the port of this generation's shim in a node's last sign of life; 0 if it names none."""
    try:
        sign = attempt.last_sign(node)
    except BaiError:
        return 0
    return sign.shim_port if sign.generation == generation else 0
