"""Prefix scans along one axis with an associative function of scalars, and their derivative.

On one device, prefixes are computed by a tree of pairs (Blelloch, "Prefix sums and their applications", 1990). Along a
split axis, a tile needs only the totals of the preceding tiles: one element per tile is gathered.

With ``y[i] = f(y[i - 1], x[i])`` the tangents are ``dy[i] = A[i] dy[i - 1] + B[i] dx[i]``, where A and B are the
partial derivatives of ``f``: a linear recurrence, which is again an associative scan (of affine maps), and whose
transpose is a linear recurrence in the opposite direction. So a gradient communicates as much as the scan itself.
(Gradients follow Martin and Cundy, "Parallelizing linear recurrent neural nets over sequence length", 2018.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.caches import Recent, on_clear
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.alike import structure
from meshwright.ir.contract import ArrayLike, Localizer, Value
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents, Dual, Tangent, Zero
from meshwright.ir.passes import dead_code, inline_calls
from meshwright.ir.rewrite import Interpreter
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ops.composite import Composite, traced
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.monoid import nothing
from meshwright.ops.elementwise.table import add, eq, max_, min_, mul, or_, select, zeros_like
from meshwright.ops.indexing.dynamic_slice import dynamic_slice_in_dim
from meshwright.ops.reduce.derivative import Forward
from meshwright.ops.scalar_body import along, apply_body, check_body, is_elementwise, lifted, one_shape
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, broadcast_in_dim, match_shape
from meshwright.ops.shape.rearrange import above, squeeze
from meshwright.ops.shape.slice_pad import concatenate, pad, slice_in_dim
from meshwright.sharding.rule import WINDOW, GatheredParts, ShardingRule, make_rule

Combine = Callable[[list[Any], list[Any]], list[Any]]
#: ops that make a function of complex numbers holomorphic
_HOLOMORPHIC = frozenset({"add", "sub", "mul", "div", "neg", "exp"})
#: ops whose derivative is shared between equal operands, so that it depends on the order of combination
_SHARING = frozenset({"max", "min"})


# --- the tree -----------------------------------------------------------------------------------------------
def prefixes(combine: Combine, xs: list[Any], dims: Sequence[int], reverse: bool = False) -> list[Any]:
    """All prefixes of arrays along one dimension of each, in logarithmic depth; ``reverse`` counts and combines from
    the last element."""
    n = typeof(xs[0]).shape[dims[0]]
    if n < 2:
        return xs

    def part(values: list[Any], start: int, stop: int, stride: int = 1) -> list[Any]:
        if reverse:
            size = typeof(values[0]).shape[dims[0]]
            count = -(-(stop - start) // stride)
            start, stop = size - start - (count - 1) * stride - 1, size - start
        return [slice_in_dim(x, start, stop, stride, axis=d) for x, d in zip(values, dims)]

    # Prefixes that end at odd positions are computed from pairs; the others need one more element.
    odd = prefixes(combine, combine(part(xs, 0, n - 1, 2), part(xs, 1, n, 2)), dims, reverse)
    m = typeof(odd[0]).shape[dims[0]]
    even = part(xs, 0, 1)
    if n > 2:
        rest = combine(part(odd, 0, m - (n % 2 == 0)), part(xs, 2, n, 2))
        even = [concatenate([b, a] if reverse else [a, b], d) for a, b, d in zip(even, rest, dims)]
    return [_interleaved(a, b, d, reverse) for a, b, d in zip(even, odd, dims)]


def _interleaved(even: Any, odd: Any, dim: int, reverse: bool) -> Any:
    a, b = typeof(even), typeof(odd)
    total = a.shape[dim] + b.shape[dim]

    def spread(x: Any, before: int) -> Any:
        after = total - before - (2 * typeof(x).shape[dim] - 1)
        config = [(0, 0, 0)] * a.ndim
        config[dim] = (after, before, 1) if reverse else (before, after, 1)
        return pad(x, nothing(a.dtype), config)

    combine = or_ if dtypes.is_bool(a.dtype) else add
    return combine(spread(even, 0), spread(odd, 1))


# --- functions of scalars -----------------------------------------------------------------------------------
_known: Recent[Any, ClosedJaxpr] = Recent(1024)
on_clear(_known.clear)


class _NotElementwise(Exception):
    """A function is not elementwise."""


class _OfScalars(Interpreter[Any]):
    """Interprets an elementwise program on scalars instead of arrays."""

    def equation(self, eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
        if isinstance(eqn.op, BroadcastInDim) and not eqn.invars[0].aval.shape:
            return args
        if not isinstance(eqn.op, Elementwise):
            raise _NotElementwise
        return [eqn.op.bind(*args)]


def body_of(combine: Combine, avals: Sequence[ShapedArray]) -> ClosedJaxpr | None:
    """The function of scalars that ``combine`` applies to each element of arrays; None if it is not elementwise.

    Equivalent functions have the same body, so that compiled programs are reused."""
    if len({a.shape for a in avals}) > 1:
        return None
    n = len(avals)
    whole = inline_calls(trace_to_jaxpr(lambda *xs: combine(list(xs[:n]), list(xs[n:])), [*avals, *avals]))
    if whole.consts or [(a.shape, a.dtype) for a in whole.out_avals] != [(a.shape, a.dtype) for a in avals]:
        return None
    scalars = [ShapedArray((), a.dtype) for a in (*avals, *avals)]
    try:
        body = dead_code(trace_to_jaxpr(lambda *xs: _OfScalars().run(whole, xs), scalars, "combine"))
    except _NotElementwise:
        return None
    if body.consts or not is_elementwise(body):
        return None
    return _known.setdefault(structure(body), body)


# --- the scan -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AssociativeScan(Composite):
    """For operands of one shape: element ``i`` of the results combines elements ``0`` to ``i`` along ``axis``, or with
    ``reverse`` the last ones down to ``i``. The first operands of ``computation`` are the accumulated values."""

    computation: ClosedJaxpr
    axis: int
    reverse: bool = False
    name: ClassVar[str] = "associative_scan"
    multiple_results: ClassVar[bool] = True
    holds_jaxprs: ClassVar[bool] = True
    takes_whole_rows: ClassVar[bool] = True

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        shape = one_shape(self.name, avals)
        if not 0 <= self.axis < len(shape):
            raise ShapeError(f"{self.name}: axis {self.axis} does not exist in shape {shape}")
        check_body(self.name, self.computation, avals)
        if any(a.weak_type for a in avals):
            return tuple(traced(self.expand, self.name, tuple(avals)).out_avals)
        return tuple(avals)

    def expand(self, *operands: Value) -> list[Value]:
        dims = [self.axis] * len(operands)
        return prefixes(lambda a, b: apply_body(self.computation, *a, *b), list(operands), dims, self.reverse)

    # --- derivatives ----------------------------------------------------------------------------------------
    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        if not self._is_linearized(primals):
            body = traced(self.expand, self.name, tuple(map(typeof, primals)))
            ys, dys = zip(*Forward().run(body, list(zip(primals, tangents))))
            return list(ys), list(dys)
        ys = self.bind(*primals)
        by_before, by_element = self._partials(ys, primals)
        inputs: dict[int, Any] = {}
        first = self._is_first(typeof(ys[0]).shape)
        for (p, q), coefficient in by_element.items():
            t = tangents[q]
            if not isinstance(t, Zero):
                # The first element is its own result only: a NaN in it must not reach others multiplied by 0.
                term = mul(coefficient, t if p == q else select(first, zeros_like(t), t))
                inputs[p] = add(inputs[p], term) if p in inputs else term
        found = recurrence(by_before, inputs, self.axis, self.reverse)
        return ys, [found.get(p, Zero(typeof(y))) for p, y in enumerate(ys)]

    def _is_linearized(self, operands: Sequence[Any]) -> bool:
        """Whether the derivative is a linear recurrence in one dtype that agrees with the derivative of the tree."""
        moving = {dt for dt in (typeof(x).dtype for x in operands) if dtypes.is_inexact(dt)}
        names = {e.op.name for e in self.computation.eqns}
        is_smooth = names <= _HOLOMORPHIC if any(map(dtypes.is_complex, moving)) else names.isdisjoint(_SHARING)
        return is_elementwise(self.computation) and len(moving) == 1 and is_smooth

    def _partials(
        self, ys: Sequence[Any], xs: Sequence[Any]
    ) -> tuple[dict[tuple[int, int], Any], dict[tuple[int, int], Any]]:
        """The derivatives of result ``p`` with respect to operand ``q``, by ``(p, q)``: for accumulated values, and for
        elements.

        The first element is returned unchanged. Its missing predecessor is replaced by the element itself, for which
        the function is defined."""
        n, first = len(xs), self._is_first(typeof(xs[0]).shape)
        moving = [i for i, x in enumerate(xs) if dtypes.is_inexact(typeof(x).dtype)]
        before = [select(first, x, shifted(y, self.axis, self.reverse)) for x, y in zip(xs, ys)]
        sides: tuple[dict[tuple[int, int], Any], dict[tuple[int, int], Any]] = {}, {}
        for side, q in itertools.product((0, 1), moving):
            values = [*before, *xs]
            seeds: list[Any] = [Zero(typeof(v)) for v in values]
            at = side * n + q
            seeds[at] = match_shape(np.ones((), typeof(values[at]).dtype), typeof(values[at]))
            for p, (_, t) in enumerate(Forward().run(self.computation, list(zip(values, seeds)))):
                stays = side == 1 and p == q
                if p in moving and (stays or not isinstance(t, Zero)):
                    alone = np.asarray(int(stays), typeof(xs[p]).dtype)
                    aval = typeof(xs[p])
                    t = match_shape(alone * 0, aval) if isinstance(t, Zero) else match_shape(t, aval)
                    sides[side][p, q] = select(first, match_shape(alone, aval), t)
        return sides

    def _is_first(self, shape: tuple[int, ...]) -> Any:
        start = shape[self.axis] - 1 if self.reverse else 0
        return broadcast_in_dim(np.arange(shape[self.axis]) == start, shape, (self.axis,))

    # --- many arrays, many devices --------------------------------------------------------------------------
    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        place = next(d for d in dims if d is not None)
        arrays = [along(x, d, place, axis.size) for x, d in zip(args, dims)]
        return type(self)(self.computation, above(self.axis, place), self.reverse).bind(*arrays), [place] * len(args)

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        return rule_along(self.axis, avals[0].shape, len(avals), len(avals))

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        axis, count = self.axis, len(operands)
        if not ctx.is_split(0, axis):
            return self.bind(*operands)
        scan, own = self, list(operands)
        if self.reverse and ctx.is_uneven(0, axis):  # otherwise the padding comes last
            exists = match_shape(np.bool_(True), typeof(operands[0]).update(dtype=dtypes.bool_))
            own.append(ctx.mask(exists, 0, axis, np.bool_(False)))
            scan = type(self)(lifted(self.computation), axis, True)
        mine = scan.bind(*own)
        shape = typeof(mine[0]).shape
        last, axes = 0 if self.reverse else shape[axis] - 1, ctx.axes(0, axis)
        ends = [ctx.all_gather(slice_in_dim(y, last, last + 1, axis=axis), axes, axis) for y in mine]
        tile, tiles = ctx.tile_index(axes), ctx.num_tiles(0, axis)
        first = np.int32(tiles - 1 if self.reverse else 0)
        place = min_(add(tile, np.int32(1)), first) if self.reverse else max_(add(tile, np.int32(-1)), first)
        kept = [d for d in range(len(shape)) if d != axis]
        before = [
            broadcast_in_dim(squeeze(dynamic_slice_in_dim(total, place, 1, axis), [axis]), shape, kept)
            for total in scan.bind(*ends)
        ]
        is_first = match_shape(eq(tile, first), typeof(mine[0]).update(dtype=dtypes.bool_))
        both = apply_body(scan.computation, *before, *mine)
        return [select(is_first, y, z) for y, z in zip(mine, both)][:count]


def rule_along(axis: int, shape: Sequence[int], operands: int, results: int) -> ShardingRule:
    """The rule of ops on arrays of one shape that combine rows along one axis."""
    names = [f"d{d}" for d in range(len(shape))]
    kinds, passes = {names[axis]: WINDOW}, {names[axis]: GatheredParts(shape[axis])}
    return make_rule([names] * operands, [names] * results, dict(zip(names, shape)), kinds, passes=passes)


def shifted(x: Any, axis: int, reverse: bool) -> Any:
    """The predecessor of each element, zero for the first."""
    config = [(0, 0, 0)] * typeof(x).ndim
    config[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return pad(x, np.zeros((), typeof(x).dtype), config)


def cumulative(body: ClosedJaxpr, axis: int, reverse: bool, arrays: Sequence[Any], initial: Sequence[Any]) -> list[Any]:
    """For each element, the reduction of all up to it, or with ``reverse`` from it on, starting from initial values."""
    n = len(arrays)
    turned = lambda *xs: eval_jaxpr(body, body.consts, *xs[n:], *xs[:n])  # noqa: E731
    scan = AssociativeScan(traced(turned, "turned", tuple(body.in_avals)) if reverse else body, axis, reverse)
    return apply_body(body, *(match_shape(x, typeof(y)) for x, y in zip(initial, arrays)), *scan.bind(*arrays))


# --- linear recurrences -------------------------------------------------------------------------------------
def recurrence(
    matrix: Mapping[tuple[int, int], Any], inputs: Mapping[int, Any], axis: int, reverse: bool
) -> dict[int, Any]:
    """The outputs of a linear recurrence, by number; those that depend on no input are zero, and omitted."""
    reached = set(inputs)
    while more := {p for p, q in matrix if q in reached} - reached:
        reached |= more
    rows = sorted(reached)
    entries = [(p, q) for p, q in matrix if q in reached]
    like = next(iter(inputs.values()))
    given = [inputs[p] if p in inputs else zeros_like(like) for p in rows]
    if entries:
        op = LinearRecurrence(tuple((rows.index(p), rows.index(q)) for p, q in entries), axis, reverse)
        given = op.bind(*(matrix[e] for e in entries), *given)
    return dict(zip(rows, given))


@dataclass(frozen=True)
class LinearRecurrence(Composite):
    """``y[i] = A[i] y[i - 1] + c[i]`` along ``axis``, or with ``reverse`` from the last element, for vectors and
    matrices of arrays. Operands are the ``entries`` ``(row, column)`` of A, then c. A at the first element is not
    used."""

    entries: tuple[tuple[int, int], ...]
    axis: int
    reverse: bool = False
    name: ClassVar[str] = "linear_recurrence"
    multiple_results: ClassVar[bool] = True
    takes_whole_rows: ClassVar[bool] = True

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        shape, inputs = one_shape(self.name, avals), avals[len(self.entries) :]
        if not 0 <= self.axis < len(shape) or len({a.dtype for a in avals}) > 1:
            raise ShapeError(f"{self.name}: axis {self.axis} is not of {', '.join(map(str, avals))}, or dtypes differ")
        if any(not 0 <= i < len(inputs) for entry in self.entries for i in entry):
            raise ShapeError(f"{self.name}: entries {self.entries} of a matrix for {len(inputs)} arrays")
        return tuple(inputs)

    def _parts(self, operands: Sequence[Any]) -> tuple[dict[tuple[int, int], Any], list[Any]]:
        n = len(self.entries)
        return dict(zip(self.entries, operands)), list(operands[n:])

    def _as_scan(self, operands: Sequence[Any]) -> tuple[AssociativeScan, list[Any]]:
        """The equivalent scan of affine maps, whose last results are this op's, and its operands."""
        matrix, inputs = self._parts(operands)
        affine = _Affine(_closure(self.entries), len(inputs))
        scalar = ShapedArray((), typeof(inputs[0]).dtype)
        n = len(affine.entries) + len(inputs)
        body = traced(affine, "affine", (scalar,) * (2 * n))
        full = [matrix[e] if e in matrix else zeros_like(inputs[0]) for e in affine.entries]
        return AssociativeScan(body, self.axis, self.reverse), [*full, *inputs]

    def expand(self, *operands: Value) -> list[Value]:
        scan, full = self._as_scan(operands)
        outs: list[Value] = scan.bind(*full)
        return outs[len(full) - len(operands) + len(self.entries) :]

    # --- derivatives ----------------------------------------------------------------------------------------
    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        ys = self.bind(*primals)
        of_matrix, of_inputs = self._parts(tangents)
        before = [shifted(y, self.axis, self.reverse) for y in ys]
        sums = [zeros_like(y) if isinstance(t, Zero) else t for y, t in zip(ys, of_inputs)]
        for (p, q), t in of_matrix.items():
            if not isinstance(t, Zero):
                sums[p] = add(sums[p], mul(t, before[q]))
        return ys, self.bind(*primals[: len(self.entries)], *sums)

    def transpose(self, cts: Any, *operands: Any) -> Cotangents:
        matrix, inputs = self._parts(operands)
        after = {(q, p): shifted(a, self.axis, not self.reverse) for (p, q), a in matrix.items()}
        there = {p: ct for p, ct in enumerate(cts) if not isinstance(ct, Zero)}
        found = recurrence(after, there, self.axis, not self.reverse) if there else {}
        return [*(None for _ in self.entries), *(found.get(p, Zero(x.aval)) for p, x in enumerate(inputs))]

    # --- many arrays, many devices --------------------------------------------------------------------------
    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        place = next(d for d in dims if d is not None)
        arrays = [along(x, d, place, axis.size) for x, d in zip(args, dims)]
        outs = LinearRecurrence(self.entries, above(self.axis, place), self.reverse).bind(*arrays)
        return outs, [place] * len(outs)

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        return rule_along(self.axis, avals[0].shape, len(avals), len(avals) - len(self.entries))

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        if not ctx.is_split(0, self.axis):
            return self.bind(*operands)
        scan, full = self._as_scan(operands)
        outs: Any = scan.localize(ctx, *full)
        return outs[len(full) - len(operands) + len(self.entries) :]


def _closure(entries: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The entries that may be nonzero in any power of a matrix."""
    found = set(entries)
    while more := {(p, r) for p, q in found for s, r in entries if q == s} - found:
        found |= more
    return tuple(sorted(found))


@dataclass(frozen=True)
class _Affine:
    """Composes two affine maps of scalars, given as entries of a matrix followed by those of a vector."""

    entries: tuple[tuple[int, int], ...]
    count: int

    def __call__(self, *scalars: Any) -> list[Any]:
        n = len(self.entries)
        half = n + self.count
        first, later = dict(zip(self.entries, scalars)), dict(zip(self.entries, scalars[half:]))
        c, d = scalars[n:half], scalars[half + n :]

        def product(row: int, column: int) -> Any:
            terms = [mul(a, first[q, column]) for (p, q), a in later.items() if p == row and (q, column) in first]
            return reduce(add, terms) if terms else zeros_like(d[0])

        def applied(row: int) -> Any:
            return reduce(add, [*(mul(a, c[q]) for (p, q), a in later.items() if p == row), d[row]])

        return [*(product(*e) for e in self.entries), *map(applied, range(self.count))]
