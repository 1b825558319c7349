"""Addresses ``host:port``, in which an IPv6 host stands in brackets: ``[::1]:1234``."""

from __future__ import annotations

import socket


def address_of(host: str, port: int) -> str:
    """The address of a port of a host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """What an address is made of; the host as sockets take it."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def family_of(host: str) -> socket.AddressFamily:
    """That of a host's address: IPv4, if it has one.

    Raises:
      OSError: there is no such host.
    """
    families = {found[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return socket.AF_INET if socket.AF_INET in families else min(families)
