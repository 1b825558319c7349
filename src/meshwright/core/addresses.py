"""Addresses ``host:port``, with IPv6 hosts in brackets: ``[::1]:1234``."""

from __future__ import annotations

import socket


def address_of(host: str, port: int) -> str:
    """The address of a port on a host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """The host and port of an address; the host in the form that sockets take."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def family_of(host: str) -> socket.AddressFamily:
    """The address family of a host, preferably IPv4.

    Raises:
      OSError: the host is unknown.
    """
    families = {found[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return socket.AF_INET if socket.AF_INET in families else min(families)
