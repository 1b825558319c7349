"""``AxisType``: who decides how values are split over a mesh axis."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from meshwright.core.expected import as_tuple
from meshwright.core.words import counted
from meshwright.errors import MeshError


class AxisType(enum.Enum):
    """The type of a mesh axis, with JAX's names.

    Along ``Auto`` axes the partitioner decides. ``Explicit`` axes are part of the types of values, and ops whose result
    could be split in several ways ask for a sharding. Along ``Manual`` axes the body of a ``shard_map`` is per device.
    """

    Auto = enum.auto()
    Explicit = enum.auto()
    Manual = enum.auto()

    def __repr__(self) -> str:
        return self.name


def types_of(function: str, types: AxisType | Sequence[AxisType] | None, names: Sequence[str]) -> tuple[AxisType, ...]:
    """One type per axis; ``Auto`` by default.

    Raises:
      MeshError: not as many types as axes, or something that is not an ``AxisType``.
    """
    if types is None:
        return (AxisType.Auto,) * len(names)
    each = (types,) * len(names) if isinstance(types, AxisType) else types
    given = as_tuple(f"{function}: axis_types", "one AxisType an axis", each)
    if len(given) != len(names):
        raise MeshError(
            f"{function}: {len(given)} axis_types {given} for {counted(len(names), 'axis', 'axes')} {tuple(names)}"
        )
    wrong = next((t for t in given if not isinstance(t, AxisType)), None)
    if wrong is not None:
        raise MeshError(f"{function}: axis_types holds {wrong!r}; expected AxisType.Auto, Explicit or Manual")
    return given
