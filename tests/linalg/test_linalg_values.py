"""What linear algebra and Fourier transforms compute, against NumPy; what they do with bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.scipy.linalg
import numpy as np
import pytest
import scipy.linalg

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError, AxisError, DTypeError, ShapeError

RNG = np.random.default_rng(41)
A = RNG.normal(size=(2, 5, 3)).astype(np.float32)
S = (RNG.normal(size=(3, 4, 4)) + 2 * np.eye(4)).astype(np.float32)
C = (S + 1j * RNG.normal(size=(3, 4, 4))).astype(np.complex64)
P = (C @ C.conj().swapaxes(1, 2) + np.eye(4)).astype(np.complex64)
B = RNG.normal(size=(3, 4, 2)).astype(np.float32)
DEFICIENT = (A[0, :, :1] @ A[1, :1] + A[0, :, 1:2] @ A[1, 1:2]).astype(np.float32)

#: functions of a NumPy-like module
SAME: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda n: n.linalg.cholesky(P),
    "cholesky upper": lambda n: n.linalg.cholesky(P, upper=True),
    "svdvals": lambda n: [n.linalg.svd(A, compute_uv=False), n.linalg.svd(C, compute_uv=False)],
    "svd of hermitian": lambda n: n.linalg.svd(P - 9 * np.eye(4, dtype=np.float32), hermitian=True)[1],
    "eigvalsh": lambda n: [n.linalg.eigvalsh(P), n.linalg.eigh(S + S.swapaxes(1, 2))[0]],
    "eigvals": lambda n: n.sort(n.abs(n.linalg.eigvals(S)) + n.abs(n.linalg.eigvals(C))),
    "solve": lambda n: [n.linalg.solve(S, B), n.linalg.solve(S[0], B), n.linalg.solve(C, B), n.linalg.solve(S, B[0])],
    "solve a vector": lambda n: n.linalg.solve(S, B[0, :, 0]),
    "solve integers": lambda n: n.linalg.solve(n.asarray([[2, 1], [1, 3]]), n.asarray([1, 2])),
    "inv": lambda n: [n.linalg.inv(S), n.linalg.inv(C)],
    "det": lambda n: [n.linalg.det(S), n.linalg.det(C), n.linalg.det(S[:, :3, :3]), n.linalg.det(C[:, :2, :2])],
    "slogdet": lambda n: [*n.linalg.slogdet(S), *n.linalg.slogdet(C), *n.linalg.slogdet(DEFICIENT[:3] * 0)],
    "pinv": lambda n: [n.linalg.pinv(A), n.linalg.pinv(DEFICIENT, rcond=1e-5), n.linalg.pinv(P, hermitian=True)],
    "lstsq": lambda n: n.linalg.lstsq(A[0], RNG_B)[:2],
    "lstsq of a deficient matrix": lambda n: [n.linalg.lstsq(DEFICIENT, RNG_B[:, 0], rcond=1e-5)[i] for i in (0, 3)],
    "matrix_rank": lambda n: [n.linalg.matrix_rank(DEFICIENT, tol=1e-4), n.linalg.matrix_rank(A)],
    "matrix_power": lambda n: [n.linalg.matrix_power(S, k) for k in (0, 1, 5, -2)],
    "vector_norm": lambda n: [
        n.linalg.vector_norm(C, axis=(0, 2), ord=p) for p in (0, 1, 2, 3.5, -1, np.inf, -np.inf)],
    "norm": lambda n: [n.linalg.norm(A), n.linalg.norm(A, axis=1, ord=1), n.linalg.norm(A, axis=(2, 0), ord="nuc"),
                       n.linalg.norm(A, axis=(0, 1), keepdims=True), n.linalg.norm(A[0], ord=-2)],
    "matrix_norm": lambda n: [
        n.linalg.matrix_norm(C, ord=p, keepdims=True) for p in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)],
    "cond": lambda n: [n.linalg.cond(S, p) for p in (None, 1, 2, -2, "fro", np.inf)],
    "multi_dot": lambda n: n.linalg.multi_dot([A[0], A[1].T, A[0], A[1, 0]]),
    "tensorsolve": lambda n: n.linalg.tensorsolve(
        n.asarray(S[0].reshape(2, 2, 4)), n.asarray(B[0, :, 0].reshape(2, 2))),
    "tensorinv": lambda n: n.linalg.tensorinv(n.asarray(S[0].reshape(2, 2, 4))),
    "products": lambda n: [n.linalg.outer(A[0, 0], A[0, 1]), n.linalg.diagonal(A, offset=-1), n.linalg.trace(A),
                           n.linalg.cross(A, A[:, :1]), n.linalg.matrix_transpose(A), n.linalg.vecdot(C, C[0])],
    "fft": lambda n: [n.fft.fft(A, axis=1), n.fft.fft(C, n=7, norm="ortho"), n.fft.ifft(C, n=2, axis=0)],
    "fftn": lambda n: [
        n.fft.fftn(C), n.fft.ifftn(A, s=(4, 3), axes=(0, 1)), n.fft.fft2(A), n.fft.ifft2(C, norm="forward")],
    "fftn of four dimensions": lambda n: [n.fft.fftn(C.reshape(3, 2, 2, 4)), n.fft.irfftn(C.reshape(3, 2, 2, 4)),
                                          n.fft.rfftn(S.reshape(3, 2, 2, 4)), n.fft.ifftn(S.reshape(1, 3, 2, 2, 4))],
    "rfft": lambda n: [n.fft.rfft(A), n.fft.rfft(A, n=4, axis=1), n.fft.rfftn(A, norm="ortho"), n.fft.rfft2(A)],
    "irfft": lambda n: [n.fft.irfft(C), n.fft.irfft(C, n=5), n.fft.irfftn(C, s=(4, 5), axes=(1, 2)), n.fft.irfft2(C)],
    "hfft": lambda n: [n.fft.hfft(C), n.fft.hfft(C, n=5, norm="ortho"), n.fft.ihfft(A, norm="forward")],
    "frequencies": lambda n: [n.fft.fftfreq(7, 0.5), n.fft.rfftfreq(6), n.fft.fftshift(A), n.fft.ifftshift(A, axes=1)],
}  # fmt: skip
RNG_B = RNG.normal(size=(5, 2)).astype(np.float32)


@pytest.mark.parametrize("name", SAME)
def test_against_numpy(name: str) -> None:
    got, want = ([np.asarray(y) for y in jax.tree.leaves(SAME[name](n))] for n in (mnp, np))
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        assert x.dtype.kind == y.dtype.kind and x.dtype.itemsize <= y.dtype.itemsize
        np.testing.assert_allclose(
            x, y, rtol=2e-3, atol=2e-4 * max(1.0, np.max(np.abs(y), initial=0, where=np.isfinite(y)))
        )


def test_factors_multiply_to_the_matrix() -> None:
    for x in (A, C, A.swapaxes(1, 2)):
        for full in (False, True):
            q, r = mnp.linalg.qr(x, mode="complete" if full else "reduced")
            u, s, vh = mnp.linalg.svd(x, full_matrices=full)
            k = s.shape[-1]
            np.testing.assert_allclose(q @ r, x, atol=1e-5)
            np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x, atol=1e-5)
            unit = np.broadcast_to(np.eye(q.shape[-1]), (x.shape[0], q.shape[-1], q.shape[-1]))
            np.testing.assert_allclose(mnp.conj(mnp.matrix_transpose(q)) @ q, unit, atol=1e-5)
    values, vectors = mnp.linalg.eig(C)
    np.testing.assert_allclose(C @ vectors, vectors * values[..., None, :], atol=1e-4)
    values, vectors = mnp.linalg.eigh(P)
    np.testing.assert_allclose(P @ vectors, vectors * values[..., None, :], rtol=1e-4, atol=1e-4)
    q, r, order = mw.lax.linalg.qr(C, pivoting=True, full_matrices=False)
    np.testing.assert_allclose(q @ r, np.take_along_axis(C, np.asarray(order)[:, None, :], 2), atol=1e-5)
    lengths = np.abs(np.diagonal(r, axis1=1, axis2=2))
    assert (np.diff(lengths) <= 0).all()
    raw, scales = mnp.linalg.qr(A, mode="raw")
    assert raw.shape == (2, 3, 5) and scales.shape == (2, 3)
    np.testing.assert_allclose(mnp.linalg.qr(A, mode="r"), mnp.linalg.qr(A).R)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.7, 40.0])
def test_expm(scale: float) -> None:
    x = (S * scale).astype(np.complex64) if scale < 1 else -P / 2
    want = scipy.linalg.expm(x.astype(np.complex128))
    np.testing.assert_allclose(mnp.linalg.expm(x), want, rtol=1e-3, atol=2e-5 * np.abs(want).max())
    assert np.isnan(mnp.linalg.expm(np.eye(2) * 1e9)).all()
    upper = mnp.linalg.expm(S[0], upper_triangular=True)
    np.testing.assert_allclose(upper, scipy.linalg.expm(np.triu(S[0])), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("lower", [False, True])
def test_solves_of_factored_matrices(trans: int, lower: bool) -> None:
    args = (C[0], B[0].astype(np.complex64))
    got = mnp.linalg.solve_triangular(*args, trans=trans, lower=lower, unit_diagonal=lower)
    want = scipy.linalg.solve_triangular(*args, trans=trans, lower=lower, unit_diagonal=lower)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
    got = mnp.linalg.lu_solve(mnp.linalg.lu_factor(args[0]), args[1], trans)
    np.testing.assert_allclose(got, scipy.linalg.lu_solve(scipy.linalg.lu_factor(args[0]), args[1], trans), atol=1e-3)
    got = mnp.linalg.cho_solve(mnp.linalg.cho_factor(P, lower), B)
    np.testing.assert_allclose(P @ np.asarray(got), B, atol=1e-3)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "lu": (lambda l: l.lu, (A,)),
    "hessenberg": (lambda l: l.hessenberg, (S,)),
    "schur": (lambda l: l.schur, (S,)),
    "complex schur": (lambda l: l.schur, (C,)),
    "tridiagonal": (lambda l: l.tridiagonal, (P,)),
    "tridiagonal_solve": (lambda l: l.tridiagonal_solve, (S[:, 0], S[:, 1] + 3, S[:, 2], B)),
    "householder_product": (lambda l: l.householder_product, (A, A[:, 0])),
    "ormqr": (lambda l: lambda a, t, c: l.ormqr(a, t, c, transpose=True), (A, A[:, 0], A)),
    "symmetric_product": (lambda l: lambda a, c: l.symmetric_product(a, c, alpha=2.0, beta=3.0), (B, P.real)),
    "lu_pivots_to_permutation": (
        lambda l: lambda p: l.lu_pivots_to_permutation(p, 6), (np.array([[3, 2, 5], [0, 4, 4]], np.int32),)),
    "cholesky_update": (lambda l: l.cholesky_update, (np.triu(np.eye(4) + abs(S[0])).astype(np.float32), S[0, 0])),
    "triangular_solve": (
        lambda l: lambda a, b: l.triangular_solve(a, b, left_side=True, conjugate_a=True), (C[0], C[1])),
    "eig": (lambda l: lambda a: l.eig(a)[1:] + [abs(v) for v in l.eig(a)[:1]], (C,)),
    "svd": (lambda l: lambda a: [abs(x) for x in l.svd(a, full_matrices=False)], (C,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lax_linalg_against_jax(name: str) -> None:
    f, args = FUNCTIONS[name]
    got, want = (jax.tree.leaves(f(m.lax.linalg)(*args)) for m in (mw, jax))
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_what_fails_is_nan() -> None:
    """Only for the matrices that are at fault; singular ones give infinities, as in JAX."""
    mixed = np.stack([np.eye(3), -np.eye(3)]).astype(np.float32)
    factors = np.asarray(mnp.linalg.cholesky(mixed))
    assert np.array_equal(factors[0], np.eye(3)) and np.isnan(np.diag(factors[1])).all()
    bad = mixed.copy()
    bad[1, 0, 1] = np.nan
    for x in (mnp.linalg.eigvalsh(bad), mnp.linalg.svdvals(bad), mnp.linalg.eigvals(bad)):
        assert np.isfinite(x[0]).all() and np.isnan(x[1]).any()
    assert not np.isfinite(mnp.linalg.inv(np.zeros((2, 2)))).any()
    assert mnp.linalg.det(np.zeros((4, 4))).item() == 0
    assert np.isinf(mnp.linalg.cond(np.diag([1.0, 0.0]))).item()


def test_matrices_without_elements() -> None:
    empty = np.zeros((2, 0, 0), np.float32)
    assert mnp.linalg.det(empty).tolist() == [1, 1] and mnp.linalg.slogdet(empty).sign.tolist() == [1, 1]
    assert mnp.linalg.inv(empty).shape == mnp.linalg.cholesky(empty).shape == (2, 0, 0)
    q, r = mnp.linalg.qr(np.zeros((3, 0)), mode="complete")
    assert q.tolist() == np.eye(3).tolist() and r.shape == (3, 0)
    assert mnp.linalg.svd(np.zeros((0, 2))).Vh.tolist() == np.eye(2).tolist()
    assert mnp.linalg.pinv(np.zeros((3, 0))).shape == (0, 3) and mnp.linalg.matrix_rank(np.zeros((0, 2))).item() == 0
    assert mnp.linalg.solve(np.zeros((0, 0)), np.zeros((0, 2))).shape == (0, 2)
    assert mnp.linalg.matrix_norm(np.zeros((0, 2))).item() == 0 and mnp.fft.fft(np.zeros((0, 3))).shape == (0, 3)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "rectangular": (lambda: mnp.linalg.inv(A), ShapeError, ("inv", "(2, 5, 3)", "square")),
    "a vector": (lambda: mnp.linalg.svd(A[0, 0]), ShapeError, ("svd", "(3,)")),
    "rows": (lambda: mnp.linalg.solve(S, A), ShapeError, ("solve", "4 rows", "(2, 5, 3)")),
    "batches": (lambda: mnp.linalg.solve(S, B[:2]), ShapeError, ("solve", "broadcast")),
    "half precision": (lambda: mnp.linalg.det(S.astype(np.float16)), DTypeError, ("det", "f16", "astype")),
    "an order": (lambda: mnp.linalg.matrix_norm(A, ord=3), ArgumentError, ("matrix_norm", "3")),
    "a norm without axes": (lambda: mnp.linalg.norm(A, ord=1), ShapeError, ("norm", "(2, 5, 3)")),
    "a product of one": (lambda: mnp.linalg.multi_dot([A[0]]), ArgumentError, ("multi_dot", "at least two")),
    "more exchanges than rows": (
        lambda: mw.lax.linalg.lu_pivots_to_permutation(mnp.array([0, 1]), 1), ShapeError, ("2 exchanges", "got 1")),
    "a mode": (lambda: mnp.linalg.qr(A, mode="thin"), ArgumentError, ("qr", "thin")),
    "outer": (lambda: mnp.linalg.outer(A, A), ShapeError, ("outer", "vectors")),
    "tensorsolve": (lambda: mnp.linalg.tensorsolve(S, B), ShapeError, ("tensorsolve",)),
    "lax dtypes": (lambda: mw.lax.linalg.triangular_solve(S, C), DTypeError, ("triangular_solve", "astype")),
    "lax sizes": (lambda: mw.lax.linalg.triangular_solve(S, A), ShapeError, ("triangular_solve",)),
    "a fft norm": (lambda: mnp.fft.fft(A, norm="unit"), ArgumentError, ("fft", "unit")),
    "a fft size": (lambda: mnp.fft.rfft(A, n=0), ArgumentError, ("rfft", "positive")),
    "a fft axis": (lambda: mnp.fft.fft(A, axis=3), AxisError, ("fft", "axis 3")),
    "sizes and axes": (lambda: mnp.fft.fftn(A, s=(2, 2), axes=(0,)), ArgumentError, ("fftn", "2 sizes", "1 axis")),
    "a complex rfft": (lambda: mnp.fft.rfft(C), DTypeError, ("rfft", "real")),
    "lax fft": (lambda: mw.lax.fft(C, "fft", (3,)), ShapeError, ("FFT", "(3,)")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input(name: str, refuses: Any) -> None:
    f, kind, words = REFUSED[name]
    with refuses(kind, *words):
        f()


def test_derivatives_that_do_not_exist(refuses: Any) -> None:
    with refuses(TypeError, "full_matrices", "(2, 5, 3)"):
        mw.grad(lambda x: mnp.linalg.svd(x)[0].sum())(A)
