"""Strided rows of an array, some beyond its ends, as in gradients of paddings that crop and dilate.

They are written as zero padding followed by a strided slice. Along a split dimension, each of the two would move rows
to tiles of its own; combined, rows are fetched once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Localizer, Value
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents
from meshwright.ir.rewrite import Replacement, in_regions, replaced
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import scalar_like
from meshwright.ops.shape.joined_pads import is_zero, zeros_of
from meshwright.ops.shape.rearrange import Linear1, above
from meshwright.ops.shape.slice_pad import Pad, Slice, pad, slice_in_dim
from meshwright.sharding.rule import WINDOW, ShardingRule, make_rule
from meshwright.sharding.window import SentWindows, Shown


@dataclass(frozen=True)
class SpacedRows(Linear1, Composite):
    """Rows ``start, start + stride, ...`` (``length`` of them) along ``dimension``; zeros outside the array."""

    dimension: int
    start: int
    stride: int
    length: int
    name: ClassVar[str] = "spaced_rows"

    def infer(self, x: ShapedArray) -> ShapedArray:
        d = self.dimension
        if not 0 <= d < x.ndim or self.stride < 1 or self.length < 1:
            raise ShapeError(f"spaced_rows: no {self.length} rows, each {self.stride} after another, along {d} in {x}")
        return x.update(shape=(*x.shape[:d], self.length, *x.shape[d + 1 :]))

    @property
    def stop(self) -> int:
        return self.start + (self.length - 1) * self.stride + 1

    def expand(self, x: Value) -> list[Value]:
        d, size = self.dimension, x.shape[self.dimension]
        config = [(0, 0, 0)] * x.ndim
        config[d] = (max(0, -self.start), max(0, self.stop - size), 0)
        low = max(0, self.start)
        return [slice_in_dim(pad(x, scalar_like(0, x), config), low, low + self.stop - self.start, self.stride, d)]

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        config = [(0, 0, 0)] * x.aval.ndim
        config[self.dimension] = (self.start, x.aval.shape[self.dimension] - self.stop, self.stride - 1)
        return [pad(ct, scalar_like(0, ct), config)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        return SpacedRows(above(self.dimension, dim), self.start, self.stride, self.length).bind(x), dim  # type: ignore[arg-type]

    def shown(self, size: int) -> Shown:
        """The part of a dimension of the given size in the result."""
        return Shown(size, self.length, -self.start, self.stride)

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names, d = [f"d{d}" for d in range(x.ndim)], self.dimension
        sizes = dict(zip(names, map(max, x.shape, self.infer(x).shape)))
        passes = {names[d]: SentWindows((self.shown(x.shape[d]),))}
        return make_rule([names], [names], sizes, {names[d]: WINDOW}, passes=passes)

    def localize(self, ctx: Localizer, x: Value) -> ArrayLike | Sequence[ArrayLike]:
        d = self.dimension
        if not ctx.is_split(0, d):
            return self.expand(x)[0]
        return ctx.fetch_shown(x, 0, d, self.shown(ctx.in_avals[0].shape[d]))

    def moved(self, x: np.ndarray) -> np.ndarray:
        rows, size = np.arange(self.start, self.stop, self.stride), x.shape[self.dimension]
        there = ((rows >= 0) & (rows < size)).reshape(-1, *[1] * (x.ndim - self.dimension - 1))
        return np.where(there, np.take(x, rows, self.dimension, mode="clip"), np.zeros((), x.dtype))


# --- recognized in programs ---------------------------------------------------------------------------------
def spaced_rows(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Combine zero padding and strided slices of the result."""
    zeros, pads = zeros_of(jaxpr), dict[Var, JaxprEqn]()

    def rewritten(eqn: JaxprEqn) -> Replacement:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, spaced_rows)
        if isinstance(eqn.op, Pad) and is_zero(eqn.invars[1], zeros):
            pads[eqn.outvars[0]] = eqn
        padded = pads.get(eqn.invars[0]) if isinstance(eqn.op, Slice) else None  # type: ignore[arg-type]
        return eqn if padded is None else _spaced(eqn, padded) or eqn

    return replaced(jaxpr, rewritten)


def _spaced(eqn: JaxprEqn, padded: JaxprEqn) -> list[JaxprEqn]:
    """The replacement of a strided slice of a padding, dimension by dimension; empty if it does not apply."""
    config, x = padded.op.padding_config, padded.invars[0]  # type: ignore[attr-defined]
    starts, strides = eqn.op.start_indices, eqn.op.strides  # type: ignore[attr-defined]
    spaced = any(stride > 1 and (low or high) for (low, high, _), stride in zip(config, strides))
    if not spaced or any(inner for *_, inner in config):
        return []
    eqns: list[JaxprEqn] = []
    for d, (length, size) in enumerate(zip(eqn.outvars[0].aval.shape, x.aval.shape)):
        op = SpacedRows(d, starts[d] - config[d][0], strides[d], length)
        if (op.start, op.stride, length) == (0, 1, size):
            continue
        if min(length, size) < 2:  # a single row is not worth splitting
            return []
        out = Var(op.infer(x.aval))
        eqns.append(eqn.replace(op=op, invars=[x], outvars=[out]))
        x = out
    return [*eqns[:-1], eqns[-1].replace(outvars=eqn.outvars)]
