"""Linear algebra with SciPy's names against SciPy, at float64; derivatives as jax has them."""

from __future__ import annotations

import jax
import jax.scipy.linalg as jl
import numpy as np
import pytest
import scipy.linalg as sl

import meshwright as mw
import meshwright.scipy.linalg as ml
from meshwright import errors
from meshwright.ir.tracing import typeof

RNG = np.random.default_rng(0)
A, E, B = RNG.normal(size=(4, 4)), RNG.normal(size=(4, 4)), RNG.normal(size=(3, 3)) + 3 * np.eye(3)
C, TALL = RNG.normal(size=(4, 3)), RNG.normal(size=(5, 3))
POSITIVE = A @ A.T + np.eye(4)
OTHER = E @ E.T + np.eye(4)


@pytest.fixture(autouse=True)
def wide():
    with mw.enable_x64(True), jax.enable_x64(True):
        yield


def same(got, want, tol=1e-10):
    for x, y in zip(mw.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=tol, atol=tol)


VALUES = {
    "cholesky": lambda m: m.cholesky(POSITIVE), "cholesky lower": lambda m: m.cholesky(POSITIVE, lower=True),
    "cho_solve": lambda m: m.cho_solve(m.cho_factor(POSITIVE), C), "lu": lambda m: m.lu(TALL),
    "lu permuted": lambda m: m.lu(TALL.T, permute_l=True), "lu_solve": lambda m: m.lu_solve(m.lu_factor(A), C, 1),
    "qr": lambda m: m.qr(TALL), "qr economic": lambda m: m.qr(TALL, mode="economic"),
    "qr r": lambda m: m.qr(TALL, mode="r"), "det": lambda m: m.det(A), "inv": lambda m: m.inv(A),
    "svd": lambda m: m.svd(TALL, compute_uv=False), "eigh": lambda m: m.eigh(POSITIVE, eigvals_only=True),
    "eigh generalized": lambda m: m.eigh(POSITIVE, OTHER, eigvals_only=True),
    "eigh_tridiagonal": lambda m: m.eigh_tridiagonal(np.arange(5.0), np.ones(4), eigvals_only=True),
    "eigh_tridiagonal part": lambda m: m.eigh_tridiagonal(np.arange(5.0), np.ones(4), eigvals_only=True, select="i",
                                                          select_range=(1, 3)),
    "expm": lambda m: m.expm(A), "expm_frechet": lambda m: m.expm_frechet(A, E),
    "sqrtm": lambda m: m.sqrtm(A + 5 * np.eye(4)) + 0j,
    "sqrtm positive": lambda m: m.sqrtm(POSITIVE) + 0j, "hessenberg": lambda m: m.hessenberg(A, calc_q=True),
    "schur": lambda m: m.schur(A), "polar": lambda m: m.polar(TALL), "polar left": lambda m: m.polar(TALL, "left"),
    "polar wide": lambda m: m.polar(TALL.T, "left"), "solve": lambda m: m.solve(A, C),
    "solve positive": lambda m: m.solve(POSITIVE, C, assume_a="pos"),
    "solve_triangular": lambda m: m.solve_triangular(A, C, lower=True, trans=1),
    "solve_sylvester": lambda m: m.solve_sylvester(A, B, C), "block_diag": lambda m: m.block_diag(A, [1.0, 2], 3.0),
    "toeplitz": lambda m: m.toeplitz(A[0], C[0]), "toeplitz of one": lambda m: m.toeplitz(A[0] * 1j),
    "hankel": lambda m: m.hankel(A[0], C[0]), "hankel of one": lambda m: m.hankel(A[0]),
    "circulant": lambda m: m.circulant(A[0]), "companion": lambda m: m.companion(A[0]),
    "fiedler": lambda m: m.fiedler(A[0]), "leslie": lambda m: m.leslie(A[0], C[0]),
    "convolution_matrix": lambda m: m.convolution_matrix(A[0], 3),
    "convolution_matrix same": lambda m: m.convolution_matrix(A[0], 7, "same"),
    "convolution_matrix valid": lambda m: m.convolution_matrix(A[0], 2, "valid"), "hilbert": lambda m: m.hilbert(3),
    "invhilbert": lambda m: m.invhilbert(3), "hadamard": lambda m: m.hadamard(4), "pascal": lambda m: m.pascal(4),
    "invpascal": lambda m: m.invpascal(4, kind="lower"), "helmert": lambda m: m.helmert(4, full=True),
    "dft": lambda m: m.dft(5, scale="sqrtn"),
}  # fmt: skip


def test_pascals_matrices_are_of_floats():
    with mw.enable_x64(False):
        for made in (ml.pascal(3), ml.invpascal(3), ml.pascal(0)):
            assert made.dtype == np.float32
        assert float((ml.pascal(3) - 2).min()) == -1


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    same(VALUES[name](ml), VALUES[name](sl))


def test_functions_of_matrices():
    same(ml.funm(POSITIVE, lambda x: mw.numpy.sin(x)), sl.funm(POSITIVE, np.sin).real, 1e-8)
    value, error = ml.funm(POSITIVE, lambda x: x**2, disp=False)
    same(value, POSITIVE @ POSITIVE, 1e-8)
    assert 0 <= error < 1e-8
    same(ml.solve_sylvester(A, B, C, method="eigen"), sl.solve_sylvester(A, B, C))


def test_factors_multiply_to_the_matrix():
    w, v = ml.eigh(POSITIVE, OTHER)
    same(POSITIVE @ np.asarray(v), OTHER @ np.asarray(v) * np.asarray(w))
    w, v = ml.eigh_tridiagonal(np.arange(5.0), np.ones(4))
    whole = np.diag(np.arange(5.0)) + np.diag(np.ones(4), 1) + np.diag(np.ones(4), -1)
    same(whole @ np.asarray(v), np.asarray(v) * np.asarray(w))
    t, z = (np.asarray(x) for x in ml.rsf2csf(*ml.schur(A)))
    same(z @ t @ z.conj().T, A + 0j)
    same(np.tril(t, -1), np.zeros((4, 4)) + 0j)
    cq, r = ml.qr_multiply(TALL, RNG.normal(size=(2, 5)) @ np.eye(5))
    assert cq.shape == (2, 3) and r.shape == (3, 3)


@pytest.mark.parametrize("name, f", [
    ("expm_frechet", lambda m, a: m.expm_frechet(a, E, compute_expm=False).sum()),
    ("cho_solve", lambda m, a: m.cho_solve(m.cho_factor(a @ a.T + 3 * np.eye(4)), C).sum()),
    ("toeplitz", lambda m, a: (m.toeplitz(a[0], a[1]) ** 3).sum()),
    ("polar", lambda m, a: (m.polar(a + 3 * np.eye(4), method="svd")[0] ** 3).sum()),
    ("block_diag", lambda m, a: (m.block_diag(a, 2 * a) ** 3).sum()),
])  # fmt: skip
def test_slopes(name, f):
    same(mw.grad(lambda a: f(ml, a))(A), jax.grad(lambda a: f(jl, a))(A), 1e-8)


def test_misuse(refuses):
    with refuses(errors.ShapeError, "solve_sylvester", "C has shape"):
        ml.solve_sylvester(A, B, C.T)
    with refuses(errors.ArgumentError, "polar", "side"):
        ml.polar(A, "above")
    with refuses(errors.ShapeError, "companion"):
        ml.companion(np.ones(1))


#: functions of a Hermitian matrix and which triangle of it is stored, ours and SciPy's
OF_A_TRIANGLE = {
    "cholesky": lambda l, a, lower: l.cholesky(a, lower=lower),
    "cho_factor": lambda l, a, lower: (np.tril if lower else np.triu)(l.cho_factor(a, lower=lower)[0]),
    "cho_solve": lambda l, a, lower: l.cho_solve(l.cho_factor(a, lower=lower), np.arange(4.0)),
    "solve": lambda l, a, lower: l.solve(a, np.arange(4.0), assume_a="pos", lower=lower),
    "eigh of two": lambda l, a, lower: l.eigh(a, a + 2 * np.eye(4), lower=lower, eigvals_only=True),
}


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("name", OF_A_TRIANGLE)
def test_the_other_triangle_is_not_read(name, lower):
    whole = A @ A.T + np.eye(4)
    stored = (np.tril if lower else np.triu)(whole)
    want = OF_A_TRIANGLE[name](sl, whole, lower)
    with mw.enable_x64():
        for a in (whole, stored, stored + 7 * (np.triu if lower else np.tril)(np.ones((4, 4)), 1 if lower else -1)):
            np.testing.assert_allclose(OF_A_TRIANGLE[name](ml, a, lower), want, rtol=1e-10)


def test_weak_types_of_made_matrices():
    """Matrices made of numbers are none; what ``rsf2csf`` turns stays weakly typed where all of it was."""
    strong = np.eye(2, dtype=np.float32)

    def types(np_, linalg, is_weak):
        row, square = (np_.broadcast_to(np_.asarray(2.0), shape) for shape in ((3,), (2, 2)))
        made = [linalg.block_diag(square, 2.0), linalg.toeplitz(row), linalg.hankel(row)]
        made.append(linalg.eigh_tridiagonal(row, row[:2], eigvals_only=True))
        made += [*linalg.rsf2csf(square, square), *linalg.rsf2csf(square, np_.asarray(strong))]
        return [(str(x.dtype), is_weak(x)) for x in made]

    want = types(jax.numpy, jl, lambda x: x.weak_type)
    assert types(mw.numpy, ml, lambda x: typeof(x).weak_type) == want


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint32", "int8", "float32"])
def test_companions_of_every_dtype(dtype):
    """SciPy negates unsigned integers."""
    a = np.array([2, 3, 0, 1, 5], dtype)
    same(ml.companion(a), sl.companion(a.astype(float)))
