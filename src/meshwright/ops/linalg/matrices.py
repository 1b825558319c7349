"""Operations on matrices in the last two dimensions of arrays, as functions of ops, for the rules of linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import add, conj, convert, eq, ge, ne, real, select, sub
from meshwright.ops.products.dot import dot_general
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, match_shape, reduce_sum
from meshwright.ops.shape.rearrange import transpose
from meshwright.ops.shape.slice_pad import pad, slice_in_dim


def transposed(x: Any) -> Any:
    """Swap rows and columns."""
    n = typeof(x).ndim
    return transpose(x, (*range(n - 2), n - 1, n - 2))


def adjoint(x: Any) -> Any:
    """The conjugate transpose."""
    return transposed(conjugate(x))


def conjugate(x: Any) -> Any:
    """The complex conjugate; real arrays are returned unchanged."""
    return conj(x) if dtypes.is_complex(typeof(x).dtype) else x


def real_part(x: Any) -> Any:
    """The real part; real arrays are returned unchanged."""
    return real(x) if dtypes.is_complex(typeof(x).dtype) else x


def matmul(x: Any, y: Any) -> Any:
    """Products of matrices with equal leading dimensions."""
    n = typeof(x).ndim
    lead = tuple(range(n - 2))
    return dot_general(x, y, (((n - 1,), (n - 2,)), (lead, lead)), precision="highest")


def eye(m: int, n: int, dtype: np.dtype) -> Any:
    """The identity matrix, extended by rows or columns of zeros."""
    return convert(eq(iota(np.int32, (m, n), 0), iota(np.int32, (m, n), 1)), dtype)


def constant_like(value: Any, x: Any) -> Any:
    """``value`` as a rank-0 constant of ``x``'s dtype, weakly typed if ``x`` is."""
    return convert(np.array(value, typeof(x).dtype), typeof(x).dtype, typeof(x).weak_type)


def where_in_matrix(keep: Callable[[Any, Any], Any], x: Any, other: Any = 0) -> Any:
    """``x`` where ``keep(row, column)``, else ``other`` (a scalar, or an array like ``x``)."""
    aval = typeof(x)
    m, n = aval.shape[-2:]
    mask = keep(iota(np.int32, (m, n), 0), iota(np.int32, (m, n), 1))
    mask = broadcast_in_dim(mask, aval.shape, (aval.ndim - 2, aval.ndim - 1))
    other = constant_like(other, x) if isinstance(other, (int, float)) else other
    return select(mask, x, match_shape(other, aval))


def tril(x: Any, k: int = 0) -> Any:
    """``x`` with zeros above diagonal ``k``."""
    return where_in_matrix(lambda i, j: ge(add(i, np.int32(k)), j), x)


def triu(x: Any, k: int = 0) -> Any:
    """``x`` with zeros below diagonal ``k``."""
    return where_in_matrix(lambda i, j: ge(j, add(i, np.int32(k))), x)


def on_diagonal(x: Any) -> Any:
    """``x`` on the diagonal, zeros elsewhere."""
    return where_in_matrix(eq, x)


def off_diagonal(x: Any, other: Any = 0) -> Any:
    """``x`` off the diagonal, ``other`` on it."""
    return where_in_matrix(ne, x, other)


def diagonal(x: Any) -> Any:
    """The main diagonals."""
    m, n = typeof(x).shape[-2:]
    d, k = typeof(x).ndim, min(m, n)
    square = slice_in_dim(slice_in_dim(x, 0, k, axis=d - 2), 0, k, axis=d - 1)
    return reduce_sum(on_diagonal(square), (d - 1,))


def along_rows(v: Any, m: int) -> Any:
    """Matrices of ``m`` equal rows: entry ``[i, j]`` is ``v[j]``."""
    shape = typeof(v).shape
    n = len(shape)
    return broadcast_in_dim(v, (*shape[:-1], m, shape[-1]), (*range(n - 1), n))


def along_columns(v: Any, n: int) -> Any:
    """Matrices of ``n`` equal columns: entry ``[i, j]`` is ``v[i]``."""
    shape = typeof(v).shape
    return broadcast_in_dim(v, (*shape, n), range(len(shape)))


def padded(x: Any, m: int, n: int) -> Any:
    """``x`` as the upper left corner of ``m`` by ``n`` matrices of zeros."""
    rows, columns = typeof(x).shape[-2:]
    if (rows, columns) == (m, n):
        return x
    config = [(0, 0, 0)] * (typeof(x).ndim - 2) + [(0, m - rows, 0), (0, n - columns, 0)]
    return pad(x, np.zeros((), typeof(x).dtype), config)


def corner(x: Any, m: int, n: int) -> Any:
    """The first ``m`` rows and ``n`` columns."""
    d = typeof(x).ndim
    return slice_in_dim(slice_in_dim(x, 0, m, axis=d - 2), 0, n, axis=d - 1)


def plus_identity(x: Any) -> Any:
    """``x`` plus the identity matrix."""
    aval = typeof(x)
    unit = eye(aval.shape[-2], aval.shape[-1], aval.dtype)
    return add(x, broadcast_in_dim(unit, aval.shape, (aval.ndim - 2, aval.ndim - 1)))


def hermitian(x: Any) -> Any:
    """``x`` plus its conjugate transpose."""
    return add(x, adjoint(x))


def from_lower(x: Any) -> Any:
    """The Hermitian matrices whose lower triangles are those of ``x``."""
    low = tril(x, -1)
    return add(hermitian(low), on_diagonal(convert(real_part(x), typeof(x).dtype)))


def antihermitian(x: Any) -> Any:
    """``x`` minus its conjugate transpose."""
    return sub(x, adjoint(x))


def require_square(name: str, aval: ShapedArray) -> None:
    """Raise unless the core is a square matrix.

    Raises:
      ShapeError: another shape.
    """
    require_matrix(name, aval)
    if aval.shape[-1] != aval.shape[-2]:
        raise ShapeError(f"{name}: expected square matrices, shape (..., n, n), got shape {aval.shape}")


def require_matrix(name: str, aval: ShapedArray) -> None:
    """Raise unless there are two dimensions.

    Raises:
      ShapeError: fewer dimensions.
    """
    if aval.ndim < 2:
        raise ShapeError(
            f"{name}: expected matrices, shape (..., m, n), got shape {aval.shape}; make it one with [:, None]"
        )
