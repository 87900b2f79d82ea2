"""Measures round trips and throughput between all machines of a job, over TCP.

Each process listens at its own address of BAI_NODE_ADDRS, and sends to the other processes one by one, beginning with the next higher rank.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

PORT = 47011
SECONDS = 60.0
"""How long a machine waits for another one: to begin to listen, and for each answer."""
_SIZE_BYTES = 8
_BLOCK = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200, help="round trips to each other machine")
    parser.add_argument("--megabytes", type=int, default=256, help="megabytes that are sent to each")
    options = parser.parse_args()
    addresses, rank = os.environ["BAI_NODE_ADDRS"].split(","), int(os.environ["BAI_NODE_RANK"])
    others = [each % len(addresses) for each in range(rank + 1, rank + len(addresses))]
    with socket.create_server((addresses[rank], PORT), backlog=len(addresses)) as server:
        server.settimeout(SECONDS * len(addresses))  # the last one has measured all others before
        with ThreadPoolExecutor(len(addresses)) as pool:
            served = [pool.submit(serve, server) for _ in others]
            for other in others:
                measure(other, addresses[other], rounds=options.rounds, size=options.megabytes * 1_000_000)
            for each in served:
                each.result()


def measure(rank: int, address: str, *, rounds: int, size: int) -> None:
    """Print how long a round trip to another machine takes, and how fast it takes `size` bytes."""
    with connect(address) as peer:
        trips = [send(peer, 1) for _ in range(rounds)]
        seconds = send(peer, size)
        send(peer, 0)
    trip = statistics.median(trips) * 1e6
    print(f"to node {rank} at {address}: round trip {trip:.1f} us, {size / seconds / 1e6:.1f} MB/s")


def connect(address: str) -> socket.socket:
    """Return a connection to a machine, which may not listen yet. Raises OSError if it does not in time."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            peer = socket.create_connection((address, PORT), timeout=SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return peer


def send(peer: socket.socket, size: int) -> float:
    """Send `size` bytes, and return the seconds until the answer to the last one; 0: the other side need not wait for more."""
    begun = time.perf_counter()
    peer.sendall(size.to_bytes(_SIZE_BYTES, "big"))
    block = bytes(_BLOCK)
    for start in range(0, size, _BLOCK):
        peer.sendall(block[: size - start])
    receive(peer, 1)
    return time.perf_counter() - begun


def serve(server: socket.socket) -> None:
    """Answer one machine until it has sent all."""
    peer, _ = server.accept()
    with peer:
        peer.settimeout(SECONDS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            size = int.from_bytes(receive(peer, _SIZE_BYTES), "big")
            receive(peer, size)
            peer.sendall(b"!")
            if not size:
                return


def receive(peer: socket.socket, size: int) -> bytes:
    """Return the last bytes of `size` that come. Raises ConnectionError if the other side leaves before."""
    left, found = size, b""
    while left:
        found = peer.recv(min(left, _BLOCK))
        if not found:
            raise ConnectionError(f"{peer.getpeername()[0]} left, and {left} of {size} bytes were missing")
        left -= len(found)
    return found


if __name__ == "__main__":
    main()
