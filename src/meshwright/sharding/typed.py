"""Shardings in types: how a value is split over the *explicit* axes of a mesh.

Along axes of type :data:`AxisType.Explicit`, the type of a value includes its sharding: ``f32[8@x,4]`` is split over
``x`` along its first dimension. Over *unreduced* axes devices hold terms of a sum that is still to be made. Over
*reduced* axes they hold equal values, and cotangents are unreduced. Types name axes and not devices;
:func:`mesh_of_type` finds the devices.

Source: JAX's sharding-in-types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.core.avals import SPLIT, WHOLE, ShapedArray, axes_text
from meshwright.core.weak import WeakValues
from meshwright.errors import ShardingTypeError
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.axis_type import AxisType
from meshwright.sharding.base import Sharding
from meshwright.sharding.current_mesh import get_mesh
from meshwright.sharding.mesh import AnyMesh, Mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec


class TypeSharding(NamedSharding):
    """The sharding in a type: over a mesh without devices, with explicit axes only, one entry per dimension."""

    mesh: AbstractMesh

    def dims_text(self, shape: Sequence[int]) -> Iterator[str]:
        """The dimensions of a shape as text: ``8@x``, ``4``."""
        for dim, size in enumerate(shape):
            axes = self.spec.axes(dim)
            yield f"{size}@{axes_text(axes)}" if axes else str(size)

    @property
    def unreduced(self) -> frozenset[str]:
        """The axes over which devices hold terms of a sum."""
        return self.spec.unreduced

    @property
    def reduced(self) -> frozenset[str]:
        """The axes over which cotangents are unreduced."""
        return self.spec.reduced

    def replaced(self, entries: Sequence[Any], unreduced: Any = None, reduced: Any = None) -> TypeSharding | None:
        """Another sharding over the same mesh, None if it has no axes. Arguments that are None are kept."""
        terms = self.unreduced if unreduced is None else unreduced
        return type_over(self.mesh, entries, terms, self.reduced if reduced is None else reduced)

    def with_dim(self, dim: int, axes: tuple[str, ...] = ()) -> TypeSharding | None:
        """The sharding of a value with another dimension inserted at ``dim``; None if it has no axes."""
        return self.replaced((*self.spec[:dim], axes, *self.spec[dim:]))

    def without_dim(self, dim: int) -> TypeSharding | None:
        """The sharding of a value with dimension ``dim`` removed; None if it has no axes."""
        return self.replaced((*self.spec[:dim], *self.spec[dim + 1 :]))

    def cotangent(self) -> TypeSharding | None:
        """The sharding of cotangents, with unreduced and reduced axes exchanged."""
        return self.replaced(self.spec, self.reduced, self.unreduced)


def type_over(
    mesh: AbstractMesh, entries: Sequence[Any], unreduced: Any = (), reduced: Any = ()
) -> TypeSharding | None:
    """The sharding for a type; None if no axis splits the value or is unreduced or reduced."""
    spec = PartitionSpec(*entries, unreduced=unreduced, reduced=reduced)
    is_typed = any(spec) or spec.unreduced or spec.reduced
    return TypeSharding(mesh, spec) if is_typed else None


#: concrete meshes by abstract mesh: types hold the latter, but outside of programs the devices are needed
_with_devices: WeakValues[AbstractMesh, Mesh] = WeakValues()


def mesh_of_type(mesh: AbstractMesh) -> AnyMesh:
    """The concrete mesh for a type's mesh: the current one, or the last one on which such a value was placed."""
    current = get_mesh()
    if current is not None and current.abstract_mesh == mesh:
        return current
    return _with_devices.get(mesh) or mesh


def explicit_of(sharding: Sharding, ndim: int) -> TypeSharding | None:
    """The part of a sharding that belongs to the type of its array: how explicit axes split it; None if none do."""
    if not sharding.is_explicit or not isinstance(sharding, NamedSharding):
        return None
    if isinstance(sharding.mesh, Mesh):
        _with_devices[sharding.mesh.abstract_mesh] = sharding.mesh
    mesh, spec = sharding.abstract_mesh, sharding.spec
    explicit = set(mesh.of_type(AxisType.Explicit))
    entries = [tuple(a for a in spec.axes(d) if a.split(":")[0] in explicit) for d in range(ndim)]
    return type_over(mesh, entries, spec.unreduced & explicit, spec.reduced & explicit)


def said_by(sharding: Any) -> Any:
    """``sharding``; None for one over no axes and no devices, which types have whose values no axis splits."""
    silent = isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh) and sharding.mesh.empty
    return None if silent and sharding.host_kind is None else sharding


def typed_by(aval: ShapedArray, sharding: Sharding | None) -> ShapedArray:
    """The type of an array with this sharding.

    Raises:
      ShardingTypeError: explicit axes do not divide a dimension.
    """
    if sharding is None:
        return aval
    if not sharding.is_explicit and aval.explicit is None:
        return aval if sharding.host_kind == aval.memory else aval.update(memory=sharding.host_kind)
    explicit = explicit_of(sharding, aval.ndim)
    if explicit is not None:
        check_divisible(aval.shape, explicit, "a sharding of explicit axes")
    return aval.update(explicit=explicit, memory=sharding.host_kind)


def check_divisible(shape: Sequence[int], sharding: TypeSharding, what: str) -> None:
    """Raise unless explicit axes divide the dimensions that they split.

    Raises:
      ShardingTypeError: names the dimension.
    """
    for dim, size in enumerate(shape):
        n = sharding.mesh.sizes(sharding.spec.axes(dim))
        if size % n:
            raise ShardingTypeError(
                f"{what}: dimension {dim} of shape {tuple(shape)} has size {size}, which {n} devices along "
                f"{', '.join(sharding.spec.axes(dim))} do not divide; types hold even parts only: pad it, leave it "
                "whole, or make the axis AxisType.Auto"
            )


WHOLE.fill(lambda ndim: NamedSharding(AbstractMesh((), ()), PartitionSpec(*[None] * ndim)))
SPLIT.fill(explicit_of)
