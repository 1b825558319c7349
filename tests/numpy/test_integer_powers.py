"""Powers of integers of every dtype, with exponents up to the largest, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

DTYPES = [f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)]


def wrapped_power(x: int, y: int, dtype: np.dtype) -> int:
    """The power modulo 2**bits; to a negative power the quotient rounded towards zero (of zero: as XLA says, 0)."""
    if y < 0:
        return 0 if abs(x) != 1 else x ** (-y % 2)
    bits = 8 * dtype.itemsize
    value = pow(x, y, 2**bits)
    return value - 2**bits if dtype.kind == "i" and value >= 2 ** (bits - 1) else value


@pytest.mark.parametrize("name", DTYPES)
def test_powers(name: str) -> None:
    dtype, info = np.dtype(name), np.iinfo(name)
    bases = [0, 1, 2, 3, 7, info.max, *([-1, -2, -7, info.min] if info.min else [])]
    exponents = [
        0,
        1,
        2,
        3,
        5,
        8,
        63,
        info.max // 2 + 1,
        info.max - 1,
        info.max,
        *([-1, -2, info.min] if info.min else []),
    ]
    want = np.array([[wrapped_power(x, y, dtype) for y in exponents] for x in bases], dtype)
    with mw.enable_x64(True):
        x, y = mnp.array(bases, dtype), mnp.array(exponents, dtype)
        np.testing.assert_array_equal(mnp.power(x[:, None], y), want)
        np.testing.assert_array_equal(mw.jit(mnp.power)(x[:, None], y), want)
        np.testing.assert_array_equal(lax.pow(mnp.repeat(x[:, None], len(y), 1), mnp.repeat(y[None], len(x), 0)), want)


def test_static_exponents_are_not_negative() -> None:
    with pytest.raises(mw.errors.DTypeError, match="negative power -1"):
        mnp.power(mnp.array([1, 2], "uint8"), -1)


@pytest.mark.parametrize("name", ["power", "remainder", "fmod", "floor_divide", "left_shift", "right_shift"])
def test_bools_are_computed_with_as_default_integers(name: str) -> None:
    flags = mnp.array([True, False])
    result = getattr(mnp, name)(flags, mnp.array([True, True]))
    assert result.dtype == np.int32
    expected = getattr(np, name)(np.array([1, 0]), np.array([1, 1]))
    np.testing.assert_array_equal(result, expected)
