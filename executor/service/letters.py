"""Messages that cannot be read are kept where a person can look at them: in a topic of their own, else in the bucket."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable

from bai_agent.errors import BaiError
from executor.service.broker import MessageTooLargeError
from executor.service.entries import MAX_EVENT, Entries

log = logging.getLogger(__name__)

TRIES = 3
AGAIN_S = 60.0
"""Once the topic has failed that often, it is tried so often."""


class DeadLetters:
    """Keeps messages that cannot be read. For one thread."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        entries: Entries,
        *,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """send: to their topic; raises MessageTooLargeError, and another BaiError where it does not work now."""
        self._send = send
        self._entries = entries
        self._now_ms = now_ms
        self._clock = clock
        self._failed = 0
        self._again = 0.0

    def keep(self, topic: str, partition: int, offset: int, *, value: bytes | None, reason: str) -> None:
        """Keep what is at `offset`. Raises what `send` raises, and StoreError, where that cannot be done now.

        A topic that takes nothing does not hold up for ever what comes behind: after some tries the bucket has to do.
        """
        content = value or b""
        letter = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "tstamp": self._now_ms(),
            "reason": reason,
            "size": len(content),
            "value_base64": base64.b64encode(content).decode() if len(content) <= MAX_EVENT // 2 else None,
        }
        message = json.dumps(letter).encode()
        if not self._is_sent(message):
            self._entries.keep_letter(f"{topic}-{partition}-{offset}", message)

    def _is_sent(self, message: bytes) -> bool:
        if self._failed >= TRIES and self._clock() < self._again:
            return False
        try:
            self._send(message)
        except MessageTooLargeError as error:
            log.warning("%s; it is kept in the bucket", error)
            return False
        except BaiError as error:
            self._failed += 1
            self._again = self._clock() + AGAIN_S
            if self._failed < TRIES:
                raise
            log.warning("%s; messages that cannot be read are kept in the bucket", error)
            return False
        self._failed = 0
        return True
