"""LU decomposition with partial pivoting, by LAPACK's ``getrf``.

Derivative: the strictly lower part of ``L^-1 P da U^-1`` belongs to ``L``, the rest to ``U`` (the derivations of T.
Robinson and M. Seeger agree, see Seeger et al., "Auto-Differentiating Linear Algebra", 2017). For matrices that are not
square, the smaller factor is extended to a square one by an identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Value
from meshwright.ir.op import Dual, Op, Tangent, Zero
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.composite import Composite
from meshwright.ops.control.while_loop import While
from meshwright.ops.elementwise.table import add, convert, eq, lt, mul, select, sub
from meshwright.ops.indexing.gather_scatter import gather_along
from meshwright.ops.linalg import flops
from meshwright.ops.linalg.batched import Batched, Factorization
from meshwright.ops.linalg.lapack import lapack, nan_where_failed, require_lapack_dtype
from meshwright.ops.linalg.matrices import (
    along_columns,
    corner,
    eye,
    matmul,
    padded,
    require_matrix,
    tril,
    triu,
    where_in_matrix,
)
from meshwright.ops.linalg.triangular_solve import PLAIN, TriangularSolve
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, reduce_sum
from meshwright.ops.sort.sorting import argsort

_I32 = np.dtype(np.int32)


@dataclass(frozen=True)
class Lu(Factorization, Composite):
    """LU decomposition: ``a[permutation] = L U``.

    Results are ``L`` (below the diagonal; its own diagonal is 1) and ``U`` in one matrix, the row with which each row
    was exchanged, and the permutation.
    """

    name: ClassVar[str] = "lu"
    multiple_results: ClassVar[bool] = True

    def flops(self, *cores: tuple[int, ...]) -> int:
        return flops.lu(*cores[0])

    def infer(self, a: ShapedArray) -> tuple[ShapedArray, ...]:
        require_matrix(self.name, a)
        require_lapack_dtype(self.name, a)
        *lead, m, n = a.shape
        return a, ShapedArray((*lead, min(m, n)), _I32, a.weak_type), ShapedArray((*lead, m), _I32, a.weak_type)

    def expand(self, a: Value) -> list[Value]:
        *_, m, n = typeof(a).shape
        shapes = [((m, n), typeof(a).dtype), ((min(m, n),), _I32), ((), _I32)]
        factors, pivots, info = lapack("getrf", [a], shapes)
        pivots = sub(pivots, np.array(1, _I32))
        return [nan_where_failed(info, factors, False), pivots, PivotsToPermutation(m).bind(pivots)]

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (t,) = tangents
        factors, pivots, permutation = self.bind(*primals)
        *_, m, n = typeof(t).shape
        k = min(m, n)
        moved = permuted(t, permutation)
        # Make both factors square: L lacks its unit diagonal, U gets an identity below.
        left = padded(tril(corner(factors, m, k), -1), m, m)
        right = padded(triu(corner(factors, k, n)), n, n)
        unit = broadcast_in_dim(eye(n, n, typeof(t).dtype), typeof(right).shape, _last(right))
        right = where_in_matrix(lambda i, j: lt(i, np.int32(k)), right, unit) if n > k else right
        middle = TriangularSolve(left_side=True, lower=True, unit_diagonal=True).bind(left, moved)
        middle = TriangularSolve(left_side=False, lower=False).bind(right, middle)
        strict = tril(corner(middle, m, k), -1)
        lower = add(matmul(left, strict), strict)  # left lacks its unit diagonal
        upper = matmul(triu(corner(middle, k, n)), right)
        tangent = add(padded(lower, m, n), padded(upper, m, n))
        return [factors, pivots, permutation], [tangent, Zero(typeof(pivots)), Zero(typeof(permutation))]


def _last(x: Any) -> tuple[int, int]:
    return typeof(x).ndim - 2, typeof(x).ndim - 1


def permuted(x: Any, permutation: Any) -> Any:
    """The rows of matrices, permuted."""
    aval = typeof(x)
    return gather_along(x, along_columns(permutation, aval.shape[-1]), aval.ndim - 2) if aval.size else x


def _rank(x: Any) -> int:
    return typeof(x).ndim - 1


@dataclass(frozen=True)
class PivotsToPermutation(Batched, Composite):
    """The permutation of ``size`` rows by exchanging row ``i`` with row ``pivots[i]``, one after the other."""

    size: int
    name: ClassVar[str] = "lu_pivots_to_permutation"

    def core_ranks(self) -> tuple[int, ...]:
        return (1,)

    def infer(self, pivots: ShapedArray) -> ShapedArray:
        if pivots.dtype != _I32:
            raise DTypeError(f"{self.name}: expected pivots of dtype int32, got {pivots.dtype}; convert them")
        return pivots.update(shape=(*pivots.shape[:-1], self.size))

    def expand(self, pivots: Value) -> list[Value]:
        *lead, k = typeof(pivots).shape
        order = iota(_I32, (*lead, self.size), len(lead))
        if k == 0 or typeof(order).size == 0:
            return [order]
        _, order = _exchanges(k, typeof(pivots), typeof(order)).bind(pivots, np.array(0, _I32), order)
        return [order]


def _exchanges(k: int, pivots: ShapedArray, order: ShapedArray) -> Op:
    """A loop over the pivots; its carry is the position and the order so far."""
    scalar = ShapedArray((), _I32)

    def step(pivots: Any, i: Any, order: Any) -> list[Any]:
        rows, columns = (iota(_I32, typeof(v).shape, _rank(v)) for v in (order, pivots))
        pivot = reduce_sum(mul(pivots, convert(eq(columns, i), _I32)), (_rank(pivots),))
        lead = range(_rank(order))
        here, there = eq(rows, i), eq(rows, broadcast_in_dim(pivot, typeof(order).shape, lead))
        at_here, at_there = (reduce_sum(mul(order, convert(w, _I32)), (_rank(order),)) for w in (here, there))
        at_here, at_there = (broadcast_in_dim(v, typeof(order).shape, lead) for v in (at_here, at_there))
        return [add(i, np.array(1, _I32)), select(here, at_there, select(there, at_here, order))]

    body = trace_to_jaxpr(step, (pivots, scalar, order), "exchange")
    below = trace_to_jaxpr(lambda i, order: [lt(i, np.array(k, _I32))], (scalar, order), "more_pivots")
    return While(body, 1, below, 0)


def lu_solve(factors: Any, permutation: Any, b: Any, how: str = PLAIN) -> Any:
    """``a^-1 b``, or the same with its (conjugate) transpose, from the results of :class:`Lu` for square ``a``."""
    lower = TriangularSolve(left_side=True, lower=True, transpose_a=how, unit_diagonal=True)
    upper = TriangularSolve(left_side=True, lower=False, transpose_a=how)
    if how == PLAIN:
        return upper.bind(factors, lower.bind(factors, permuted(b, permutation)))
    back = argsort(permutation)
    return permuted(lower.bind(factors, upper.bind(factors, b)), back)


def lu(a: Any) -> list[Any]:
    """LU decomposition with partial pivoting.

    Args:
      a: shape (..., m, n).

    Returns:
      ``[factors, pivots, permutation]`` with ``a[permutation] = L U``. ``factors``, shape (..., m, n), holds ``L``
      below the diagonal (its own diagonal is 1) and ``U`` on and above it. Row ``i`` was exchanged with row
      ``pivots[i]``, shape (..., min(m, n)); ``permutation``, shape (..., m), is the resulting order of rows. Both are
      int32.

    Raises:
      ShapeError: fewer than two dimensions. DTypeError: a dtype without LAPACK kernels.

    Example:
      >>> factors, pivots, permutation = lax.linalg.lu(mnp.array([[1.0, 2.0], [4.0, 4.0]]))
      >>> factors.tolist(), permutation.tolist()
      ([[4.0, 4.0], [0.25, 1.0]], [1, 0])
    """
    outs: list[Any] = Lu().bind(a)
    return outs


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Any:
    """The permutation of ``permutation_size`` rows by a sequence of row exchanges.

    Args:
      pivots: integers of shape (..., k), as returned by :func:`lu`: row ``i`` is exchanged with row ``pivots[i]``.

    Returns:
      the order of rows, shape (..., permutation_size).

    Raises:
      ShapeError: there are fewer rows than exchanges.

    Example:
      >>> lax.linalg.lu_pivots_to_permutation(mnp.array([2, 2]), 3).tolist()
      [2, 0, 1]
    """
    if permutation_size < (exchanges := typeof(pivots).shape[-1]):
        raise ShapeError(f"lu_pivots_to_permutation: {exchanges} exchanges need as many rows, got {permutation_size}")
    return PivotsToPermutation(permutation_size).bind(pivots)
