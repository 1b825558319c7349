"""The largest elements along the last dimension.

If it is split, only candidates are communicated: each device finds the ``k`` largest of its tile, and these are merged
along parts of mesh axes, one after the other; a device receives ``k (n - 1)`` elements for a part of size ``n``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.static import static_index
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer, Value
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Dual, Op, Tangent, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import add, convert, div, mul
from meshwright.ops.indexing.gather_scatter import gather_along
from meshwright.ops.shape.rearrange import move_dim, not_last, reshape
from meshwright.sharding.rule import WINDOW, GatheredParts, ShardingRule, make_rule


@dataclass(frozen=True)
class TopK(Op):
    """The ``k`` largest elements along the last dimension, in descending order, and their positions."""

    k: int
    name: ClassVar[str] = "top_k"
    multiple_results: ClassVar[bool] = True
    takes_whole_rows: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> tuple[ShapedArray, ...]:
        if x.ndim == 0 or not 0 <= self.k <= x.shape[-1]:
            raise ShapeError(f"top_k: k={self.k} must be between 0 and the size of the last dimension of {x.shape}")
        if dtypes.is_complex(x.dtype) or dtypes.is_bool(x.dtype):
            raise DTypeError(f"top_k: expected real numbers, got {x}; convert it with .astype")
        shape = (*x.shape[:-1], self.k)
        return x.update(shape=shape), ShapedArray(shape, dtypes.int32, x.weak_type)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y, order = self.bind(*primals)
        t = tangents[0]
        moved = Zero(typeof(y)) if isinstance(t, Zero) else gather_along(t, order, typeof(y).ndim - 1)
        return [y, order], [moved, Zero(typeof(order))]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        assert dim is not None
        x, dim = not_last(x, dim)
        return self.bind(x), [dim, dim]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names: list[str | None] = [f"d{d}" for d in range(x.ndim)]
        sizes = {f"d{d}": s for d, s in enumerate(x.shape)}
        out, last = [*names[:-1], None], f"d{x.ndim - 1}"
        passes = {last: GatheredParts(x.shape[-1], 2 * max(1, self.k))}
        return make_rule([names], [out, out], sizes, {last: WINDOW}, passes=passes)

    def before_merging(self, x: Value, groups: Sequence[tuple[int, ...]]) -> list[Value] | None:
        """Find the largest of each row of the last dimension, then the largest of those."""
        (*rest, row) = groups[-1]
        shape, size = [math.prod(x.shape[d] for d in group) for group in groups], x.shape[row]
        if row != x.ndim - 1 or self.k == 0:
            return None
        k = min(self.k, size)
        values, positions = TopK(k).bind(x)
        if not rest:
            return [values, positions]
        values, positions = (reshape(y, (*shape[:-1], shape[-1] // size * k)) for y in (values, positions))
        values, order = self.bind(values)
        rows = mul(div(order, np.int32(k)), np.int32(size))
        return [values, add(gather_along(positions, order, len(shape) - 1), rows)]

    def localize(self, ctx: Localizer, x: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        last = typeof(x).ndim - 1
        if not ctx.is_split(0, last) or self.k == 0:
            return self.bind(x)
        axes, rows = ctx.axes(0, last), ctx.in_local_shapes[0][last]
        # Padding is the least value, and of equal elements the first are taken.
        x = ctx.mask(x, 0, last, _least(typeof(x).dtype))
        values, positions = TopK(min(self.k, rows)).bind(x)
        positions = ctx.number_rows(positions, 0, last)
        for group in _rounds(ctx, axes, [typeof(y).nbytes for y in (values, positions)]):
            values, positions = (ctx.all_gather(y, group, last) for y in (values, positions))
            values, order = TopK(min(self.k, typeof(values).shape[last])).bind(values)
            positions = gather_along(positions, order, last)
        return [values, positions]

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("chlo.top_k", [x], b.out_avals, k=self.k)


def _rounds(ctx: Localizer, axes: Sequence[str], sizes: Sequence[int]) -> list[Sequence[str]]:
    """The axes in groups, over which candidates of ``sizes`` bytes are gathered in turn; the best of each round go on.

    Minor axes come first, so that neighbouring tiles stay in order. More rounds send less, but each has its latency on
    the mesh's machine.
    """

    def seconds(group: Sequence[str]) -> float:
        n = ctx.mesh.sizes(group)
        return sum(ctx.mesh.collective_seconds("all_gather", group, size, n * size) for size in sizes)

    best: list[tuple[float, list[Sequence[str]]]] = [(0.0, [])]
    for start in reversed(range(len(axes))):
        ends = range(start + 1, len(axes) + 1)
        ways = ((best[len(axes) - end], axes[start:end]) for end in ends)
        rounds = ((cost + seconds(group), [*before, group]) for (cost, before), group in ways)
        best.append(min(rounds, key=itemgetter(0)))
    return best[-1][1]


def _least(dtype: np.dtype) -> np.ndarray:
    """The least value; for floats, whose order is total here, the NaN with all bits set."""
    if not dtypes.is_float(dtype):
        return dtypes.min_value(dtype)
    return np.array(-1, np.int8 if dtype.itemsize == 1 else dtypes.signed_bits(dtype)).view(dtype)


def top_k(operand: Any, k: int, *, axis: int = -1) -> tuple[Any, Any]:
    """The ``k`` largest elements along ``axis``, in descending order, and their positions as int32.

    Equal elements keep their order; NaN is larger than all numbers.

    Raises:
      ShapeError: the axis is out of range, or ``k`` is negative or larger than its size.
      DTypeError: complex operands.

    Example:
      >>> values, positions = lax.top_k(jnp.array([[3, 9, 5], [8, 2, 7]]), 2)
      >>> values.tolist(), positions.tolist()
      ([[9, 5], [8, 7]], [[1, 2], [0, 2]])
    """
    ndim = typeof(operand).ndim
    if not -ndim <= axis < ndim:
        raise ShapeError(f"top_k: axis {axis} does not exist in shape {typeof(operand).shape}")
    last = ndim - 1
    if dtypes.is_bool(typeof(operand).dtype):
        values, positions = top_k(convert(operand, dtypes.uint8), k, axis=axis)
        return convert(values, dtypes.bool_), positions
    outs = TopK(static_index(k, "top_k", "k")).bind(move_dim(operand, axis % ndim, last))
    values, positions = (move_dim(y, last, axis % ndim) for y in outs)
    return values, positions


# --- reading ------------------------------------------------------------------------------------------------
@reads("chlo.top_k")
def _read_top_k(r: Reader) -> list[Any]:
    values, positions = TopK(r.attr("k")).bind(*r.operands)
    return [values, convert(positions, r.out_avals[1].dtype)]
