from __future__ import annotations

import logging

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, SaslAuthenticationFailedError

from bai_agent.sinks.kafka.library_log import forget_trouble, last_trouble, quieten


def test_an_unreachable_broker_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    quieten()

    for attempt in range(1000):
        logging.getLogger("kafka.net.flood").warning("connection failed, attempt %d", attempt)
        logging.getLogger("kafka.net.test").info("backing off")

    # pytest itself also listens to loggers that do not propagate.
    assert len([record for record in caplog.records if record.name.startswith("bai_agent")]) == 1


def test_the_first_error_of_a_failed_connection_is_reported() -> None:
    quieten()
    forget_trouble()
    library = logging.getLogger("kafka.net.test")

    library.error("Connection failed: %s", KafkaConnectionError("refused"))
    library.warning("not ready; waiting %.2f s", 0.1)
    library.error("Bootstrap failed: %s", KafkaTimeoutError("Unable to bootstrap from ['b:1']"))

    assert last_trouble() == KafkaConnectionError("refused")


def test_an_error_answered_by_the_broker_is_reported_before_a_closed_connection() -> None:
    quieten()
    forget_trouble()
    library = logging.getLogger("kafka.net.test")

    library.error("Connection lost: %s", SaslAuthenticationFailedError("wrong password"))
    library.error("Connection lost: %s", KafkaConnectionError("socket disconnected"))

    assert last_trouble() == SaslAuthenticationFailedError("wrong password")
