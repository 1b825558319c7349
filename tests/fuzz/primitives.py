"""What primitives compute, in NumPy: those on whose values NumPy and XLA agree, but for rounding.

JAX's and ours have the same names and parameters, so that one table serves both. A function raises, or returns what has
another type, where NumPy would say something else: then the library itself is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special
from ml_dtypes import bfloat16
from numpy_eval import NUMPY as MOVING

Function = Callable[..., Any]


class NotHere(Exception):
    """NumPy would compute something else."""


def _real(f: Function) -> Function:
    """A function of real floats; of those narrower than float32 computed in that."""

    def of(op: Any, *args: np.ndarray) -> Any:
        dtype = args[0].dtype
        if dtype == np.float16 or dtype == bfloat16:
            return np.asarray(f(*(a.astype(np.float32) for a in args))).astype(dtype)
        if dtype.kind != "f":
            raise NotHere
        return f(*args)

    return of


def _numbers(f: Function) -> Function:
    """A function of all but complex numbers, for which infinities go other ways."""

    def of(op: Any, *args: np.ndarray) -> Any:
        if args[0].dtype.kind == "c":
            raise NotHere
        return f(*args)

    return of


def _divisor(y: np.ndarray) -> None:
    """Raise for those integers by which machines do not divide."""
    if (y == 0).any() or (y.dtype.kind == "i" and (y == -1).any()):
        raise NotHere


def _div(op: Any, x: np.ndarray, y: np.ndarray) -> Any:
    if x.dtype.kind == "c":
        raise NotHere
    if x.dtype.kind not in "iu":
        return x / y
    _divisor(y)
    return (x - np.fmod(x, y)) // y


def _rem(op: Any, x: np.ndarray, y: np.ndarray) -> Any:
    if x.dtype.kind in "iu":
        _divisor(y)
    return _real(np.fmod)(op, x, y) if x.dtype.kind not in "iu" else np.fmod(x, y)


def _convert(op: Any, x: np.ndarray) -> Any:
    to = np.dtype(op.new_dtype)
    if to.kind in "iu" and x.dtype.kind not in "biu":
        info, wide = np.iinfo(to), x.astype(np.float64)
        if x.dtype.kind == "c" or not (np.isfinite(wide) & (wide > info.min) & (wide < info.max)).all():
            raise NotHere
        return np.trunc(wide).astype(to)
    if x.dtype.kind == "c" and to.kind != "c":
        return (x != 0) if to.kind == "b" else x.real.astype(to)
    return (x != 0) if to.kind == "b" else x.astype(to)


def _integer_pow(op: Any, x: np.ndarray) -> Any:
    if x.dtype.kind == "c" or (x.dtype.kind in "iu" and op.y < 0):
        raise NotHere
    if x.dtype.kind in "iu":
        return x ** x.dtype.type(op.y)
    return _real(lambda v: v ** float(op.y))(op, x)


def _round(op: Any, x: np.ndarray) -> Any:
    if int(op.rounding_method) != 1:
        raise NotHere
    return _real(np.rint)(op, x)


def _sum(op: Any, x: np.ndarray) -> Any:
    if x.dtype.kind in "iu":
        return x.sum(op.axes, dtype=x.dtype)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64).sum(op.axes).astype(x.dtype)


def _product(op: Any, x: np.ndarray) -> Any:
    if x.dtype.kind not in "fiu":
        raise NotHere
    return x.prod(op.axes, dtype=x.dtype)


def _extreme(f: Function) -> Function:
    def of(op: Any, x: np.ndarray) -> Any:
        if x.dtype.kind == "c" or not x.size:
            raise NotHere
        return f(x, axis=op.axes)

    return of


def _along(f: Function, dtypes: str) -> Function:
    """A function of all before each element, or of all after it."""

    def of(op: Any, x: np.ndarray) -> Any:
        if x.dtype.kind not in dtypes:
            raise NotHere
        x = np.flip(x, op.axis) if op.reverse else x
        out = f(x, op.axis).astype(x.dtype)
        return np.flip(out, op.axis) if op.reverse else out

    return of


def _position(f: Function) -> Function:
    def of(op: Any, x: np.ndarray) -> Any:
        if x.dtype.kind == "V" or len(op.axes) != 1:
            raise NotHere
        return f(x, op.axes[0]).astype(op.index_dtype)

    return of


def _sort(op: Any, *operands: np.ndarray) -> Any:
    key = operands[0]
    if op.num_keys != 1 or key.dtype.kind not in "fiub":
        raise NotHere
    order = np.argsort(key, op.dimension, kind="stable")
    return [np.take_along_axis(x, order, op.dimension) for x in operands]


def _slice(op: Any, x: np.ndarray) -> Any:
    return x[tuple(map(slice, op.start_indices, op.limit_indices, op.strides or (1,) * x.ndim))]


def _select(op: Any, which: np.ndarray, *cases: np.ndarray) -> Any:
    if which.dtype != bool:
        raise NotHere
    return np.where(which, cases[1], cases[0])


def _logical(of_bools: Function, of_integers: Function) -> Function:
    return lambda op, *args: (of_bools if args[0].dtype == bool else of_integers)(*args)


_REAL = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
    "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt, "cbrt": np.cbrt, "log1p": np.log1p, "expm1": np.expm1,
    "rsqrt": lambda x: 1 / np.sqrt(x), "logistic": lambda x: 1 / (1 + np.exp(-x)), "floor": np.floor, "ceil": np.ceil,
    "pow": np.power, "atan2": np.arctan2, "erf": scipy.special.erf, "erfc": scipy.special.erfc,
    "copysign": np.copysign, "nextafter": np.nextafter,
}  # fmt: skip
#: the primitives by name, as functions of what has their parameters and of arrays
NUMPY: dict[str, Function] = {
    **MOVING,
    **{name: _real(f) for name, f in _REAL.items()},
    "is_finite": lambda op, x: np.isfinite(x),
    "add_any": MOVING["add"],
    "mul": _numbers(lambda x, y: x & y if x.dtype == bool else x * y),
    "square": _numbers(lambda x: x * x),
    "abs": _numbers(np.abs),
    "sign": _numbers(np.sign),
    "max": _numbers(np.maximum), "min": _numbers(np.minimum), "clamp": _numbers(lambda a, x, b: np.clip(x, a, b)),
    "lt": _numbers(np.less), "le": _numbers(np.less_equal),
    "gt": _numbers(np.greater), "ge": _numbers(np.greater_equal),
    "real": lambda op, x: x.real, "imag": lambda op, x: x.imag, "conj": lambda op, x: np.conj(x),
    "complex": lambda op, x, y: x + 1j * y if np.isfinite(y).all() and np.isfinite(x).all() else None,
    "div": _div, "rem": _rem, "convert_element_type": _convert, "integer_pow": _integer_pow, "round": _round,
    "not": _logical(np.logical_not, np.bitwise_not), "and": _logical(np.logical_and, np.bitwise_and),
    "or": _logical(np.logical_or, np.bitwise_or), "xor": _logical(np.logical_xor, np.bitwise_xor),
    "reduce_sum": _sum, "reduce_prod": _product, "reduce_max": _extreme(np.max), "reduce_min": _extreme(np.min),
    "reduce_and": lambda op, x: x.all(op.axes) if x.dtype == bool else None,
    "reduce_or": lambda op, x: x.any(op.axes) if x.dtype == bool else None,
    "cumsum": _along(np.cumsum, "fc"), "cumprod": _along(np.cumprod, "f"),
    "cummax": _along(np.maximum.accumulate, "fiu"), "cummin": _along(np.minimum.accumulate, "fiu"),
    "argmax": _position(np.argmax), "argmin": _position(np.argmin), "sort": _sort,
    "slice": _slice, "select_n": _select,
}  # fmt: skip


def computed(name: str, op: Any, args: list[np.ndarray], avals: list[Any]) -> list[np.ndarray] | None:
    """The results of types ``avals``; None where NumPy does not say."""
    function = NUMPY.get(name)
    if function is None:
        return None
    try:
        out = function(op, *args)
    except Exception:
        return None
    outs = [np.asarray(x) for x in (out if isinstance(out, list) else [out])]
    fits = all((x.shape, x.dtype) == (a.shape, a.dtype) for x, a in zip(outs, avals, strict=True))
    return outs if fits else None
