"""Interpolation, images and minimization against SciPy at float64; derivatives as jax has them."""

from __future__ import annotations

import jax
import jax.scipy.ndimage as jn
import numpy as np
import pytest
import scipy.interpolate as si
import scipy.ndimage as sn
import scipy.optimize as so

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.scipy.interpolate as mi
import meshwright.scipy.ndimage as mn
import meshwright.scipy.optimize as mo
from meshwright import errors

RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(5, 7))
PLACES = RNG.uniform(-6, 13, size=(2, 3, 40))


@pytest.fixture(autouse=True)
def wide():
    with mw.enable_x64(True), jax.enable_x64(True):
        yield


@pytest.mark.parametrize("mode", ["constant", "nearest", "wrap", "mirror", "reflect"])
@pytest.mark.parametrize("order", [0, 1])
def test_coordinates(mode, order):
    got = mn.map_coordinates(IMAGE, PLACES, order, mode, 2.0)
    np.testing.assert_allclose(got, jn.map_coordinates(IMAGE, PLACES, order, mode, 2.0), atol=1e-12)
    if mode in ("nearest", "mirror", "reflect"):
        np.testing.assert_allclose(got, sn.map_coordinates(IMAGE, PLACES, order=order, mode=mode), atol=1e-12)
    if order:
        slopes = mw.grad(lambda x, c: (mn.map_coordinates(x, c, 1, mode) ** 2).sum(), (0, 1))(IMAGE, PLACES)
        wanted = jax.grad(lambda x, c: (jn.map_coordinates(x, c, 1, mode) ** 2).sum(), (0, 1))(IMAGE, PLACES)
        for a, b in zip(slopes, wanted):
            np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_])
def test_halves_are_rounded_away_from_zero(dtype):
    line, places = (np.arange(8) * 3 % 7).astype(dtype), [np.arange(-1.5, 6.5, 0.5)]
    for mode in ("constant", "nearest", "reflect"):
        got = mn.map_coordinates(line, places, 0, mode)
        np.testing.assert_array_equal(got, jn.map_coordinates(line, places, 0, mode))
        np.testing.assert_array_equal(got, sn.map_coordinates(line, places, order=0, mode=mode))
    signed = line.astype(np.int8) - np.int8(3)
    for values in (signed, np.array([-3, -2, 0, 1, 2, 5], np.int32)):
        got = mn.map_coordinates(values, places, 1, "nearest")
        np.testing.assert_array_equal(got, jn.map_coordinates(values, places, 1, "nearest"))


def test_coordinates_of_integers():
    image = RNG.integers(0, 9, (4, 3))
    got = mn.map_coordinates(image, PLACES, 1, "nearest")
    assert got.dtype == image.dtype
    np.testing.assert_array_equal(got, jn.map_coordinates(image, PLACES, 1, "nearest"))


@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("fill", [np.nan, None])
def test_grids(method, fill):
    axes = np.array([0, 0.7, 2.0, 2.5, 4]), np.linspace(-1, 1, 7)
    points = np.stack([RNG.uniform(-0.5, 4.5, (6, 9)), RNG.uniform(-1.2, 1.2, (6, 9))], -1)
    for values in (IMAGE, RNG.normal(size=(5, 7, 2))):
        ours = mi.RegularGridInterpolator(axes, values, method, False, fill)
        theirs = si.RegularGridInterpolator(axes, values, method, False, fill)
        np.testing.assert_allclose(ours(points), theirs(points), atol=1e-12)
        np.testing.assert_allclose(mw.jit(lambda f, x: f(x))(ours, points), theirs(points), atol=1e-12)


def rosenbrock(x, scale=100.0):
    return (scale * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def test_minimum():
    start = np.array([-1.2, 1.0, 0.3])
    found = mo.minimize(rosenbrock, start, method="BFGS")
    wanted = so.minimize(rosenbrock, start, method="BFGS", tol=1e-8)
    assert found.success and found.status == 0 and found.nit < 3 * wanted.nit
    np.testing.assert_allclose(found.x, np.ones(3), atol=1e-6)
    many = mw.vmap(lambda s: mo.minimize(rosenbrock, start, (s,), method="BFGS").x)(np.array([1.0, 10.0]))
    np.testing.assert_allclose(many, np.ones((2, 3)), atol=1e-5)
    short = mo.minimize(rosenbrock, start, method="BFGS", options={"maxiter": 2})
    assert not short.success and short.status == 1 and short.nit == 2


def test_minimum_that_does_not_exist():
    found = mw.jit(lambda x: mo.minimize(lambda v: mnp.sum(v), x, method="BFGS"))(np.zeros(2))
    assert not found.success


def test_misuse(refuses):
    with refuses(errors.ShapeError, "map_coordinates", "2 coordinates"):
        mn.map_coordinates(IMAGE[0], PLACES, 1)
    with refuses(errors.ArgumentError, "map_coordinates", "order"):
        mn.map_coordinates(IMAGE, PLACES, 3)
    with refuses(errors.ShapeError, "RegularGridInterpolator", "(5, 7)"):
        mi.RegularGridInterpolator((np.arange(4),), IMAGE)
    with refuses(errors.ArgumentError, "minimize", "BFGS", "'newton'"):
        mo.minimize(rosenbrock, np.zeros(2), method="newton")
    with refuses(errors.ShapeError, "minimize", "vector"):
        mo.minimize(rosenbrock, np.zeros((2, 2)), method="BFGS")
