"""Operands are promoted as torch promotes them: what functions of one or two elements are made to rules with."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.interop.torch.dtypes import array_dtype, common_dtype

Function = Callable[..., Any]


def cast(x: Any, dtype: np.dtype) -> Any:
    """An array, or a Python number as a scalar, of a dtype."""
    if isinstance(x, (bool, int, float, complex)):
        return np.asarray(x).astype(dtype)
    return x if x.dtype == dtype else lax.convert_element_type(x, dtype)


def promoted(*values: Any) -> list[Any]:
    """Operands of one dtype, torch's."""
    dtype = common_dtype(*values)
    return [None if x is None else cast(x, dtype) for x in values]


def is_one(factor: Any) -> bool:
    """Whether a factor leaves what it scales as it is, which is not known of numbers that only a run knows."""
    return isinstance(factor, (int, float, complex)) and factor == 1


def to_float(x: Any) -> Any:
    """Integers and bools as torch's default floats, others as they are."""
    return x if dtypes.is_inexact(x.dtype) else cast(x, array_dtype(torch.get_default_dtype()))


#: floats that torch's kernels compute with in float32, rounding results
_HALVES = (dtypes.float16, dtypes.bfloat16)


def in_single(rule: Function) -> Function:
    """What torch computes in float32 of floats of half its width."""

    def widened(x: Any) -> Any:
        return cast(x, dtypes.float32) if getattr(x, "dtype", None) in _HALVES else x

    @wraps(rule)
    def computed(*args: Any, **kwargs: Any) -> Any:
        dtype = common_dtype(*(x for x in (*args, *kwargs.values()) if not isinstance(x, (list, tuple))))
        if dtype not in _HALVES:
            return rule(*args, **kwargs)
        out = rule(*map(widened, args), **{name: widened(x) for name, x in kwargs.items()})
        return tuple(cast(x, dtype) for x in out) if isinstance(out, tuple) else cast(out, dtype)

    return computed


def _is_rounded(x: Any, dtype: np.dtype) -> bool:
    """Whether an operand that torch takes as a number loses a part of it in a dtype of half width."""
    if dtype not in _HALVES:
        return False
    if isinstance(x, (bool, int, float)):
        return float(np.asarray(x).astype(dtype)) != x
    return x.ndim == 0 and x.dtype in (dtypes.float32, dtypes.float64)


def scaling(function: Function) -> Function:
    """A product or quotient: a number beside floats of half width is not rounded to theirs before."""

    def rule(self: Any, other: Any) -> Any:
        dtype = common_dtype(self, other)
        wide = dtypes.float32 if _is_rounded(self, dtype) or _is_rounded(other, dtype) else dtype
        return cast(function(cast(self, wide), cast(other, wide)), dtype)

    return rule


def unary(function: Function) -> Function:
    """Of anything, with the operand's dtype."""
    return lambda self: function(self)


def of_floats(function: Function) -> Function:
    """Of floats; integers become floats."""
    return lambda self: function(to_float(self))


def binary(function: Function) -> Function:
    """Of two operands of one dtype, and that dtype."""
    return lambda self, other: function(*promoted(self, other))


def binary_of_floats(function: Function) -> Function:
    return lambda self, other: function(*map(to_float, promoted(self, other)))


def scaled(function: Function) -> Function:
    """``function(self, alpha * other)``, the operand ``alpha`` being a Python number."""

    @in_single
    def multiplied(self: Any, other: Any, alpha: Any) -> Any:
        return function(self, mnp.multiply(other, alpha))

    def rule(self: Any, other: Any, alpha: Any = 1) -> Any:
        self, other = promoted(self, other)
        return function(self, other) if is_one(alpha) else multiplied(self, other, cast(alpha, other.dtype))

    return rule


def logical(function: Function) -> Function:
    return lambda self, other: function(*(x != 0 if x.dtype != bool else x for x in (self, other)))


def swapped(function: Function) -> Function:
    return lambda self, other: function(*reversed(promoted(self, other)))
