"""The cost of elementwise ops on GPUs, in vector operations per element.

Measured on an H200: the additional time of one more application in a fused chain of 20, multiplied by the peak rate of
the vector units (67e12 per second). Ops not listed were as fast as a multiply-add, or were not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.contract import Kernels

#: by op; narrower types are computed in float32
_FLOAT: Mapping[str, int] = {
    "exp": 18, "exp2": 20, "expm1": 62, "log": 57, "log1p": 57, "tanh": 48, "logistic": 41, "sin": 68, "cos": 69,
    "tan": 69, "sqrt": 11, "rsqrt": 10, "cbrt": 45, "pow": 222, "erf": 51, "erfc": 187, "erf_inv": 157, "atan2": 117,
    "lgamma": 642, "digamma": 877, "floor": 9, "sign": 12, "rem": 74,
}  # fmt: skip
#: float64 ops that are not listed cost two, since there are half as many units
_DOUBLE: Mapping[str, int] = {
    "exp": 86, "log": 229, "tanh": 285, "sin": 162, "cos": 162, "sqrt": 55, "erf": 259
}  # fmt: skip
_SIGNED: Mapping[str, int] = {"div": 80, "rem": 76, "population_count": 10, "clz": 10}
_UNSIGNED: Mapping[str, int] = {"div": 27, "rem": 27, "population_count": 10, "clz": 10}
#: twenty rounds of Threefry, which yield one random number of up to 64 bits: 2^28 numbers take 0.80 ms
_THREEFRY = 200


def operations(name: str, dtype: np.dtype) -> int:
    """The number of vector operations per element."""
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
