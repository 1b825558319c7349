"""``AxisType``: who decides how values are split over a mesh axis."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from meshwright.errors import MeshError


class AxisType(enum.Enum):
    """By JAX's names. Here the partitioner decides (``Auto``) along every axis of a mesh.

    Inside ``shard_map`` the axes it is over are the program's own business: that is ``Manual`` in JAX.
    """

    Auto = enum.auto()
    Explicit = enum.auto()
    Manual = enum.auto()

    def __repr__(self) -> str:
        return self.name


def check_types(function: str, types: AxisType | Sequence[AxisType] | None, names: Sequence[str]) -> None:
    """Raise unless ``types`` says ``Auto`` of every axis, or nothing.

    Raises:
      MeshError: another type, or another number of types than of axes.
    """
    if types is None:
        return
    given = (types,) * len(names) if isinstance(types, AxisType) else tuple(types)
    if len(given) != len(names):
        raise MeshError(f"{function}: {len(given)} axis_types {given} for {len(names)} axes {tuple(names)}")
    for name, kind in zip(names, given):
        if kind is not AxisType.Auto:
            raise MeshError(
                f"{function}: axis {name!r} has type {kind!r}, but all are AxisType.Auto, as shardings are no part "
                "of types here; fix layouts with with_sharding_constraint, or write the device's program (shard_map)"
            )
