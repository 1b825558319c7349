"""Memories of values, independent of the platform's names for them."""

from __future__ import annotations

from enum import Enum


class Space(Enum):
    """The memory of devices, or of their hosts. ``device_put`` moves values between them, and types have it as
    ``memory_space``.

    Example:
      >>> host = mw.device_put(mnp.ones(3), mw.memory.Space.Host)
      >>> host.sharding.memory_kind, mw.typeof(host).memory_space
      ('pinned_host', MemorySpace.Host)
    """

    Device = 1
    Host = 2

    @property
    def kind(self) -> str | None:
        """XLA's name for it in a sharding's ``memory_kind``; None for the device's own memory."""
        return None if self is Space.Device else "pinned_host"

    def __repr__(self) -> str:
        return f"MemorySpace.{self.name}"

    __str__ = __repr__
