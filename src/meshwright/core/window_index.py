"""Windows in indices: rows from a position on that may be traced."""

from __future__ import annotations

from typing import Any

from meshwright.core.records import dataclass


@dataclass(frozen=True, eq=False)
class Slice:
    """``size`` rows from ``start`` on, every ``stride``-th of them; made by :func:`meshwright.ds`."""

    start: Any
    size: int
    stride: int = 1

    def __repr__(self) -> str:
        return f"Slice(start={self.start}, size={self.size}, stride={self.stride})"


def has_windows(index: Any) -> bool:
    """Whether an index, or an entry of it, is a :class:`Slice`."""
    return type(index) is Slice or (type(index) is tuple and any(type(i) is Slice for i in index))
