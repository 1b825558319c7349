"""Linear algebra. Where torch raises an error about values, as for singular matrices, results are NaN or infinite."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.interop.torch.registry import register, rows
from meshwright.numpy.linalg.operands import epsilon
from meshwright.ops.linalg.cholesky import symmetrized
from meshwright.ops.linalg.lapack import lapack
from meshwright.ops.linalg.triangular_solve import triangular_solve as solve_with_triangle
from meshwright.transforms.custom_jvp import custom_jvp


def _transposed(x: Any) -> Any:
    return mnp.swapaxes(x, -1, -2)


def _adjoint(x: Any) -> Any:
    return mnp.conj(_transposed(x))


def _nothing(like: Any) -> Any:
    """What torch returns in place of a result that was not asked for."""
    return mnp.zeros(0, like.dtype)


# --- triangles ----------------------------------------------------------------------------------------------
@custom_jvp
def _of_lower(a: Any) -> Any:
    """The Hermitian matrix of a lower triangle, and of what is real on its diagonal. Torch's derivative is that of both
    triangles."""
    diagonal = mnp.where(mnp.eye(a.shape[-1], dtype=bool), mnp.real(a), 0)
    below = mnp.tril(a, -1)
    return diagonal + below + _adjoint(below)


@_of_lower.defjvp
def _of_lower_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _of_lower(*primals), symmetrized(*tangents)


def _hermitian(a: Any, upper: bool) -> Any:
    return _of_lower(_adjoint(a) if upper else a)


@register("aten.linalg_solve_triangular")
def solve_triangular(self: Any, B: Any, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    a, b = _one_lead(self, B)
    return solve_with_triangle(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


def _one_lead(a: Any, b: Any) -> tuple[Any, Any]:
    """Matrices whose leading dimensions are made equal."""
    lead = mnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (mnp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    return a, b


@register("aten.triangular_solve")
def triangular_solve(
    self: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Any, Any]:
    a = _transposed(A) if transpose else A
    return solve_triangular(a, self, upper != transpose, True, unitriangular), A


# --- Cholesky -----------------------------------------------------------------------------------------------
@register("aten.linalg_cholesky", "aten.cholesky")
def cholesky(self: Any, upper: bool = False) -> Any:
    factor = mnp.linalg.cholesky(_hermitian(self, upper), symmetrize_input=False)
    return _adjoint(factor) if upper else factor


@register("aten.linalg_cholesky_ex")
def cholesky_and_info(self: Any, upper: bool = False, check_errors: bool = False) -> tuple[Any, Any]:
    """And the order of the first leading minor that is not positive, or 0."""
    a = lax.stop_gradient(_hermitian(self, upper))
    info = lapack("potrf", [a], [(a.shape[-2:], a.dtype), ((), np.dtype(np.int32))], uplo="L")[1]
    return cholesky(self, upper), info


@register("aten.cholesky_solve")
def cholesky_solve(self: Any, input2: Any, upper: bool = False) -> Any:
    lower = _adjoint(input2) if upper else input2
    return solve_triangular(_adjoint(lower), solve_triangular(lower, self, False), True)


@register("aten.cholesky_inverse")
def cholesky_inverse(self: Any, upper: bool = False) -> Any:
    return cholesky_solve(mnp.broadcast_to(mnp.eye(self.shape[-1], dtype=self.dtype), self.shape), self, upper)


# --- LU -----------------------------------------------------------------------------------------------------
@register("aten.linalg_lu_factor_ex")
def lu_factor(A: Any, check_errors: bool = False) -> tuple[Any, Any, Any]:
    """Factors, rows exchanged (the first is 1), and the number of the first pivot that is 0, or 0."""
    factors, pivots, _ = lax.linalg.lu(A)
    if not min(A.shape[-2:]):
        return factors, pivots, mnp.zeros(A.shape[:-2], mnp.int32)
    is_zero = mnp.diagonal(factors, axis1=-2, axis2=-1) == 0
    info = mnp.where(is_zero.any(-1), mnp.argmax(is_zero, -1) + 1, 0)
    return factors, pivots + 1, info.astype(mnp.int32)


@register("aten.lu_unpack")
def lu_unpack(LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Any, ...]:
    """The permutation, the lower and the upper factor."""
    m, n = LU_data.shape[-2:]
    k = min(m, n)
    low, high = mnp.tril(LU_data[..., :k], -1) + mnp.eye(m, k, dtype=LU_data.dtype), mnp.triu(LU_data[..., :k, :])
    parts = (low, high) if unpack_data else (_nothing(LU_data),) * 2
    if not unpack_pivots:
        return _nothing(LU_data), *parts
    rows = lax.linalg.lu_pivots_to_permutation(LU_pivots - 1, m)
    return _transposed(rows[..., None] == mnp.arange(m, dtype=rows.dtype)).astype(LU_data.dtype), *parts


@register("aten.linalg_lu")
def lu(A: Any) -> tuple[Any, ...]:
    return lu_unpack(*lu_factor(A)[:2])


@register("aten.linalg_lu_solve")
def lu_solve(LU: Any, pivots: Any, B: Any, left: bool = True, adjoint: bool = False) -> Any:
    if not left:
        return _adjoint(lu_solve(LU, pivots, _adjoint(B), True, not adjoint))
    p, low, high = lu_unpack(LU, pivots)
    if adjoint:
        inner = solve_triangular(_adjoint(high), B, False)
        return p @ solve_triangular(_adjoint(low), inner, True, True, True)
    return solve_triangular(high, solve_triangular(low, _transposed(p) @ B, False, True, True), True)


# --- equations ----------------------------------------------------------------------------------------------
@register("aten.linalg_solve")
def solve(A: Any, B: Any, left: bool = True) -> Any:
    if B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]):  # vectors, one for each matrix
        return solve(A, B[..., None], left)[..., 0] if left else solve(A, B[..., None, :], left)[..., 0, :]
    if not left:
        return _transposed(mnp.linalg.solve(_transposed(A), _transposed(B)))
    return mnp.linalg.solve(A, B)


@register("aten._linalg_check_errors")
def errors_of_matrices(info: Any, api_name: str, is_matrix: bool) -> None:
    """Nothing: where torch raises an error, what it would be of is NaN."""


@register("aten._linalg_solve_ex")
def solve_and_info(A: Any, B: Any, left: bool = True, check_errors: bool = False) -> tuple[Any, ...]:
    """And factors, which torch keeps for its own derivatives."""
    return solve(A, B, left), *lu_factor(A)


@register("aten.linalg_inv_ex")
def inverse_and_info(A: Any, check_errors: bool = False) -> tuple[Any, Any]:
    return mnp.linalg.inv(A), lu_factor(lax.stop_gradient(A))[2]


@register("aten.linalg_pinv.atol_rtol_tensor")
def pinv(self: Any, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """Singular values up to the larger one of ``atol`` and ``rtol`` times the largest count as 0."""
    a = _of_lower(self) if hermitian else self
    if 0 in a.shape[-2:]:
        return mnp.matrix_transpose(a)
    default = max(a.shape[-2:]) * epsilon(a)
    if atol is None:
        return mnp.linalg.pinv(a, default if rtol is None else rtol)
    largest = mnp.linalg.svdvals(lax.stop_gradient(a))[..., 0]
    rtol = mnp.where(atol > 0, 0, default) if rtol is None else rtol
    return mnp.linalg.pinv(a, mnp.maximum(mnp.where(largest > 0, atol / largest, 0), rtol))


# --- determinants -------------------------------------------------------------------------------------------
@register("aten._linalg_det")
def det(A: Any) -> tuple[Any, ...]:
    """Without factors: torch's own are of the transpose where memory has the matrix by rows."""
    return mnp.linalg.det(A), None, None


@register("aten._linalg_slogdet")
def slogdet(A: Any) -> tuple[Any, ...]:
    return *mnp.linalg.slogdet(A), None, None


# --- orthogonal factors -------------------------------------------------------------------------------------
@register("aten.linalg_qr")
def qr(A: Any, mode: str = "reduced") -> tuple[Any, Any]:
    return (_nothing(A), mnp.linalg.qr(A, "r")) if mode == "r" else tuple(mnp.linalg.qr(A, mode))  # type: ignore[return-value]


@register("aten.geqrf")
def reflectors(self: Any) -> tuple[Any, Any]:
    packed, scales = mnp.linalg.qr(self, "raw")
    return _transposed(packed), scales


def _by_reflectors(vectors: Any, scales: Any, x: Any, adjoint: bool = False) -> Any:
    """``x`` times the product of the reflectors whose vectors are below the diagonal, or times its adjoint.

    The product is ``I - v t v^H`` with ``t = (I + d s)^-1 d``, where ``d`` are the scales on a diagonal and ``s`` is
    what ``v^H v`` has above its own (Puglisi, 1992).
    """
    m, k = vectors.shape[-2], scales.shape[-1]
    v = mnp.tril(vectors[..., :k], -1) + mnp.eye(m, k, dtype=x.dtype)
    one = mnp.eye(k, dtype=x.dtype)
    above = one + scales[..., None] * mnp.triu(_adjoint(v) @ v, 1)
    t = solve_triangular(above, one * scales[..., None], True, True, True)
    return x - v @ ((_adjoint(t) if adjoint else t) @ (_adjoint(v) @ x))


@register("aten.linalg_householder_product")
def householder_product(input: Any, tau: Any) -> Any:
    m, n = input.shape[-2:]
    return _by_reflectors(input, tau, mnp.eye(m, n, dtype=input.dtype))


@register("aten.ormqr")
def ormqr(self: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False) -> Any:
    """The orthogonal factor that ``self`` and ``input2`` pack, or its adjoint, times ``input3``; or ``input3`` times
    it."""
    if left:
        return _by_reflectors(self, input2, input3, transpose)
    return _adjoint(_by_reflectors(self, input2, _adjoint(input3), not transpose))


@register("aten._linalg_svd")
def svd(A: Any, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None) -> tuple[Any, ...]:
    """``driver`` is how torch computes it."""
    if compute_uv:
        return tuple(mnp.linalg.svd(A, full_matrices))
    return _nothing(A), mnp.linalg.svdvals(A), _nothing(A)


@register("aten._linalg_eigh")
def eigh(A: Any, UPLO: str = "L", compute_v: bool = True) -> tuple[Any, Any]:
    values, vectors = mnp.linalg.eigh(_hermitian(A, UPLO.upper() == "U"), symmetrize_input=False)
    return values, vectors if compute_v else _nothing(vectors)


rows(
    {
        "linalg_inv": lambda A: mnp.linalg.inv(A),
        "inverse": lambda self: mnp.linalg.inv(self),
        "linalg_det": lambda A: mnp.linalg.det(A),
        "det": lambda self: mnp.linalg.det(self),
        "linalg_eig": lambda self: tuple(mnp.linalg.eig(self)),
        "linalg_lu_factor": lambda A: lu_factor(A)[:2],
        "linalg_tensorinv": lambda self, ind=2: mnp.linalg.tensorinv(self, ind),
        "_linalg_eigvals linalg_eigvals": lambda self: mnp.linalg.eigvals(self),
        "linalg_matrix_exp matrix_exp": lambda self: mnp.linalg.expm(self),
    }
)
