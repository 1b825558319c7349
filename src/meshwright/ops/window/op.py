"""The common base of sliding-window ops: parameters, shapes, batching and sharding rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Region
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Op
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.monoid import Monoid
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import above, move_dim
from meshwright.ops.window.geometry import Pads, SentHalos, WindowDim, make_windows
from meshwright.sharding.rule import PARALLEL, REDUCTION, WINDOW, ShardingRule, make_rule

Dims = tuple[int, ...]


@dataclass(frozen=True)
class WindowOp(Op):
    """Base class: a window over each dimension; batch and feature dimensions have windows of one element."""

    window_dimensions: Dims
    window_strides: Dims
    padding: Pads
    base_dilation: Dims
    window_dilation: Dims
    #: combines the parts of a split dimension that one window covers; None if it may not be split so
    monoid: ClassVar[Monoid | None] = None

    @property
    def windows(self) -> tuple[WindowDim, ...]:
        """The windows, one per dimension."""
        return make_windows(
            self.window_dimensions, self.window_strides, self.padding, self.base_dilation, self.window_dilation
        )

    @property
    def is_dilated(self) -> bool:
        return any(d != 1 for d in (*self.base_dilation, *self.window_dilation))

    def with_windows(self, windows: Sequence[WindowDim]) -> Self:
        """This op with other windows."""
        return dataclasses.replace(self, **window_params(windows))

    # --- shapes ---------------------------------------------------------------------------------------------
    def result_shape(self, x: ShapedArray) -> Dims:
        """The number of windows in each dimension.

        Raises:
          ShapeError: the parameters do not fit the operand.
        """
        for field in ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation"):
            value = getattr(self, field)
            if len(value) != x.ndim:
                raise ShapeError(
                    f"{self.name}: {field} {value} needs {counted(x.ndim, 'entry', 'entries')}, one a dimension of the "
                    f"operand {x}; give dimensions without a window 1, padding (0, 0)"
                )
        for d, (window, n) in enumerate(zip(self.windows, x.shape)):
            window.check(self.name, d, n)
        return tuple(window.output_size(n) for window, n in zip(self.windows, x.shape))

    # --- batching -------------------------------------------------------------------------------------------
    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        place = next(d for d in dims if d is not None)
        full = []
        for x, d in zip(args, dims):
            shape = typeof(x).shape
            if d is None:
                kept = [above(i, place) for i in range(len(shape))]
                full.append(broadcast_in_dim(x, (*shape[:place], axis.size, *shape[place:]), kept))
            else:
                full.append(move_dim(x, d, place))
        windows = self.windows
        return self.with_windows((*windows[:place], WindowDim(1), *windows[place:])).bind(*full), place

    # --- sharding -------------------------------------------------------------------------------------------
    def split_kind(self, window: WindowDim, n: int) -> str:
        """How a dimension of ``n`` rows may be split."""
        if window.is_trivial:
            return PARALLEL
        return REDUCTION if self.monoid and window.covers(n) else WINDOW

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        shapes = [a.shape for a in (*avals, self.infer(*avals))]
        operand = avals[-1].shape
        names: list[list[str | None]] = [[] for _ in shapes]
        kinds, sizes = {}, {}
        for d, (window, n) in enumerate(zip(self.windows, operand)):
            name, kind = f"d{d}", self.split_kind(window, n)
            splittable = n > 0 and window.output_size(n) > 0
            kinds[name], sizes[name] = kind, n
            for dims in names:
                dims.append(name if splittable else None)
            if kind == REDUCTION:
                names[-1][d] = None
        windows = zip(self.windows, operand)
        passes = {f"d{d}": SentHalos(w, n) for d, (w, n) in enumerate(windows) if kinds[f"d{d}"] == WINDOW}
        kind = self.monoid.kind if self.monoid else "sum"
        return make_rule(names[:-1], names[-1:], sizes, kinds, kind, passes)

    # --- StableHLO ------------------------------------------------------------------------------------------
    def emit_reduce_window(
        self,
        b: Builder,
        operands: Sequence[Emitted],
        values: Sequence[Emitted],
        outs: Sequence[ShapedArray],
        region: Region,
    ) -> list[Emitted]:
        """Emit ``stablehlo.reduce_window`` of operands of ``outs``' dtypes, with initial values."""
        padding, base = self.padding, self.base_dilation
        if any(min(pair) < 0 for pair in padding) or any(d != 1 for d in base):
            # XLA's simplifier fails on some of these (a CHECK of equal shapes for windows of one element).
            shape = max((a.shape for a in b.in_avals), key=len)
            padded = tuple(w.padded_size(n) for w, n in zip(self.windows, shape))
            operands = [
                emit_pad(b, x, v, a.update(shape=padded), padding, base) for x, v, a in zip(operands, values, outs)
            ]
            padding, base = ((0, 0),) * len(shape), (1,) * len(shape)
        return b.op(
            "stablehlo.reduce_window", [*operands, *values], outs, regions=[region],
            window_dimensions=self.window_dimensions,
            window_strides=self.window_strides,
            base_dilations=base,
            window_dilations=self.window_dilation,
            padding=pads_array(padding),
        )  # fmt: skip


def emit_pad(
    b: Builder,
    x: Emitted,
    value: Emitted,
    aval: ShapedArray,
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Emitted:
    """Emit ``stablehlo.pad`` to ``aval`` with ``dilation - 1`` rows between rows."""
    return b.op(
        "stablehlo.pad", [x, value], [aval],
        edge_padding_low=tuple(lo for lo, _ in padding), edge_padding_high=tuple(hi for _, hi in padding),
        interior_padding=tuple(d - 1 for d in dilation),
    )[0]  # fmt: skip


def window_params(windows: Sequence[WindowDim]) -> dict[str, Any]:
    """The fields of a :class:`WindowOp` with these windows."""
    return {
        "window_dimensions": tuple(w.size for w in windows),
        "window_strides": tuple(w.stride for w in windows),
        "padding": tuple((w.low, w.high) for w in windows),
        "base_dilation": tuple(w.base_dilation for w in windows),
        "window_dilation": tuple(w.window_dilation for w in windows),
    }


def pads_array(padding: Pads) -> np.ndarray:
    """Padding in StableHLO's form: one ``[low, high]`` row per dimension."""
    return np.array(padding, np.int64).reshape(len(padding), 2)
