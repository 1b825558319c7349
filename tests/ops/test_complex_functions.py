"""Functions of complex numbers: each part is right, however small beside the other."""

from fractions import Fraction

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

PARTS = [0.0, -0.0, 1e-30, -1e-30, 1e-17, -2e-4, 0.3, -0.5, 0.75**0.5, -1.0, -1 + 1e-7, 3.0, 40.0, 89.3, 710.5, -720.0]
SPECIAL = [0.0, -0.0, 2.5, np.inf, -np.inf, np.nan]


def _expm1(z):
    a, b = z.real, z.imag
    return np.expm1(a) * np.cos(b) - 2 * np.sin(b / 2) ** 2 + 1j * (np.exp(a) * np.sin(b))


def _log1p(z):
    """By the square of ``|1 + z|``, which is exact: rounded ones lose what cancels near the circle and near -1."""

    def log(a, b):
        square = (1 + Fraction(float(a))) ** 2 + Fraction(float(b)) ** 2
        near = abs(square - 1) < 0.5
        return (np.log1p(float(square - 1)) if near else np.log(float(square))) / 2

    real = [log(a, b) for a, b in zip(z.real, z.imag)]
    return np.array(real, z.real.dtype) + 1j * np.arctan2(z.imag, 1 + z.real)


EXACT = {"sin": np.sin, "cos": np.cos, "sinh": np.sinh, "cosh": np.cosh, "expm1": _expm1, "log1p": _log1p}


def _finite(dtype):
    largest = np.log(np.finfo(dtype).max) + 1
    return np.array([complex(a, b) for a in PARTS for b in PARTS if max(a, b) < largest], dtype)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", EXACT)
def test_each_part_is_right(name, dtype):
    z = _finite(dtype)
    with mw.enable_x64(True), np.errstate(all="ignore"):
        got = np.asarray(mw.jit(getattr(mnp, name))(z))
        want = EXACT[name](z.astype(np.clongdouble)).astype(dtype)
    kind = np.finfo(dtype)
    for part in ("real", "imag"):
        found, exact = getattr(got, part), getattr(want, part)
        below = (abs(exact) < kind.tiny) & (abs(found) <= kind.tiny)  # to XLA's CPU code such are 0
        finite = np.isfinite(exact) & ~below
        np.testing.assert_allclose(found[finite], exact[finite], rtol=20 * kind.eps)


@pytest.mark.parametrize("name", ["sin", "cos", "sinh", "cosh", "log1p"])
def test_values_at_infinities_are_numpys(name):
    z = np.array([complex(a, b) for a in SPECIAL for b in SPECIAL], np.complex64)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(z.astype(complex))
    got = np.asarray(getattr(mnp, name)(z))
    open_sign = np.isinf(want.real) & np.isnan(want.imag) | np.isnan(want.real) & np.isinf(want.imag)  # in C as well
    for part in ("real", "imag"):
        found, exact = (np.where(open_sign, abs(getattr(x, part)), getattr(x, part)) for x in (got, want))
        np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_a_product_that_is_finite_does_not_overflow():
    assert np.isclose(mnp.sinh(np.complex64(89 + 1e-3j)).imag, np.sinh(89.0) * 1e-3, rtol=1e-5)
    assert mnp.sin(np.complex64(0.5 + 1e-30j)).imag == np.float32(np.cos(0.5) * 1e-30)


def test_what_cancels_beside_the_circle():
    angles = np.linspace(0.1, 3.0, 40).astype(np.float32)
    z = (np.cos(angles) - 1 + 1j * np.sin(angles)).astype(np.complex64)
    want = _log1p(z.astype(np.complex128)).real
    np.testing.assert_allclose(np.asarray(mnp.log1p(z)).real, want, rtol=1e-6)


def test_angles_of_complex_points_are_those_of_jax():
    import jax

    rng = np.random.default_rng(0)
    y, x = ((rng.normal(size=8) + 1j * rng.normal(size=8)).astype(np.complex64) for _ in range(2))
    y[:3], x[:3] = (0, 0, 1), (1, -1, 0)
    np.testing.assert_allclose(mnp.arctan2(y, x), jax.numpy.arctan2(y, x), rtol=1e-6)
    for given in ((y, np.float32(2)), (np.float32(2), x)):
        np.testing.assert_allclose(mnp.arctan2(*given), jax.numpy.arctan2(*given), rtol=1e-6)

    def real_part(library):
        return lambda y, x: library.sum(library.real(library.arctan2(y, x)))

    for got, want in zip(
        mw.grad(real_part(mnp), (0, 1))(y, x), jax.grad(real_part(jax.numpy), (0, 1))(y, x), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
