"""The memory order of arrays, which is always row-major. Names from ``jax.experimental.layout``."""

from __future__ import annotations

from typing import Any

from meshwright.core.records import dataclass
from meshwright.errors import ShardingError
from meshwright.sharding.base import Sharding


@dataclass(frozen=True)
class MemoryOrder:
    """The order of an array's elements in memory, as its dimensions from major (slowest) to minor."""

    major_to_minor: tuple[int, ...]

    def check(self, what: str) -> None:
        """Check that the order is row-major, the only one that arrays have.

        Raises:
          ShardingError: it is not.
        """
        if tuple(self.major_to_minor) != tuple(range(len(self.major_to_minor))):
            raise ShardingError(
                f"{what}: major_to_minor={self.major_to_minor} is an order that arrays do not have here: all are "
                f"row-major, {tuple(range(len(self.major_to_minor)))}; transpose the array"
            )


@dataclass(frozen=True)
class Format:
    """The memory order and the sharding of an array; None leaves either open."""

    layout: MemoryOrder | None = None
    sharding: Sharding | None = None

    def placed(self, what: str) -> Any:
        """The sharding.

        Raises:
          ShardingError: the memory order is not row-major.
        """
        if self.layout is not None:
            self.layout.check(what)
        return self.sharding


def row_major(ndim: int) -> MemoryOrder:
    """The row-major order, which all arrays have."""
    return MemoryOrder(tuple(range(ndim)))
