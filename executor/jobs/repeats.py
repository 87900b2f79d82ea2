"""What a job with `[repeat]` printed in one of its runs."""

from __future__ import annotations

from collections.abc import Iterator

from bai_agent.job.record import NodeRecord
from executor.errors import UsageError
from executor.records.follower import PIECE
from executor.records.repeated_runs import repeats_of


def pieces_of_repeat(node: NodeRecord, number: int) -> Iterator[bytes]:
    """Yield what the run with this number printed; of one that goes on, so far. Raises UsageError, StoreError."""
    runs = repeats_of(node).measured
    if not 0 <= number < len(runs):
        known = f"it has those from 0 to {len(runs) - 1}" if runs else "none has begun"
        raise UsageError(f"--repeat: {node.job.job_id} has no run {number}; {known}")
    run = runs[number]
    end = run.ended.get("output_bytes") if run.ended is not None else None
    position = run.output_bytes
    if end is not None and end < position:
        # It truncated the log: what it printed since then is all there is.
        position = 0
    while end is None or position < end:
        piece = node.read("log", position, limit=PIECE if end is None else min(PIECE, end - position))
        if not piece:
            return
        yield piece
        position += len(piece)
