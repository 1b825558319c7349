"""Shardings over a mesh with named axes, and over a single device.

``NamedSharding(mesh, P("data", None))`` is the sharding that users write. Over an ``AbstractMesh``, its devices are the
positions 0, 1, 2, ... of the mesh.

Source: ``jax.sharding.NamedSharding`` and ``SingleDeviceSharding``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from meshwright.core.expected import refused
from meshwright.errors import ArgumentTypeError, ShardingError
from meshwright.sharding import tiles
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.axis_type import AxisType
from meshwright.sharding.base import Sharding, check_rank
from meshwright.sharding.layout import Layout
from meshwright.sharding.memory_kind import checked_kind, kind_text
from meshwright.sharding.mesh import AnyMesh, DeviceLike, Mesh
from meshwright.sharding.spec import PartitionSpec


class NamedSharding(Sharding):
    """A mesh and, for each dimension, the mesh axes that split it."""

    def __init__(self, mesh: AnyMesh, spec: PartitionSpec, *, memory_kind: str | None = None) -> None:
        if not isinstance(mesh, (Mesh, AbstractMesh)):
            raise ShardingError(
                f"NamedSharding: expected a Mesh or an AbstractMesh, got {type(mesh).__name__}; "
                "make one with make_mesh(axis_sizes, axis_names)"
            )
        if not isinstance(spec, PartitionSpec):
            raise ShardingError(
                f"NamedSharding: expected a PartitionSpec, got {spec!r} of type {type(spec).__name__}; "
                "write PartitionSpec('x', None), one entry per dimension"
            )
        _check_axes(mesh.abstract_mesh, spec)
        self.mesh = mesh
        self.spec = spec
        if memory_kind is not None:
            self.host_kind = checked_kind(memory_kind, "NamedSharding")
        self._hash = hash((mesh, spec))
        if AxisType.Explicit in mesh.axis_types:
            self.is_explicit = True

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, NamedSharding):
            return NotImplemented
        same = self._hash == other._hash and self.spec == other.spec and self.host_kind == other.host_kind
        return same and self.mesh == other.mesh

    def __hash__(self) -> int:
        return self._hash

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return self.mesh, self.spec

    def __repr__(self) -> str:
        return f"NamedSharding(mesh={self.mesh}, spec={self.spec!r}{kind_text(self.host_kind)})"

    def update(self, **changes: Any) -> NamedSharding:
        """A copy with another ``mesh``, ``spec`` or ``memory_kind``.

        Raises:
          ArgumentTypeError: there is no such property.
        """
        now = {"mesh": self.mesh, "spec": self.spec, "memory_kind": self.host_kind}
        if unknown := sorted(changes.keys() - now.keys()):
            raise ArgumentTypeError(f"NamedSharding.update: no property {unknown[0]!r}; there are {', '.join(now)}")
        return NamedSharding(**{**now, **changes})

    @property
    def abstract_mesh(self) -> AbstractMesh:
        return self.mesh.abstract_mesh

    @cached_property
    def devices(self) -> tuple[Any, ...]:
        if isinstance(self.mesh, Mesh):
            return tuple(self.mesh.devices.flat)
        return tuple(range(self.mesh.size))

    @cached_property
    def is_fully_replicated(self) -> bool:
        return all(self.abstract_mesh.sizes(self.spec.axes(dim)) == 1 for dim in range(len(self.spec)))

    def layout(self, ndim: int) -> Layout:
        """The layout of an ``ndim``-dimensional array; unconstrained dimensions are not split."""
        return _layout(self.abstract_mesh, self.spec, ndim)

    def tile_counts(self, ndim: int) -> tuple[int, ...]:
        return tuple(self.abstract_mesh.sizes(self.spec.axes(dim)) for dim in range(ndim))

    def tile_table(self, ndim: int) -> np.ndarray:
        return tiles.tile_table(self.layout(ndim), self.abstract_mesh)

    def check_compatible(self, shape: Sequence[int], what: str = "array") -> None:
        check_rank(len(self.spec), shape, self, what)

    @staticmethod
    def from_layout(mesh: AnyMesh, layout: Layout) -> NamedSharding:
        """The sharding with the tiles of ``layout``, with one spec entry per dimension."""
        return NamedSharding(mesh, layout.to_spec(mesh.abstract_mesh))


class SingleDeviceSharding(Sharding):
    """The whole array on one device."""

    def __init__(self, device: Any, *, memory_kind: str | None = None) -> None:
        if not isinstance(device, DeviceLike):
            raise refused("SingleDeviceSharding", "a device, as devices() lists them", device)
        self.device = device
        if memory_kind is not None:
            self.host_kind = checked_kind(memory_kind, "SingleDeviceSharding")
        self._hash = hash((SingleDeviceSharding, device))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SingleDeviceSharding):
            return NotImplemented
        return bool(self.device == other.device) and self.host_kind == other.host_kind

    def __hash__(self) -> int:
        return self._hash

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return (self.device,)

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self.device!r}{kind_text(self.host_kind)})"

    @property
    def devices(self) -> tuple[Any, ...]:
        return (self.device,)

    @property
    def is_fully_replicated(self) -> bool:
        return True

    def tile_counts(self, ndim: int) -> tuple[int, ...]:
        return (1,) * ndim

    def tile_table(self, ndim: int) -> np.ndarray:
        return np.zeros((1, ndim), dtype=np.int64)

    def check_compatible(self, shape: Sequence[int], what: str = "array") -> None:
        """Never raises: every array fits on one device."""


@lru_cache(maxsize=8192)
def _layout(mesh: AbstractMesh, spec: PartitionSpec, ndim: int) -> Layout:
    return Layout.from_spec(spec, ndim, mesh)


@lru_cache(maxsize=8192)
def _check_axes(mesh: AbstractMesh, spec: PartitionSpec) -> None:
    """Check that every axis of ``spec`` is one of ``mesh`` (or a part of one) and that no two entries overlap."""
    axes_text = ", ".join(f"{name!r}: {size}" for name, size in mesh.shape.items()) or "none"
    seen: dict[str, str] = {}
    names: set[str] = set()
    for dim in range(len(spec)):
        for axis in spec.axes(dim):
            try:
                atoms = mesh.atoms_of(axis)
            except ShardingError as error:
                raise ShardingError(f"NamedSharding: {spec}, dimension {dim}: {error}") from None
            clash = next((seen[atom] for atom in atoms if atom in seen), axis if axis in names else None)
            if clash is not None:
                raise ShardingError(
                    f"NamedSharding: {spec} uses axis {clash!r} twice (in dimension {dim} as {axis!r}); it "
                    f"can split one dimension only: use another axis of the mesh ({axes_text}) or None"
                )
            names.add(axis)
            seen.update(dict.fromkeys(atoms, axis))
    for axis in sorted(spec.unreduced | spec.reduced):
        if axis not in mesh.of_type(AxisType.Explicit):
            raise ShardingError(
                f"NamedSharding: {spec} is unreduced or reduced over {axis!r}, which only types say, of explicit axes; "
                f"the mesh is {mesh}: make it with axis_types=AxisType.Explicit"
            )
