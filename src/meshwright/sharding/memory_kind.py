"""Kinds of memory, by XLA's names: a device's own, and its host's."""

from __future__ import annotations

from meshwright.errors import ShardingError

DEVICE = "device"
#: what every device can address, its own memory first
KINDS = (DEVICE, "pinned_host", "unpinned_host")


def checked_kind(kind: str | None, what: str) -> str | None:
    """A kind of memory; None for the device's own.

    Raises:
      ShardingError: there is no such kind.
    """
    if kind is None or kind == DEVICE:
        return None
    if kind not in KINDS:
        raise ShardingError(f"{what}: memory_kind={kind!r}; devices can address {', '.join(map(repr, KINDS))}")
    return kind
