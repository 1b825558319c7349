"""Where a device's values are, without the platform's names for it."""

from __future__ import annotations

from enum import Enum


class Space(Enum):
    """The memory of devices, or that of their hosts: what ``device_put`` moves between, and types have as
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
        """XLA's name of it in a sharding's ``memory_kind``; None for the device's own."""
        return None if self is Space.Device else "pinned_host"

    def __repr__(self) -> str:
        return f"MemorySpace.{self.name}"

    __str__ = __repr__
