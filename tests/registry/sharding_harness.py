"""Programs that test one op under one sharding, and how many of them are compiled as one.

Two kinds. A *localized* program forces a choice of mesh axes for the op's factors: it enters the tiles, puts garbage
into their padding, may make operands partial sums, runs the op's ``localize`` and combines what is partial. It reaches
every way in which the partitioner could compute the op. A *partitioned* program is what the partitioner makes of the op
between given shardings of operands and results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy_eval import evaluate

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Op
from meshwright.ir.passes import dead_code
from meshwright.ir.state import extend_axis_env, set_trace
from meshwright.ir.tracing import JaxprTrace, eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ir.verify import verify
from meshwright.lowering.batched import virtual_program
from meshwright.ops.elementwise.monoid import nothing
from meshwright.ops.elementwise.table import convert, eq, mul, rem, select, sub
from meshwright.ops.shape.broadcast_reduce import iota, match_shape
from meshwright.runtime.array import default_sharding
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.runtime.eager import single_op_jaxpr
from meshwright.sharding import AbstractMesh, Layout, joined_reduction
from meshwright.sharding.rule import REDUCTION, REPLICATED, ShardingRule
from meshwright.spmd.driver import partition
from meshwright.spmd.factors import join_axes
from meshwright.spmd.localize.context import LocalContext
from meshwright.spmd.masked import masked_groups
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.reshard.emit import emit_step, tile_index
from meshwright.spmd.reshard.plan import plan_reshard

Axes = tuple[str, ...]

#: 2, 3 and 6 tiles. Dimensions of 5 and 7 are uneven on all of them; 3 rows leave tiles empty on six devices
MESH = AbstractMesh((2, 3), ("x", "y"))
#: the same and 4 and 8 tiles
MESHES = (MESH, AbstractMesh((2, 2), ("x", "y")), AbstractMesh((3,), ("x",)), AbstractMesh((4, 2), ("x", "y")))


@dataclass(frozen=True)
class Case:
    """A program on global arrays, and the sharding that it stands for, in words."""

    label: str
    program: ClosedJaxpr


def ordered_subsets(atoms: Sequence[str]) -> Iterator[Axes]:
    """Every sequence of different atoms, the empty one first."""
    for n in range(len(atoms) + 1):
        yield from itertools.permutations(atoms, n)


def disjoint(count: int, atoms: Sequence[str]) -> Iterator[tuple[Axes, ...]]:
    """Every way to give ``count`` things sequences of atoms of their own."""
    if count == 0:
        yield ()
        return
    for first in ordered_subsets(atoms):
        for rest in disjoint(count - 1, [a for a in atoms if a not in first]):
            yield (first, *rest)


def layouts(shape: Sequence[int], mesh: AbstractMesh) -> list[Layout]:
    """Every layout without partial sums of an array of ``shape``."""
    return [Layout(dims) for dims in disjoint(len(shape), mesh.atoms)]


# --- localized programs -------------------------------------------------------------------------------------
def assignments(rule: ShardingRule, mesh: AbstractMesh) -> Iterator[tuple[Axes, ...]]:
    """Every way that the partitioner may split the factors of a rule: see ``choose``."""
    sizes = [f.size for f in rule.factors]
    free = [i for i, f in enumerate(rule.factors) if f.kind != REPLICATED and f.size > 1]
    for chosen in disjoint(len(free), mesh.atoms):
        assigned: list[Axes] = [()] * len(rule.factors)
        for i, axes in zip(free, chosen):
            assigned[i] = axes
        if any(mesh.sizes(axes) > sizes[i] for i, axes in enumerate(assigned) if axes):
            continue
        dims = [fs for value in (*rule.operands, *rule.results) for fs in value if fs]
        if all(join_axes(fs, sizes, assigned, mesh)[1] for fs in dims):
            yield tuple(assigned)


@dataclass(frozen=True)
class Carried:
    """Partial values that pass through the op: over which axes, in which operands, of which kind."""

    axes: Axes = ()
    operands: tuple[int, ...] = ()
    kind: str = ""


def partials(op: Op, avals: Sequence[ShapedArray], used: Axes, rule: ShardingRule, mesh: AbstractMesh) -> list[Carried]:
    """The partial values that the op lets through beside axes that split its factors."""
    free = tuple(a for a in mesh.atoms if a not in used)
    reduces = rule.reduction if any(f.kind == REDUCTION for f in rule.factors) else ""
    found = [Carried()]
    for group in op.linear_groups(*avals):
        if any(dtypes.is_bool(avals[o].dtype) for o in group):
            continue
        masked = group in masked_groups(op, avals, [None] * len(avals))
        for kind in ("sum", *["masked"] * masked, *["max"] * op.moves_only):
            if kind == "max" and dtypes.is_complex(avals[group[0]].dtype):
                continue
            for axes in {free, free[:1]} - {()}:
                if joined_reduction(kind, reduces or kind):
                    found.append(Carried(axes, group, kind))
    return found


def _layout(
    dims: Sequence[tuple[int, ...]], rule: ShardingRule, assigned: Sequence[Axes], mesh: AbstractMesh
) -> Layout:
    sizes = [f.size for f in rule.factors]
    return Layout(tuple(join_axes(fs, sizes, assigned, mesh)[0] if fs else () for fs in dims))


def garbage(dtype: np.dtype, rule: ShardingRule) -> np.ndarray:
    """What is put into padding: NaN, or something that changes any reduction."""
    if dtypes.is_inexact(dtype):
        return np.array(np.nan, dtype)
    if dtypes.is_bool(dtype):
        return np.array(rule.reduction != "and")
    return np.array(1_000_003 if dtype.itemsize >= 4 else 77, dtype)


def _term(x: Any, carried: Carried, mesh: AbstractMesh) -> Any:
    """This device's term of a partial value that is ``x``."""
    n = mesh.sizes(carried.axes)
    index = tile_index(carried.axes, mesh)
    dtype = typeof(x).dtype
    if carried.kind == "masked":
        number = iota(np.int32, typeof(x).shape, 0) if typeof(x).ndim else np.int32(n - 1)
        here = eq(rem(number, np.int32(n)), index)
        return select(here, x, match_shape(nothing(dtype), typeof(x)))
    if carried.kind == "max":
        return select(eq(index, np.int32(n - 1)), x, sub(x, np.ones((), dtype)))
    # 1 - (2 + 3 + … + n) on device 0 and i + 1 on device i: together 1.
    first = np.array(1 - sum(range(2, n + 1))).astype(dtype)
    return mul(x, select(eq(index, np.int32(0)), first, convert(index + np.int32(1), dtype)))


def localized_program(
    op: Op, avals: Sequence[ShapedArray], mesh: AbstractMesh, assigned: tuple[Axes, ...], carried: Carried
) -> ClosedJaxpr:
    """The op with its factors split as told, between whole operands and results."""
    rule = op.sharding_rule(*avals)
    source = single_op_jaxpr(op, avals)
    reduced = tuple(a for f, axes in zip(rule.factors, assigned) if f.kind == REDUCTION for a in axes)
    ins = [_layout(dims, rule, assigned, mesh) for dims in rule.operands]
    given = [lo.with_partial(carried.axes, carried.kind, mesh) if o in carried.operands else lo
             for o, lo in enumerate(ins)]  # fmt: skip
    outs = [_layout(dims, rule, assigned, mesh) for dims in rule.results]
    left = reduced + carried.axes
    kind = joined_reduction(carried.kind or rule.reduction, rule.reduction if reduced else carried.kind)
    made = [lo.with_partial(left, kind or "", mesh) for lo in outs]
    ctx = LocalContext(mesh, rule, tuple(avals), tuple(source.out_avals), tuple(given), tuple(made))
    trace = JaxprTrace()
    axis_env = {**mesh.shape, **{a: mesh.axis_size(a) for a in mesh.atoms}}
    with extend_axis_env(axis_env), set_trace(trace):
        args = [trace.new_arg(a.update(shape=s)) for a, s in zip(avals, ctx.in_local_shapes)]
        operands = []
        for o, x in enumerate(args):
            if o in carried.operands:
                x = _term(x, carried, mesh)
            for d in range(typeof(x).ndim):
                x = ctx.mask(x, o, d, garbage(typeof(x).dtype, rule))
            operands.append(x)
        results = op.localize(ctx, *operands)
        results = list(results) if op.multiple_results else [results]
        for y, aval, shape in zip(results, source.out_avals, ctx.out_local_shapes, strict=True):
            assert (typeof(y).shape, typeof(y).dtype) == (shape, aval.dtype), f"localize made {typeof(y)}, not {shape}"
        combined = [_combine(y, a.shape, lo, mesh) for y, a, lo in zip(results, source.out_avals, made)]
    local = dead_code(trace.finish(combined))
    verify(local, "per-device program")
    whole = virtual_program(Partition(local, mesh, ins, outs, source, Propagation(mesh)))
    verify(whole, "virtual program")
    return whole


def _combine(x: Any, shape: tuple[int, ...], layout: Layout, mesh: AbstractMesh) -> Any:
    plan = plan_reshard(shape, typeof(x).dtype.itemsize, layout, layout.drop_partial(), mesh)
    for step, after in plan.steps:
        x = emit_step(x, step, shape, after, mesh)
    return x


def localized_cases(op: Op, avals: Sequence[ShapedArray], meshes: Sequence[AbstractMesh] = (MESH,)) -> list[Case]:
    """All localized programs of an op."""
    rule = op.sharding_rule(*avals)
    found = []
    for mesh in meshes:
        for assigned in assignments(rule, mesh):
            used = tuple(a for axes in assigned for a in axes)
            for carried in partials(op, avals, used, rule, mesh):
                if not used and not carried.axes:
                    continue
                label = ", ".join(f"{f.name}: {' '.join(axes)}" for f, axes in zip(rule.factors, assigned) if axes)
                label = (
                    f"{mesh.axis_sizes} {{{label}}} partial {carried}" if carried.axes else f"{mesh.axis_sizes} {label}"
                )
                found.append(Case(label, localized_program(op, avals, mesh, assigned, carried)))
    return found


# --- partitioned programs -----------------------------------------------------------------------------------
def partitioned_case(
    program: ClosedJaxpr, mesh: AbstractMesh, ins: Sequence[Layout | None], outs: Sequence[Layout | None]
) -> Case:
    """The program that the partitioner makes between these layouts."""
    part = partition(program, mesh, ins, outs)
    verify(part.jaxpr, "per-device program")
    text = f"{mesh.axis_sizes} {' '.join(map(str, ins))} -> {' '.join(map(str, outs))}"
    for wanted, got in zip((*ins, *outs), (*part.in_layouts, *part.out_layouts)):
        assert wanted is None or wanted == got, f"{text}: {got} in place of {wanted}"
    for var, layout, aval in zip(part.jaxpr.jaxpr.outvars, part.out_layouts, program.out_avals):
        assert var.aval.shape == layout.local_shape(aval.shape, mesh), f"{text}: result {var.aval} for {layout}"
    whole = virtual_program(part)
    verify(whole, "virtual program")
    return Case(text, whole)


def partitioned_cases(
    program: ClosedJaxpr, limit: int, meshes: Sequence[AbstractMesh] = (MESH,), seed: int = 0
) -> list[Case]:
    """Programs between shardings of the operands, and of results or none; ``limit`` of all combinations a mesh."""
    found = []
    rng = np.random.default_rng(seed)
    for mesh in meshes:
        ins = [layouts(a.shape, mesh) for a in program.in_avals]
        outs = [[None, None, *layouts(a.shape, mesh)] for a in program.out_avals]
        sides = [*ins, *outs]
        total = math.prod(map(len, sides))
        numbers = range(total) if total <= limit else sorted(rng.choice(total, limit, replace=False))
        for number in numbers:
            chosen = []
            for options in sides:
                number, i = divmod(int(number), len(options))
                chosen.append(options[i])
            found.append(partitioned_case(program, mesh, chosen[: len(ins)], chosen[len(ins) :]))
    return found


# --- running them -------------------------------------------------------------------------------------------
#: most equations that are compiled as one program
_MOST_EQNS = 6000


def failures(
    source: ClosedJaxpr, args: Sequence[np.ndarray], cases: Sequence[Case], compiled: bool = False
) -> list[str]:
    """Which cases do not compute what ``source`` does, in words.

    Integers and bools must be equal; floats may differ by a hundred-thousandth of the largest magnitude in the result
    (a hundredth where there are 16-bit operands). With ``compiled``, many cases at a time are compiled by XLA.
    """
    tol = 1e-2 if any(a.dtype.itemsize == 2 for a in (*source.in_avals, *source.out_avals)) else 1e-5
    programs = [source, *(c.program for c in cases)]
    if compiled:
        outs = [y for group in _groups(programs) for y in compiled_results(group, source.in_avals, args)]
    else:
        outs = [evaluate(p, args) for p in programs]
    found = []
    for case, results in zip(cases, outs[1:], strict=True):
        for number, (got, expected) in enumerate(zip(results, outs[0], strict=True)):
            wrong = difference(got, expected, tol)
            if wrong:
                found.append(f"{case.label}: result {number} {wrong}")
    return found


def _groups(programs: Sequence[ClosedJaxpr]) -> Iterator[list[ClosedJaxpr]]:
    group: list[ClosedJaxpr] = []
    for program in programs:
        group.append(program)
        if sum(len(p.eqns) for p in group) > _MOST_EQNS:
            yield group
            group = []
    if group:
        yield group


def compiled_results(
    programs: Sequence[ClosedJaxpr], avals: Sequence[ShapedArray], args: Sequence[np.ndarray]
) -> list[list[np.ndarray]]:
    whole = trace_to_jaxpr(lambda *xs: [y for p in programs for y in eval_jaxpr(p, p.consts, *xs)], avals)
    executable = compile_jaxpr(whole, "cases", [default_sharding()] * len(whole.out_avals))
    outs = iter([np.asarray(y) for y in executable(args)])
    return [[next(outs) for _ in p.out_avals] for p in programs]


def difference(got: np.ndarray, want: np.ndarray, tol: float) -> str:
    """How ``got`` differs from ``want``, or nothing."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"is {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    if not dtypes.is_inexact(want.dtype):
        return "" if np.array_equal(got, want) else f"is {got.tolist()}, not {want.tolist()}"
    wide = np.complex128 if dtypes.is_complex(want.dtype) else np.float64
    a, b = got.astype(wide), want.astype(wide)
    finite = np.isfinite(b)
    scale = float(np.max(np.abs(b[finite]), initial=0.0))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        close = np.abs(a - b) <= tol * scale
    return "" if bool(np.all(same | close)) else f"is {got.tolist()}, not {want.tolist()}"


def report(found: Sequence[str]) -> None:
    """Fail with the first few failures."""
    shown = "\n".join(found[:8])
    assert not found, f"{len(found)} shardings give another result:\n{shown}"
