"""Window reductions: sums, extremes and products of what a window sees; pooling.

A sum's transpose is a sum over windows that slide the other way; an extreme's derivative selects (see
:mod:`.window_select`). Names and conventions are those of ``jax.lax``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.errors import ArgumentError, DTypeError, MeshwrightError, ShapeError
from meshwright.ir.op import Builder, Op, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import Tracer, trace_to_jaxpr, typeof
from meshwright.ops.cumulative import CumMax, CumMin, CumProd, CumSum, Cumulative
from meshwright.ops.elementwise import add, convert, max_, min_, mul, scalar_like
from meshwright.ops.shape import Linear1
from meshwright.ops.window_body import cumulative_axis, read_reduce_window_body
from meshwright.ops.window_op import WindowOp, window_params
from meshwright.ops.window_select import SelectAndGatherAdd, select_op, window_slices
from meshwright.ops.window_shape import WindowDim, dilate, fetch_for_result, int_tuple, make_windows, pad_pairs
from meshwright.sharding.rule import REDUCTION, WINDOW


@dataclass(frozen=True)
class ReduceWindow(WindowOp):
    """Base: what each window sees, combined by a binary op; padding is that op's identity."""

    hlo: ClassVar[str] = ""

    def identity(self, dtype: np.dtype) -> np.ndarray:
        """The value that leaves others unchanged."""
        raise NotImplementedError

    def infer(self, x: ShapedArray) -> ShapedArray:
        return x.update(shape=self.result_shape(x))

    def localize(self, ctx: Any, x: Any) -> Any:
        (aval,) = ctx.in_avals
        fill = self.identity(aval.dtype)
        windows = []
        for d, window in enumerate(self.windows):
            kind = self.split_kind(window, aval.shape[d])
            if ctx.is_split(0, d) and kind == REDUCTION:
                x, window = ctx.mask(x, 0, d, fill), WindowDim(ctx.in_local_shapes[0][d])
            elif ctx.is_split(0, d) and kind == WINDOW:
                x, window = fetch_for_result(ctx, x, 0, d, window, ctx.out_local_shapes[0][d], fill)
            windows.append(window)
        return self.with_windows(windows).bind(x)

    def emit(self, b: Builder, x: Any) -> Any:
        (aval,) = b.in_avals
        region = b.reducer(self.hlo, [ShapedArray((), aval.dtype)])
        init = b.constant(self.identity(aval.dtype), ShapedArray((), aval.dtype))
        return self.emit_reduce_window(b, [x], [init], b.out_avals, region)[0]


@dataclass(frozen=True)
class ReduceWindowSum(ReduceWindow, Linear1):
    """Sums."""

    name: ClassVar[str] = "reduce_window_sum"
    hlo: ClassVar[str] = "stablehlo.add"
    reduction: ClassVar[str] = "sum"

    def identity(self, dtype: np.dtype) -> np.ndarray:
        return np.zeros((), dtype)

    def infer(self, x: ShapedArray) -> ShapedArray:
        _need_numbers(self.name, x)
        return super().infer(x)

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        if 0 in x.aval.shape or 0 in typeof(ct).shape:
            return [Zero(x.aval)]
        return [self.with_windows([w.adjoint(n) for w, n in zip(self.windows, x.aval.shape)]).bind(ct)]


class _Extreme(ReduceWindow):
    """Base of maxima and minima."""

    selects: ClassVar[str] = ""

    def infer(self, x: ShapedArray) -> ShapedArray:
        if dtypes.is_complex(x.dtype):
            raise DTypeError(f"{self.name}: operand has dtype {x.dtype}, which has no order; take real parts")
        return super().infer(x)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self.bind(*primals), select_op(SelectAndGatherAdd, self, self.selects).bind(*tangents, *primals)


@dataclass(frozen=True)
class ReduceWindowMax(_Extreme):
    """Maxima."""

    name: ClassVar[str] = "reduce_window_max"
    hlo: ClassVar[str] = "stablehlo.maximum"
    reduction: ClassVar[str] = "max"
    selects: ClassVar[str] = "ge"

    def identity(self, dtype: np.dtype) -> np.ndarray:
        return dtypes.min_value(dtype)


@dataclass(frozen=True)
class ReduceWindowMin(_Extreme):
    """Minima."""

    name: ClassVar[str] = "reduce_window_min"
    hlo: ClassVar[str] = "stablehlo.minimum"
    reduction: ClassVar[str] = "min"
    selects: ClassVar[str] = "le"

    def identity(self, dtype: np.dtype) -> np.ndarray:
        return dtypes.max_value(dtype)


@dataclass(frozen=True)
class ReduceWindowProd(ReduceWindow):
    """Products."""

    name: ClassVar[str] = "reduce_window_prod"
    hlo: ClassVar[str] = "stablehlo.multiply"
    reduction: ClassVar[str] = "prod"

    def identity(self, dtype: np.dtype) -> np.ndarray:
        return np.ones((), dtype)

    def infer(self, x: ShapedArray) -> ShapedArray:
        _need_numbers(self.name, x)
        return super().infer(x)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        # Each element's factor is the product of all others; no division, so that zeros do no harm.
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
        operand: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: str | Sequence[tuple[int, int]],
        base_dilation: Sequence[int] | None = None,
        window_dilation: Sequence[int] | None = None,
    ) -> Any:
        windows = _windows(op.name, operand, window_dimensions, window_strides, padding, base_dilation, window_dilation)
        return op(**window_params(windows)).bind(operand)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = f"{op.__doc__[:-1]} over windows; parameters as for :func:`reduce_window`."  # type: ignore[index]
    return function


reduce_window_sum = _windowed(ReduceWindowSum)
reduce_window_max = _windowed(ReduceWindowMax)
reduce_window_min = _windowed(ReduceWindowMin)
reduce_window_prod = _windowed(ReduceWindowProd)


def _windows(op: str, operand: Any, sizes: Any, strides: Any, padding: Any, base: Any, window: Any) -> Any:
    shape = typeof(operand).shape
    rank = len(shape)
    sizes = int_tuple(op, "window_dimensions", sizes, rank)
    strides = int_tuple(op, "window_strides", strides, rank, default=1)
    base = int_tuple(op, "base_dilation", base, rank, default=1)
    window = int_tuple(op, "window_dilation", window, rank, default=1)
    extents = [dilate(k, w) for k, w in zip(sizes, window)]
    return make_windows(sizes, strides, pad_pairs(op, padding, shape, extents, strides), base, window)


#: the window reduction and the elementwise op, by the name of the latter
_REDUCTIONS: dict[str, tuple[type[ReduceWindow], Any]] = {
    "add": (ReduceWindowSum, add),
    "max": (ReduceWindowMax, max_),
    "min": (ReduceWindowMin, min_),
    "mul": (ReduceWindowProd, mul),
}
_SYNONYMS = {
    "sum": "add", "maximum": "max", "fmax": "max", "minimum": "min", "fmin": "min", "multiply": "mul", "prod": "mul",
}  # fmt: skip
_BOOL_SYNONYMS = {"or": "max", "logical_or": "max", "bitwise_or": "max",
                  "and": "min", "logical_and": "min", "bitwise_and": "min"}  # fmt: skip


def _recognize(computation: Any, dtype: np.dtype) -> tuple[type[ReduceWindow], Any]:
    """The reduction that a computation means: a name, a NumPy ufunc, one of our ops, or a function that is one."""
    if isinstance(computation, str):
        name = computation
    elif isinstance(computation, np.ufunc):
        name = computation.__name__
    elif isinstance(computation, Op):
        name = computation.name
    else:
        name = _op_of(computation, dtype)
    name = _SYNONYMS.get(name, name)
    if dtypes.is_bool(dtype):
        name = _BOOL_SYNONYMS.get(name, name)
    if name not in _REDUCTIONS:
        raise ArgumentError(
            f"reduce_window: computation {computation!r} is not one of add, max, min, mul (or, for bools, or and and); "
            "other reductions can be written with slices of the operand"
        )
    return _REDUCTIONS[name]


def _op_of(computation: Any, dtype: np.dtype) -> str:
    """The name of the op that a function of two scalars is; empty if it is none."""
    if not callable(computation):
        return ""
    scalar = ShapedArray((), dtype)
    try:
        jaxpr = trace_to_jaxpr(lambda a, b: [computation(a, b)], [scalar, scalar]).jaxpr
    except (MeshwrightError, TypeError):
        return ""
    eqns, args = jaxpr.eqns, list(jaxpr.invars)
    plain = len(eqns) == 1 and list(eqns[0].invars) in (args, args[::-1]) and jaxpr.outvars == list(eqns[0].outvars)
    return eqns[0].op.name if plain else ""


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None,
    padding: str | Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """``computation`` of ``init_value`` and all that a window sees, for each position of a window that slides.

    ``computation`` is addition, multiplication, maximum or minimum: an op or function of this library, a NumPy
    function, a function that does only that, or a name. Everything has one entry a dimension of ``operand`` (1 where
    there is no window); ``padding`` is ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"`` or ``(low, high)`` pairs; padding
    takes no part in the result. ``base_dilation`` spreads the operand, ``window_dilation`` the window.

    Raises:
      ArgumentError: another computation, or malformed parameters.
      ShapeError: parameters that do not fit the operand, an ``init_value`` that is not a scalar.
      DTypeError: an ``init_value`` of another dtype, or a dtype that the computation does not take.
    """
    if isinstance(operand, (tuple, list, dict)):
        raise ArgumentError("reduce_window: expected one array, got several; reduce each, or use a scan over slices")
    aval, init = typeof(operand), typeof(init_value)
    if init.shape != ():
        raise ShapeError(f"reduce_window: init_value must be a scalar, got {init}")
    if init.dtype != aval.dtype and not init.weak_type:
        raise DTypeError(f"reduce_window: init_value has dtype {init.dtype}, the operand {aval.dtype}; convert one")
    kind, combine = _recognize(computation, aval.dtype)
    windows = _windows(
        "reduce_window", operand, window_dimensions, window_strides, padding, base_dilation, window_dilation
    )
    op = kind(**window_params(windows))
    result = op.bind(operand)
    if _equals(init_value, op.identity(aval.dtype)):
        return result
    return combine(result, convert(init_value, aval.dtype))


def _equals(value: Any, identity: np.ndarray) -> bool:
    if isinstance(value, Tracer):
        return False
    return bool(np.asarray(value).astype(identity.dtype) == identity)


# --- reading ------------------------------------------------------------------------------------------------
def read_windows(r: Reader) -> dict[str, Any]:
    """The parameters of a window op: those of :func:`reduce_window`."""
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
    name = r.reducer() if len(r.operands) == 2 else ""
    is_bool = dtypes.is_bool(r.out_avals[0].dtype)
    if is_bool:
        name = {"add": "or", "mul": "and"}.get(name, name)
    if name not in _REDUCTIONS and not (is_bool and name in _BOOL_SYNONYMS):
        return read_reduce_window_body(r, window)
    x, init = (convert(v, r.out_avals[0].dtype) for v in r.operands)
    scanned = cumulative_axis(window, typeof(x).shape)
    if scanned is None or is_bool:
        return reduce_window(x, init, name, **window)
    op = _CUMULATIVE[name](*scanned)
    out = op.bind(x)
    return out if _equals(init, op.identity(typeof(x).dtype)) else _REDUCTIONS[name][1](out, init)


_CUMULATIVE: dict[str, type[Cumulative]] = {"add": CumSum, "max": CumMax, "min": CumMin, "mul": CumProd}
