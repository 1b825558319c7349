"""From what users write for shardings to one sharding (or None) a leaf, all over one mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.errors import ArgumentTypeError, MeshError, ShardingError
from meshwright.ir.jaxpr import Jaxpr, all_eqns
from meshwright.ops.sharding_constraint import ShardingConstraint
from meshwright.sharding import (
    AbstractMesh,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
    get_mesh,
)


def is_spec(x: Any) -> bool:
    """Leaves of a tree of shardings: shardings, specs, and None (left open)."""
    return x is None or isinstance(x, (Sharding, PartitionSpec))


class _Leaf:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def flat_shardings(tree: Any, value: Any, what: str) -> list[Sharding | None]:
    """One sharding a leaf of ``value`` from a tree prefix of shardings.

    Raises:
      ArgumentError: ``tree`` does not fit ``value``.
      ArgumentTypeError: a leaf is no sharding.
      MeshError: a bare PartitionSpec without a current mesh.
    """
    if tree is None:
        return [None] * len(pytree.leaves(value))
    marked = pytree.map(_Leaf, tree, is_leaf=is_spec)
    return [resolve(leaf.value, what) for leaf in pytree.broadcast_prefix(marked, value, what)]


def resolve(entry: Any, what: str) -> Sharding | None:
    """A sharding from one entry of the user's."""
    if entry is None or isinstance(entry, Sharding):
        return entry
    if isinstance(entry, PartitionSpec):
        mesh = get_mesh()
        if mesh is None:
            raise MeshError(
                f"{what}: {entry} names mesh axes but no mesh is set; use NamedSharding(mesh, {entry}), or "
                "set one with meshwright.set_mesh(mesh) or 'with mesh:'"
            )
        return NamedSharding(mesh, entry)
    raise ArgumentTypeError(
        f"{what}: expected a Sharding, a PartitionSpec or None, got {entry!r} of type {type(entry).__name__}"
    )


def check_fit(
    shardings: Sequence[Sharding | None], avals: Sequence[ShapedArray], paths: Sequence[str], what: str
) -> None:
    """Raise if a sharding has more entries than its array has dimensions."""
    for sharding, aval, path in zip(shardings, avals, paths):
        if sharding is not None:
            sharding.check_compatible(aval.shape, f"{what}{path}")


def common_mesh(shardings: Iterable[Sharding | None], jaxpr: Jaxpr | None = None) -> Mesh | AbstractMesh | None:
    """The one mesh that shardings, and constraints inside ``jaxpr``, lie on; None if there is none.

    Raises:
      MeshError: two different meshes.
    """
    found: Mesh | AbstractMesh | None = None
    inner = [e.op.sharding for e in all_eqns(jaxpr) if isinstance(e.op, ShardingConstraint)] if jaxpr else []
    for sharding in (*shardings, *inner):
        if sharding is None or isinstance(sharding, SingleDeviceSharding):
            continue
        if not isinstance(sharding, NamedSharding):
            raise ShardingError(f"jit: shardings must be NamedShardings over one mesh, got {sharding!r}")
        mesh = sharding.mesh
        if found is None or found is mesh:
            found = mesh
        elif found != mesh:
            if found.abstract_mesh == mesh.abstract_mesh and AbstractMesh in (type(found), type(mesh)):
                found = found if isinstance(found, Mesh) else mesh
                continue
            raise MeshError(
                f"arrays and shardings of different meshes are used together: {found!r} and {mesh!r}; move the arrays to "
                "one mesh with device_put first"
            )
    return found
