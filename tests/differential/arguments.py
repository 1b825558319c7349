"""Arguments of every kind: arrays of every dtype with distinct and with special values, numbers, lists."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
BOOL = np.dtype(bool)
SIGNED = [np.dtype(f"int{n}") for n in (8, 16, 32, 64)]
UNSIGNED = [np.dtype(f"uint{n}") for n in (8, 16, 32, 64)]
INTEGERS = [*SIGNED, *UNSIGNED]
FLOATS = [BF16, *(np.dtype(f"float{n}") for n in (16, 32, 64))]
COMPLEX = [np.dtype("complex64"), np.dtype("complex128")]
REAL = [BOOL, *INTEGERS, *FLOATS]
ALL = [*REAL, *COMPLEX]
#: those that 64-bit types are about
WIDE = [np.dtype(n) for n in ("int64", "uint64", "float64", "complex128")]
NARROW = [d for d in ALL if d not in WIDE]
#: the dtypes to test without and with 64-bit types
OF_32_BITS = [*NARROW, np.dtype("float64")]
OF_64_BITS = [*WIDE, np.dtype("int32"), np.dtype("float32"), BOOL]


def is_float(dtype: np.dtype) -> bool:
    return dtype in FLOATS


def special(dtype: Any) -> np.ndarray:
    """The values of a dtype at which functions go wrong."""
    dtype = np.dtype(dtype)
    if dtype == BOOL:
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low = [info.min, info.min + 1, -7, -2, -1] if dtype.kind == "i" else []
        return np.array([*low, 0, 1, 2, 3, 8, 63, info.max - 1, info.max], dtype)
    if dtype.kind == "c":
        parts = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan]
        return np.array([complex(a, b) for a in parts for b in parts], dtype)
    big = 3e4 if dtype == np.float16 else 1e30
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 0.25, 1.5, -2.5, 2.0, 3.0, -4.0, 7.25, 88.0, big, -big, 1 / big]
    return np.array([*values, np.inf, -np.inf, np.nan], np.float64).astype(dtype)


def few(dtype: Any) -> np.ndarray:
    """A smaller choice of :func:`special`."""
    dtype = np.dtype(dtype)
    if dtype == BOOL or dtype.kind in "iu":
        return special(dtype)
    if dtype.kind == "c":
        return np.array([0, -1, 1 + 2j, 1 - 2j, complex(1, np.nan), complex(np.inf, 1), complex(-0.0, -0.0)], dtype)
    return np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, np.inf, -np.inf, np.nan], np.float64).astype(dtype)


def plain(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    """Distinct, moderate values, no zero (of bools both)."""
    dtype = np.dtype(dtype)
    n = int(np.prod(shape))
    order = np.random.default_rng([seed, *shape]).permutation(n)
    if dtype == BOOL:
        return (order % 3 > 0).reshape(shape)
    if dtype.kind in "iu":
        signs = np.where(order % 2, -1, 1) if dtype.kind == "i" else 1
        return ((order + 1) * signs).reshape(shape).astype(dtype)
    values = (order + 1) / 4 * np.where(order % 2, -1, 1)
    if dtype.kind == "c":
        return (values + 1j * np.roll(values, 1)).reshape(shape).astype(dtype)
    return values.reshape(shape).astype(dtype)


def tied(dtype: Any, *shape: int) -> np.ndarray:
    """Special values, repeated and mixed."""
    values = few(dtype)
    n = int(np.prod(shape))
    order = np.random.default_rng(3).permutation(max(n, 1))[:n]
    return values[order % max(len(values) - (n < len(values)), 1)].reshape(shape)


#: numbers that are no arrays
PYTHON_SCALARS = [True, 2, -3, 0.5, -0.0, float("nan"), 1 + 2j]
NUMPY_SCALARS = [
    np.bool_(True), np.int8(3), np.uint8(200), np.int64(5), np.float16(1.5), np.float32(0.25), np.float64(-2.5),
    np.complex64(1 - 1j),
]  # fmt: skip
