"""What is between kafka-python and a broker."""

from __future__ import annotations

import socket

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaTCPTransport

from bai_agent.sinks.kafka.connection import owned_client


@pytest.fixture(autouse=True)
def _client() -> None:
    with owned_client(None):
        return


def test_a_response_sent_before_the_broker_closes_the_connection_is_read() -> None:
    ours, brokers = socket.socketpair()
    ours.setblocking(False)
    brokers.sendall(b"the password is refused")
    brokers.close()
    transport = KafkaTCPTransport(None, ours)

    assert transport._sock_recv() == (b"the password is refused", None)

    received, error = transport._sock_recv()
    assert (received, type(error)) == (b"", KafkaConnectionError)
    ours.close()
