"""``cond``: runs one of several branches, chosen by an int32 index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import is_inexact
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, DTypeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Var, all_eqns, has_effects
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ir.varying import axes_of
from meshwright.ops.control.bodies import Body
from meshwright.ops.control.call import CallOp, Jit
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.guards import guarded, has_checks
from meshwright.ops.control.regions import arranged, merge, omit, pick
from meshwright.ops.control.retype import cast_each, in_axes, out_axes, retyped
from meshwright.ops.elementwise.table import eq, materialize, select, stop_gradient
from meshwright.ops.indexing.dynamic_slice import dynamic_slice_in_dim
from meshwright.ops.reduce.reductions import reduce_min, reduce_or
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota

Branches = tuple[ClosedJaxpr, ...]
#: the platforms that each branch is for; None: all others
Platforms = tuple[tuple[str, ...] | None, ...]
Dims = Sequence[int | None]


@dataclass(frozen=True)
class Cond(ControlOp):
    """``branches[index](*operands)``; the index must be in range."""

    branches: Branches
    #: for a choice by platform: those that each branch is for; the index is not used then
    platforms: Platforms | None = None
    name: ClassVar[str] = "cond"
    chooses: ClassVar[bool] = True

    @property
    def params(self) -> dict[str, Any]:
        return {n: x for n, x in super().params.items() if n != "platforms" or x is not None}

    def infer(self, index: ShapedArray, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        if index.shape != () or index.dtype != np.int32:
            raise DTypeError(f"cond: the index must be an int32 scalar, got {index}")
        return super().infer(index, *avals)

    def bodies(self) -> tuple[Body, ...]:
        return tuple(Body(b, len(b.in_avals), label=f"branch {n}") for n, b in enumerate(self.branches))

    def with_bodies(self, bodies: Sequence[Body]) -> Cond:
        return replace(self, branches=tuple(b.jaxpr for b in bodies))

    def on_platform(self, platform: str) -> Op:
        if self.platforms is None:
            return self
        branch = self.branches[number_on(self.platforms, platform)]
        index, inner = Var(ShapedArray((), np.dtype(np.int32))), branch.jaxpr
        return Jit(f"on_{platform}", arranged(branch, [index, *inner.invars], inner.outvars))

    # --- derivatives ----------------------------------------------------------------------------------------
    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        if not known[0]:
            return tape.record(self, args)
        first, *rest = self.branches
        parts = t.derive(_split_branches, first, tuple(rest), tuple(known[1:]))
        op = replace(self, branches=parts.known)
        needed = parts.known[0].out_avals or op.has_effects
        outs = op.bind(args[0], *pick(args[1:], known[1:])) if needed else []
        n = sum(parts.known_out)
        recorded: Sequence[Any] = ()
        if not all(parts.known_out):
            recorded = tape.record(
                replace(self, branches=parts.unknown), [args[0], *outs[n:], *omit(args[1:], known[1:])]
            )
        return merge(parts.known_out, outs[:n], recorded)

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        index, *operands = args
        linear = tuple(isinstance(x, Linear) for x in operands)
        nonzero = tuple(not isinstance(c, Zero) for c in cts)
        has_ct = _any(t.transpose(b, linear, nonzero)[1] for b in self.branches)
        branches = tuple(t.transpose(b, linear, nonzero, has_ct)[0] for b in self.branches)
        outs = iter(
            replace(self, branches=branches).bind(index, *omit(operands, linear), *pick(cts, nonzero))
            if any(has_ct)
            else ()
        )
        flags = iter(has_ct)
        in_cts = [(next(outs) if next(flags) else Zero(x.aval)) if lin else None for x, lin in zip(operands, linear)]
        return [None, *in_cts]

    # --- batching -------------------------------------------------------------------------------------------
    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        if dims[0] is None:
            return super().batch_call(t, axis, args, dims)
        passed = self._passed_on()
        kept = [o for o, n in enumerate(passed) if n is None]
        if len(kept) < len(passed):
            some_of = (arranged(b, b.jaxpr.invars, [b.jaxpr.outvars[o] for o in kept]) for b in self.branches)
            op = replace(self, branches=tuple(some_of))
            some: tuple[Any, Any] = op.batch_call(t, axis, args, dims) if kept or op.has_effects else ([], [])
            chosen = zip(*some)
            every = [next(chosen) if n is None else (args[1 + n], dims[1 + n]) for n in passed]
            return [x for x, _ in every], [d for _, d in every]
        # Each batch entry takes its own branch: all are computed, and one chosen for each.
        if any(map(has_checks, self.branches)):
            own = (t.derive(_where_taken, b, number) for number, b in enumerate(self.branches))
            op = replace(self, branches=tuple(own))
            return op._chosen_by_entry(t, axis, [args[0], *args], [dims[0], *dims])
        return self._chosen_by_entry(t, axis, args, dims)

    def _passed_on(self) -> list[int | None]:
        """The operand that all branches return as a result, for each result; None where they do not."""
        places: list[dict[Atom, int]] = [{v: n for n, v in enumerate(b.jaxpr.invars)} for b in self.branches]
        outs = zip(*(map(at.get, b.jaxpr.outvars) for at, b in zip(places, self.branches)))
        return [ns[0] if len(set(ns)) == 1 else None for ns in outs]

    def _chosen_by_entry(
        self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]
    ) -> BatchedResults:
        inner = tuple(dims[1:])
        out_dims = zip(*(t.batch(b, axis, inner)[1] for b in self.branches))
        places = tuple(next((d for d in ds if d is not None), 0) for ds in out_dims)
        first, *rest = self.branches
        op = t.derive(_each_its_own, first, tuple(rest), axis, inner, places, tuple(map(typeof, args)))
        return op.bind(*args), list(places)

    def emit(self, b: Builder, index: Emitted, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        regions = [b.jaxpr_region(branch, operands) for branch in self.branches]
        return b.op("stablehlo.case", [index], b.out_avals, regions=regions)


def number_on(platforms: Platforms, platform: str) -> int:
    """The number of the branch for a platform.

    Raises:
      ArgumentError: there is none.
    """
    others = next((n for n, names in enumerate(platforms) if names is None), None)
    number = next((n for n, names in enumerate(platforms) if names is not None and platform in names), others)
    if number is None:
        there = ", ".join(name for names in platforms for name in names or ())
        raise ArgumentError(f"platform_dependent: no function for {platform} among {there}, and no default; add one")
    return number


def _any(rows: Any) -> tuple[bool, ...]:
    return tuple(any(column) for column in zip(*rows))


# --- one branch for each batch entry --------------------------------------------------------------------------
@dataclass(frozen=True)
class Selection(CallOp):
    """A call of ``jaxpr``, differentiated as ``apart``, which computes the same.

    ``jaxpr`` runs all branches of a ``cond`` on all entries and selects. If a branch that an entry does not take is
    infinite there, its derivative would be zero times infinity. In ``apart``, each branch gets only entries that take
    it.
    """

    jaxpr: ClosedJaxpr
    apart: ClosedJaxpr
    name: ClassVar[str] = "select_branch"
    hidden_params: ClassVar[tuple[str, ...]] = ("apart",)

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return tuple(self.jaxpr.out_avals)

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        ins = list(map(axes_of, args))
        jaxpr = retyped(self.jaxpr, ins)
        apart = retyped(self.apart, in_axes(jaxpr), out_axes(jaxpr))
        jaxpr = retyped(jaxpr, in_axes(apart), out_axes(apart))
        same = jaxpr is self.jaxpr and apart is self.apart
        return self if same else Selection(jaxpr, apart), cast_each(args, in_axes(jaxpr))

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return Jit(self.name, self.apart).jvp_call(t, primals, tangents)

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        return Jit(self.name, self.apart).partial_eval_call(t, known, args, tape)

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        both = self.jaxpr, self.apart
        out_dims = zip(*(t.batch(j, axis, tuple(dims))[1] for j in both))
        places = tuple(next((d for d in ds if d is not None), None) for ds in out_dims)
        jaxprs = (t.batch(j, axis, tuple(dims), places)[0] for j in both)
        return Selection(*jaxprs).bind(*args), list(places)

    def body(self) -> ClosedJaxpr | None:
        return self.jaxpr

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return b.call(self.name, self.jaxpr, operands)


def _each_its_own(
    t: Any, first: ClosedJaxpr, rest: Branches, axis: BatchAxis, inner: Dims, places: Dims, avals: Sequence[ShapedArray]
) -> Selection:
    branches = [t.batch(b, axis, inner, places)[0] for b in (first, *rest)]
    # Collectives and effects of branches must be the same whether a derivative is taken or not.
    fixed = axis.size == 0 or any(has_effects(b.jaxpr) or _names(b, axis.name) for b in branches)

    def choose(separate: bool, index: Any, operands: Sequence[Any]) -> list[Any]:
        outs: list[Any] = []
        for number, branch in enumerate(branches):
            taken = eq(index, np.full((axis.size,), number, np.int32))
            given = _taking(operands, inner, taken, axis.size) if separate else operands
            results = eval_jaxpr(branch, branch.consts, *given)
            outs = [_choose(taken, d or 0, new, old) for d, new, old in zip(places, results, outs)] or results
        return outs

    plain, apart = (
        trace_to_jaxpr(lambda i, *xs, s=s: choose(s and not fixed, i, xs), avals, "cond") for s in (False, True)
    )
    return Selection(plain, apart)


def _where_taken(t: Any, branch: ClosedJaxpr, number: int) -> ClosedJaxpr:
    """Branch ``number`` with the index as first parameter, and with checks that hold if another branch is selected."""
    index = ShapedArray((), np.dtype(np.int32))
    return guarded(branch, [index], lambda i, *operands: (eq(i, np.int32(number)), operands))


def _taking(operands: Sequence[Any], dims: Dims, taken: Any, size: int) -> list[Any]:
    """The operands of a branch, where entries that do not take it are replaced by the first that does."""
    numbers = select(taken, iota(np.int32, (size,), 0), np.full((size,), size - 1, np.int32))
    first = reduce_min(numbers, (0,))
    replaced = []
    for x, dim in zip(operands, dims):
        if dim is None:
            # Operands shared by all entries get cotangents from those that take the branch, if there are any.
            shape = typeof(x).shape
            any_ = broadcast_in_dim(reduce_or(taken, (0,)), shape, ())
            replaced.append(select(any_, x, stop_gradient(x)) if is_inexact(typeof(x).dtype) else x)
        else:
            row = dynamic_slice_in_dim(x, first, 1, dim)
            like = broadcast_in_dim(row, typeof(x).shape, range(typeof(x).ndim))
            like = stop_gradient(like) if is_inexact(typeof(x).dtype) else like
            replaced.append(_choose(taken, dim, x, like))
    return replaced


def _names(jaxpr: ClosedJaxpr, axis: Any) -> bool:
    return axis is not None and any(axis in (getattr(e.op, "axes", None) or ()) for e in all_eqns(jaxpr.jaxpr))


def _choose(taken: Any, dim: int, new: Any, old: Any) -> Any:
    shape = typeof(new).shape
    return select(broadcast_in_dim(taken, shape, (dim,)), new, old)


@dataclass(frozen=True)
class _Parts:
    """A ``cond`` split in two: all branches of ``known`` return the known results and a common set of residuals."""

    known: Branches
    unknown: Branches
    known_out: tuple[bool, ...]


def _split_branches(t: Any, first: ClosedJaxpr, rest: Branches, known: tuple[bool, ...]) -> _Parts:
    branches = (first, *rest)
    known_out = tuple(all(column) for column in zip(*(t.partial_eval(b, known).known_out for b in branches)))
    forced = tuple(not k for k in known_out)
    splits = [t.partial_eval(b, known, forced) for b in branches]
    n = sum(known_out)
    # Branches have different residuals: each type gets as many slots as the branch with the most of them needs.
    residuals = [s.known.out_avals[n:] for s in splits]
    slots: list[ShapedArray] = []
    for aval in dict.fromkeys(a for avals in residuals for a in avals):
        slots += [aval] * max(Counter(avals)[aval] for avals in residuals)
    places = [_places(avals, slots) for avals in residuals]
    known_branches = tuple(_with_slots(s.known, n, p, slots) for s, p in zip(splits, places))
    unknown = tuple(_from_slots(s.unknown, p, slots) for s, p in zip(splits, places))
    return _Parts(known_branches, unknown, known_out)


def _places(avals: Sequence[ShapedArray], slots: Sequence[ShapedArray]) -> list[int]:
    """A slot of matching type for each residual."""
    free = list(range(len(slots)))
    places = []
    for aval in avals:
        place = next(i for i in free if slots[i] == aval)
        free.remove(place)
        places.append(place)
    return places


def _with_slots(jaxpr: ClosedJaxpr, n: int, places: Sequence[int], slots: Sequence[ShapedArray]) -> ClosedJaxpr:
    def fun(*args: Any) -> list[Any]:
        outs = eval_jaxpr(jaxpr, jaxpr.consts, *args)
        filled = dict(zip(places, outs[n:]))
        return outs[:n] + [filled[i] if i in filled else materialize(Zero(a)) for i, a in enumerate(slots)]

    return trace_to_jaxpr(fun, jaxpr.in_avals, jaxpr.jaxpr.debug_name)


def _from_slots(jaxpr: ClosedJaxpr, places: Sequence[int], slots: Sequence[ShapedArray]) -> ClosedJaxpr:
    k = len(places)

    def fun(*args: Any) -> list[Any]:
        return eval_jaxpr(jaxpr, jaxpr.consts, *(args[p] for p in places), *args[len(slots) :])

    return trace_to_jaxpr(fun, [*slots, *jaxpr.in_avals[k:]], jaxpr.jaxpr.debug_name)
