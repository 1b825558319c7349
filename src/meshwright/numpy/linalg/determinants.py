"""Determinants, by LU decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import abs
from meshwright.numpy.compiled import compiled
from meshwright.numpy.functions import log
from meshwright.numpy.linalg.operands import matrix, square
from meshwright.numpy.logic import where
from meshwright.numpy.promotion import promotes_freely
from meshwright.numpy.reductions import prod, sum
from meshwright.ops.elementwise.table import convert, sign
from meshwright.ops.linalg.lu import Lu, lu_solve, permuted
from meshwright.ops.linalg.matrices import along_columns, diagonal, real_part, require_square
from meshwright.ops.linalg.triangular_solve import TriangularSolve
from meshwright.transforms.custom_jvp import custom_jvp


class SlogdetResult(NamedTuple):
    """A number of absolute value 1 (or 0), and the logarithm of the determinant's absolute value."""

    sign: Any
    logabsdet: Any


@promotes_freely()
def _parity(pivots: Any, dtype: np.dtype) -> Any:
    """1 if the number of row exchanges is even, else -1."""
    exchanged = sum(pivots != np.arange(typeof(pivots).shape[-1], dtype=np.int32), -1)
    return convert(1 - 2 * (exchanged % 2), dtype)


# --- det ----------------------------------------------------------------------------------------------------
def det(a: Any) -> Any:
    """Determinants of square matrices, shape (..., n, n); differentiable also at singular matrices.

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without kernels.

    >>> det(np.array([[1.0, 2.0], [3.0, 4.0]])).item()
    -2.0
    """
    x = matrix("det", a, kernels=False)
    require_square("det", typeof(x))
    return _small(x) if typeof(x).shape[-1] in (1, 2, 3) else _det_of_many(square("det", x))


@compiled
def _small(a: Any) -> Any:
    """Determinants of up to three rows, written out."""
    match typeof(a).shape[-1]:
        case 1:
            return a[..., 0, 0]
        case 2:
            return a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
    (r, s, t) = (a[..., i, :] for i in range(3))
    minors = [s[..., (j + 1) % 3] * t[..., (j + 2) % 3] - s[..., (j + 2) % 3] * t[..., (j + 1) % 3] for j in range(3)]
    return r[..., 0] * minors[0] + r[..., 1] * minors[1] + r[..., 2] * minors[2]


@custom_jvp
def _det(a: Any) -> Any:
    factors, pivots, _ = Lu().bind(a)
    return prod(diagonal(factors), -1) * _parity(pivots, typeof(a).dtype)


@_det.defjvp
def _det_tangent(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Jacobi's formula, ``tr(adj(a) da)``. The adjugate is ``det(a) a^-1`` with the last pivot, the one that is 0 for
    most singular matrices, cancelled."""
    (a,), (t,) = primals, tangents
    factors, pivots, permutation = Lu().bind(a)
    n = typeof(a).shape[-1]
    pivot = diagonal(factors)
    others = prod(pivot[..., :-1], -1) * _parity(pivots, typeof(a).dtype)
    value = others * pivot[..., -1]
    is_last = np.arange(n) == n - 1
    weights = where(is_last, others[..., None], value[..., None])
    lower = TriangularSolve(left_side=True, lower=True, unit_diagonal=True).bind(factors, permuted(t, permutation))
    unit = where(is_last[:, None] & is_last, np.ones((), typeof(a).dtype), factors)
    moved = TriangularSolve(left_side=True, lower=False).bind(unit, lower * along_columns(weights, n))
    return value, sum(diagonal(moved), -1)


_det_of_many = compiled(lambda a: _det(a) if typeof(a).shape[-1] else prod(diagonal(a), -1))


# --- slogdet ------------------------------------------------------------------------------------------------
def slogdet(a: Any, *, method: str | None = None) -> SlogdetResult:
    """Determinants as ``sign * exp(logabsdet)``, which neither overflows nor underflows.

    Args:
      a: shape (..., n, n); both results have shape (...). A singular matrix has sign 0 and logarithm -inf.
      method: must be "lu".

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without kernels.

    >>> slogdet(np.array([[1.0, 0.0], [0.0, -1.0]])).sign.item()
    -1.0
    """
    x = square("slogdet", a)
    return SlogdetResult(*(convert(y, typeof(y).dtype, typeof(x).weak_type) for y in _compiled_slogdet(x)))


def _from_factors(factors: Any, pivots: Any) -> tuple[Any, Any]:
    pivot = diagonal(factors)
    return prod(sign(pivot), -1) * _parity(pivots, typeof(pivot).dtype), sum(log(abs(pivot)), -1)


@custom_jvp
def _slogdet(a: Any) -> tuple[Any, Any]:
    factors, pivots, _ = Lu().bind(a)
    return _from_factors(factors, pivots)


@_slogdet.defjvp
def _slogdet_tangent(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (a,), (t,) = primals, tangents
    factors, pivots, permutation = Lu().bind(a)
    direction, size = _from_factors(factors, pivots)
    trace = sum(diagonal(lu_solve(factors, permutation, t)), -1)
    turn = direction * (trace - convert(real_part(trace), typeof(trace).dtype))
    if not dtypes.is_complex(typeof(a).dtype):
        turn = direction * 0
    return (direction, size), (turn, real_part(trace))


_compiled_slogdet = compiled(lambda a: _slogdet(a))
