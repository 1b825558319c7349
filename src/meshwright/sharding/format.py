"""How arrays lie in memory: all row by row. Source: ``jax.experimental.layout``, for the names."""

from __future__ import annotations

from typing import Any

from meshwright.core.records import dataclass
from meshwright.errors import ShardingError
from meshwright.sharding.base import Sharding


@dataclass(frozen=True)
class MemoryOrder:
    """The order of an array's elements in memory: its dimensions, the slowest first."""

    major_to_minor: tuple[int, ...]

    def check(self, what: str) -> None:
        """Raise unless it is the one order that arrays have.

        Raises:
          ShardingError: it is another.
        """
        if tuple(self.major_to_minor) != tuple(range(len(self.major_to_minor))):
            raise ShardingError(
                f"{what}: major_to_minor={self.major_to_minor} is an order that arrays do not have here: all are "
                f"row-major, {tuple(range(len(self.major_to_minor)))}; transpose the array"
            )


@dataclass(frozen=True)
class Format:
    """How an array lies in memory, and on which devices; None says nothing about it."""

    layout: MemoryOrder | None = None
    sharding: Sharding | None = None

    def placed(self, what: str) -> Any:
        """The sharding.

        Raises:
          ShardingError: the order in memory is one that arrays do not have.
        """
        if self.layout is not None:
            self.layout.check(what)
        return self.sharding


def row_major(ndim: int) -> MemoryOrder:
    """The order that all arrays have."""
    return MemoryOrder(tuple(range(ndim)))
