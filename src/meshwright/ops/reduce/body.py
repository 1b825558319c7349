"""Reductions of one or several arrays by an arbitrary associative function: ``stablehlo.reduce`` with any region.

If a reduced dimension is split, the operands are not gathered: every device reduces its own rows, and the partial
results, one element per device for each result element, are gathered and reduced again. This handles (value, position)
pairs, running moments, and all else for which there is no collective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Dual, Tangent
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import scalar_like
from meshwright.ops.reduce.derivative import each, fold_with_tangents, with_tangents, without_none
from meshwright.ops.scalar_body import (
    BodyOp,
    OnElements,
    along,
    checked_arrays,
    combined_rows,
    lifted,
    one_by_one,
)
from meshwright.ops.shape.broadcast_reduce import batch_reduce_axes, broadcast_in_dim, infer_reduce, match_shape
from meshwright.ops.shape.rearrange import expand_dims, reshape, transpose
from meshwright.sharding.rule import WINDOW, GatheredParts, ShardingRule, make_rule

FALSE, TRUE = np.bool_(False), np.bool_(True)


@dataclass(frozen=True)
class ReduceBody(BodyOp):
    """Operands of one shape, then an initial value for each, reduced together over ``axes`` by ``computation``.

    ``computation`` takes the accumulated values, then one element of each operand. The initial values are included
    once.
    """

    axes: tuple[int, ...]
    computation: ClosedJaxpr
    name: ClassVar[str] = "reduce"

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        arrays = checked_arrays(self.name, self.computation, avals)
        return tuple(infer_reduce(self.name, a, self.axes) for a in arrays)

    def on_arrays(self, apply: OnElements, *operands: Any) -> list[Any]:
        n = len(operands) // 2
        return combined_rows(apply, self.computation, list(map(self._rows, operands[:n])), operands[n:])

    def _rows(self, x: Any) -> Any:
        """``x`` with the reduced dimensions as one, in front."""
        moved = transpose(x, [*self.axes, *(d for d in range(typeof(x).ndim) if d not in self.axes)])
        shape, reduced = typeof(moved).shape, len(self.axes)
        return reshape(moved, (math.prod(shape[:reduced]), *shape[reduced:]))

    # --- rules ----------------------------------------------------------------------------------------------
    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        n = len(primals) // 2
        pairs = with_tangents(primals, tangents)
        rows = [each(self._rows, pair) for pair in pairs[:n]]
        return without_none(fold_with_tangents(self.name, self.computation, pairs[n:], rows))

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        n = len(args) // 2
        if any(d is not None for d in dims[n:]):
            return one_by_one(self, axis, args, dims)
        place = next(d for d in dims if d is not None)
        arrays = [along(x, d, place, axis.size) for x, d in zip(args[:n], dims)]
        axes, out = batch_reduce_axes(self.axes, place)
        return ReduceBody(axes, self.computation).bind(*arrays, *args[n:]), [out] * n

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        n, shape = len(avals) // 2, avals[0].shape
        names = [f"d{d}" for d in range(len(shape))]
        kept = [name for d, name in enumerate(names) if d not in self.axes]
        kinds = {names[d]: WINDOW for d in self.axes}
        passes = {names[d]: GatheredParts(shape[d]) for d in self.axes}
        return make_rule([names] * n + [[]] * n, [kept] * n, dict(zip(names, shape)), kinds, passes=passes)

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        n = len(operands) // 2
        arrays, inits = operands[:n], operands[n:]
        split = [d for d in self.axes if ctx.is_split(0, d)]
        if not split:
            return self.bind(*operands)
        exists = None
        if any(ctx.is_uneven(0, d) for d in split):
            exists = match_shape(TRUE, typeof(arrays[0]).update(dtype=dtypes.bool_))
            for d in split:
                exists = ctx.mask(exists, 0, d, FALSE)
        *parts, _ = reduce_parts(self.computation, self.axes, arrays, exists, None)
        axes = [a for d in split for a in ctx.axes(0, d)]
        gathered = [ctx.all_gather(expand_dims(x, [0]), axes, 0) for x in parts]
        full = _tiles_with_rows(ctx, split)
        if full.all():
            return ReduceBody((0,), self.computation).bind(*gathered, *inits)
        flags = broadcast_in_dim(full, typeof(gathered[0]).shape, (0,))
        return reduce_parts(self.computation, (0,), gathered, flags, inits)[:-1]

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        region = b.jaxpr_region(self.computation)
        return b.op("stablehlo.reduce", operands, b.out_avals, regions=[region], dimensions=tuple(self.axes))


def _tiles_with_rows(ctx: Localizer, dims: Sequence[int]) -> np.ndarray:
    """For each tile of some dimensions of operand 0, the first dimension major: whether it has any rows."""
    full = np.ones((1,), np.bool_)
    for d in dims:
        rows = ctx.in_local_shapes[0][d]
        mine = np.arange(ctx.num_tiles(0, d)) * rows < ctx.in_avals[0].shape[d]
        full = (full[:, None] & mine).reshape(-1)
    return full


def reduce_parts(
    body: ClosedJaxpr, axes: Sequence[int], arrays: Sequence[Any], exists: Any, inits: Sequence[Any] | None
) -> list[Any]:
    """Reduce ``arrays`` where ``exists`` (None: everywhere), starting from ``inits`` (None: from nothing).

    The last result tells where there was anything to reduce.
    """
    if exists is None:
        exists = match_shape(TRUE, typeof(arrays[0]).update(dtype=dtypes.bool_))
    first = [scalar_like(0, x) for x in arrays] if inits is None else inits
    some = FALSE if inits is None else TRUE
    outs: list[Any] = ReduceBody(tuple(axes), lifted(body)).bind(*arrays, exists, *first, some)
    return outs
