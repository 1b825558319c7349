"""``scipy.sparse.linalg`` against ``jax`` and dense solves."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.scipy.sparse import linalg as peer

import meshwright as mw
from meshwright.scipy.sparse import linalg

RNG = np.random.default_rng(0)
N = 8
GENERAL = (RNG.normal(size=(N, N)) + 4 * np.eye(N)).astype("float32")
POSITIVE = (GENERAL @ GENERAL.T).astype("float32")
B = RNG.normal(size=N).astype("float32")
METHODS = ["cg", "bicgstab", "gmres"]


def matrix_for(name, complex_=False):
    a = POSITIVE if name == "cg" else GENERAL
    return (a + 1j * (GENERAL - GENERAL.T)).astype("complex64") if complex_ else a


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("complex_", [False, True])
def test_solves(name, complex_):
    a = matrix_for(name, complex_)
    b = (B + 1j * B[::-1]).astype(a.dtype) if complex_ else B
    for given in (a, lambda x: a @ x):
        x, info = getattr(linalg, name)(given, b, tol=1e-6)
        assert (info == 0 if name == "gmres" else info is None) and x.dtype == a.dtype
        np.testing.assert_allclose(a @ np.asarray(x), b, atol=2e-4)


@pytest.mark.parametrize("name", METHODS)
def test_options(name):
    a = matrix_for(name)
    inverse = np.diag(1 / np.diag(a)).astype("float32")
    solve, expected = getattr(linalg, name), np.linalg.solve(a, B)
    for options in ({"M": lambda v: inverse @ v}, {"x0": expected + 0.1}, {"atol": 1e-5, "tol": 0.0}, {"maxiter": 50}):
        np.testing.assert_allclose(solve(a, B, **options)[0], expected, atol=1e-3)
    start = solve(a, B, x0=np.ones(N, "float32"), maxiter=0)[0]
    np.testing.assert_array_equal(start, np.ones(N))
    np.testing.assert_array_equal(solve(a, np.zeros(N, "float32"))[0], np.zeros(N))


def test_steps_are_those_of_jax():
    for steps in (1, 2, 3):
        for name in ("cg", "bicgstab"):
            ours, theirs = (getattr(m, name)(matrix_for(name), B, maxiter=steps)[0] for m in (linalg, peer))
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_rounds_of_gmres():
    for method in ("batched", "incremental"):
        ours = linalg.gmres(GENERAL, B, restart=3, maxiter=2, solve_method=method)[0]
        theirs = peer.gmres(GENERAL, B, restart=3, maxiter=2)[0]
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_trees_jit_and_vmap(name):
    a = matrix_for(name)

    def apply(tree):
        y = a @ mw.numpy.concatenate([tree["u"], tree["v"]])
        return {"u": y[:3], "v": y[3:]}

    x = getattr(linalg, name)(apply, {"u": B[:3], "v": B[3:]})[0]
    expected = np.linalg.solve(a, B)
    np.testing.assert_allclose(x["v"], expected[3:], atol=1e-3)
    many = mw.jit(mw.vmap(lambda b: getattr(linalg, name)(a, b)[0]))(np.stack([B, 2 * B]))
    np.testing.assert_allclose(many, np.stack([expected, 2 * expected]), atol=2e-3)


@pytest.mark.parametrize("name", METHODS)
def test_derivatives(name):
    a = matrix_for(name)

    def loss(m, solve):
        return lambda a, b: (solve(lambda x: a @ x, b, tol=1e-6)[0] ** 2).sum()

    ours = mw.grad(loss(mw, getattr(linalg, name)), (0, 1))(a, B)
    theirs = jax.grad(lambda a, b: (jax.numpy.linalg.solve(a, b) ** 2).sum(), (0, 1))(a, B)
    for got, want in zip(ours, theirs):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-3)


def test_refused():
    with pytest.raises(mw.errors.ShapeError, match="square"):
        linalg.cg(np.ones((2, 3), "float32"), B)
    with pytest.raises(mw.errors.ShapeError, match="equal shapes"):
        linalg.cg(POSITIVE, B, x0=B[:3])
    with pytest.raises(mw.errors.ArgumentTypeError, match="one structure"):
        linalg.cg(POSITIVE, B, x0={"a": B})
    with pytest.raises(mw.errors.ArgumentError, match="solve_method"):
        linalg.gmres(GENERAL, B, solve_method="fast")
