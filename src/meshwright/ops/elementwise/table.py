"""Elementwise ops, each defined by one row of a table.

All share the rules of ``Elementwise``; a row gives the StableHLO op, the accepted dtypes, and the partial derivative
for each operand. A rank-0 operand next to arrays has the same value everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray, Typed
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.core.static import static_index
from meshwright.core.words import counted
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Region
from meshwright.ir.op import CONSTANT, ZEROS, Builder, Cotangents, Dual, Linear, Op, Tangent, Unknown, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ir.rewrite import COPY
from meshwright.ir.tracing import typeof
from meshwright.ir.varying import cast
from meshwright.ops.composite import emit_traced, traced
from meshwright.ops.elementwise import by_parts, slopes, written_out
from meshwright.ops.elementwise.base import Elementwise, Partial, complex_of_parts, row
from meshwright.ops.elementwise.conversion import ConvertElementType as ConvertElementType
from meshwright.ops.elementwise.conversion import convert as convert
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, match_shape, unbroadcast

#: passed to functions in other files, which this module imports, as their table of ops
_OPS = sys.modules[__name__]


def _real(d: np.dtype, *_: np.dtype) -> np.dtype:
    return dtypes.real_of(d)


def _bool(*_: np.dtype) -> np.dtype:
    return dtypes.bool_


def _to_linear(f: Callable[[Any], Any]) -> Callable[..., Any]:
    """Transpose rule of a unary linear op from a function of the cotangent."""
    return lambda ct, x: [f(ct)]


def _one(x: Any) -> Any:
    return scalar_like(1, x)


def scalar_like(value: Any, x: Any) -> np.ndarray:
    """``value`` as a rank-0 constant of ``x``'s dtype."""
    return dtypes.constant(value, typeof(x).dtype)


def _both(ct: Any, x: Any, y: Any, fx: Callable[[Any], Any], fy: Callable[[Any], Any]) -> list[Any]:
    return [
        unbroadcast(fx(ct), x.aval) if isinstance(x, Linear) else None,
        unbroadcast(fy(ct), y.aval) if isinstance(y, Linear) else None,
    ]


def _squared(b: Builder, x: Emitted) -> Emitted:
    """A product; of complex numbers it would lose the real part where the squares of both parts overflow."""
    is_complex = dtypes.is_complex(b.out_avals[0].dtype)
    return b.op(*(("chlo.square", [x]) if is_complex else ("stablehlo.multiply", [x, x])), b.out_avals)[0]


_NUM = "iufc"

neg: Elementwise = row(
    "neg", "stablehlo.negate", _NUM, lambda t, y, x: neg(t), linear=((0,),), transpose=_to_linear(lambda c: neg(c))
)
copy: Elementwise = row("copy", "", "biufck", lambda t, y, x: t, linear=((0,),), transpose=_to_linear(lambda c: c))
stop_gradient: Elementwise = row("stop_gradient", "", "biufck", CONSTANT)
type(copy).takes_keys = type(stop_gradient).takes_keys = True
type(copy).emit = type(stop_gradient).emit = lambda self, b, x: x  # type: ignore

sign: Elementwise = row("sign", "stablehlo.sign", _NUM, lambda t, y, x: slopes.of_direction(_OPS, t, y, x))
floor: Elementwise = row("floor", "stablehlo.floor", "f", CONSTANT)
ceil: Elementwise = row("ceil", "stablehlo.ceil", "f", CONSTANT)
round_half_even: Elementwise = row("round_nearest_even", "stablehlo.round_nearest_even", "f", CONSTANT)
round_half_away: Elementwise = row("round_nearest_afz", "stablehlo.round_nearest_afz", "f", CONSTANT)
is_finite: Elementwise = row("is_finite", "stablehlo.is_finite", "f", CONSTANT, result=_bool)

exp: Elementwise = row("exp", "stablehlo.exponential", "fc", lambda t, y, x: mul(t, y))
exp2: Elementwise = row(  # log(2) is below 1, so the slope is finite at the smallest operand that overflows
    "exp2", "", "fc", lambda t, y, x: mul(t, mul(exp2(sub(x, _one(x))), scalar_like(2 * np.log(2), x)))
)
expm1: Elementwise = row("expm1", "stablehlo.exponential_minus_one", "fc", lambda t, y, x: mul(t, exp(x)))
log: Elementwise = row("log", "stablehlo.log", "fc", lambda t, y, x: div(t, x))
log1p: Elementwise = row("log1p", "stablehlo.log_plus_one", "fc", lambda t, y, x: div(t, add(x, scalar_like(1, x))))
sqrt: Elementwise = row("sqrt", "stablehlo.sqrt", "fc", lambda t, y, x: mul(t, div(scalar_like(0.5, y), y)))
rsqrt: Elementwise = row("rsqrt", "stablehlo.rsqrt", "fc", lambda t, y, x: mul(t, mul(scalar_like(-0.5, x), div(y, x))))
cbrt: Elementwise = row(
    "cbrt", "stablehlo.cbrt", "f", lambda t, y, x: mul(t, mul(scalar_like(1 / 3, x), integer_pow(y, -2)))
)
square: Elementwise = row("square", "", _NUM, lambda t, y, x: mul(t, mul(x, scalar_like(2, x))))
type(square).emit = lambda self, b, x: _squared(b, x)  # type: ignore

sin: Elementwise = row("sin", "stablehlo.sine", "fc", lambda t, y, x: mul(t, cos(x)))
cos: Elementwise = row("cos", "stablehlo.cosine", "fc", lambda t, y, x: neg(mul(t, sin(x))))
tan: Elementwise = row("tan", "stablehlo.tan", "fc", lambda t, y, x: mul(t, add(square(y), _one(x))))
asin: Elementwise = row("asin", "chlo.asin", "fc", lambda t, y, x: mul(t, rsqrt(sub(_one(x), square(x)))))
acos: Elementwise = row("acos", "chlo.acos", "fc", lambda t, y, x: neg(mul(t, rsqrt(sub(_one(x), square(x))))))
atan: Elementwise = row("atan", "chlo.atan", "fc", lambda t, y, x: div(t, add(square(x), _one(x))))
sinh: Elementwise = row("sinh", "chlo.sinh", "fc", lambda t, y, x: mul(t, cosh(x)))
cosh: Elementwise = row("cosh", "chlo.cosh", "fc", lambda t, y, x: mul(t, sinh(x)))
# Uses only the result, as logistic does: 0 where it rounds to 1, but the operand need not be stored.
tanh: Elementwise = row("tanh", "stablehlo.tanh", "fc", lambda t, y, x: mul(t, sub(_one(x), square(y))))
asinh: Elementwise = row("asinh", "chlo.asinh", "fc", lambda t, y, x: mul(t, rsqrt(add(square(x), _one(x)))))
acosh: Elementwise = row(
    "acosh", "chlo.acosh", "fc", lambda t, y, x: mul(t, mul(rsqrt(sub(x, _one(x))), rsqrt(add(x, _one(x)))))
)
# 1 - x**2 would lose precision near 1.
atanh: Elementwise = row("atanh", "chlo.atanh", "fc", lambda t, y, x: div(t, mul(sub(_one(x), x), add(_one(x), x))))
logistic: Elementwise = row("logistic", "stablehlo.logistic", "fc", lambda t, y, x: mul(t, mul(y, sub(_one(x), y))))
_TWO_OVER_SQRT_PI = 2 / np.sqrt(np.pi)
erf: Elementwise = row(
    "erf", "chlo.erf", "f", lambda t, y, x: mul(t, mul(scalar_like(_TWO_OVER_SQRT_PI, x), exp(neg(square(x)))))
)
erfc: Elementwise = row(
    "erfc", "chlo.erfc", "f", lambda t, y, x: mul(t, mul(scalar_like(-_TWO_OVER_SQRT_PI, x), exp(neg(square(x)))))
)
erf_inv: Elementwise = row(
    "erf_inv", "chlo.erf_inv", "f", lambda t, y, x: mul(t, mul(scalar_like(1 / _TWO_OVER_SQRT_PI, x), exp(square(y))))
)
lgamma: Elementwise = row("lgamma", "chlo.lgamma", "f", lambda t, y, x: mul(t, digamma(x)))
digamma: Elementwise = row("digamma", "chlo.digamma", "f", lambda t, y, x: mul(t, polygamma(scalar_like(1, x), x)))
polygamma: Elementwise = row(
    "polygamma", "chlo.polygamma", "f f", Unknown("m, the order", "it is defined at whole numbers alone"),
    lambda t, y, n, x: mul(t, polygamma(add(n, scalar_like(1, n)), x)),
)  # fmt: skip
zeta: Elementwise = row("zeta", "chlo.zeta", "f f", Unknown("x, the exponent"),
            lambda t, y, x, q: mul(t, mul(neg(x), zeta(add(x, scalar_like(1, x)), q))))  # fmt: skip

real: Elementwise = row("real", "stablehlo.real", "c", lambda t, y, x: real(t), linear=((0,),), result=_real,
           transpose=_to_linear(lambda c: complex_(c, zeros_like(c))))  # fmt: skip
imag: Elementwise = row("imag", "stablehlo.imag", "c", lambda t, y, x: imag(t), linear=((0,),), result=_real,
           transpose=_to_linear(lambda c: complex_(zeros_like(c), neg(c))))  # fmt: skip
complex_: Elementwise = row(
    "complex", "stablehlo.complex", "f f",
    lambda t, y, a, b: complex_(t, zeros_like(t)),
    lambda t, y, a, b: complex_(zeros_like(t), t),
    linear=((0, 1),), result=complex_of_parts,
    transpose=lambda ct, a, b: _both(ct, a, b, lambda c: real(c), lambda c: neg(imag(c))),
)  # fmt: skip
conj: Elementwise = row(
    "conj", "", "c", lambda t, y, x: conj(t), linear=((0,),), transpose=_to_linear(lambda c: conj(c))
)
abs_: Elementwise = row(
    "abs", "stablehlo.abs", "ifc",
    lambda t, y, x: slopes.of_magnitude(_OPS, t, y, x), result=_real,
)  # fmt: skip

add: Elementwise = row("add", "stablehlo.add", f"b{_NUM} b{_NUM}", lambda t, y, a, b: t, lambda t, y, a, b: t,
          linear=((0, 1),), transpose=lambda ct, a, b: _both(ct, a, b, lambda c: c, lambda c: c))  # fmt: skip
sub: Elementwise = row("sub", "stablehlo.subtract", f"{_NUM} {_NUM}", lambda t, y, a, b: t, lambda t, y, a, b: neg(t),
          linear=((0, 1),), transpose=lambda ct, a, b: _both(ct, a, b, lambda c: c, lambda c: neg(c)))  # fmt: skip
mul: Elementwise = row(
    "mul", "stablehlo.multiply", f"b{_NUM} b{_NUM}",
    lambda t, y, a, b: mul(t, b), lambda t, y, a, b: mul(a, t), linear=((0,), (1,)),
    transpose=lambda ct, a, b: _both(ct, a, b, lambda c: mul(c, b), lambda c: mul(a, c)),
)  # fmt: skip
div: Elementwise = row(
    "div", "stablehlo.divide", f"{_NUM} {_NUM}",
    lambda t, y, a, b: div(t, b), lambda t, y, a, b: neg(mul(t, div(y, b))), linear=((0,),),
    transpose=lambda ct, a, b: _both(ct, a, b, lambda c: div(c, b), lambda c: c),
)  # fmt: skip
rem: Elementwise = row("rem", "stablehlo.remainder", "iuf iuf", lambda t, y, a, b: t,
          lambda t, y, a, b: neg(mul(t, round_half_even(div(sub(a, y), b)))))  # fmt: skip
pow_: Elementwise = row(
    "pow", "stablehlo.power", "iufc iufc",
    lambda t, y, a, b: mul(t, slopes.of_base(_OPS, a, b)),
    lambda t, y, a, b: mul(t, slopes.of_exponent(_OPS, y, a)),
)  # fmt: skip
atan2: Elementwise = row(
    "atan2", "stablehlo.atan2", "fc fc",
    lambda t, y, a, b: mul(t, div(b, add(square(a), square(b)))),
    lambda t, y, a, b: mul(t, div(neg(a), add(square(a), square(b)))),
)  # fmt: skip
_EXTREME: Sequence[Partial] = (lambda t, y, a, b: mul(t, slopes.of_extreme(_OPS, a, b, y)),
                               lambda t, y, a, b: mul(t, slopes.of_extreme(_OPS, b, a, y)))  # fmt: skip
max_: Elementwise = row("max", "stablehlo.maximum", "biufc biufc", *_EXTREME)
min_: Elementwise = row("min", "stablehlo.minimum", "biufc biufc", *_EXTREME)
nextafter: Elementwise = row(
    "nextafter",
    "chlo.next_after",
    "f f",
    *(Unknown(n, "a step between floats is no real function") for n in ("x1", "x2")),
)

and_: Elementwise = row("and", "stablehlo.and", "biu biu")
or_: Elementwise = row("or", "stablehlo.or", "biu biu")
xor: Elementwise = row("xor", "stablehlo.xor", "biu biu")
not_: Elementwise = row("not", "stablehlo.not", "biu")
shift_left: Elementwise = row("shift_left", "stablehlo.shift_left", "iu iu")
shift_right_logical: Elementwise = row("shift_right_logical", "stablehlo.shift_right_logical", "iu iu")
shift_right_arithmetic: Elementwise = row("shift_right_arithmetic", "stablehlo.shift_right_arithmetic", "iu iu")
population_count: Elementwise = row("population_count", "stablehlo.popcnt", "iu")
clz: Elementwise = row("clz", "stablehlo.count_leading_zeros", "iu")


def _comparison(name: str) -> Elementwise:
    def attributes(b: Builder) -> dict[str, Any]:
        dtype = b.in_avals[0].dtype
        kind = "FLOAT" if dtypes.is_inexact(dtype) else "SIGNED" if dtypes.is_signed(dtype) else "UNSIGNED"
        return {
            "comparison_direction": f"#stablehlo<comparison_direction {name.upper()}>",
            "compare_type": f"#stablehlo<comparison_type {kind}>",
        }

    return row(name, "stablehlo.compare", "biufc biufc", CONSTANT, CONSTANT, result=_bool, attributes=attributes)


eq, ne, lt, le, gt, ge = (_comparison(n) for n in ("eq", "ne", "lt", "le", "gt", "ge"))


def _emit_exp2(self: Op, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
    (out,) = b.out_avals
    scaled = b.op("stablehlo.multiply", [x, b.constant(np.log(2), out)], [out])[0]
    return b.op("stablehlo.exponential", [scaled], [out])[0]


def _emit_sign(self: Elementwise, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
    unsigned, (out,) = dtypes.is_unsigned(b.in_avals[0].dtype), b.out_avals
    return b.op("stablehlo.minimum", [x, b.constant(1, out)], [out])[0] if unsigned else Elementwise.emit(self, b, x)


def _emit_conj(self: Op, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
    part = b.in_avals[0].update(dtype=dtypes.real_of(b.in_avals[0].dtype))
    re, im = (b.op(f"stablehlo.{n}", [x], [part])[0] for n in ("real", "imag"))
    return b.op("stablehlo.complex", [re, b.op("stablehlo.negate", [im], [part])[0]], b.out_avals)[0]


def _check_pow(self: Elementwise, base: np.dtype, exponent: np.dtype) -> None:
    mixed = dtypes.is_inexact(base) and dtypes.is_integer(exponent)  # differentiable only with respect to the base
    Elementwise.check_dtypes(self, base, base if mixed else exponent)


def _emit_written_out(self: Elementwise, b: Builder, *xs: Emitted) -> Emitted | Sequence[Emitted]:
    if b.in_avals[0].dtype != b.in_avals[-1].dtype:
        return emit_traced(b, _WRITTEN_OUT["pow_mixed"], self.name, *xs)[0]
    concerned = dtypes.is_integer if self.name == "pow" else dtypes.is_complex
    if not concerned(b.in_avals[0].dtype):
        return Elementwise.emit(self, b, *xs)
    return emit_traced(b, _WRITTEN_OUT[self.name], self.name, *xs)[0]


_WRITTEN_OUT = {n: partial(getattr(m, n), _OPS) for m in (written_out, by_parts) for n in m.NAMES}


def reducer(b: Builder, hlo: str, dtype: np.dtype) -> Region:
    """The region that combines two scalars of ``dtype`` with the operation ``hlo``."""
    scalar, name = ShapedArray((), dtype), {max_.hlo: "max", min_.hlo: "min"}.get(hlo)
    if dtypes.is_complex(dtype) and name:
        return b.jaxpr_region(traced(_WRITTEN_OUT[name], name, (scalar, scalar)))
    return b.reducer(hlo, [scalar])


def _div_groups(self: Elementwise, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]:
    return self.linear_in if dtypes.is_inexact(avals[0].dtype) else ()  # integer division rounds


type(pow_).check_dtypes, type(div).linear_groups = _check_pow, _div_groups  # type: ignore
type(sign).constant_operands = lambda self, x: frozenset(() if dtypes.is_complex(x.dtype) else (0,))  # type: ignore
for _op in (lt, le, gt, ge, max_, min_, pow_, sin, cos, sinh, cosh, expm1, log1p):
    type(_op).emit = _emit_written_out  # type: ignore
for _op in (zeta, polygamma):
    type(_op).emit = lambda self, b, *xs: written_out.emit_above_zero(  # type: ignore
        _WRITTEN_OUT["above_zero"], _WRITTEN_OUT[self.name], _WRITTEN_OUT["is_below"], self, b, *xs
    )
type(neg).turns_signs = type(sub).turns_signs = type(conj).turns_signs = True
type(exp2).emit, type(sign).emit, type(conj).emit = _emit_exp2, _emit_sign, _emit_conj  # type: ignore


# --- pieces of derivatives ----------------------------------------------------------------------------------
def zeros_like(x: Any) -> Any:
    """Zeros with ``x``'s shape and dtype."""
    aval = typeof(x)
    zero = np.zeros((), aval.dtype)
    return broadcast_in_dim(zero, aval.shape, ()) if aval.shape else zero


def materialize(x: Any) -> Any:
    """An array for a :class:`Zero`, of dtype ``float0`` for keys; other values are returned unchanged."""
    if isinstance(x, Zero) and is_key(x.aval.dtype):
        return np.zeros(x.aval.shape, dtypes.float0)
    return cast(match_shape(np.zeros((), x.aval.dtype), x.aval), x.aval.vma) if isinstance(x, Zero) else x


ZEROS.fill(materialize)
COPY.fill(copy)


# --- ops with parameters ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class IntegerPow(Elementwise):
    """``x ** y`` for a fixed integer ``y``."""

    y: int
    name: ClassVar[str] = "integer_pow"
    accepts: ClassVar[tuple[str, ...]] = (_NUM,)

    def infer(self, *avals: ShapedArray) -> ShapedArray:
        if self.y < 0 and not dtypes.is_inexact(avals[0].dtype):
            raise DTypeError(f"integer_pow: {avals[0].dtype} to the negative power {self.y}; convert to float first")
        return super().infer(*avals)

    def constant_operands(self, *avals: ShapedArray) -> frozenset[int]:
        return frozenset(() if self.y else (0,))

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (x,), (t,) = primals, tangents
        return self.bind(x), mul(t, mul(scalar_like(self.y, x), integer_pow(x, self.y - 1)))

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        (out,) = b.out_avals
        result: Emitted | None = None
        power, n = x, abs(self.y)
        while n:  # exponentiation by squaring
            if n & 1:
                result = power if result is None else b.op("stablehlo.multiply", [result, power], [out])[0]
            n >>= 1
            if n:
                power = b.op("stablehlo.multiply", [power, power], [out])[0]
        if result is None:
            return b.constant(1, out)
        return result if self.y > 0 else b.op("stablehlo.divide", [b.constant(1, out), result], [out])[0]


def integer_pow(x: Any, y: int) -> Any:
    """``x ** y``, elementwise, for a Python integer ``y``; computed by squaring.

    Raises:
      DTypeError: bools, or integers with a negative ``y``. ArgumentTypeError: ``y`` is not an integer.

    Example:
      >>> lax.integer_pow(jnp.array([2, -3]), 3).tolist(), lax.integer_pow(jnp.array([2., 4.]), -1).tolist()
      ([8, -27], [0.5, 0.25])
    """
    exponent = static_index(y, "integer_pow", "the exponent")
    if exponent != 1:
        return IntegerPow(exponent).bind(x)
    return x if isinstance(x, Typed) else copy(x)


@dataclass(frozen=True)
class ReducePrecision(Elementwise):
    """Rounds to a float format with fewer bits."""

    exponent_bits: int
    mantissa_bits: int
    name: ClassVar[str] = "reduce_precision"
    rounds: ClassVar[bool] = True
    hlo: ClassVar[str] = "stablehlo.reduce_precision"
    accepts: ClassVar[tuple[str, ...]] = ("f",)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.bind(*primals), self.bind(*tangents)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [self.bind(ct)]

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        exponent, mantissa = f"{self.exponent_bits} : i32", f"{self.mantissa_bits} : i32"
        return b.op(self.hlo, [x], b.out_avals, exponent_bits=exponent, mantissa_bits=mantissa)[0]


@dataclass(frozen=True)
class BitcastConvert(Elementwise):
    """The bits of the operand as another dtype of the same width."""

    new_dtype: np.dtype
    name: ClassVar[str] = "bitcast_convert_type"
    hlo: ClassVar[str] = "stablehlo.bitcast_convert"
    accepts: ClassVar[tuple[str, ...]] = ("biufc",)
    partials: ClassVar[tuple[Partial, ...]] = (CONSTANT,)
    may_be_weak: ClassVar[bool] = False

    def result_dtype(self, *operand_dtypes: np.dtype) -> np.dtype:
        if dtypes.bit_width(operand_dtypes[0]) != dtypes.bit_width(self.new_dtype):
            raise DTypeError(f"bitcast_convert_type: {operand_dtypes[0]} and {self.new_dtype} have different widths")
        return self.new_dtype


@dataclass(frozen=True)
class SelectN(Elementwise):
    """``cases[which]``, elementwise; ``which`` is bool (two cases) or int32."""

    name: ClassVar[str] = "select_n"
    takes_keys: ClassVar[bool] = True

    def linear_groups(self, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(1, len(avals))),)

    def infer(self, *avals: ShapedArray) -> ShapedArray:
        which, *cases = avals
        if not cases or not ((dtypes.is_bool(which.dtype) and len(cases) <= 2) or which.dtype == dtypes.int32):
            raise DTypeError(
                f"select_n: which has dtype {which.dtype} for {counted(len(cases), 'case')}; expected bool for two, "
                "else int32"
            )
        shape = max((a.shape for a in avals), key=len)
        if {c.dtype for c in cases} != {cases[0].dtype} or any(c.shape not in (shape, ()) for c in cases):
            raise ShapeError(f"select_n: cases must have one shape and dtype, got {', '.join(map(str, cases))}")
        if which.shape not in ((), shape):
            raise ShapeError(f"select_n: which has shape {which.shape}, expected () or {shape}")
        return ShapedArray(shape, cases[0].dtype, all(c.weak_type for c in cases))

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        which = primals[0]
        y = self.bind(*primals)
        out = typeof(y)
        zero = scalar_like(0, y)
        parts = [zero if isinstance(t, Zero) else t for t in tangents[1:]]
        return y, match_shape(self.bind(which, *parts), out)

    def transpose(self, ct: Any, which: Any, *cases: Any) -> Cotangents:
        zero = scalar_like(0, ct)
        result: list[Any] = [None]
        for i, case in enumerate(cases):
            parts = [match_shape(ct if i == j else zero, typeof(ct)) for j in range(len(cases))]
            picked = self.bind(which, *parts) if isinstance(case, Linear) else None
            result.append(picked if picked is None else unbroadcast(picked, case.aval))
        return result

    def emit(self, b: Builder, which: Emitted, *cases: Emitted) -> Emitted | Sequence[Emitted]:
        (out,) = b.out_avals
        full = [x if a.shape == out.shape else b.broadcast(x, out, ()) for x, a in zip(cases, b.in_avals[1:])]
        flag = b.in_avals[0]
        if len(full) == 1:
            return full[0]
        if dtypes.is_bool(flag.dtype):
            return b.op("stablehlo.select", [which, full[1], full[0]], b.out_avals)[0]
        result = full[-1]
        for i in range(len(full) - 2, -1, -1):
            less = b.op(
                "stablehlo.compare", [which, b.constant(i + 1, flag)], [flag.update(dtype=dtypes.bool_)],
                comparison_direction="#stablehlo<comparison_direction LT>",
            )[0]  # fmt: skip
            result = b.op("stablehlo.select", [less, full[i], result], b.out_avals)[0]
        return result


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """``on_true`` where ``pred``, else ``on_false``, elementwise.

    ``on_true`` and ``on_false`` have equal shape and dtype; ``pred`` is a bool array of that shape or a bool scalar.

    Raises:
      ShapeError, DTypeError: the operands do not fit each other.

    Example:
      >>> lax.select(jnp.array([True, False]), jnp.array([1, 2]), jnp.array([30, 40])).tolist()
      [1, 40]
    """
    return SelectN().bind(pred, on_false, on_true)


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.convert")
def _read_convert(r: Reader) -> Any:
    return convert(r.operands[0], r.out_avals[0].dtype)


@reads("stablehlo.reduce_precision")
def _read_reduce_precision(r: Reader) -> Any:
    return ReducePrecision(r.attr("exponent_bits"), r.attr("mantissa_bits")).bind(*r.operands)


@reads("stablehlo.select")
def _read_select(r: Reader) -> Any:
    return select(*r.operands)
