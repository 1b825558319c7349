"""Dtypes as attributes of the array library (``float32``, ``bfloat16``, …), their limits, and dtype queries."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.key_types import extended, is_key
from meshwright.errors import ArgumentError, ArgumentTypeError, LimitsTypeError
from meshwright.numpy.creation import asarray
from meshwright.numpy.promotion import aval_of, is_arraylike, is_python_number


class ScalarType:
    """A callable dtype: ``float32(x)`` is ``x`` as a float32 array. Accepted wherever a dtype is.

    >>> ScalarType(np.dtype("int32"))(1.7).item()
    1
    """

    __slots__ = ("__name__", "dtype")

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.__name__ = "bool_" if dtype == np.bool_ else dtype.name

    def __call__(self, x: Any = 0) -> Any:
        return asarray(x, dtype=self.dtype)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ScalarType):
            return self.dtype == other.dtype
        try:
            return other is not None and self.dtype == other  # NumPy interprets None as float64
        except TypeError:
            return False

    def __hash__(self) -> int:
        # dtypes and types of NumPy are equal and hashed differently; as in JAX, sets and dicts find the type.
        return hash(self.dtype.type)

    def __repr__(self) -> str:
        return f"meshwright.numpy.{self.__name__}"

    __str__ = __repr__


#: every dtype by name
BY_NAME = {("bool_" if d == np.bool_ else d.name): ScalarType(d) for d in dtypes._SHORT}


def finfo(dtype: Any) -> ml_dtypes.finfo:
    """Limits of a float dtype (``eps``, ``max``, ``tiny``, …), including narrow ones; for complex dtypes, of the parts.

    As in JAX, they are NumPy scalars of that dtype, which promote as arrays do. ``float(x)`` is a Python number.

    Raises:
      LimitsTypeError: not a float or complex dtype.

    >>> finfo("float16")
    finfo(resolution=0.001, min=-6.55040e+04, max=6.55040e+04, dtype=float16)
    >>> finfo("float16").max.dtype.name
    'float16'
    """
    target = dtypes.real_of(_dtype_of(dtype))
    if not dtypes.is_float(target):
        raise LimitsTypeError(f"finfo: expected a float or complex dtype, got {target}; for integers, use iinfo")
    return ml_dtypes.finfo(target)


def iinfo(int_type: Any) -> ml_dtypes.iinfo:
    """Limits of an integer dtype, as Python integers.

    Raises:
      LimitsTypeError: not an integer dtype.

    >>> iinfo("int8").max
    127
    """
    target = _dtype_of(int_type)
    if not dtypes.is_integer(target):
        raise LimitsTypeError(f"iinfo: expected an integer dtype, got {target}; for floats, use finfo")
    return ml_dtypes.iinfo(target)


def _dtype_of(x: Any) -> np.dtype:
    return x.dtype if hasattr(x, "dtype") and not isinstance(x, type) else dtypes.as_dtype(x)


def promote_types(a: Any, b: Any) -> np.dtype:
    """The dtype to which two dtypes promote; wide ones promote at full width, regardless of ``enable_x64``.

    >>> promote_types("int32", "float16").name
    'float16'
    """
    pairs = [(dtypes.as_dtype(x), x is int or x is float or x is complex) for x in (a, b)]
    wide = any(dtypes.is_wide(d) for d, _ in pairs)
    return dtypes.promote_wide(pairs) if wide else dtypes.promote(pairs)[0]


_KINDS = {
    "bool": dtypes.is_bool,
    "signed integer": dtypes.is_signed,
    "unsigned integer": dtypes.is_unsigned,
    "integral": dtypes.is_integer,
    "real floating": dtypes.is_float,
    "complex floating": dtypes.is_complex,
    "numeric": lambda d: not dtypes.is_bool(d),
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: a dtype, one of the array API's names of kinds, or a tuple of these.

    Raises:
      ArgumentError: not a kind.

    >>> isdtype("float32", "real floating")
    True
    """
    d = _dtype_of(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(d, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind](d)
    if isinstance(kind, str):
        raise ArgumentError(f"isdtype: kind must be a dtype or one of {', '.join(_KINDS)}, got {kind!r}")
    return d == _dtype_of(kind)


_ABSTRACT = {
    np.generic: lambda d: True,
    np.number: lambda d: not dtypes.is_bool(d),
    np.integer: dtypes.is_integer,
    np.signedinteger: dtypes.is_signed,
    np.unsignedinteger: dtypes.is_unsigned,
    np.inexact: dtypes.is_inexact,
    np.floating: dtypes.is_float,
    np.complexfloating: dtypes.is_complex,
}


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether a dtype belongs to an abstract type such as ``numpy.floating``; bfloat16 and float8 are floating.

    >>> issubdtype("bfloat16", np.floating)
    True
    """
    kind = arg1.type if is_key(arg1) else arg1
    if isinstance(kind, type) and issubclass(kind, extended):  # of NumPy's types, subtypes of only the most general one
        return issubclass(kind, arg2) if isinstance(arg2, type) else arg1 == arg2
    if is_key(arg2) or (isinstance(arg2, type) and issubclass(arg2, extended)):
        return False
    if isinstance(arg2, type) and arg2 in _ABSTRACT:
        if isinstance(arg1, type) and arg1 in _ABSTRACT:
            return bool(np.issubdtype(arg1, arg2))
        return _ABSTRACT[arg2](_dtype_of(arg1))
    return not (isinstance(arg1, type) and arg1 in _ABSTRACT) and _dtype_of(arg1) == _dtype_of(arg2)


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """Whether elements of ``from_`` (an array or dtype) can be cast to ``to``, by NumPy's rules.

    Args:
      casting: "no", "equiv", "safe" (no value changes), "same_kind" or "unsafe".

    Raises:
      ArgumentTypeError: ``from_`` is a Python number, whose dtype depends on the other operand.

    >>> can_cast("int16", "float32"), can_cast("int32", "float32"), can_cast("float32", "int32", "unsafe")
    (True, False, True)
    """
    if is_python_number(from_):
        raise ArgumentTypeError(f"can_cast: expected an array or dtype, got {from_!r}, which has no dtype of its own")
    dtype = aval_of(from_, "can_cast").dtype if is_arraylike(from_) else dtypes.as_dtype(from_)
    return bool(np.can_cast(dtype, _dtype_of(to), casting=casting))  # type: ignore[arg-type]
