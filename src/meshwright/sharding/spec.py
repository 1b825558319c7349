"""Partition specs: which mesh axes split which dimension of an array.

``P("data", None, ("x", "y"))`` splits dimension 0 over ``data``, leaves 1 whole and splits 2 over ``x``
(major) and ``y`` (minor). A spec shorter than the array leaves the remaining dimensions whole.
``P.UNCONSTRAINED`` leaves the choice for a dimension to the partitioner.

Source: ``jax.sharding.PartitionSpec``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from meshwright.errors import ShardingError


class _Unconstrained:
    """The type of ``PartitionSpec.UNCONSTRAINED``, its only value."""

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:  # so that copies and unpickled ones are the same object
        return "UNCONSTRAINED"


UNCONSTRAINED = _Unconstrained()

SpecEntry = None | str | tuple[str, ...] | _Unconstrained


class PartitionSpec(tuple[SpecEntry, ...]):
    """A tuple of None, an axis name, a tuple of axis names or ``UNCONSTRAINED``, one per leading dimension.

    ``("x",)`` is stored as ``"x"`` and ``()`` as None, so that equal specs compare and hash equal.
    """

    __slots__ = ()
    UNCONSTRAINED: ClassVar[_Unconstrained] = UNCONSTRAINED

    def __new__(cls, *entries: Any) -> PartitionSpec:
        return super().__new__(cls, tuple(_normal(entry, i) for i, entry in enumerate(entries)))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"PartitionSpec{tuple(self)!r}"

    def axes(self, dim: int) -> tuple[str, ...]:
        """The axis names of dimension ``dim``; none where it is whole, unconstrained or past the end."""
        entry = self[dim] if dim < len(self) else None
        if isinstance(entry, str):
            return (entry,)
        return entry if isinstance(entry, tuple) else ()

    def is_unconstrained(self, dim: int) -> bool:
        """Whether the layout of dimension ``dim`` is left to the partitioner."""
        return dim < len(self) and self[dim] is UNCONSTRAINED


def _normal(entry: Any, position: int) -> SpecEntry:
    if entry is None or isinstance(entry, str) or entry is UNCONSTRAINED:
        return entry
    if isinstance(entry, (tuple, list)) and all(isinstance(axis, str) for axis in entry):
        return entry[0] if len(entry) == 1 else tuple(entry) or None
    raise ShardingError(
        f"PartitionSpec: entry {position} is {entry!r}; expected None, an axis name, a tuple of axis names "
        "or PartitionSpec.UNCONSTRAINED"
    )
