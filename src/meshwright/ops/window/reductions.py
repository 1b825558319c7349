"""Window reductions: sums, extrema and products over windows; pooling.

The transpose of a sum is a sum over windows that slide the other way; the derivative of an extremum selects elements
(see :mod:`.select`). Names and conventions follow ``jax.lax``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, DTypeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Builder, Cotangents, Dual, Op, Tangent, Zero
from meshwright.ir.reading import Reader, binary_op_name, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.monoid import MAX, MIN, PROD, SUM, Monoid
from meshwright.ops.elementwise.table import add, mul, scalar_like
from meshwright.ops.reduce.cumulative import CumMax, CumMin, CumProd, CumSum
from meshwright.ops.reduce.function import reduction_function
from meshwright.ops.scalar_body import in_parts
from meshwright.ops.shape.rearrange import Linear1
from meshwright.ops.window.body import ReduceWindowBody, cumulative_axis, reduce_window_body
from meshwright.ops.window.geometry import WindowDim, dilate, fetch_for_result, int_tuple, make_windows, pad_pairs
from meshwright.ops.window.op import WindowOp, window_params
from meshwright.ops.window.select import SelectAndGatherAdd, select_op
from meshwright.ops.window.slices import window_slices
from meshwright.sharding.rule import REDUCTION, WINDOW


@dataclass(frozen=True)
class ReduceWindow(WindowOp):
    """Base class: each window reduced by a binary op; padding is that op's identity."""

    monoid: ClassVar[Monoid]

    def infer(self, x: ShapedArray) -> ShapedArray:
        return x.update(shape=self.result_shape(x))

    def localize(self, ctx: Localizer, x: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        (aval,) = ctx.in_avals
        fill = self.monoid.identity(aval.dtype)
        windows = []
        for d, window in enumerate(self.windows):
            kind = self.split_kind(window, aval.shape[d])
            if ctx.is_split(0, d) and kind == REDUCTION:
                x, window = ctx.mask(x, 0, d, fill), WindowDim(ctx.in_local_shapes[0][d])
            elif ctx.is_split(0, d) and kind == WINDOW:
                x, window = fetch_for_result(ctx, x, 0, d, window, ctx.out_local_shapes[0][d], fill)
            windows.append(window)
        return self.with_windows(windows).bind(x)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        (aval,) = b.in_avals
        region = self.monoid.region(b, aval.dtype)
        init = b.constant(self.monoid.identity(aval.dtype), ShapedArray((), aval.dtype))
        return self.emit_reduce_window(b, [x], [init], b.out_avals, region)[0]


@dataclass(frozen=True)
class ReduceWindowSum(ReduceWindow, Linear1):
    """The sum of each window."""

    name: ClassVar[str] = "reduce_window_sum"
    monoid: ClassVar[Monoid] = SUM

    def infer(self, x: ShapedArray) -> ShapedArray:
        _need_numbers(self.name, x)
        return super().infer(x)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        if 0 in x.aval.shape or 0 in typeof(ct).shape:
            return [Zero(x.aval)]
        return [self.with_windows([w.adjoint(n) for w, n in zip(self.windows, x.aval.shape)]).bind(ct)]


class _Extreme(ReduceWindow):
    """Base class of maxima and minima."""

    selects: ClassVar[str] = ""

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.bind(*primals), select_op(SelectAndGatherAdd, self, self.selects).bind(*tangents, *primals)


@dataclass(frozen=True)
class ReduceWindowMax(_Extreme):
    """The maximum of each window."""

    name: ClassVar[str] = "reduce_window_max"
    monoid: ClassVar[Monoid] = MAX
    selects: ClassVar[str] = "ge"


@dataclass(frozen=True)
class ReduceWindowMin(_Extreme):
    """The minimum of each window."""

    name: ClassVar[str] = "reduce_window_min"
    monoid: ClassVar[Monoid] = MIN
    selects: ClassVar[str] = "le"


@dataclass(frozen=True)
class ReduceWindowProd(ReduceWindow):
    """The product of each window."""

    name: ClassVar[str] = "reduce_window_prod"
    monoid: ClassVar[Monoid] = PROD

    def infer(self, x: ShapedArray) -> ShapedArray:
        _need_numbers(self.name, x)
        return super().infer(x)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (x,), (t,) = primals, tangents
        # The derivative with respect to an element is the product of all others, without division because of zeros.
        seen = window_slices(x, self.windows, scalar_like(1, x))
        moved = window_slices(t, self.windows, scalar_like(0, t))
        if len(seen) > 1:
            moved = [mul(m, reduce(mul, seen[:i] + seen[i + 1 :])) for i, m in enumerate(moved)]
        return self.bind(x), reduce(add, moved)


def _need_numbers(name: str, x: ShapedArray) -> None:
    if dtypes.is_bool(x.dtype):
        raise DTypeError(f"{name}: operand has dtype bool, expected numbers; convert it with .astype")


# --- what users call ----------------------------------------------------------------------------------------
def _windowed(op: type[ReduceWindow]) -> Callable[..., Any]:
    def function(
        operand: Any, window_dimensions: Sequence[int], window_strides: Sequence[int],
        padding: str | Sequence[tuple[int, int]], base_dilation: Sequence[int] | None = None,
        window_dilation: Sequence[int] | None = None,
    ) -> Any:  # fmt: skip
        shape = typeof(operand).shape
        dims = window_dimensions, window_strides, padding, base_dilation, window_dilation
        windows = window_dims(op.name, shape, *dims)
        return op(**window_params(windows)).bind(operand)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = f"{op.__doc__[:-1]} over windows; parameters as for :func:`reduce_window`."  # type: ignore[index]
    return function


reduce_window_sum = _windowed(ReduceWindowSum)
reduce_window_max = _windowed(ReduceWindowMax)
reduce_window_min = _windowed(ReduceWindowMin)
reduce_window_prod = _windowed(ReduceWindowProd)


def window_dims(
    op: str, shape: Sequence[int], sizes: Any, strides: Any, padding: Any, base: Any, window: Any
) -> tuple[WindowDim, ...]:
    """The window over each dimension, from a user's arguments; ``op`` is the calling function."""
    rank = len(shape)
    sizes = int_tuple(op, "window_dimensions", sizes, rank)
    strides = int_tuple(op, "window_strides", strides, rank, default=1)
    base = int_tuple(op, "base_dilation", base, rank, default=1)
    window = int_tuple(op, "window_dilation", window, rank, default=1)
    extents = [dilate(k, w) for k, w in zip(sizes, window)]
    return make_windows(sizes, strides, pad_pairs(op, padding, shape, extents, strides), base, window)


#: the window reductions, by the name of the binary op
_REDUCTIONS: dict[str, type[ReduceWindow]] = {
    cls.monoid.name: cls for cls in (ReduceWindowSum, ReduceWindowMax, ReduceWindowMin, ReduceWindowProd)
}
_SYNONYMS = {
    "sum": "add", "maximum": "max", "fmax": "max", "minimum": "min", "fmin": "min", "multiply": "mul", "prod": "mul",
}  # fmt: skip
_BOOL_SYNONYMS = {"or": "max", "logical_or": "max", "bitwise_or": "max",
                  "and": "min", "logical_and": "min", "bitwise_and": "min"}  # fmt: skip


def _op_name(computation: Any) -> str:
    """The name of the op for a name, a NumPy ufunc or one of our ops; empty for a function."""
    if isinstance(computation, str):
        return computation
    if isinstance(computation, np.ufunc):
        return computation.__name__
    return computation.name if isinstance(computation, Op) else ""


def _reduction(name: str, dtype: np.dtype) -> type[ReduceWindow] | None:
    """The window reduction of a name; None if there is none."""
    name = _SYNONYMS.get(name, name)
    return _REDUCTIONS.get(_BOOL_SYNONYMS.get(name, name) if dtypes.is_bool(dtype) else name)


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Reduce each position of a sliding window by ``computation``, starting from ``init_value``.

    ``computation(a, b)`` is an associative function of two scalars with identity ``init_value``, an op, or its name.
    ``operand`` may be a tree of arrays of one shape, with a tree of initial values; ``computation`` then takes and
    returns such trees. Other arguments have one entry per dimension of ``operand`` (1 for dimensions without a window).
    ``padding`` is ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"`` or ``(low, high)`` pairs; padding does not affect the
    result. ``base_dilation`` dilates the operand, ``window_dilation`` the window.

    Raises:
      ArgumentError: malformed parameters, or trees that differ.
      ShapeError: parameters do not fit the operand, or ``init_value`` is not a scalar.
      DTypeError: ``init_value`` has another dtype, or the computation does not support the dtype.

    Example:
      >>> x = jnp.array([3, 1, 4, 1, 5])
      >>> lax.reduce_window(x, 0, lax.add, (2,), (1,), "VALID").tolist()
      [4, 5, 5, 6]
      >>> lax.reduce_window(x, 1, lambda a, b: a * b % 7, (3,), (2,), "SAME").tolist()
      [3, 4, 5]
    """
    leaves = pytree.leaves(operand)
    if not leaves:
        raise ArgumentError("reduce_window: expected one array or more")
    first = typeof(leaves[0])
    params = window_params(
        window_dims(
            "reduce_window", first.shape, window_dimensions, window_strides, padding, base_dilation, window_dilation
        )
    )
    name = _op_name(computation)
    if name:
        reduction = _reduction(name, first.dtype)
        if reduction is not None:
            computation = reduction.monoid.combine
        elif not callable(computation) or isinstance(computation, np.ufunc):
            raise ArgumentError(f"reduce_window: no reduction has the name {name!r}; give a function of two scalars")
    asked = reduction_function("reduce_window", operand, init_value, computation)
    reduction = _reduction(name or asked.op_name, first.dtype)
    if reduction is None:
        outs = ReduceWindowBody(**params, computation=asked.body).bind(*asked.arrays, *asked.inits)
    else:
        outs = [reduction.monoid.started(asked.inits[0], reduction(**params).bind(*asked.arrays))]
    return asked.results(outs)


# --- reading ------------------------------------------------------------------------------------------------
def read_windows(r: Reader) -> dict[str, Any]:
    """Read the parameters of a window op, in the form of :func:`reduce_window`."""
    sizes = r.attr("window_dimensions")
    ones = (1,) * len(sizes)
    padding = r.attr("padding", np.zeros((len(sizes), 2), np.int64))
    return {
        "window_dimensions": sizes,
        "window_strides": r.attr("window_strides", ones),
        "padding": tuple((int(lo), int(hi)) for lo, hi in padding),
        "base_dilation": r.attr("base_dilations", ones),
        "window_dilation": r.attr("window_dilations", ones),
    }


@reads("stablehlo.reduce_window")
def _read_reduce_window(r: Reader) -> Any:
    window = read_windows(r)

    def part(body: ClosedJaxpr, numbers: tuple[int, ...], arrays: list[Any], starts: list[Any]) -> Sequence[Any]:
        name, is_bool = binary_op_name(body), dtypes.is_bool(body.out_avals[0].dtype)
        if is_bool:
            name = {"add": "or", "mul": "and"}.get(name, name)
        if name not in _REDUCTIONS and not (is_bool and name in _BOOL_SYNONYMS):
            return reduce_window_body(body, arrays, starts, window)
        (x,), (init,) = arrays, starts
        scanned = cumulative_axis(window, typeof(x).shape)
        if scanned is None or is_bool:
            return [reduce_window(x, init, name, **window)]
        op = _CUMULATIVE[name](*scanned)
        return [op.monoid.started(init, op.bind(x))]

    return in_parts(r, part)


_CUMULATIVE = {cls.monoid.name: cls for cls in (CumSum, CumMax, CumMin, CumProd)}
