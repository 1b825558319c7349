"""Conversion from one dtype to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.exceptions import ComplexWarning

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.core.source import warn
from meshwright.errors import ArgumentTypeError, IntegerRangeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import Builder, Cotangents, Dual, Tangent
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.base import Elementwise


@dataclass(frozen=True)
class ConvertElementType(Elementwise):
    """Conversion to ``new_dtype``."""

    new_dtype: np.dtype
    weak_type: bool = False
    name: ClassVar[str] = "convert_element_type"
    converts: ClassVar[bool] = True
    accepts: ClassVar[tuple[str, ...]] = ("biufc",)

    def linear_groups(self, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if dtypes.holds_floats(self.new_dtype, avals[0].dtype) else ()  # then sums can be computed in it

    def infer(self, *avals: ShapedArray) -> ShapedArray:
        return ShapedArray(avals[0].shape, self.new_dtype, self.weak_type)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.bind(*primals), self.bind(*tangents)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [ConvertElementType(x.aval.dtype).bind(ct)]

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        (source,), (out,) = b.in_avals, b.out_avals
        if dtypes.is_bool(self.new_dtype) and not dtypes.is_bool(source.dtype):
            return b.op(
                "stablehlo.compare", [x, b.constant(0, source)], b.out_avals,
                comparison_direction="#stablehlo<comparison_direction NE>",
            )[0]  # fmt: skip
        if dtypes.is_complex(source.dtype) and not dtypes.is_complex(out.dtype):
            source = source.update(dtype=dtypes.real_of(source.dtype))
            x = b.op("stablehlo.real", [x], [source])[0]
        return x if source.dtype == out.dtype else b.op("stablehlo.convert", [x], b.out_avals)[0]


def convert(x: Any, dtype: np.dtype, weak_type: bool = False) -> Any:
    """Convert ``x`` to ``dtype``, if necessary. Dropping imaginary parts gives NumPy's ``ComplexWarning``.

    Raises:
      ArgumentTypeError: a Python complex number for a real dtype.
      IntegerRangeError: an integer that neither ``dtype`` nor the default integer dtype can represent.
    """
    if type(x) is int and not -(2**31) <= x < 2**31:
        x = _held(x, dtype)
    aval = typeof(x)
    if aval.dtype == dtype and aval.weak_type == weak_type:
        return x
    if dtypes.is_complex(aval.dtype) and (dtypes.is_integer(dtype) or dtypes.is_float(dtype)):
        if isinstance(x, complex) and not isinstance(x, np.generic):
            raise ArgumentTypeError(f"{x!r} is no {dtype}; take its real part, or give a complex dtype")
        warn_of_lost_parts(aval.dtype, dtype)
    return ConvertElementType(dtype, weak_type).bind(x)


def _held(x: int, dtype: np.dtype) -> Any:
    """A wide integer as a scalar of ``dtype``."""
    if config.enable_x64 and -(2**63) <= x < 2**63:
        return x
    try:
        with np.errstate(over="ignore"):
            return np.asarray(x, dtype)[()]
    except OverflowError:
        raise IntegerRangeError(f"Python integer {x} does not fit in {dtype}; give a dtype that holds it") from None


def warn_of_lost_parts(source: np.dtype, dtype: np.dtype) -> None:
    """Warn that a conversion from complex to real numbers drops imaginary parts, as NumPy and JAX do."""
    warn(f"{source} to {dtype} drops imaginary parts; take .real if that is meant", ComplexWarning)
