"""Reads a growing stream of a node's record in whole lines, in pieces."""

from __future__ import annotations

from bai_agent.errors import RecordError
from bai_agent.job.record import NodeRecord, Stream

PIECE = 2**20
"""Bytes of a stream that one look takes at most."""
LONGEST_LINE = 16 * PIECE
"""Bytes of a line of events or metrics; ours have some hundred."""


class LineStream:
    """A growing stream of lines, read from the start in whole lines."""

    def __init__(self, node: NodeRecord, stream: Stream, *, piece: int = PIECE) -> None:
        """piece: bytes that one look takes, unless a line is longer."""
        self._node, self._stream = node, stream
        self._position = 0
        self._piece = self._limit = piece

    def read(self) -> tuple[bytes, bool]:
        """Return the next whole lines, and whether there are more. Raises StoreError."""
        content = self._node.read(self._stream, self._position, limit=self._limit)
        end = content.rfind(b"\n") + 1
        more = len(content) == self._limit
        if more and not end and self._limit >= LONGEST_LINE:
            where = self._node.url(self._stream)
            raise RecordError(
                f"{where}: the line at byte {self._position:,} is longer than {LONGEST_LINE >> 20} MiB; no agent wrote that"
            )
        # A line is longer than a piece: take a larger piece, or it would never end.
        self._limit = self._limit * 2 if more and not end else self._piece
        self._position += end
        return content[:end], more
