"""Torch's dtypes and ours, and torch's promotion, which goes by category."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import numpy as np
import torch

from meshwright.core import dtypes
from meshwright.core.dtypes import as_dtype, canonical
from meshwright.errors import DTypeError
from meshwright.ir.tracing import typeof

_NAMES = {
    torch.bool: "bool", torch.uint8: "uint8", torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64",
    torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64",
    torch.complex64: "complex64", torch.complex128: "complex128",
    torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz", torch.float8_e5m2fnuz: "float8_e5m2fnuz",
    torch.float8_e8m0fnu: "float8_e8m0fnu",
}  # fmt: skip
#: the numbers that schemas have for dtypes as default values: the order of ``c10::ScalarType``
_NUMBERED = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    None, torch.complex64, torch.complex128, torch.bool, None, None, None, torch.bfloat16,
)  # fmt: skip
_TORCH = {as_dtype(name): dtype for dtype, name in _NAMES.items()}


def array_dtype(dtype: torch.dtype | int) -> np.dtype:
    """Our dtype for torch's, or for its number in a schema; 64-bit ones are narrowed unless ``enable_x64`` is on.

    Raises:
      DTypeError: there is none (quantized and packed dtypes).
    """
    try:
        named = _NUMBERED[dtype] if isinstance(dtype, int) and 0 <= dtype < len(_NUMBERED) else dtype
        return canonical(as_dtype(_NAMES[named]))  # type: ignore[index]
    except KeyError:
        raise DTypeError(f"arrays of dtype {dtype} do not exist here; convert the tensor in the module") from None


def torch_dtype(dtype: Any) -> torch.dtype:
    """Torch's dtype for ours.

    Raises:
      DTypeError: there is none.
    """
    try:
        return _TORCH[np.dtype(dtype)]
    except KeyError:
        raise DTypeError(f"torch has no dtype for {dtype}; convert the array first") from None


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """``lower`` has a say only where it is of a higher category."""
    if higher is None or lower is None:
        return higher or lower
    if _category(lower) <= _category(higher):
        return higher
    if _category(higher) == 2:
        return torch.complex128 if higher == torch.float64 else torch.complex64
    return lower


@cache
def _common(dims: tuple[torch.dtype, ...], zeros: tuple[torch.dtype, ...], numbers: tuple[torch.dtype, ...]) -> Any:
    joined = [reduce(torch.promote_types, group) if group else None for group in (dims, zeros, numbers)]
    return _combined(joined[0], _combined(joined[1], joined[2]))


def _of_number(x: Any) -> torch.dtype:
    if isinstance(x, bool):
        return torch.bool
    if isinstance(x, int):
        return torch.int64
    return torch.complex64 if isinstance(x, complex) else torch.float32


def common_dtype(*values: Any) -> np.dtype:
    """The dtype that torch computes with for these operands: that of the arrays, unless a 0-d array, or failing that a
    Python number, is of a higher category (bool < integer < float < complex)."""
    groups: tuple[list[torch.dtype], list[torch.dtype], list[torch.dtype]] = ([], [], [])
    for x in values:
        if isinstance(x, (bool, int, float, complex)):
            groups[2].append(_of_number(x))
        elif x is not None:
            aval = typeof(x)
            if aval.weak_type and dtypes.is_inexact(aval.dtype):  # a number that only a run knows
                groups[2].append(torch.float32)
            else:
                groups[0 if aval.shape else 1].append(torch_dtype(aval.dtype))
    return array_dtype(_common(*map(tuple, groups)))
