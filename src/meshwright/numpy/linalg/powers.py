"""Powers and exponentials of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.api.control_flow import cond, fori_loop
from meshwright.core import dtypes
from meshwright.core.dtypes import real_of
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import abs, ceil, maximum
from meshwright.numpy.axes import static_int
from meshwright.numpy.compiled import compiled
from meshwright.numpy.functions import exp2, log2
from meshwright.numpy.linalg.operands import square, with_lead
from meshwright.numpy.linalg.solving import inv, solve
from meshwright.numpy.logic import where
from meshwright.numpy.promotion import as_operand, scalar_like
from meshwright.numpy.reductions import max, sum
from meshwright.ops.elementwise.table import convert
from meshwright.ops.linalg.matrices import eye, matmul, require_square, triu


def matrix_power(a: Any, n: int) -> Any:
    """Raise square matrices, shape (..., m, m), to an integer power by repeated squaring; inverts them if it is
    negative.

    Raises:
      ShapeError: matrices are not square. ArgumentTypeError: ``n`` is not an integer. DTypeError: a negative power for
        a dtype without kernels.

    >>> matrix_power(np.array([[1, 1], [0, 1]]), 5).tolist()
    [[1, 5], [0, 1]]
    """
    n = static_int(n, "matrix_power", "n")
    x = as_operand(inv(a) if n < 0 else a, "matrix_power")
    require_square("matrix_power", typeof(x))
    return _power(x, -n if n < 0 else n)


@compiled(static_argnums=(1,))
def _power(x: Any, n: int) -> Any:
    if n == 3:
        return matmul(matmul(x, x), x)  # in NumPy's order
    m = typeof(x).shape[-1]
    result = None if n else with_lead(eye(m, m, typeof(x).dtype), typeof(x).shape[:-2])
    while n:
        if n & 1:
            result = x if result is None else matmul(result, x)
        n >>= 1
        if n:
            x = matmul(x, x)
    return result


# --- exponential --------------------------------------------------------------------------------------------
#: the coefficients of Padé approximants of exp, and the norm up to which they are exact for the dtype
_PADE = {
    dtypes.float32: (3.925724783138660, (17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1)),
    dtypes.float64: (
        5.371920351148152,
        (64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600,
         670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1),
    ),
}  # fmt: skip


def expm(A: Any, *, upper_triangular: bool = False, max_squarings: int = 16) -> Any:
    """The exponential of square matrices: ``I + A + A A / 2 + A A A / 6 + …``.

    Uses scaling, a Padé approximant, and squaring (N. Higham, "The scaling and squaring method for the matrix
    exponential revisited", 2005).

    Args:
      A: shape (..., n, n).
      upper_triangular: read only the upper triangle; the result is upper triangular.
      max_squarings: matrices whose norm is so large that more are needed give NaN.

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without kernels.

    >>> expm(np.array([[0.0, 1.0], [0.0, 0.0]])).round(5).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return _expm(square("expm", A), bool(upper_triangular), static_int(max_squarings, "expm", "max_squarings"))


@compiled(static_argnums=(1, 2))
def _expm(a: Any, upper: bool, most: int) -> Any:
    dtype = typeof(a).dtype
    if typeof(a).size == 0:
        return a
    a = triu(a) if upper else a
    largest, coefficients = _PADE[real_of(dtype)]
    size = max(sum(abs(a), -2), -1)
    squarings = maximum(ceil(log2(size / largest)), 0)
    squarings = where(size > 0, squarings, 0)
    scale = convert(exp2(-squarings), dtype)[..., None, None]
    approximant = _pade(a * scale, coefficients)
    needed = squarings[..., None, None]

    def square_again(i: Any, x: Any) -> Any:
        step = convert(i, typeof(squarings).dtype)
        return cond(step < max(squarings), lambda v: where(step < needed, matmul(v, v), v), lambda v: v, x)

    result = fori_loop(0, most, square_again, approximant)
    result = where(needed > most, scalar_like(np.nan, a), result)
    return triu(result) if upper else result


def _pade(a: Any, coefficients: tuple[int, ...]) -> Any:
    n = typeof(a).shape[-1]
    unit = with_lead(eye(n, n, typeof(a).dtype), typeof(a).shape[:-2])
    second = matmul(a, a)
    fourth = matmul(second, second)
    powers = [unit, second, fourth, matmul(second, fourth)]

    def combined(terms: tuple[int, ...]) -> Any:
        low = _weighted(terms[:4], powers)
        return low if len(terms) == 4 else low + matmul(powers[3], _weighted(terms[4:], powers[1:]))

    odd, even = matmul(a, combined(coefficients[1::2])), combined(coefficients[::2])
    return solve(even - odd, even + odd)


def _weighted(weights: tuple[int, ...], values: list[Any]) -> Any:
    total = scalar_like(weights[0], values[0]) * values[0]
    for w, v in zip(weights[1:], values[1:], strict=True):
        total = total + scalar_like(w, v) * v
    return total
