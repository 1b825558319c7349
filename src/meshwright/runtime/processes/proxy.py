"""A proxy for XLA's connection to the coordinator, in this process.

XLA kills a process as soon as its connection to the coordination service breaks, before the cause can be reported. So
XLA connects to a local port of this process, which forwards all data and never closes the connection. The loss of the
coordinator is detected by ``rendezvous.watch``, and raised as an ordinary error.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress

from meshwright.core.addresses import host_and_port
from meshwright.core.background import Background

_BLOCK = 1 << 16
#: seconds between checks of whether the thread is to end
_PERIOD = 0.2


class Proxy:
    """Forwards one connection to :attr:`address` to ``coordinator``, in both directions."""

    def __init__(self, coordinator: str) -> None:
        self.coordinator = coordinator
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = Background(self._work, "meshwright-proxy")

    def end(self) -> None:
        """Stop forwarding. XLA's side of the connection stays open until the process ends."""
        self.thread.end()

    def _work(self, stop: threading.Event) -> None:
        with self.listener:
            while not select.select([self.listener], [], [], _PERIOD)[0]:
                if stop.is_set():
                    return
            inside = self.listener.accept()[0].detach()  # so that it is never closed
        with suppress(OSError), socket.create_connection(host_and_port(self.coordinator)) as outside:
            for connection in (inside, outside.fileno()):
                _send_at_once(connection)
            _pass_on(inside, outside.fileno(), stop)


def _send_at_once(connection: int) -> None:
    with socket.socket(fileno=os.dup(connection)) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _pass_on(inside: int, outside: int, stop: threading.Event) -> None:
    """Forward until one side closes."""
    while not stop.is_set():
        for source in select.select([inside, outside], [], [], _PERIOD)[0]:
            data = os.read(source, _BLOCK)
            if not data:
                return
            sink = inside if source == outside else outside
            while data:
                data = data[os.write(sink, data) :]
