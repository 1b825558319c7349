"""Norms of vectors and matrices, condition numbers and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import real_of
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import abs, sqrt
from meshwright.numpy.axes import normal_axes
from meshwright.numpy.compiled import compiled
from meshwright.numpy.creation import asarray
from meshwright.numpy.linalg.decompositions import svdvals
from meshwright.numpy.linalg.operands import epsilon, matrix, square
from meshwright.numpy.linalg.solving import inv
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import expand_dims, moveaxis, ravel, reshape
from meshwright.numpy.promotion import operands, promote_all, promotes_freely
from meshwright.numpy.reductions import any as any_of
from meshwright.numpy.reductions import max, min, sum
from meshwright.ops.elementwise.table import abs_, convert
from meshwright.ops.linalg.cholesky import symmetrized
from meshwright.ops.linalg.eigh import Eigh
from meshwright.ops.linalg.matrices import conjugate, real_part, require_square
from meshwright.ops.linalg.svd import Svd


# --- vectors ------------------------------------------------------------------------------------------------
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Norm over one axis, over several together, or (``None``) over all.

    Args:
      x: array of any shape.
      ord: ``(sum |x|^ord)^(1/ord)``; inf and -inf are the largest and smallest absolute value, 0 counts nonzero
        elements.

    Raises:
      AxisError: an axis is out of range. ArgumentError: ``ord`` is not a number.

    >>> vector_norm(np.array([3.0, 4.0])).item()
    5.0
    """
    (x,) = operands("vector_norm", (x,), to_inexact=True)
    return _vector_norm(x, normal_axes(axis, typeof(x).ndim, "vector_norm"), bool(keepdims), _number(ord))


def _number(ord: Any) -> float:
    try:
        return float(ord)
    except (TypeError, ValueError):
        raise ArgumentError(f"vector_norm: ord must be a number, inf or -inf, got {ord!r}") from None


@compiled(static_argnums=(1, 2, 3))
def _vector_norm(x: Any, axes: tuple[int, ...], keepdims: bool, ord: float) -> Any:
    if ord == 2:
        return sqrt(sum(real_part(x * conjugate(x)), axes, keepdims=keepdims))
    if ord == 0:
        return sum(convert(x != 0, real_of(typeof(x).dtype)), axes, keepdims=keepdims)
    size = abs(x)
    if ord == np.inf:
        return max(size, axes, keepdims=keepdims, initial=0)
    if ord == -np.inf:
        return min(size, axes, keepdims=keepdims, initial=np.inf if 0 in typeof(x).shape else None)
    if ord == 1:
        return sum(size, axes, keepdims=keepdims)
    return sum(size**ord, axes, keepdims=keepdims) ** (1 / ord)


# --- matrices -----------------------------------------------------------------------------------------------
_MATRIX_ORDERS = ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Norms of matrices, shape (..., m, n).

    Args:
      ord: "fro" (over all elements), "nuc" (the sum of singular values), 2 and -2 (the largest and smallest singular
        value), 1 and -1 (the largest and smallest absolute sum of a column), inf and -inf (of a row).

    Raises:
      ShapeError: not matrices. ArgumentError: another ``ord``. DTypeError: a dtype without kernels.

    >>> matrix_norm(np.array([[3.0, 0.0], [4.0, 0.0]]), ord=1).item()
    7.0
    """
    if ord not in _MATRIX_ORDERS:
        raise ArgumentError(f"matrix_norm: ord must be one of {', '.join(map(repr, _MATRIX_ORDERS))}, got {ord!r}")
    return _matrix_norm(matrix("matrix_norm", x, kernels=ord in ("nuc", 2, -2)), bool(keepdims), ord)


@compiled(static_argnums=(1, 2))
def _matrix_norm(x: Any, keepdims: bool, ord: Any) -> Any:
    ndim = typeof(x).ndim
    if ord == "fro":
        return _vector_norm(x, (ndim - 2, ndim - 1), keepdims, 2.0)
    if ord in ("nuc", 2, -2):
        (s,) = Svd(compute_uv=False).bind(x)
        value = sum(s, -1) if ord == "nuc" else max(s, -1, initial=0) if ord == 2 else _least(s)
    else:
        sums = sum(abs(x), -2 if ord in (1, -1) else -1)
        value = max(sums, -1, initial=0) if ord > 0 else _least(sums)
    return expand_dims(value, (-2, -1)) if keepdims else value


def _least(x: Any) -> Any:
    return min(x, -1, initial=None if typeof(x).shape[-1] else np.inf)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of vectors (one axis) or matrices (two axes, or an array of two dimensions with an ``ord``).

    Args:
      x: array; without ``ord`` and ``axis`` it is flattened to one vector.
      ord: as for :func:`vector_norm` and :func:`matrix_norm`; default: the square root of the sum of squares.

    Raises:
      ShapeError: ``ord`` without ``axis`` for an array that is neither a vector nor a matrix. ArgumentError, AxisError:
        as those.

    >>> norm(np.array([[3.0, 0.0], [0.0, 4.0]])).item()
    5.0
    """
    (x,) = operands("norm", (x,), to_inexact=True)
    ndim = typeof(x).ndim
    if axis is None and ord is None:
        out = vector_norm(ravel(x))
        return reshape(out, (1,) * ndim) if keepdims else out
    if axis is None and ndim not in (1, 2):
        raise ShapeError(f"norm: shape {typeof(x).shape} with ord={ord!r} is no vector or matrix; say which axis")
    axes = normal_axes(axis, ndim, "norm")
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ArgumentError(f"norm: axis must be one axis or two, got {axis!r}")
    out = matrix_norm(moveaxis(x, axes, (-2, -1)), ord="fro" if ord is None else ord)
    return expand_dims(out, tuple(sorted(axes))) if keepdims else out


# --- conditions and ranks -----------------------------------------------------------------------------------
def cond(x: Any, p: Any = None) -> Any:
    """Condition numbers of matrices: the norm times that of the inverse; infinite for singular matrices.

    Args:
      x: shape (..., m, n); must be square unless ``p`` is the default, 2 or -2.
      p: the norm, as for :func:`matrix_norm`; default: the ratio of the largest singular value to the smallest.

    Raises:
      ShapeError: the norm needs square matrices.

    >>> cond(np.array([[2.0, 0.0], [0.0, 8.0]])).item()
    4.0
    """
    a = matrix("cond", x)
    if p in (None, 2, -2):
        s = svdvals(a)
        first, last = s[..., 0], s[..., -1]
        return last / first if p == -2 else first / last
    require_square("cond", typeof(a))
    product = matrix_norm(a, ord=p) * matrix_norm(inv(a), ord=p)
    has_nan = (a != a).any((-2, -1))
    return where((product != product) & ~has_nan, np.inf, product)


def matrix_rank(M: Any, rtol: Any = None, *, tol: Any = None, hermitian: bool = False) -> Any:
    """The number of non-negligible singular values: integers of shape (...).

    Args:
      M: shape (..., m, n); the rank of a nonzero vector or number is 1, of zeros 0.
      rtol: singular values up to ``rtol`` times the largest are negligible; default: ``max(m, n)`` epsilons.
      tol: an absolute bound instead of ``rtol``.
      hermitian: use eigenvalues.

    Raises:
      ShapeError, DTypeError: not matrices that LAPACK supports.

    >>> matrix_rank(np.array([[1.0, 2.0], [2.0, 4.0]])).item()
    1
    """
    if typeof(M := asarray(M)).ndim < 2:
        return convert(any_of(M != 0), dtypes.default_int())
    a = square("matrix_rank", M) if hermitian else matrix("matrix_rank", M)
    bound = tol if rtol is None else rtol
    if bound is None:
        bound = max_size(a) * epsilon(a)
    else:
        promote_all([a, asarray(bound)])  # raises as the promotion mode requires
    return _rank(
        a, convert(asarray(bound), real_of(typeof(a).dtype)), bool(hermitian), rtol is None and tol is not None
    )


def max_size(a: Any) -> int:
    """The larger of the numbers of rows and columns."""
    m, n = typeof(a).shape[-2:]
    return m if m > n else n


@compiled(static_argnums=(2, 3))
@promotes_freely()
def _rank(a: Any, bound: Any, hermitian: bool, absolute: bool) -> Any:
    s = abs_(Eigh().bind(symmetrized(a))[1]) if hermitian else Svd(compute_uv=False).bind(a)[0]
    bound = bound[..., None]
    limit = bound if absolute else bound * max(s, -1, keepdims=True, initial=0)
    return sum(convert(s > limit, dtypes.default_int()), -1)
