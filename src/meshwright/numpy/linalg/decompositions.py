"""Decompositions of matrices. Where one does not exist or LAPACK does not find it, results are NaN, as in JAX."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.numpy.compiled import compiled
from meshwright.numpy.linalg.operands import matrix, square
from meshwright.numpy.manipulation import flip
from meshwright.numpy.sorting import argsort, sort
from meshwright.ops.elementwise.table import abs_, mul, sign
from meshwright.ops.indexing.gather_scatter import gather_along
from meshwright.ops.linalg.cholesky import Cholesky, symmetrized
from meshwright.ops.linalg.eig import Eig
from meshwright.ops.linalg.eigh import Eigh
from meshwright.ops.linalg.lapack import lapack
from meshwright.ops.linalg.matrices import adjoint, along_columns, along_rows, require_square, transposed
from meshwright.ops.linalg.qr import Qr
from meshwright.ops.linalg.svd import Svd


class EighResult(NamedTuple):
    """Of Hermitian matrices: ascending eigenvalues, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class EigResult(NamedTuple):
    """Of general square matrices: complex eigenvalues in no particular order, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Matrices with orthonormal columns, and upper triangular matrices."""

    Q: Any
    R: Any


class SVDResult(NamedTuple):
    """Singular vectors in the columns of ``U`` and rows of ``Vh``, and descending singular values."""

    U: Any
    S: Any
    Vh: Any


# --- cholesky -----------------------------------------------------------------------------------------------
def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Any:
    """Cholesky decomposition of Hermitian positive definite matrices: ``L`` with ``L L^H = a``.

    Args:
      a: shape (..., n, n), which is also the result's; the result is NaN where ``a`` is not positive definite.
      upper: return ``L^H`` instead.
      symmetrize_input: use ``(a + a^H) / 2``; if false, only the triangle of the result is read.

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without kernels (float16, bfloat16).

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    return _cholesky(square("cholesky", a), bool(upper), bool(symmetrize_input))


@compiled(static_argnums=(1, 2))
def _cholesky(a: Any, upper: bool, symmetrize: bool) -> Any:
    a = symmetrized(a) if symmetrize else adjoint(a) if upper else a
    factor = Cholesky().bind(a)
    return adjoint(factor) if upper else factor


# --- qr -----------------------------------------------------------------------------------------------------
def qr(a: Any, mode: str = "reduced") -> Any:
    """QR decomposition: ``Q R = a`` with orthonormal columns in ``Q`` and upper triangular ``R``.

    Args:
      a: shape (..., m, n); k = min(m, n).
      mode: "reduced" (Q (..., m, k) and R (..., k, n)), "complete" (Q (..., m, m) and R (..., m, n)), "r" (only R) or
        "raw" (LAPACK's reflectors (..., n, m) and their factors (..., k)).

    Raises:
      ShapeError, DTypeError: not matrices that LAPACK supports. ArgumentError: another mode.

    >>> q, r = qr(np.array([[3.0, 1.0], [4.0, 2.0]]))
    >>> (q @ r).round(4).tolist()
    [[3.0, 1.0], [4.0, 2.0]]
    """
    x = matrix("qr", a)
    *_, m, n = typeof(x).shape
    if mode in ("reduced", "r", "complete", "full"):
        q, r = Qr(mode in ("complete", "full")).bind(x)
        return r if mode == "r" else QRResult(q, r)
    if mode == "raw":
        packed, scales = lapack("geqrf", [x], [((m, n), typeof(x).dtype), ((min(m, n),), typeof(x).dtype)])
        return transposed(packed), scales
    raise ArgumentError(f"qr: mode must be 'reduced', 'complete', 'r' or 'raw', got {mode!r}")


# --- singular values ----------------------------------------------------------------------------------------
def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:  # fmt: skip
    """Singular value decomposition: ``U diag(S) Vh = a``.

    Args:
      a: shape (..., m, n); k = min(m, n).
      full_matrices: U (..., m, m) and Vh (..., n, n); else U (..., m, k) and Vh (..., k, n).
      compute_uv: if false, the result is S alone.
      hermitian: ``a`` is Hermitian; use its eigendecomposition.
      subset_by_index: (start, stop): the range of singular values, and their vectors, to return.

    Raises:
      ShapeError: not matrices, or not square with ``hermitian``. DTypeError: a dtype without kernels.

    >>> svd(np.array([[3.0, 0.0], [0.0, 4.0]])).S.round(4).tolist()
    [4.0, 3.0]
    """
    if subset_by_index is not None:
        return _some_of_svd(svd(a, False, compute_uv, hermitian), subset_by_index, compute_uv)
    x = matrix("svd", a)
    if hermitian:
        require_square("svd", typeof(x))
        return SVDResult(*_svd_of_hermitian(x)) if compute_uv else _svdvals_of_hermitian(x)
    outs = Svd(bool(full_matrices), bool(compute_uv)).bind(x)
    return SVDResult(outs[1], outs[0], outs[2]) if compute_uv else outs[0]


def _some_of_svd(svd: Any, subset: tuple[int, int], compute_uv: bool) -> Any:
    """A range of singular values, with their vectors."""
    start, stop = subset
    count = typeof(svd.S if compute_uv else svd).shape[-1]
    if not 0 <= start < stop <= count:
        raise ArgumentError(f"svd: subset_by_index {subset} is not inside of (0, {count})")
    if not compute_uv:
        return svd[..., start:stop]
    return SVDResult(svd.U[..., start:stop], svd.S[..., start:stop], svd.Vh[..., start:stop, :])


@compiled
def _svd_of_hermitian(a: Any) -> tuple[Any, Any, Any]:
    vectors, values = Eigh().bind(symmetrized(a))
    sizes, n = abs_(values), typeof(values).shape[-1]
    order = argsort(-sizes)
    sizes, signs = (gather_along(v, order, typeof(v).ndim - 1) for v in (sizes, sign(values)))
    u = gather_along(vectors, along_rows(order, n), typeof(vectors).ndim - 1)
    return u, sizes, mul(adjoint(u), along_columns(signs, n).astype(typeof(u).dtype))


@compiled
def _svdvals_of_hermitian(a: Any) -> Any:
    return flip(sort(abs_(Eigh().bind(symmetrized(a))[1])), -1)


def svdvals(x: Any, /) -> Any:
    """Singular values of matrices of shape (..., m, n), descending: shape (..., min(m, n)).

    >>> svdvals(np.array([[3.0, 0.0], [0.0, 4.0]])).round(4).tolist()
    [4.0, 3.0]
    """
    return svd(x, compute_uv=False)


# --- eigenvalues --------------------------------------------------------------------------------------------
def eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Eigenvalues, ascending, and orthonormal eigenvectors of Hermitian matrices.

    Args:
      a: shape (..., n, n); eigenvalues have shape (..., n) and are real, eigenvectors are columns (..., n, n).
      UPLO: "L" or "U", the triangle that is read with ``symmetrize_input=False``.
      symmetrize_input: use ``(a + a^H) / 2``, whose derivatives are symmetric.

    Raises:
      ShapeError: matrices are not square. ArgumentError: another ``UPLO``. DTypeError: a dtype without kernels.

    >>> eigh(np.array([[2.0, 1.0], [1.0, 2.0]])).eigenvalues.round(4).tolist()
    [1.0, 3.0]
    """
    if UPLO not in (None, "L", "U"):
        raise ArgumentError(f"eigh: UPLO must be 'L' or 'U', got {UPLO!r}")
    vectors, values = _eigh(square("eigh", a), UPLO == "U", bool(symmetrize_input))
    return EighResult(values, vectors)


@compiled(static_argnums=(1, 2))
def _eigh(a: Any, upper: bool, symmetrize: bool) -> list[Any]:
    return Eigh().bind(symmetrized(a) if symmetrize else adjoint(a) if upper else a)


def eigvalsh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> Any:
    """Eigenvalues of Hermitian matrices, ascending: see :func:`eigh`.

    >>> eigvalsh(np.array([[2.0, 1.0], [1.0, 2.0]])).round(4).tolist()
    [1.0, 3.0]
    """
    return eigh(a, UPLO, symmetrize_input).eigenvalues


def eig(a: Any) -> EigResult:
    """Eigenvalues and eigenvectors (columns of norm 1) of general square matrices, always complex.

    Args:
      a: shape (..., n, n).

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without kernels.

    >>> eig(np.array([[0.0, 1.0], [0.0, 2.0]])).eigenvalues.tolist()
    [0j, (2+0j)]
    """
    return EigResult(*Eig().bind(square("eig", a)))


def eigvals(a: Any) -> Any:
    """Eigenvalues of general square matrices, shape (..., n), always complex: see :func:`eig`.

    >>> np.sort_complex(eigvals(np.array([[0.0, 1.0], [-1.0, 0.0]]))).tolist()
    [-1j, 1j]
    """
    return Eig(right=False).bind(square("eigvals", a))[0]
