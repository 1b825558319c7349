"""Windows with arbitrary functions: ``reduce_window`` and ``select_and_scatter`` with any regions.

Along a split dimension, devices fetch the rows in their windows; rows outside the array are the initial value, with
which StableHLO pads. Cumulative reductions, which StableHLO expresses as windows as long as the dimension, are
recognized (:mod:`meshwright.ops.reduce.associative`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Dual, Tangent
from meshwright.ir.reading import Reader
from meshwright.ir.tracing import typeof
from meshwright.ops.reduce.associative import cumulative
from meshwright.ops.reduce.derivative import fold_with_tangents, with_tangents, without_none
from meshwright.ops.scalar_body import (
    BodyOp,
    OnElements,
    along,
    batched_with_initial,
    checked_arrays,
    combined_rows,
    one_by_one,
    read_body,
)
from meshwright.ops.shape.rearrange import expand_dims
from meshwright.ops.shape.slice_pad import concatenate
from meshwright.ops.window.geometry import WindowDim, fetch_for_result
from meshwright.ops.window.op import WindowOp, pads_array
from meshwright.ops.window.slices import window_slices
from meshwright.sharding.rule import REPLICATED, ShardingRule, make_rule


@dataclass(frozen=True)
class _BodyWindow(WindowOp):
    """Base class: operands of one shape, with the same windows over all of them."""

    multiple_results: ClassVar[bool] = True
    holds_jaxprs: ClassVar[bool] = True


# --- reduce_window ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ReduceWindowBody(_BodyWindow, BodyOp):
    """Operands of one shape, then an initial value for each: what each window sees, reduced by ``computation``."""

    computation: ClosedJaxpr
    name: ClassVar[str] = "reduce_window"

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        arrays = checked_arrays(self.name, self.computation, avals)
        return tuple(a.update(shape=self.result_shape(a)) for a in arrays)

    def on_arrays(self, apply: OnElements, *operands: Any) -> list[Any]:
        n = len(operands) // 2
        return combined_rows(apply, self.computation, list(map(self._seen, operands[:n], operands[n:])), operands[n:])

    def _seen(self, x: Any, init: Any) -> Any:
        """The elements seen by windows: row ``i`` has the element at position ``i`` of each window."""
        return concatenate([expand_dims(part, [0]) for part in window_slices(x, self.windows, init)], 0)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        n = len(primals) // 2
        pairs = with_tangents(primals, tangents)

        stacked = [
            (self._seen(x, init), None if t is None else self._seen(t, t_init))
            for (x, t), (init, t_init) in zip(pairs[:n], pairs[n:])
        ]
        return without_none(fold_with_tangents(self.name, self.computation, pairs[n:], stacked))

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        windows = self.windows
        at = lambda place: self.with_windows((*windows[:place], WindowDim(1), *windows[place:]))  # noqa: E731
        return batched_with_initial(self, at, axis, args, dims)

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        n, shape = len(avals) // 2, avals[0].shape
        out = self.result_shape(avals[0])
        names = [f"d{d}" if a and b else None for d, (a, b) in enumerate(zip(shape, out))]
        kinds = {f"d{d}": self.split_kind(w, shape[d]) for d, w in enumerate(self.windows)}
        sizes = {f"d{d}": s for d, s in enumerate(shape)}
        return make_rule([names] * n + [[]] * n, [names] * n, sizes, kinds)

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        n = len(operands) // 2
        arrays, inits, windows = list(operands[:n]), operands[n:], list(self.windows)
        for d, window in enumerate(self.windows):
            if ctx.is_split(0, d) and not window.is_trivial:
                rows = ctx.out_local_shapes[0][d]
                for i in range(n):
                    arrays[i], windows[d] = fetch_for_result(ctx, arrays[i], i, d, window, rows, inits[i])
        return self.with_windows(windows).bind(*arrays, *inits)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        n = len(operands) // 2
        region = b.jaxpr_region(self.computation)
        return self.emit_reduce_window(b, operands[:n], operands[n:], b.out_avals, region)


# --- select_and_scatter -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SelectAndScatterBody(_BodyWindow):
    """For ``operand``, ``source`` and an initial value: each window selects an element of the operand by ``choice``,
    and the window's element of the source is combined into the result there by ``computation``."""

    choice: ClosedJaxpr
    computation: ClosedJaxpr
    name: ClassVar[str] = "select_and_scatter"
    multiple_results: ClassVar[bool] = False

    def infer(self, operand: ShapedArray, source: ShapedArray, init: ShapedArray) -> ShapedArray:
        expected = self.result_shape(operand)
        if source.shape != expected:
            raise ShapeError(
                f"{self.name}: source has shape {source.shape}, but the windows over operand {operand} are {expected}"
            )
        return source.update(shape=operand.shape)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        if dims[2] is not None:
            (out,), (place,) = one_by_one(self, axis, args, dims)
            return out, place
        place = next(d for d in dims[:2] if d is not None)
        arrays = [along(x, d, place, axis.size) for x, d in zip(args, dims[:2])]
        windows = self.windows
        op = self.with_windows((*windows[:place], WindowDim(1), *windows[place:]))
        return op.bind(*arrays, args[2]), place

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        operand = avals[0]
        names = [f"d{d}" for d in range(operand.ndim)]
        windows = self.windows
        kinds = {f"d{d}": REPLICATED for d, w in enumerate(windows) if not w.is_trivial}
        seen = [name if w.is_trivial else None for name, w in zip(names, windows)]
        return make_rule([names, seen, []], [names], dict(zip(names, operand.shape)), kinds)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op(
            "stablehlo.select_and_scatter", operands, b.out_avals,
            regions=[b.jaxpr_region(self.choice), b.jaxpr_region(self.computation)],
            window_dimensions=self.window_dimensions, window_strides=self.window_strides,
            padding=pads_array(self.padding),
        )[0]  # fmt: skip


# --- reading ------------------------------------------------------------------------------------------------
def cumulative_axis(window: dict[str, Any], shape: Sequence[int]) -> tuple[int, bool] | None:
    """The axis and direction of a cumulative reduction expressed as windows; None for other windows."""
    sizes, pads = window["window_dimensions"], window["padding"]
    plain = all(set(window[k]) <= {1} for k in ("window_strides", "base_dilation", "window_dilation"))
    axes = [d for d, (k, pad) in enumerate(zip(sizes, pads)) if k != 1 or pad != (0, 0)]
    if not plain or len(axes) != 1:
        return None
    (axis,) = axes
    rows = shape[axis]
    if rows < 2 or sizes[axis] != rows or pads[axis] not in ((rows - 1, 0), (0, rows - 1)):
        return None
    return axis, pads[axis] == (0, rows - 1)


def reduce_window_body(
    body: ClosedJaxpr, arrays: Sequence[Any], starts: Sequence[Any], window: dict[str, Any]
) -> Sequence[Any]:
    """Arrays reduced together over windows by ``body``, from initial values."""
    along_axis = cumulative_axis(window, typeof(arrays[0]).shape)
    if along_axis is not None:
        return cumulative(body, *along_axis, arrays, starts)
    outs: list[Any] = ReduceWindowBody(**window, computation=body).bind(*arrays, *starts)
    return outs


def read_select_and_scatter_body(r: Reader, window: dict[str, Any]) -> Any:
    """Read any ``stablehlo.select_and_scatter``."""
    return SelectAndScatterBody(**window, choice=read_body(r, 0), computation=read_body(r, 1)).bind(*r.operands)
