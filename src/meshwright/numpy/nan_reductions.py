"""Reductions that ignore NaN: sums, extrema and their positions, means and variances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import no_out
from meshwright.numpy.logic import logical_and
from meshwright.numpy.promotion import as_operand, scalar_like
from meshwright.numpy.reductions import all, max, mean, min, position, prod, sum, variance
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import select
from meshwright.ops.reduce import reductions as red

Axis = Any


def _without_nan(x: Any, fill: Callable[[np.dtype], Any] | float) -> Any:
    dtype = typeof(x).dtype
    if not dtypes.is_inexact(dtype):
        return x
    value = fill(dtype) if callable(fill) else fill
    return select(ops.ne(x, x), np.asarray(value, dtype), x)


def _accumulation(name: str, reduction: Any, identity: float, what: str, example: str) -> Any:
    def accumulate(
        a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
        where: Any = None,
    ) -> Any:  # fmt: skip
        return reduction(_without_nan(as_operand(a, name), identity), axis, dtype, out, keepdims, initial, where)

    return _named(accumulate, name, f"{what} of the elements that are not NaN.", example)


def _named(f: Any, name: str, what: str, example: str) -> Any:
    f.__name__ = f.__qualname__ = name
    f.__doc__ = f"{what}\n\n>>> {name}({example}\n"
    return f


nansum = _accumulation("nansum", sum, 0.0, "Sum", "np.array([1.0, np.nan])).item()\n1.0")
nanprod = _accumulation("nanprod", prod, 1.0, "Product", "np.array([3.0, np.nan])).item()\n3.0")


def _nan_extremum(name: str, reduction: Any, fill: Any, what: str) -> Any:
    def extremum(
        a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Any:
        no_out(out, name)
        x = as_operand(a, name)
        result = reduction(_without_nan(x, fill), axis, keepdims=keepdims, initial=initial, where=where)
        if not dtypes.is_inexact(typeof(x).dtype) or initial is not None:
            return result
        nothing = all(ops.ne(x, x), axis, keepdims=keepdims)
        return select(nothing, scalar_like(np.nan, result), result)

    example = "np.array([1.0, np.nan])).item()\n1.0"
    return _named(extremum, name, f"{what} of the elements that are not NaN; NaN if all are.", example)


nanmax = _nan_extremum("nanmax", max, dtypes.min_value, "Maximum")
nanmin = _nan_extremum("nanmin", min, dtypes.max_value, "Minimum")


def _numbers(x: Any, where: Any) -> Any:
    """The elements that are not NaN, among those selected by ``where``."""
    numbers = ops.not_(ops.ne(x, x))
    return numbers if where is None else logical_and(numbers, where)


def _unless_empty(x: Any) -> Any:
    """``x``, or constants if it is empty, so that the NaN of an empty reduction has no derivative."""
    return x if typeof(x).size else ops.zeros_like(x)


def nanmean(
    a: Any, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, where: Any = None
) -> Any:
    """Mean of the elements that are not NaN.

    >>> nanmean(np.array([1.0, np.nan])).item()
    1.0
    """
    x = _unless_empty(as_operand(a, "nanmean"))
    return mean(x, axis, dtype, out, keepdims, where=_numbers(x, where))


def _nan_spread(name: str, of_variance: Any, what: str) -> Any:
    def spread(
        a: Any, axis: Axis = None, dtype: Any = None, out: None = None, ddof: Any = 0, keepdims: bool = False,
        where: Any = None, mean: Any = None,
    ) -> Any:  # fmt: skip
        x = _unless_empty(as_operand(a, name))
        no_out(out, name)
        return of_variance(variance(x, axis, dtype, ddof, keepdims, _numbers(x, where), mean, steady=True))

    example = "np.array([1.0, 3.0, np.nan])).item()\n1.0"
    return _named(spread, name, f"{what} of the elements that are not NaN.", example)


nanvar = _nan_spread("nanvar", lambda x: x, "Variance")
nanstd = _nan_spread("nanstd", ops.sqrt, "Standard deviation")


def _nan_position(name: str, fill: Any, op: Any, what: str, result: int) -> Any:
    def position_of(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Any:
        no_out(out, name)
        x = as_operand(a, name)
        found = position(name, _without_nan(x, fill), axis, keepdims, op)
        if not dtypes.is_inexact(typeof(x).dtype):
            return found
        return select(all(ops.ne(x, x), axis, keepdims=keepdims), scalar_like(-1, found), found)

    example = f"np.array([1.0, np.nan, 2.0])).item()\n{result}"
    described = f"Position of the {what} of the elements that are not NaN; -1 if all are, as in JAX (NumPy raises)."
    return _named(position_of, name, described, example)


nanargmax = _nan_position("nanargmax", dtypes.min_value, red.argmax, "maximum", 2)
nanargmin = _nan_position("nanargmin", dtypes.max_value, red.argmin, "minimum", 0)
