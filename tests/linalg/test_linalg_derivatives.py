"""Gradients and tangents of linear algebra and Fourier transforms at double precision, against ``jax`` and against
finite differences.

Where singular or eigenvectors are determined up to a phase only, the function takes what does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.config import config

RNG = np.random.default_rng(29)
SQUARE = RNG.normal(size=(2, 4, 4)) + 3 * np.diag([1.0, 2.0, -3.0, 4.0])
POSITIVE = np.einsum("bij,bkj->bik", SQUARE, SQUARE) / 9 + np.eye(4)
TALL, WIDE = RNG.normal(size=(2, 5, 3)), RNG.normal(size=(2, 3, 5))
COMPLEX = SQUARE + 1j * RNG.normal(size=(2, 4, 4))
ROWS, VECTOR = RNG.normal(size=(2, 4, 3)), RNG.normal(size=4)


@pytest.fixture(scope="module", autouse=True)
def double_precision() -> Iterator[None]:
    with config.override("enable_x64", True), jax.enable_x64(True):
        yield


def _expm(n: Any) -> Any:
    return n.linalg.expm if n is mnp else jax.scipy.linalg.expm


def _projectors(vectors: Any, n: Any) -> Any:
    """Of each column onto itself: without phases."""
    return n.einsum("...ij,...kj->...ikj", vectors, n.conj(vectors))


Case = tuple[Callable[..., Any], tuple[np.ndarray, ...]]
CASES: dict[str, Case] = {
    "cholesky": (lambda n, a: n.linalg.cholesky(a), (POSITIVE,)),
    "cholesky upper": (lambda n, a: n.linalg.cholesky(a, upper=True), (POSITIVE,)),
    "qr": (lambda n, a: n.linalg.qr(a), (TALL,)),
    "qr square complete": (lambda n, a: n.linalg.qr(a, mode="complete"), (SQUARE,)),
    "qr complete": (lambda n, a: n.linalg.qr(a, mode="complete"), (TALL[0],)),
    "svd tall": (lambda n, a: n.linalg.svd(a, full_matrices=False), (TALL,)),
    "svd wide": (lambda n, a: n.linalg.svd(a, full_matrices=False), (WIDE,)),
    "svdvals": (lambda n, a: n.linalg.svdvals(a), (TALL,)),
    "complex svd": (lambda n, a: [
        n.einsum("...ij,...jk->...ijk", u, v) * s[..., None, :, None]
        for u, s, v in [n.linalg.svd(n.exp(1j * a) @ n.ones((3, 3)) + a, full_matrices=False)]], (TALL,)),
    "eigh": (lambda n, a: n.linalg.eigh(a), (POSITIVE,)),
    "eigvalsh": (lambda n, a: n.linalg.eigvalsh(a @ n.swapaxes(a, -1, -2)), (WIDE,)),
    "complex eigh": (lambda n, a: [
        (w, _projectors(v, n)) for w, v in [n.linalg.eigh(n.exp(1j * a) + n.swapaxes(n.exp(-1j * a), -1, -2))]],
        (SQUARE,)),
    "eig": (lambda n, a: [n.abs(w) ** 2 + n.real(w) for w in [n.linalg.eigvals(a)]], (SQUARE,)),
    "solve": (lambda n, a, b: n.linalg.solve(a, b), (SQUARE, ROWS)),
    "solve one matrix": (lambda n, a, b: n.linalg.solve(a, b), (SQUARE[0], ROWS)),
    "solve a vector": (lambda n, a, b: n.linalg.solve(a, b), (SQUARE[0], VECTOR)),
    "complex solve": (lambda n, a, b: n.linalg.solve(n.exp(1j * a) + a, b), (SQUARE, ROWS)),
    "inv": (lambda n, a: n.linalg.inv(a), (SQUARE,)),
    "det": (lambda n, a: n.linalg.det(a), (SQUARE,)),
    "det of three": (lambda n, a: n.linalg.det(a[..., :3, :3]), (SQUARE,)),
    "complex det": (lambda n, a: n.linalg.det(n.exp(1j * a)), (SQUARE,)),
    "slogdet": (lambda n, a: n.linalg.slogdet(a)[1], (SQUARE,)),
    "complex slogdet": (lambda n, a: n.linalg.slogdet(n.exp(1j * a)), (SQUARE,)),
    "pinv": (lambda n, a: n.linalg.pinv(a), (TALL,)),
    "pinv wide": (lambda n, a: n.linalg.pinv(a), (WIDE,)),
    "lstsq": (lambda n, a, b: n.linalg.lstsq(a, b)[0], (TALL[0], RNG.normal(size=(5, 2)))),
    "matrix_power": (lambda n, a: n.linalg.matrix_power(a, -3), (SQUARE,)),
    "norm": (lambda n, a: [n.linalg.norm(a), n.linalg.norm(a, axis=1), n.linalg.norm(a, ord=3, axis=0)], (TALL,)),
    "matrix_norm": (lambda n, a: [n.linalg.matrix_norm(a, ord=p) for p in ("fro", "nuc", 2, -2, 1, -np.inf)], (TALL,)),
    "cond": (lambda n, a: [n.linalg.cond(a), n.linalg.cond(a, p=1)], (SQUARE[0],)),
    "multi_dot": (lambda n, a, b: n.linalg.multi_dot([a, b, a]), (TALL[0], WIDE[0])),
    "tensorsolve": (
        lambda n, a, b: n.linalg.tensorsolve(a.reshape(2, 2, 4), b.reshape(2, 2)), (SQUARE[0], VECTOR)),
    "expm": (lambda n, a: _expm(n)(a[0] / 4), (SQUARE,)),
    "expm with squarings": (lambda n, a: _expm(n)(a[0] * 2), (SQUARE / 9,)),
    "fft": (lambda n, a: n.fft.fft(a, n=6, axis=1, norm="ortho"), (TALL,)),
    "fftn of four dimensions": (lambda n, a: n.fft.fftn(a.reshape(2, 1, 5, 3)), (TALL,)),
    "rfft": (lambda n, a: n.fft.rfft(a, n=4), (TALL,)),
    "rfftn": (lambda n, a: n.fft.rfftn(a, norm="forward"), (WIDE,)),
    "irfft": (lambda n, a: n.fft.irfft(n.exp(1j * a)), (WIDE,)),
    "irfft of odd size": (lambda n, a: n.fft.irfft(n.exp(1j * a), n=7), (WIDE,)),
    "irfft2": (lambda n, a: n.fft.irfft2(n.exp(1j * a)), (WIDE,)),
    "hfft": (lambda n, a: n.fft.hfft(n.exp(1j * a)), (WIDE,)),
    "ihfft": (lambda n, a: n.fft.ihfft(a), (WIDE,)),
}  # fmt: skip
#: derivatives that ``jax`` gives otherwise, or not at all
OWN: dict[str, Case] = {
    "eig vectors": (lambda n, a: [(w, _projectors(v, n)) for w, v in [n.linalg.eig(a)]], (SQUARE,)),
    "qr with pivoting": (lambda n, a: mw.lax.linalg.qr(a, pivoting=True)[:2], (TALL[1],)),
    "qr of many with pivoting": (lambda n, a: mw.lax.linalg.qr(a, pivoting=True, full_matrices=False)[:2], (WIDE,)),
    "qr wide": (lambda n, a: n.linalg.qr(a), (WIDE,)),
    "det of rank three": (lambda n, a: n.linalg.det(a), (SQUARE * [[[1.0], [1], [1], [0]]],)),
    "lu_solve": (lambda n, a, b: n.linalg.lu_solve(n.linalg.lu_factor(a), b, trans=1), (SQUARE, ROWS)),
    "cho_solve": (lambda n, a, b: n.linalg.cho_solve(n.linalg.cho_factor(a), b), (POSITIVE, ROWS)),
    "solve_triangular": (
        lambda n, a, b: n.linalg.solve_triangular(n.exp(1j * a), b, trans=2, lower=True), (SQUARE / 4, ROWS)),
    "svd of hermitian": (lambda n, a: n.linalg.svd(a + n.swapaxes(a, -1, -2), hermitian=True)[1], (SQUARE,)),
    "hermitian pinv": (lambda n, a: n.linalg.pinv(a, hermitian=True), (POSITIVE,)),
    "tensorinv": (lambda n, a: n.linalg.tensorinv(a.reshape(2, 2, 4)), (SQUARE[0],)),
}  # fmt: skip


def weighted(f: Callable[..., Any], n: Any, m: Any) -> Callable[..., Any]:
    """A real scalar of all results, with a different weight for each element and each part."""

    def scalar(*xs: Any) -> Any:
        total: Any = 0.0
        for i, y in enumerate(m.tree.leaves(f(n, *xs))):
            w = np.cos(np.arange(1.0, y.size + 1) + i).reshape(y.shape)
            total = total + (n.real(y) * w).sum() + (n.imag(y) * np.flip(w)).sum()
        return total

    return scalar


def derivatives(f: Callable[..., Any], n: Any, m: Any, args: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Value, tangent along one direction and gradients."""
    scalar = weighted(f, n, m)
    along = tuple(np.sin(np.arange(1.0, x.size + 1)).reshape(x.shape) for x in args)

    def all_of_them(*xs: Any) -> Any:
        return (*m.jvp(scalar, xs, along), *m.grad(scalar, tuple(range(len(xs))))(*xs))

    return [np.asarray(y) for y in m.jit(all_of_them)(*args)]


@pytest.mark.parametrize("name", [*CASES, *OWN])
def test_against_finite_differences(name: str) -> None:
    f, args = (CASES | OWN)[name]
    value, tangent, *grads = derivatives(f, mnp, mw, args)
    scalar = mw.jit(weighted(f, mnp, mw))
    along = [np.sin(np.arange(1.0, x.size + 1)).reshape(x.shape) for x in args]
    step = 1e-5
    plus, minus = (float(scalar(*(x + s * step * d for x, d in zip(args, along)))) for s in (1, -1))
    scale = max(1.0, abs(float(tangent)))
    assert abs(float(tangent) - (plus - minus) / (2 * step)) <= 1e-6 * scale
    assert abs(float(tangent) - sum(np.sum(g * d) for g, d in zip(grads, along))) <= 1e-9 * scale
    assert np.isfinite(value)


@pytest.mark.parametrize("name", CASES)
def test_against_jax(name: str) -> None:
    f, args = CASES[name]
    got, want = derivatives(f, mnp, mw, args), derivatives(f, jnp, jax, args)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-9 * max(1.0, np.abs(y).max()))


@pytest.mark.parametrize("name", ["solve", "det", "slogdet", "cholesky", "inv", "eigvalsh", "expm", "pinv"])
def test_second_derivatives(name: str) -> None:
    """A product with the Hessian, forward over reverse, against ``jax``."""
    f, args = CASES[name]

    def product(n: Any, m: Any) -> list[np.ndarray]:
        g = m.grad(weighted(f, n, m))
        along = tuple(np.cos(np.arange(1.0, x.size + 1)).reshape(x.shape) for x in args)
        return [np.asarray(v) for v in m.jit(lambda *xs: m.jvp(g, xs, along))(*args)]

    for x, y in zip(product(mnp, mw), product(jnp, jax), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-8 * np.abs(y).max())


def test_singular_values_that_are_equal_do_not_spoil_the_pseudoinverse() -> None:
    a = np.eye(4)[:, :3] * 2.0
    grad = np.asarray(mw.grad(lambda x: mnp.linalg.pinv(x)[0, 0])(a))
    want = np.zeros((4, 3))
    want[0, 0] = -0.25
    np.testing.assert_allclose(grad, want, atol=1e-12)
