"""The cost of elementwise ops on GPUs, in vector operations per element.

Measured on an H200: the time that one more application takes in a fused chain of 20, times the peak rate of its vector
units (67e12 a second). Ops that are not listed were not slower than a multiply-add, or were not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.contract import Kernels

#: by op; types below 32 bits are computed in float32
_FLOAT: Mapping[str, int] = {
    "exp": 18, "exp2": 20, "expm1": 62, "log": 57, "log1p": 57, "tanh": 48, "logistic": 41, "sin": 68, "cos": 69,
    "tan": 69, "sqrt": 11, "rsqrt": 10, "cbrt": 45, "pow": 222, "erf": 51, "erfc": 187, "erf_inv": 157, "atan2": 117,
    "lgamma": 642, "digamma": 877, "floor": 9, "sign": 12, "rem": 74,
}  # fmt: skip
#: ops on float64 that are not listed take two: there are half as many units
_DOUBLE: Mapping[str, int] = {
    "exp": 86, "log": 229, "tanh": 285, "sin": 162, "cos": 162, "sqrt": 55, "erf": 259
}  # fmt: skip
_SIGNED: Mapping[str, int] = {"div": 80, "rem": 76, "population_count": 10, "clz": 10}
_UNSIGNED: Mapping[str, int] = {"div": 27, "rem": 27, "population_count": 10, "clz": 10}
#: the twenty rounds of Threefry, of which a random number of up to 64 bits takes one run: 2^28 take 0.80 ms
_THREEFRY = 200


def operations(name: str, dtype: np.dtype) -> int:
    """The vector operations that one element takes."""
    if dtype == np.float64:
        return _DOUBLE.get(name, 2)
    if dtypes.is_float(dtype):
        return _FLOAT.get(name, 1)
    if dtypes.is_integer(dtype):
        return (_SIGNED if dtypes.is_signed(dtype) else _UNSIGNED).get(name, 1)
    return 1


def random_bits(size: int) -> Kernels:
    """The kernel that draws ``size`` numbers with Threefry."""
    return Kernels(operations=_THREEFRY * size)
