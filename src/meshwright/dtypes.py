"""``jax.dtypes``: functions of dtypes."""

from typing import Any

from ml_dtypes import bfloat16

from meshwright.core import dtypes as _dtypes
from meshwright.core.absent import absent as _absent
from meshwright.core.dtypes import float0
from meshwright.core.key_types import extended, is_key, prng_key
from meshwright.errors import ArgumentTypeError, TypePromotionError
from meshwright.ir.tracing import typeof as _typeof
from meshwright.numpy import finfo, iinfo
from meshwright.numpy import issubdtype as _issubdtype
from meshwright.numpy.promotion import dtypes_of as _dtypes_of

__all__ = [
    "TypePromotionError",
    "bfloat16",
    "canonicalize_dtype",
    "extended",
    "finfo",
    "float0",
    "iinfo",
    "issubdtype",
    "itemsize_bits",
    "prng_key",
    "result_type",
    "scalar_type_of",
]

_PYTHON_KINDS = (
    (_dtypes.is_bool, bool),
    (_dtypes.is_integer, int),
    (_dtypes.is_float, float),
    (_dtypes.is_complex, complex),
)


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
    """The dtype that arrays get for ``dtype``: 64-bit types become 32-bit types unless ``enable_x64`` is set.

    Raises:
      DTypeError: it is not a dtype of arrays.
      ArgumentTypeError: it is that of random keys, and ``allow_extended_dtype`` is False.

    >>> canonicalize_dtype("float64")
    dtype('float32')
    """
    parsed = _dtypes.as_dtype(dtype)
    if is_key(parsed) and not allow_extended_dtype:
        raise ArgumentTypeError(f"canonicalize_dtype: {parsed} is no dtype of numbers; pass allow_extended_dtype=True")
    return _dtypes.canonical(parsed)


def itemsize_bits(dtype: Any) -> int:
    """The number of bits of an element of an array.

    >>> itemsize_bits("int4"), itemsize_bits("float32")
    (4, 32)
    """
    parsed = _dtypes.as_dtype(dtype)
    return 8 * parsed.itemsize if is_key(parsed) else _dtypes.bit_width(parsed)


def scalar_type_of(x: Any) -> type:
    """The Python type (bool, int, float or complex) of the elements of an array, number or dtype.

    Raises:
      ArgumentTypeError: the elements are of another kind.

    >>> scalar_type_of(2.5), scalar_type_of("int8")
    (<class 'float'>, <class 'int'>)
    """
    is_value = hasattr(x, "shape") or isinstance(x, (int, float, complex))
    dtype = _typeof(x).dtype if is_value else _dtypes.as_dtype(x)
    for test, kind in _PYTHON_KINDS:
        if test(dtype):
            return kind
    raise ArgumentTypeError(f"scalar_type_of: elements of {dtype} are no numbers")


def issubdtype(a: Any, b: Any) -> bool:
    """Whether a dtype belongs to an abstract type, such as ``numpy.floating`` or :class:`prng_key`.

    >>> issubdtype("bfloat16", "bfloat16")
    True
    """
    return _issubdtype(a, b)


def result_type(*args: Any, return_weak_type_flag: bool = False) -> Any:
    """The dtype to which arrays, numbers and dtypes promote; with ``return_weak_type_flag`` also whether it is weak.

    >>> result_type("int32", 1.0, return_weak_type_flag=True)
    (dtype('float32'), True)
    """
    dtype, weak = _dtypes.promote(_dtypes_of(*args))
    return (_dtypes.canonical(dtype), weak) if return_weak_type_flag else _dtypes.canonical(dtype)


__getattr__ = _absent("dtypes")
