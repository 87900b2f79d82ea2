"""Which kind of socket an address in a descriptor asks for."""

from __future__ import annotations

import socket

import pytest

from bai_agent.job.bounded_server import family_of
from bai_agent.job.schema.field_types import split_address


@pytest.mark.parametrize(
    ("listen", "family"),
    [
        ("127.0.0.1:9109", socket.AF_INET),
        ("node-1.example:9109", socket.AF_INET),
        ("[::1]:9109", socket.AF_INET6),
        ("[::ffff:10.0.0.1]:9109", socket.AF_INET6),
    ],
)
def test_a_listen_address_in_brackets_is_read_as_ipv6(listen: str, family: socket.AddressFamily) -> None:
    host, port = split_address(listen)

    assert (family_of(host), port) == (family, 9109)
