"""Every way of splitting an op's factors gives the unpartitioned result, whatever the padding holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.op import Op
from meshwright.ir.state import extend_axis_env, set_trace
from meshwright.ir.tracing import JaxprTrace, typeof
from meshwright.lowering.batched import virtual_program
from meshwright.ops.collective.all_reduce import ALL_REDUCE
from meshwright.runtime.array import default_sharding
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.runtime.eager import single_op_jaxpr
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import REDUCTION, REPLICATED, ShardingRule
from meshwright.spmd.factors import join_axes
from meshwright.spmd.localize.context import LocalContext
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.reshard.emit import named_axes

MESHES = [AbstractMesh((3,), ("a",)), AbstractMesh((2, 2), ("a", "b"))]


def assignments(rule: ShardingRule, mesh: AbstractMesh) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way of giving the mesh's axes, all of them used, to factors that may be split."""
    free = [i for i, f in enumerate(rule.factors) if f.kind != REPLICATED and f.size > 1]
    for owners in itertools.product(free, repeat=len(mesh.atoms)):
        found: list[tuple[str, ...]] = [()] * len(rule.factors)
        for atom, owner in zip(mesh.atoms, owners):
            found[owner] = (*found[owner], atom)
        if all(mesh.sizes(axes) <= f.size for axes, f in zip(found, rule.factors) if axes):
            yield tuple(found)


def _layouts(rule: ShardingRule, sides: Any, assignment: Any, mesh: AbstractMesh) -> tuple[Layout, ...]:
    sizes = [f.size for f in rule.factors]
    return tuple(
        Layout(tuple(join_axes(fs, sizes, assignment, mesh)[0] if fs else () for fs in dims)) for dims in sides
    )


def _poison(ctx: LocalContext, x: Any, operand: int) -> Any:
    dtype = typeof(x).dtype
    for dim in range(typeof(x).ndim):
        bad = np.nan if dtypes.is_inexact(dtype) else True if dtypes.is_bool(dtype) else 77
        x = ctx.mask(x, operand, dim, np.array(bad).astype(dtype))
    return x


def sharded_program(op: Op, args: Sequence[Any], rule: ShardingRule, assignment: Any, mesh: AbstractMesh) -> Any:
    """The program on global arrays that computes ``op`` tile by tile."""
    source = single_op_jaxpr(op, [typeof(a) for a in args])
    reduced = tuple(a for f, axes in zip(rule.factors, assignment) if f.kind == REDUCTION for a in axes)
    in_layouts = _layouts(rule, rule.operands, assignment, mesh)
    out_layouts = _layouts(rule, rule.results, assignment, mesh)
    ctx = LocalContext(mesh, rule, tuple(source.in_avals), tuple(source.out_avals), in_layouts, out_layouts)
    trace = JaxprTrace()
    env = {**mesh.shape, **{a: mesh.axis_size(a) for a in mesh.atoms}}
    with extend_axis_env(env), set_trace(trace):
        locals_ = [trace.new_arg(a.update(shape=s)) for a, s in zip(ctx.in_avals, ctx.in_local_shapes)]
        outs = op.localize(ctx, *[_poison(ctx, x, i) for i, x in enumerate(locals_)])
        outs = list(outs) if op.multiple_results else [outs]
        for out, shape in zip(outs, ctx.out_local_shapes):
            assert typeof(out).shape == shape, f"local result {typeof(out).shape}, expected {shape}"
        if reduced:
            outs = [ALL_REDUCE[rule.reduction](*named_axes(reduced, mesh)).bind(x) for x in outs]
    local = trace.finish(outs)
    part = Partition(local, mesh, list(in_layouts), list(out_layouts), source, None)  # type: ignore[arg-type]
    return virtual_program(part)


def check_sharded(op: Op, *args: Any, tol: float = 1e-5, meshes: Sequence[AbstractMesh] = MESHES) -> int:
    """Compare every sharding with the unpartitioned result; returns how many were compared."""
    rule = op.sharding_rule(*[typeof(a) for a in args])
    wanted = op.bind(*args)
    wanted = wanted if op.multiple_results else [wanted]
    count = 0
    for mesh in meshes:
        for assignment in assignments(rule, mesh):
            program = sharded_program(op, args, rule, assignment, mesh)
            outs = compile_jaxpr(program, op.name, [default_sharding()] * len(program.out_avals))(args)
            for got, want in zip(outs, wanted, strict=True):
                where = f"{op} {rule} on {mesh} split as {assignment}"
                assert typeof(got) == typeof(want), where
                a, b = np.asarray(got), np.asarray(want)
                if dtypes.is_inexact(a.dtype):
                    np.testing.assert_allclose(a, b, rtol=tol, atol=tol, err_msg=where)
                else:
                    np.testing.assert_array_equal(a, b, err_msg=where)
            count += 1
    assert count, f"{op}: {rule} lets nothing be split"
    return count
