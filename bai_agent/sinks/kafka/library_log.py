"""Limits the log messages of kafka-python, and remembers reasons in these messages that its exceptions leave
out."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

_SAME_WARNING_SECONDS = 60.0


def quieten() -> None:
    """Pass on messages of kafka-python's loggers as warnings. Each kind of message is logged at most once per
    minute, so that an unreachable broker does not fill the log."""
    library = logging.getLogger("kafka")
    if _LIBRARY_LOG not in library.handlers:
        library.addHandler(_LIBRARY_LOG)
        library.setLevel(logging.WARNING)
        library.propagate = False


def last_trouble() -> Exception | None:
    """Return the last exception that kafka-python logged since the last call of `forget_trouble`. Often, only
    the logged exception contains the reason of a failure."""
    return _LIBRARY_LOG.last


def forget_trouble() -> None:
    """Forget the exceptions that kafka-python has logged."""
    _LIBRARY_LOG.last = None


class _LibraryLog(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last: Exception | None = None
        self._printed: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        for argument in arguments:
            if isinstance(argument, Exception) and _tells_more(argument, self.last):
                self.last = argument
        text = record.getMessage()
        kind = f"{record.name}:{record.lineno}"
        now = time.monotonic()
        if now - self._printed.get(kind, -_SAME_WARNING_SECONDS) < _SAME_WARNING_SECONDS:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._printed[kind] = now
        left_out = self._left_out.pop(kind, 0)
        log.warning("%s%s", text, f" (and {left_out} more like it)" if left_out else "")


def _tells_more(new: Exception, old: Exception | None) -> bool:
    """Return whether the exception `new` says at least as much about the reason as `old`. A broker's answer
    says more than a broken connection; "unable to bootstrap" says nothing.

    After a refused password, kafka-python often only sees that the socket was closed.
    """
    # Imported late, as in connection.py.
    from kafka.errors import BrokerResponseError, KafkaTimeoutError

    def rank(error: Exception | None) -> int:
        if error is None or isinstance(error, KafkaTimeoutError):
            return 0
        return 2 if isinstance(error, BrokerResponseError) else 1

    return rank(new) > 0 and rank(new) >= rank(old)


_LIBRARY_LOG = _LibraryLog()
