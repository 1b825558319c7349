"""Complex functions at infinities, NaN and signed zeros, against the C library's (through NumPy)."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.transforms.autodiff import jvp

SPECIAL = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan]
POINTS = np.array([complex(a, b) for a in SPECIAL for b in SPECIAL]).astype(np.complex64)
NUMPY_NAMES = {f"a{f}": f"arc{f}" for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh")}
#: points where C99 leaves a sign or a NaN open, or where NumPy has a formula of its own (expm1)
OPEN = {
    "cosh": [(0, np.inf), (0, np.nan)], "sinh": [(np.inf, np.inf), (np.inf, np.nan)], "atanh": [(np.nan, np.inf)],
    "sin": [(np.inf, np.inf), (np.nan, np.inf)], "cos": [(np.inf, 0), (np.nan, 0), (0, np.nan)],
    "expm1": [(0, 0), (np.inf, 0), (np.inf, np.inf), (np.inf, np.nan), (np.nan, 0)],
}  # fmt: skip


def kind(x: np.ndarray) -> np.ndarray:
    """NaN, or a sign and whether zero, finite or infinite."""
    size = np.where(x == 0, 1, np.where(np.isinf(x), 3, 2))
    return np.where(np.isnan(x), 0, np.where(np.signbit(x), -size, size))


@pytest.mark.parametrize(
    "name", "exp expm1 log log1p sqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh".split()
)
def test_values_are_those_of_c99(name: str) -> None:
    open_points = OPEN.get(name, [])
    z = POINTS[[not any(np.array_equal(np.abs([p.real, p.imag]), q, True) for q in open_points) for p in POINTS]]
    ours = np.asarray(getattr(mnp, name)(z))
    with np.errstate(all="ignore"):
        want = getattr(np, NUMPY_NAMES.get(name, name))(z)
    for part in ("real", "imag"):
        got, expected = getattr(ours, part), getattr(want, part)
        wrong = kind(got) != kind(expected)
        assert not wrong.any(), f"{name}: {list(zip(z[wrong], ours[wrong], want[wrong]))}"
        finite = np.isfinite(expected)
        np.testing.assert_allclose(got[finite], expected[finite], 2e-5, 1e-6)


def test_derivatives_on_the_real_axis_are_complex_derivatives() -> None:
    for f, derivative in ((mnp.sqrt, lambda z: 0.5 / np.sqrt(z)), (mnp.sin, np.cos), (mnp.exp, np.exp)):
        z = np.array([2.0, 0.5, 3.0 + 1j, 1.0 - 2j], np.complex64)
        for t in (1.0, 1j):
            _, tangent = jvp(f, (z,), (np.full(4, t, np.complex64),))
            np.testing.assert_allclose(np.asarray(tangent), derivative(z) * t, 1e-5)


def test_signs_of_zero_and_quotients_of_infinities() -> None:
    inf = np.inf
    x = np.array([-0.0, -0.0, inf, inf, -inf, 1.0, -1.0, -1.0, 7.5, -7.5], np.float32)
    y = np.array([1.0, -1.0, 2.0, -2.0, 2.0, -inf, inf, -inf, 2.0, 2.0], np.float32)
    want = np.array(
        [-0.0, 0.0, np.nan, np.nan, np.nan, -1.0, -1.0, 0.0, 3.0, -4.0], np.float32
    )  # as Python's and NumPy's
    got = np.asarray(mnp.floor_divide(x, y))
    np.testing.assert_array_equal(got, want)
    known = want == want
    assert (np.signbit(got) == np.signbit(want))[known].all()
    zeros = np.asarray(mnp.remainder(np.array([-0.0, 0.0, 4.0, -4.0], "f"), np.array([3.0, -3.0, -2.0, 2.0], "f")))
    assert (zeros == 0).all() and np.signbit(zeros).tolist() == [False, True, True, False]
    signs = np.asarray(mnp.sign(np.array([-0.0, 0.0, -3.0, np.nan], "f")))
    assert not np.signbit(signs[:2]).any() and signs[2] == -1 and np.isnan(signs[3])


def test_far_out_the_hyperbolic_tangent_is_one() -> None:
    """The standard wants 1 + 0j there, whatever the sine of the imaginary part is."""
    z = np.array([complex(np.inf, 2.0), complex(np.inf, -2.0), complex(-np.inf, 5.0)], np.complex64)
    got = np.asarray(mnp.tanh(z))
    np.testing.assert_array_equal(got, [1, 1, -1])
    assert np.signbit(got.imag).tolist() == [False, True, False]


def test_complex_counts_have_absolute_values():
    """XLA's simplification of them ends the process."""
    got = mw.jit(lambda: mnp.abs(mw.lax.iota(np.complex64, 5)))()
    np.testing.assert_array_equal(got, np.arange(5, dtype=np.float32), strict=True)
