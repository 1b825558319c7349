"""How propagation and the partitioner call the user's functions of :mod:`meshwright.ops.sharding.custom`.

The user sees shardings by whole mesh axes whose tiles are even. A dimension that is split in any other way is shown as
replicated, and the operand is resharded accordingly. The user's answer becomes a manual region.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from meshwright.core.avals import ShapedArray
from meshwright.errors import ShapeError, ShardingError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.passes import inline_calls
from meshwright.ir.state import extend_axis_env
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.sharding.custom import AnyMesh, CustomPartitioning
from meshwright.ops.sharding.manual import ShardMap
from meshwright.ops.sharding.untyped import without_types
from meshwright.sharding import AbstractMesh, Layout, NamedSharding, PartitionSpec
from meshwright.spmd.factors import Axes

Dims = tuple[Axes, ...]
Value = tuple[ShapedArray, NamedSharding]


def inferred(eqn: JaxprEqn, dims: Sequence[Dims], mesh: AbstractMesh) -> tuple[Dims, ...] | None:
    """The dimensions of all operands and results of an equation, with the results' shardings as the user infers them.

    None if the op has a sharding rule, or if the user's callback does not infer anything.
    """
    op = cast(CustomPartitioning, eqn.op)
    if op.rule is not None:
        return None
    count, given = len(eqn.invars), len(eqn.invars) - op.num_consts
    shown = _shown(op, [a.aval for a in eqn.invars[:given]], map(Layout, dims[:given]), mesh)
    outs = [v.aval for v in eqn.outvars]
    shardings = op.partitioning.inferred(_users_mesh(op, mesh), shown, outs)
    if shardings is None:
        return None
    layouts = [_layout(op, s, a, mesh) for s, a in zip(shardings, outs)]
    return (*dims[:count], *(_extended(old, lo.dims) for old, lo in zip(dims[count:], layouts)))


def _extended(old: Dims, new: Dims) -> Dims:
    """``new`` for each dimension where it extends ``old`` by unused axes; otherwise ``old``."""
    used = {a for axes in old for a in axes}
    return tuple(n if n[: len(o)] == o and used.isdisjoint(n[len(o) :]) else o for o, n in zip(old, new))


def custom_region(eqn: JaxprEqn, ins: Sequence[Layout], outs: Sequence[Layout], mesh: AbstractMesh) -> ShardMap:
    """The manual region into which the user partitions an equation whose operands and results have these layouts.

    Raises:
      ShardingError: a sharding of the user's splits a dimension unevenly.
      ShapeError: the per-device function's results do not have the local shapes and dtypes of the results' shardings.
    """
    op, whole = cast(CustomPartitioning, eqn.op), PartitionSpec()
    if mesh.size == 1:  # nothing is split, as in a region that is manual along all axes
        every = (whole,) * len(ins), (whole,) * len(outs)
        return ShardMap(every[0], without_types(inline_calls(op.jaxpr)), mesh, every[1])
    n, avals, results = len(ins) - op.num_consts, op.jaxpr.in_avals, op.jaxpr.out_avals
    shown = _shown(op, avals[:n], ins[:n], mesh)
    users = _users_mesh(op, mesh)
    shown_outs = _shown(op, results, outs, mesh)
    if _says_more(op, users, shown, shown_outs):
        shown_outs = [(a, s) for (a, _), s in zip(shown_outs, op.partitioning.suggested(users, shown_outs))]
    local = op.partitioning.local(users, shown, shown_outs)
    in_specs = [_layout(op, s, a, mesh).to_spec(mesh) for s, a in zip(local.ins, avals)]
    out_specs = [_layout(op, s, a, mesh).to_spec(mesh) for s, a in zip(local.outs, results)]
    parts = [_part(a, s, mesh) for a, s in zip(avals, in_specs)]
    with extend_axis_env(mesh.shape):
        jaxpr = trace_to_jaxpr(lambda *xs: local.function(*xs[:n]), [*parts, *avals[n:]], op.fun_name)
    _check(op, jaxpr, [_part(a, s, mesh) for a, s in zip(results, out_specs)])
    return ShardMap((*in_specs, *[whole] * op.num_consts), without_types(inline_calls(jaxpr)), mesh, tuple(out_specs))


def _says_more(op: CustomPartitioning, mesh: AnyMesh, ins: Sequence[Value], outs: Sequence[Value]) -> bool:
    """Whether the results should get other shardings than the user infers from the operands."""
    inferred = None if op.rule is not None else op.partitioning.inferred(mesh, ins, [a for a, _ in outs])
    return inferred is None or any(s.spec != f.spec for (_, s), f in zip(outs, inferred))


def _users_mesh(op: CustomPartitioning, mesh: AbstractMesh) -> AnyMesh:
    """The user's own mesh, with devices; if some of its axes are already manual, the abstract mesh of the others."""
    return op.mesh if op.mesh is not None and op.mesh.abstract_mesh == mesh else mesh


def _shown(op: CustomPartitioning, avals: Sequence[ShapedArray], layouts: Any, mesh: AbstractMesh) -> list[Value]:
    users = _users_mesh(op, mesh)
    return [(a, NamedSharding(users, PartitionSpec(*_whole_axes(a, lo, mesh)))) for a, lo in zip(avals, layouts)]


def _whole_axes(aval: ShapedArray, layout: Layout, mesh: AbstractMesh) -> Iterator[tuple[str, ...]]:
    """For each dimension, the longest prefix of its axes that consists of whole mesh axes and divides it evenly."""
    for size, atoms in zip(aval.shape, layout.dims):
        names: list[str] = []
        for name in mesh.coalesce(atoms):
            if name not in mesh.axis_names or size % mesh.sizes([*names, name]):
                break
            names.append(name)
        yield tuple(names)


def _layout(op: CustomPartitioning, sharding: NamedSharding, aval: ShapedArray, mesh: AbstractMesh) -> Layout:
    layout = Layout.from_spec(sharding.spec, aval.ndim, mesh)
    for dim, (size, atoms) in enumerate(zip(aval.shape, layout.dims)):
        if size % mesh.sizes(atoms):
            raise ShardingError(
                f"custom_partitioning {op.fun_name}: {sharding.spec} splits dimension {dim} of {aval} into "
                f"{mesh.sizes(atoms)} parts, which are not equal; leave it whole, or pad it before"
            )
    return layout


def _part(aval: ShapedArray, spec: PartitionSpec, mesh: AbstractMesh) -> ShapedArray:
    return aval.update(shape=Layout.from_spec(spec, aval.ndim, mesh).local_shape(aval.shape, mesh))


def _check(op: CustomPartitioning, jaxpr: ClosedJaxpr, parts: Sequence[ShapedArray]) -> None:
    for number, (got, want) in enumerate(zip(jaxpr.out_avals, parts)):
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            raise ShapeError(
                f"custom_partitioning {op.fun_name}: on a device, result {number} of what its partition returned is "
                f"{got}, and its sharding says {want}; return the sharding that it has, or bring it there"
            )
