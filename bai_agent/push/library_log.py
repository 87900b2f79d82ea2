"""What kafka-python logs: kept from filling the log, and asked for the reasons that its exceptions leave out."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

_SAME_WARNING_SECONDS = 60.0


def quieten() -> None:
    """Let Kafka's own loggers through as warnings, each kind once a minute: a broker that never comes must not fill the log."""
    library = logging.getLogger("kafka")
    if _LIBRARY_LOG not in library.handlers:
        library.addHandler(_LIBRARY_LOG)
        library.setLevel(logging.WARNING)
        library.propagate = False


def last_trouble() -> str:
    """Return what Kafka's library complained of last since `forget_trouble`; often it is all that tells the reason."""
    return _LIBRARY_LOG.last


def forget_trouble() -> None:
    _LIBRARY_LOG.last = ""


class _LibraryLog(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self._printed: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        reasons = [str(argument) for argument in arguments if isinstance(argument, Exception)]
        # "Unable to bootstrap" follows upon the reason, and hides it.
        self.last = next((reason for reason in reasons if "Unable to bootstrap" not in reason), self.last)
        text = record.getMessage()
        kind = f"{record.name}:{record.lineno}"
        now = time.monotonic()
        if now - self._printed.get(kind, -_SAME_WARNING_SECONDS) < _SAME_WARNING_SECONDS:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._printed[kind] = now
        left_out = self._left_out.pop(kind, 0)
        log.warning("%s%s", text, f" (and {left_out} more like it)" if left_out else "")


_LIBRARY_LOG = _LibraryLog()
