"""Shardy's shardings: for each dimension, axes of a named mesh, and whether it is open to more.

``[{"x", ?}, {"y"}p1]`` splits dimension 0 over ``x`` and lets the partitioner split it further. Dimension 1 is split
over exactly ``y``, but this spreads to other values only after annotations of higher priority (0 is the highest).

Source: Shardy's sharding representation (https://openxla.org/shardy/sharding_representation).
"""

from __future__ import annotations

import dataclasses

from meshwright.core.records import dataclass
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import UNCONSTRAINED, PartitionSpec


@dataclass(frozen=True)
class SdyDimension:
    """The axes (or sub-axes such as ``x:(2)4``) that split one dimension, major to minor."""

    axes: tuple[str, ...] = ()
    is_closed: bool = True
    priority: int = 0

    def __str__(self) -> str:
        parts = [*self.axes, *([] if self.is_closed else ["?"])]
        return "{" + ", ".join(parts) + "}" + (f"p{self.priority}" if self.priority else "")


@dataclass(frozen=True)
class SdySharding:
    """One sharding over ``mesh``.

    ``replicated`` axes must not split it. Over ``unreduced`` axes, devices hold terms of a sum.
    """

    mesh: AbstractMesh
    dimensions: tuple[SdyDimension, ...]
    replicated: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()
    #: the devices at the positions of the mesh, unless they are 0, 1, 2, ...
    device_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, sharding: NamedSharding, ndim: int) -> SdySharding:
        """The sharding of an array of ``ndim`` dimensions; devices are positions of the mesh."""
        spec = sharding.spec
        dims = (SdyDimension(spec.axes(d), not spec.is_unconstrained(d)) for d in range(ndim))
        return cls(sharding.abstract_mesh, tuple(dims), unreduced=tuple(sorted(spec.unreduced)))

    def opened(self) -> SdySharding:
        """The same, with dimensions that further axes may split."""
        dims = tuple(dataclasses.replace(d, is_closed=False) for d in self.dimensions)
        return dataclasses.replace(self, dimensions=dims)

    @property
    def is_open(self) -> bool:
        """Whether it says nothing: no axes, and every dimension open."""
        return not any(d.axes or d.is_closed for d in self.dimensions) and not self.unreduced and not self.replicated

    @property
    def is_plain(self) -> bool:
        """Whether all dimensions are closed and without priority, and there are no other axes."""
        plain = all(d.is_closed and not d.priority for d in self.dimensions)
        return plain and not self.replicated and not self.unreduced

    def spec(self) -> PartitionSpec:
        """The partition spec. Open dimensions without axes are unconstrained."""
        return PartitionSpec(*(d.axes or (None if d.is_closed else UNCONSTRAINED) for d in self.dimensions))

    def __str__(self) -> str:
        extra = f", replicated={{{', '.join(self.replicated)}}}" if self.replicated else ""
        extra += f", unreduced={{{', '.join(self.unreduced)}}}" if self.unreduced else ""
        return f"<[{', '.join(map(str, self.dimensions))}]{extra}>"
