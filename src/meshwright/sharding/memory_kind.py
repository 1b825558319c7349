"""Memory kinds, with XLA's names: a device's own memory, and its host's."""

from __future__ import annotations

from meshwright.errors import ShardingError

DEVICE = "device"
#: the memories that every device can address, its own first
KINDS = (DEVICE, "pinned_host", "unpinned_host")


def checked_kind(kind: str | None, what: str) -> str | None:
    """Validate a memory kind; None stands for the device's own memory.

    Raises:
      ShardingError: there is no such kind.
    """
    if kind is None or kind == DEVICE:
        return None
    if kind not in KINDS:
        raise ShardingError(f"{what}: memory_kind={kind!r}; devices can address {', '.join(map(repr, KINDS))}")
    return kind


def kind_text(host_kind: str | None) -> str:
    """The end of a sharding's text."""
    return f", memory_kind={host_kind or DEVICE}"
