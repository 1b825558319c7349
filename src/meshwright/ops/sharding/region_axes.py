"""Manual regions over other axes of the same devices: each axis becomes a sequence of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.errors import MeshError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.passes import inline_calls, is_inlined
from meshwright.ir.rewrite import in_jaxprs, replaced
from meshwright.ops.collective.base import Collective
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.ops.sharding.manual import ShardMap
from meshwright.ops.sharding.untyped import without_axes
from meshwright.sharding import AnyMesh, PartitionSpec

Pieces = Mapping[str, tuple[str, ...]]


def region_over(op: ShardMap, mesh: AnyMesh, pieces: Pieces, over_it: Callable[[Any, AnyMesh], Any]) -> ShardMap:
    """A region over ``mesh``, of whose axes the region's are the sequences ``pieces``, major to minor.

    Several axes count like one, so collectives give what they gave. Types do not say any more what varies.
    ``over_it`` brings shardings inside the region to ``mesh``.

    Raises:
      MeshError: something inside names a part of an axis.
    """

    def axes(names: Sequence[str]) -> tuple[str, ...]:
        if parts := [name for name in names if name not in pieces]:
            raise MeshError(
                f"a region over {op.mesh}, in a program that also has regions over other meshes, names {parts[0]!r}; "
                "name whole axes, or use one mesh for all regions"
            )
        return tuple(piece for name in names for piece in pieces[name])

    def spec(given: PartitionSpec) -> PartitionSpec:
        return PartitionSpec(*(axes(given.axes(d)) or None for d in range(len(given))))

    def renamed(eqn: JaxprEqn) -> JaxprEqn:
        inner: Any = eqn.op
        if isinstance(inner, ShardMap):
            return eqn.replace(op=region_over(inner, mesh, pieces, over_it))
        if isinstance(inner, ShardingConstraint):
            leeway = inner.leeway
            leeway = replace(leeway, replicated=axes(leeway.replicated), unreduced=axes(leeway.unreduced))
            return eqn.replace(op=replace(inner, sharding=over_it(inner.sharding, mesh), leeway=leeway))
        if isinstance(inner, Collective):
            names = axes(inner.axes)
            return eqn.replace(op=inner.over(names, [mesh.shape[a] for a in names]))
        return in_jaxprs(eqn, inside)

    def inside(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
        return replaced(jaxpr, renamed)

    types = {piece: kind for name, kind in zip(op.mesh.axis_names, op.mesh.axis_types) for piece in pieces[name]}
    return ShardMap(
        tuple(map(spec, op.in_specs)),
        inside(without_axes(inline_calls(op.jaxpr, is_inlined))),
        mesh.update_axis_types(types),
        tuple(map(spec, op.out_specs)),
        axes(op.axis_names),
    )
