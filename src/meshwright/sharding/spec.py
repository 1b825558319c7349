"""Partition specs: which mesh axes split which dimension of an array.

``P("data", None, ("x", "y"))`` splits dimension 0 over ``data``, does not split dimension 1, and splits dimension 2
over ``x`` (major) and ``y`` (minor). Dimensions past the end of a spec are not split. ``P.UNCONSTRAINED`` leaves the
choice for a dimension to the partitioner.

Source: ``jax.sharding.PartitionSpec``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from meshwright.errors import ShardingError


class _Unconstrained:
    """The type of ``PartitionSpec.UNCONSTRAINED``, its only value."""

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:  # so that copying and unpickling return the same object
        return "UNCONSTRAINED"


UNCONSTRAINED = _Unconstrained()

SpecEntry = None | str | tuple[str, ...] | _Unconstrained


class PartitionSpec(tuple[SpecEntry, ...]):
    """A tuple with one entry per leading dimension: None, an axis name, a tuple of axis names, or ``UNCONSTRAINED``.

    ``unreduced`` and ``reduced`` are explicit axes over which the value, or its cotangents, are a sum still to be made.
    ``("x",)`` is stored as ``"x"`` and ``()`` as None, so that equal specs compare and hash equal.
    """

    __slots__ = ()
    UNCONSTRAINED: ClassVar[_Unconstrained] = UNCONSTRAINED

    def __new__(cls, *entries: Any, unreduced: Iterable[str] = (), reduced: Iterable[str] = ()) -> PartitionSpec:
        """Validate the entries and axes.

        Raises:
          ShardingError: an entry is of another type, or an axis is named twice.
        """
        normal = tuple(_normal(entry, i) for i, entry in enumerate(entries))
        if not unreduced and not reduced:
            return super().__new__(PartitionSpec, normal)
        spec = super().__new__(_SpecOfSums, normal)
        spec._sums = frozenset(unreduced), frozenset(reduced)
        _check_sums(spec)
        return spec

    def __add__(self, other: Any) -> PartitionSpec:
        """The entries of both, concatenated."""
        unreduced, reduced = (self._both(other, name) for name in ("unreduced", "reduced"))
        return PartitionSpec(*self, *other, unreduced=unreduced, reduced=reduced)

    def __radd__(self, other: Any) -> PartitionSpec:
        return PartitionSpec(*other) + self

    def _both(self, other: Any, name: str) -> frozenset[str]:
        return getattr(self, name) | getattr(other, name, _NO_AXES)  # type: ignore[no-any-return]

    @property
    def partitions(self) -> tuple[SpecEntry, ...]:
        """The entries as a plain tuple."""
        return tuple(self)

    @property
    def unreduced(self) -> frozenset[str]:
        """The axes over which devices hold terms of a sum that is still to be made."""
        return _NO_AXES

    @property
    def reduced(self) -> frozenset[str]:
        """The axes over which devices hold equal values, and cotangents are unreduced."""
        return _NO_AXES

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"P{tuple(self)!r}"

    def axes(self, dim: int) -> tuple[str, ...]:
        """The axis names of dimension ``dim``; empty if it is not split, unconstrained, or past the end."""
        entry = self[dim] if dim < len(self) else None
        if isinstance(entry, str):
            return (entry,)
        return entry if isinstance(entry, tuple) else ()

    def is_unconstrained(self, dim: int) -> bool:
        """Whether the layout of dimension ``dim`` is left to the partitioner."""
        return dim < len(self) and self[dim] is UNCONSTRAINED


_NO_AXES: frozenset[str] = frozenset()


class _SpecOfSums(PartitionSpec):
    """A spec with unreduced or reduced axes."""

    _sums: tuple[frozenset[str], frozenset[str]]

    @property
    def unreduced(self) -> frozenset[str]:
        return self._sums[0]

    @property
    def reduced(self) -> frozenset[str]:
        return self._sums[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SpecOfSums) and self._sums == other._sums and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self._sums))

    def __reduce__(self) -> Any:
        return _spec_of_sums, (tuple(self), *self._sums)

    def __repr__(self) -> str:
        named = (("unreduced", self.unreduced), ("reduced", self.reduced))
        arguments = [*map(repr, self), *(f"{n}={{{', '.join(map(repr, sorted(axes)))}}}" for n, axes in named if axes)]
        return f"P({', '.join(arguments)})"


def _spec_of_sums(entries: Iterable[Any], unreduced: Iterable[str], reduced: Iterable[str]) -> PartitionSpec:
    return PartitionSpec(*entries, unreduced=unreduced, reduced=reduced)


def _check_sums(spec: PartitionSpec) -> None:
    split = {axis for dim in range(len(spec)) for axis in spec.axes(dim)}
    twice = (split & (spec.unreduced | spec.reduced)) | (spec.unreduced & spec.reduced)
    if twice:
        raise ShardingError(
            f"{spec!r} names {', '.join(sorted(twice))} twice; an axis splits a dimension, or is unreduced, or "
            "reduced: name it once"
        )


def _normal(entry: Any, position: int) -> SpecEntry:
    if entry is None or isinstance(entry, str) or entry is UNCONSTRAINED:
        return entry
    if isinstance(entry, (tuple, list)) and all(isinstance(axis, str) for axis in entry):
        return entry[0] if len(entry) == 1 else tuple(entry) or None
    raise ShardingError(
        f"PartitionSpec: entry {position} is {entry!r}; expected None, an axis name, a tuple of axis names "
        "or PartitionSpec.UNCONSTRAINED"
    )
