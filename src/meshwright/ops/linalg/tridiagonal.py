"""Hessenberg, tridiagonal and Schur forms, and tridiagonal systems, by LAPACK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Value
from meshwright.ir.op import Cotangents, Dual, Tangent, Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import mul, neg, sub
from meshwright.ops.linalg.batched import Factorization
from meshwright.ops.linalg.lapack import lapack, nan_where_failed, require_lapack_dtype
from meshwright.ops.linalg.matrices import along_columns, require_square
from meshwright.ops.shape.slice_pad import pad

_I32 = np.dtype(np.int32)


# --- forms --------------------------------------------------------------------------------------------------
def _square(name: str, a: Any) -> tuple[int, np.dtype]:
    require_square(name, typeof(a))
    require_lapack_dtype(name, typeof(a))
    return typeof(a).shape[-1], typeof(a).dtype


def hessenberg(a: Any) -> list[Any]:
    """The upper Hessenberg form of square matrices, by LAPACK's ``gehrd``. It has no derivative.

    Args:
      a: shape (..., n, n).

    Returns:
      ``[packed, scales]``: the form with the reflectors below its first subdiagonal, shape (..., n, n), and their
      scales, shape (..., n - 1).

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without LAPACK kernels.

    Example:
      >>> packed, scales = lax.linalg.hessenberg(mnp.eye(3))
      >>> scales.shape
      (2,)
    """
    n, dtype = _square("hessenberg", a)
    shapes = [((n, n), dtype), ((max(n - 1, 0),), dtype), ((), _I32)]
    *outs, info = lapack("gehrd", [a], shapes, low=1, high=n)
    return [nan_where_failed(info, x) for x in outs]


def schur(a: Any, *, compute_schur_vectors: bool = True) -> list[Any]:
    """The Schur decomposition ``vectors t vectors^H = a`` of square matrices, by LAPACK's ``gees``; no derivative.

    Args:
      a: shape (..., n, n).
      compute_schur_vectors: return ``vectors`` too.

    Returns:
      ``[t, vectors]``, or ``[t]`` alone, of shape (..., n, n). ``vectors`` are unitary and ``t`` is upper triangular;
      for real matrices ``t`` is quasi-triangular, with a 2 by 2 block for each pair of complex eigenvalues.

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without LAPACK kernels.

    Example:
      >>> t, vectors = lax.linalg.schur(mnp.array([[1.0, 2.0], [0.0, 3.0]]))
      >>> t.tolist()
      [[1.0, 2.0], [0.0, 3.0]]
    """
    n, dtype = _square("schur", a)
    values = 1 if dtypes.is_complex(dtype) else 2
    shapes = [((n, n), dtype), ((n, n), dtype), *[((n,), dtype)] * values, ((), _I32), ((), _I32)]
    t, vectors, *_, info = lapack("gees", [a], shapes, mode="V" if compute_schur_vectors else "N", sort="N")
    return [nan_where_failed(info, x) for x in ((t, vectors) if compute_schur_vectors else (t,))]


def tridiagonal(a: Any, *, lower: bool = True) -> list[Any]:
    """The real tridiagonal form of Hermitian matrices, by LAPACK's ``sytrd`` or ``hetrd``. It has no derivative.

    Args:
      a: shape (..., n, n).
      lower: read the lower triangle of ``a``, else the upper one.

    Returns:
      ``[packed, diagonal, off_diagonal, scales]``: the reflectors, shape (..., n, n); the form's diagonal, shape
      (..., n), and off-diagonal, shape (..., n - 1), both real; and the scales of the reflectors, shape (..., n - 1).

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without LAPACK kernels.

    Example:
      >>> lax.linalg.tridiagonal(mnp.array([[2.0, 1.0], [1.0, 3.0]]))[1].tolist()
      [2.0, 3.0]
    """
    n, dtype = _square("tridiagonal", a)
    real, m = dtypes.real_of(dtype), max(n - 1, 0)
    shapes = [((n, n), dtype), ((n,), real), ((m,), real), ((m,), dtype), ((), _I32)]
    *outs, info = lapack("sytrd", [a], shapes, uplo="L" if lower else "U")
    return [nan_where_failed(info, x) for x in outs]


def ormqr(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Any:
    """Multiply ``c`` by the orthogonal ``q`` whose reflectors ``geqrf`` stored in ``a``. It has no derivative.

    Args:
      a, taus: the reflectors and their scales, as in :func:`householder_product`.
      c: shape (..., m, n).
      left: compute ``q c``, else ``c q``.
      transpose: use the conjugate transpose of ``q``.

    Returns:
      an array of ``c``'s shape.

    Example:
      >>> lax.linalg.ormqr(mnp.array([[1.0], [0.0]]), mnp.array([2.0]), mnp.eye(2)).tolist()
      [[-1.0, 0.0], [0.0, 1.0]]
    """
    shapes = [(typeof(c).shape[-2:], typeof(c).dtype)]
    return lapack("ormqr", [a, taus, c], shapes, left=bool(left), transpose=bool(transpose))[0]


# --- three diagonals ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TridiagonalSolve(Factorization, Composite):
    """Solves ``t x = b`` for tridiagonal matrices, given by the diagonals below (its first element is not read), on and
    above (its last element is not read) the main one."""

    name: ClassVar[str] = "tridiagonal_solve"
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((3,),)

    def core_ranks(self) -> tuple[int, ...]:
        return 1, 1, 1, 2

    def free_dims(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        return {3: -1}, {0: -1}

    def flops(self, *cores: tuple[int, ...]) -> int:
        n, columns = cores[3]
        return 8 * n * (1 + columns)

    def infer(self, dl: ShapedArray, d: ShapedArray, du: ShapedArray, b: ShapedArray) -> ShapedArray:
        self.lead(dl, d, du, b)
        require_lapack_dtype(self.name, b)
        if any(v.dtype != b.dtype for v in (dl, d, du)):
            raise DTypeError(f"tridiagonal_solve: dtypes of {dl}, {d}, {du} and {b} differ; convert them with .astype")
        if any(v.shape[-1] != b.shape[-2] for v in (dl, d, du)):
            raise ShapeError(f"tridiagonal_solve: diagonals {dl}, {d}, {du} must have as many elements as {b} has rows")
        return b

    def expand(self, dl: Value, d: Value, du: Value, b: Value) -> list[Value]:
        n, dtype = typeof(d).shape[-1], typeof(d).dtype
        shapes = [((n,), dtype)] * 3 + [(typeof(b).shape[-2:], dtype), ((), _I32)]
        *_, x, info = lapack("gtsv", [dl, d, du, b], shapes)
        return [nan_where_failed(info, x)]

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        x = self.bind(*primals)
        *diagonals, right = tangents
        for t, rows in zip(diagonals, (-1, 0, 1)):
            if not isinstance(t, Zero):
                moved = mul(along_columns(t, typeof(x).shape[-1]), _rows_at(x, rows, typeof(x).ndim - 2))
                right = neg(moved) if isinstance(right, Zero) else sub(right, moved)
        return x, self.bind(*primals[:3], right)

    def transpose(self, ct: Any, dl: Any, d: Any, du: Any, b: Any) -> Cotangents:
        axis = typeof(d).ndim - 1
        return [None, None, None, self.bind(_rows_at(du, -1, axis), d, _rows_at(dl, 1, axis), ct)]


def _rows_at(x: Any, offset: int, axis: int) -> Any:
    """Shift elements by ``offset`` along an axis: element ``i + offset`` moves to ``i``; zeros outside."""
    config = [(0, 0, 0)] * typeof(x).ndim
    config[axis] = (-offset, offset, 0)
    return pad(x, np.zeros((), typeof(x).dtype), config) if offset else x


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any) -> Any:
    """Solve ``t x = b`` for tridiagonal matrices.

    Args:
      dl, d, du: the diagonals below, on and above the main one, shape (..., n); ``dl[0]`` and ``du[n - 1]`` are not
        read.
      b: shape (..., n, k).

    Raises:
      ShapeError, DTypeError: sizes or dtypes do not fit.

    Example:
      >>> zero, two = mnp.zeros(3), mnp.full(3, 2.0)
      >>> lax.linalg.tridiagonal_solve(zero, two, zero, mnp.ones((3, 1))).tolist()
      [[0.5], [0.5], [0.5]]
    """
    return TridiagonalSolve().bind(dl, d, du, b)
