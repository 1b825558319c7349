"""custom_linear_solve, custom_root and qdwh: values and derivatives of all kinds as jax has them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg as sl

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors, lax

A = np.array([[4, 1, 0.5], [0.2, 3, 0.1], [0.3, 0.6, 5]], np.float32)
B = np.array([1, 2, -1], np.float32)
LIBRARIES = (mw, mnp), (jax, jnp)


def solved(m: Any, xp: Any, symmetric: bool) -> Any:
    """A function of a matrix and a vector that solves a system of a tree by Richardson's iteration, in a loop."""

    def f(a: Any, b: Any) -> Any:
        if symmetric:
            a = a + a.T

        def matvec(x: Any) -> Any:
            return {"u": a @ x["u"], "v": 2 * x["v"] * a[0, 0]}

        def solve(matvec: Any, b: Any) -> Any:
            def body(state: Any) -> Any:
                i, x = state
                left = m.tree_util.tree_map(lambda p, q: p - q, b, matvec(x))
                return i + 1, m.tree_util.tree_map(lambda p, q: p + 0.06 * q, x, left)

            start = 0, m.tree_util.tree_map(xp.zeros_like, b)
            return m.lax.while_loop(lambda state: state[0] < 300, body, start)[1]

        right = {"u": b, "v": b[:2].sum() * xp.ones(4, xp.float32)}
        x = m.lax.custom_linear_solve(matvec, right, solve, None if symmetric else solve, symmetric)
        return (x["u"] ** 2).sum() + xp.sin(x["v"]).sum()

    return f


TRANSFORMS = {
    "jvp": lambda m, f: m.jvp(f, (A, B), (A * 0.3, B + 1)),
    "grad": lambda m, f: m.grad(f, (0, 1))(A, B),
    "second": lambda m, f: m.jacfwd(m.grad(f))(A, B),
    "vmap": lambda m, f: m.jit(m.vmap(m.grad(f, (0, 1)), (0, None)))(np.stack([A, A * 1.1]), B),
    "vmap of the right side": lambda m, f: m.vmap(m.grad(f, 1), (None, 1))(A, np.stack([B, B * 3], 1)),
}


def same(got: Any, want: Any) -> None:
    for x, y in zip(mw.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=3e-4, atol=1e-4)


@pytest.mark.parametrize("name, symmetric", [*((name, False) for name in TRANSFORMS), ("grad", True), ("second", True)])
def test_linear_solve(name, symmetric):
    got, want = (TRANSFORMS[name](m, solved(m, xp, symmetric)) for m, xp in LIBRARIES)
    same(got, want)


def test_linear_solve_with_more_results():
    def run(m: Any) -> Any:
        def f(y: Any) -> Any:
            x, aux = m.lax.custom_linear_solve(
                lambda x: y * x, y**2, lambda mv, b: (b / mv(1.0), b + 1), lambda mv, b: (b / mv(1.0), b), has_aux=True
            )
            return x + 100 * aux

        return f(3.0), m.grad(f)(3.0)

    same(run(mw), run(jax))


def root(m: Any, xp: Any) -> Any:
    def f(y: Any, z: Any) -> Any:
        def newton(g: Any, x: Any) -> Any:
            x = m.lax.fori_loop(0, 20, lambda i, x: x - g(x) / (3 * x**2 + z), x)
            return x, xp.float32(3)

        start = xp.ones(3, xp.float32)
        x, aux = m.lax.custom_root(
            lambda x: x**3 - y + z * x, start, newton, lambda g, y: y / g(xp.ones_like(y)), has_aux=True
        )
        return (x * np.arange(1, 4)).sum() * aux

    return f


@pytest.mark.parametrize("name", ["grad", "second", "vmap"])
def test_root(name):
    y, z = np.array([2, 3, 7], np.float32), np.float32(0.5)
    transforms = {
        "grad": lambda m, f: m.grad(f, (0, 1))(y, z),
        "second": lambda m, f: m.hessian(f)(y, z),
        "vmap": lambda m, f: m.jit(m.vmap(m.grad(f, (0, 1)), (0, None)))(np.stack([y, y + 1]), z),
    }
    same(*(transforms[name](m, root(m, xp)) for m, xp in LIBRARIES))


def test_misuse(refuses):
    with refuses(errors.DifferentiationError, "custom_linear_solve", "transpose_solve", "symmetric"):
        mw.grad(lambda b: lax.custom_linear_solve(lambda x: 2 * x, b, lambda mv, b: b / 2))(3.0)
    with refuses(errors.ArgumentError, "custom_linear_solve", "matvec", "like"):
        lax.custom_linear_solve(lambda x: (x, x), 3.0, lambda mv, b: b / 2)
    with refuses(errors.ArgumentError, "custom_root", "the solution"):
        lax.custom_root(lambda x: x - 2, 3.0, lambda f, x: (x, x), lambda g, y: y)
    with refuses(errors.ArgumentError, "has_aux", "pair"):
        lax.custom_root(lambda x: x - 2, 3.0, lambda f, x: x, lambda g, y: y, has_aux=True)


@pytest.mark.parametrize("kind", ["tall", "hermitian", "complex", "singular values far apart"])
def test_polar_decomposition(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 3)).astype(np.float32)
    match kind:
        case "hermitian":
            x = x.T @ x - 2 * np.eye(3, dtype=np.float32)
        case "complex":
            x = (x + 1j * rng.normal(size=(5, 3))).astype(np.complex64)
        case "singular values far apart":
            x = np.diag([1, 1e-9, 3]).astype(np.float32)
    u, h, _, converged = lax.linalg.qdwh(x, is_hermitian=kind == "hermitian")
    wanted = sl.polar(x)
    assert converged
    np.testing.assert_allclose(u, wanted[0], atol=3e-6)
    np.testing.assert_allclose(h, wanted[1], atol=5e-6)
    if kind == "hermitian":
        np.testing.assert_array_equal(u, np.asarray(u).T)


def test_polar_decomposition_of_a_wide_matrix(refuses):
    with refuses(errors.ShapeError, "qdwh", "transpose"):
        lax.linalg.qdwh(np.ones((2, 3), np.float32))
