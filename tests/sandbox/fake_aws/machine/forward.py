"""A TCP port of this host's loopback interface, at the same address on a machine's loopback interface."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

_CONNECT_SECONDS = 10.0


class Forwarder:
    """Carries connections from `listener` to `target`. So one address holds on the host and on the machine."""

    def __init__(self, listener: socket.socket, target: tuple[str, int]) -> None:
        self._listener, self._target = listener, target
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name=f"forward-{target[1]}", daemon=True).start()

    def close(self) -> None:
        """Stop, and cut the connections that there are."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near:
            try:
                far = socket.create_connection(self._target, timeout=_CONNECT_SECONDS)
            except OSError:
                return  # the machine sees the connection close, as it would behind a load balancer
            with far:
                with self._lock:
                    self._open |= {near, far}
                try:
                    _copy_both_ways(near, far)
                except OSError:
                    return
                finally:
                    with self._lock:
                        self._open -= {near, far}


def _copy_both_ways(near: socket.socket, far: socket.socket) -> None:
    far.settimeout(None)
    with selectors.DefaultSelector() as selector:
        selector.register(near, selectors.EVENT_READ, far)
        selector.register(far, selectors.EVENT_READ, near)
        while selector.get_map():
            for key, _ in selector.select():
                source = key.fileobj
                assert isinstance(source, socket.socket)
                data = source.recv(262_144)
                if data:
                    key.data.sendall(data)
                else:
                    selector.unregister(source)
                    key.data.shutdown(socket.SHUT_WR)
