"""bitcast_convert to elements of another width: each element becomes a row of narrower ones, or each row a wider
one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Op
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import BitcastConvert
from meshwright.ops.shape.rearrange import not_last
from meshwright.sharding.rule import ShardingRule, make_rule


@dataclass(frozen=True)
class BitcastWidth(Op):
    """The bits of elements as elements of ``dtype``, lowest bits first along the last dimension, which only the
    narrower of the two types has."""

    dtype: np.dtype
    name: ClassVar[str] = "bitcast_width"
    constant_in: ClassVar[frozenset[int]] = frozenset({0})

    def infer(self, x: ShapedArray) -> ShapedArray:
        before, after = dtypes.bit_width(x.dtype), dtypes.bit_width(self.dtype)
        if dtypes.is_bool(x.dtype) or dtypes.is_bool(self.dtype):
            raise DTypeError(
                f"{self.name}: {x} as {self.dtype}: bools are bytes in memory, not bits; compare the bits of integers "
                "instead, or add them up"
            )
        if before == after:
            raise DTypeError(f"{self.name}: expected types of two widths, got {x} and {self.dtype}")
        if before > after and before % after == 0:
            return ShapedArray((*x.shape, before // after), self.dtype)
        if after % before or not x.ndim or x.shape[-1] != after // before:
            raise ShapeError(f"{self.name}: the last dimension of {x} must hold the parts of one {self.dtype}")
        return ShapedArray(x.shape[:-1], self.dtype)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        assert dim is not None
        if self._widens(typeof(x)):  # the last dimension is consumed
            x, dim = not_last(x, dim)
        return self.bind(x), dim

    def _widens(self, x: ShapedArray) -> bool:
        return dtypes.bit_width(self.dtype) > dtypes.bit_width(x.dtype)

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        out = self.infer(x)
        shape = min(x.shape, out.shape, key=len)
        names: list[str | None] = [f"d{d}" for d in range(len(shape))]
        ins, outs = ([*names, None] if a.ndim > len(shape) else names for a in (x, out))
        return make_rule([ins], [outs], dict(zip((n for n in names if n), shape)))

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.bitcast_convert", [x], b.out_avals)[0]


def bitcast(x: Any, dtype: np.dtype) -> Any:
    """The bits of ``x`` as ``dtype``; a narrower one adds a last dimension, a wider one consumes it."""
    same = dtypes.bit_width(typeof(x).dtype) == dtypes.bit_width(dtype)
    return (BitcastConvert if same else BitcastWidth)(dtype).bind(x)


@reads("stablehlo.bitcast_convert")
def _read_bitcast(r: Reader) -> Any:
    (x,) = r.operands
    return bitcast(x, r.out_avals[0].dtype)
